"""The replay engine, and the steady state of a step: what repeats itself in its middle is walked
once, however often it comes.

Between warm-up and flush a pipeline repeats itself every so many microbatches (a *period*). Where
everything that ends within some time of a short step comes again that time later, and the orders of
a step one period longer have the same actions once more at that place, any number of periods can be
inserted there. Ticks of the long step are then those of the short one and a multiple of that time.

Shapes: N rows, A rows that come again, R ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.engine.chains import Chains, deadlock, precedence
from mpsim.engine.timeline import Timeline
from mpsim.program.csr import stable_order
from mpsim.program.program import Program
from mpsim.schedule import Orders


class Fold(NamedTuple):
    """The period of a short step that comes again."""

    timeline: Timeline  # of the short step
    rows: Ints  # rows that end in the period
    since: float  # since, until: when it begins and ends [ticks]
    until: float

    @property
    def ticks(self) -> float:
        """How long a period takes."""
        return self.until - self.since

    def counted(self, further: int) -> Timeline:
        """The short step, in which rows of the period count as often as with `further` ones."""
        times = np.ones(len(self.timeline.program))
        times[self.rows] += further
        program = structs.replace(self.timeline.program, times=times)
        return structs.replace(self.timeline, program=program)

    def whole(self, program: Program, further: int) -> Timeline:
        """The timeline of `program`, the step with `further` periods: each row of it ends as its
        like in the short one, later by the periods that have passed.
        """
        short, (rows, homes) = self.timeline, _by_stream(program)
        row, home = _by_stream(short.program)
        inside = np.zeros(len(row), dtype=bool)
        inside[self.rows] = True
        width = int(max(home.max(), homes.max())) + 1
        count, size = np.bincount(home, minlength=width), np.bincount(homes, minlength=width)
        done = np.bincount(home[short.end[row] < self.until], minlength=width)
        again = np.bincount(home[inside[row]], minlength=width)
        assert (size == count + further * again).all(), "the whole step has these periods more"
        place = np.arange(len(rows)) - (np.cumsum(size) - size)[homes]
        beyond = place - done[homes]
        passed = np.where(again[homes] > 0, beyond // np.maximum(again, 1)[homes] + 1, further)
        passed = np.where(beyond < 0, 0, np.minimum(passed, further))
        like = row[(np.cumsum(count) - count)[homes] + place - passed * again[homes]]
        start = np.empty(len(rows))
        start[rows] = short.start[like] + passed * self.ticks
        return Timeline(program, start, start + program.duration, short.engine)


def folded(timeline: Timeline, short: Orders, longer: Orders, period: int) -> Fold | None:
    """Where further periods can be inserted; None where nothing shows that they can. `short` and
    `longer`: orders of this step, and of one a period longer.

    Notes
    -----
    A row starts at the latest end of what it waits for, and waits for nothing that ends later. So a
    step with a period inserted runs as this one does where each row waits for the like of what it
    waited for a period before, or for what ended long ago.
    """
    program, end = timeline.program, timeline.end
    like = _likes(timeline, short, period)
    once = np.ones(len(program), dtype=bool)
    once[like.row] = False
    breaks = np.sort(np.append(end[once], 0.0))
    # the longest time, by what ends in it, in which everything comes again
    between = np.bincount(np.searchsorted(breaks, end[like.row], "right"))[1 : len(breaks)]
    if not like.ticks or not len(between):
        return None
    longest = int(np.argmax(between))
    before, until = breaks[longest : longest + 2].tolist()
    since = until - like.ticks
    inside = np.flatnonzero((end >= since) & (end < until))
    # what runs at the end of the period ran at its begin
    running = (timeline.start < until) & (end >= until)
    ends = end[like.row]
    running[like.later[(ends >= since) & (ends < until)]] = False
    if since <= before or running.any() or _waits_longer(timeline, before, since):
        return None
    _, acts = program.actions
    done = np.bincount(program.rank[acts[end[acts] < until]], minlength=program.ranks)
    fold = Fold(timeline, inside, since, until)
    return fold if _inserted(short, longer, done, period) else None


class _Likes(NamedTuple):
    """Rows that come again, and those that they are then, some ticks later [A]."""

    row: Ints
    later: Ints
    ticks: float


_ALIKE = ("peer", "stage", "chunk", "kind", "template", "duration", "up_bytes", "out_bytes", "size")


def _likes(timeline: Timeline, orders: Orders, period: int) -> _Likes:
    """Find what comes again a period later, as many rows of its stream behind."""
    program, (row, home) = timeline.program, _by_stream(timeline.program)
    # rows of a period in the middle, as data parallelism may cut the first and last actions
    middle, turn = (orders.microbatches - period) // 2, program.microbatch[row]
    inside = (turn >= middle) & (turn < middle + period)
    later = np.arange(len(row)) + np.bincount(home, weights=inside).astype(np.int64)[home]
    place = np.flatnonzero(later < len(row))
    place = place[home[later[place]] == home[place]]
    here, there = row[place], row[later[place]]
    alike = (program.microbatch[here] >= 0) & (there > here)
    alike &= program.microbatch[there] == program.microbatch[here] + period
    for name in _ALIKE:
        column = getattr(program, name)
        alike &= column[there] == column[here]
    start, end = timeline.start, timeline.end
    took = end[there] - end[here]
    # most of a step is steady, where what comes again does after one time
    passed = np.sort(took[alike])
    ticks = float(passed[len(passed) // 2]) if len(passed) else 0.0
    alike &= (took == ticks) & (start[there] - start[here] == ticks)
    return _Likes(here[alike], there[alike], ticks)


def _waits_longer(timeline: Timeline, before: float, since: float) -> bool:
    """Whether what ends after `since` waits for a microbatch's row that ended by `before`."""
    program, end = timeline.program, timeline.end
    row, awaited = program.waits()
    far = (end[row] >= since) & (end[awaited] <= before) & (program.microbatch[awaited] >= 0)
    # the order of a stream says so anyway
    home = program.home
    far[: len(program.dep)] &= (home[row] != home[awaited])[: len(program.dep)]
    return bool(far.any())


def _inserted(short: Orders, longer: Orders, done: Ints, period: int) -> bool:
    """Whether the longer orders are the short ones with the last actions of `done` (int64[R]) of
    each rank once more, a period later.
    """
    rank, more = short.rank, np.diff(longer.rank_ptr) - np.diff(short.rank_ptr)
    place = np.arange(len(short)) - short.rank_ptr[rank]
    there = longer.rank_ptr[rank] + place

    def same(chosen: Ints, at: Ints, later: int) -> bool:
        alike = longer.microbatch[at] - short.microbatch[chosen] == later
        for name in ("stage", "kind", "fused"):
            alike &= getattr(longer, name)[at] == getattr(short, name)[chosen]
        return bool(alike.all())

    first = np.flatnonzero(place < done[rank])
    last = np.flatnonzero(place >= (done - more)[rank])
    fits = bool(((more > 0) & (more <= done)).all())
    return fits and same(first, there[first], 0) and same(last, (there + more[rank])[last], period)


def _by_stream(program: Program) -> tuple[Ints, Ints]:
    """Rows by home stream, in its order, and the stream of each."""
    home = program.home
    row = stable_order(home)
    return row, home[row]


def run_replay(program: Program) -> Timeline:
    """Evaluate `program` once, chain by chain: an operation starts at the latest end of what it
    waits for. DeadlockError if operations wait for each other.

    Returns Timeline: equal, bit for bit, to that of the simpy engine.
    """
    chains = Chains.of(program)
    ends = chains.run(program.duration)
    end = ends[chains.last]
    if len(end) and end.min() < 0:
        raise deadlock(program, precedence(program), end >= 0)
    return Timeline(program=program, start=chains.starts(ends), end=end, engine="replay")
