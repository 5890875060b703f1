"""Attribution: where every tick of every rank went.

Each rank's compute stream is either busy or idle. Busy time counts as what the row's template says; idle time is charged to
what ended it:

* before a pipeline action: the transfer it waited for, from the moment the data was ready, counts as that transfer's part (``exposed_pp``
  for a message, ``exposed_dp`` for a gather of parameters or a reduction of gradients), and so for the transfer that held up this one;
  all earlier idle time is ``bubble``, waiting for another stage to compute;
* after a rank's last action: what its own gradient collectives and copies to the host cover is ``exposed_dp``, what an optimizer on its
  host covers ``optimizer``; what lies before the last pipeline action anywhere is ``bubble``; of the rest what any rank's cover is
  counted likewise, and what remains ``other`` (waiting for a slower optimizer);
* after the last row of all, where links need longer than transfers that do not meet (`Program.least`): the communication that needs it.

The parts of a rank are whole ticks and sum to the step time exactly. `idle_waits` gives the same idle time as intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.program import Stream
from mpsim.program.csr import owners
from mpsim.result.intervals import Cover, Gaps, idle_gaps
from mpsim.result.waits import Waits, waits_before
from mpsim.training.vocabulary import PARTS, PIPELINE, Kind

Floats = NDArray[np.float64]

_DP, _BUBBLE, _OPTIMIZER, _OTHER = (
    PARTS.index(name) for name in ("exposed_dp", "bubble", "optimizer", "other")
)
_DATA = (Stream.DP, Stream.REPLICA, Stream.EDP, Stream.COPY, Stream.HOST)
"""Streams on which model states move or are updated."""


def attribute(timeline: Timeline) -> NDArray[np.float64]:
    """Split the step time of every rank class into `PARTS`.

    Returns
    -------
    float64[R, len(PARTS)]
        Ticks; every row sums to the makespan.
    """
    result = timeline.program.busy_parts.copy()
    idle_waits(timeline).add_to(result)
    return result


def idle_waits(timeline: Timeline) -> Waits:
    """Split the idle time of every rank class into intervals of one part each.

    Returns
    -------
    Waits
        They fill all the time in which compute streams run nothing.
    """
    gaps = idle_gaps(timeline)
    is_pipeline = np.isin(timeline.program.kind, PIPELINE)
    before_action = (gaps.row >= 0) & is_pipeline[np.maximum(gaps.row, 0)]
    before = waits_before(timeline, gaps.where(before_action), _BUBBLE)
    flush = float(timeline.end[is_pipeline].max(initial=0.0))
    return Waits.join([before, *_waits_at_end(timeline, gaps.where(~before_action), flush)])


def _waits_at_end(timeline: Timeline, gaps: Gaps, flush: float) -> Iterator[Waits]:
    """Charge idle time after the last action of a rank; the last of all ends at `flush`."""
    program = timeline.program
    held = timeline.last  # what lies behind the last row waits for links to have carried all
    states = _States(timeline)
    for rank in sorted(set(gaps.rank.tolist())):
        mine = gaps.rank == rank
        start, end = gaps.start[mine], np.minimum(gaps.end[mine], held)
        if timeline.makespan > held:
            yield _held(rank, np.maximum(start, end), gaps.end[mine], program.least_part)
        split = np.clip(flush, start, end)
        # most ranks have nothing to cut in one of the two
        if (split > start).any():
            yield _labelled(rank, start, split, states.of(rank), _BUBBLE)
        if (end > split).any():
            yield _labelled(rank, split, end, states.anybody, _OTHER)


def _held(rank: int, start: Floats, end: Floats, part: int) -> Waits:
    """Waits of one rank for links to have carried all they were given."""
    some = end > start
    count = int(some.sum())
    none = np.full(count, -1)
    return Waits(np.full(count, rank), start[some], end[some], np.full(count, part), none)


def _labelled(
    rank: int, start: Floats, end: Floats, covers: tuple[Cover, Cover], rest: int
) -> Waits:
    """Cut windows of one rank into pieces in which states move, in which they are updated, and the `rest`."""
    moving, working = covers
    edges = np.sort(
        np.concatenate([start, end, moving.start, moving.end, working.start, working.end])
    )
    # not numpy.unique, which imports masked arrays: 6 ms of a start
    edges = edges[np.diff(edges, prepend=-np.inf) > 0]
    since, until = edges[:-1], edges[1:]
    # between two edges nothing changes, so the middle says it for all
    middle = (since + until) / 2
    moves, works, wanted = (
        cover.contains(middle) for cover in (moving, working, Cover(start, end))
    )
    part = np.where(moves, _DP, np.where(works, _OPTIMIZER, rest))[wanted]
    since, until = since[wanted], until[wanted]
    none = np.full(len(part), -1)
    return Waits(np.full(len(part), rank), since, until, part, none)


class _States:
    """Rows that move or update model states beside the compute stream."""

    def __init__(self, timeline: Timeline) -> None:
        program = timeline.program
        chosen = np.isin(program.slot % len(Stream), _DATA)
        rank, row = program.slot[chosen] // len(Stream), owners(program.slot_ptr)[chosen]
        order = np.argsort(rank, kind="stable")
        self._rank, self._row = rank[order], row[order]
        self._timeline = timeline

    def of(self, rank: int) -> tuple[Cover, Cover]:
        """Intervals of the rows of one rank, as `_covers` has them."""
        return self._covers(self._row[slice(*np.searchsorted(self._rank, [rank, rank + 1]))])

    @functools.cached_property
    def anybody(self) -> tuple[Cover, Cover]:
        """Intervals of the rows of all ranks."""
        return self._covers(self._row)

    def _covers(self, rows: NDArray[np.int64]) -> tuple[Cover, Cover]:
        """Intervals in which any of `rows` moves states, and in which any moves or updates them."""
        start, end = self._timeline.start[rows], self._timeline.end[rows]
        moves = (self._timeline.program.kind[rows] == Kind.COLLECTIVE) & (end > start)
        works = end > start
        moving = Cover(start[moves], end[moves])
        return moving, moving if (moves == works).all() else Cover(start[works], end[works])
