"""Communication: how long ranks communicate over each axis, and how much of it runs beside kernels.

Hidden is the time in which a transfer of a rank runs while a kernel runs on that rank; exposed is
the rest of the time it runs. Unlike the parts of the step (`mpsim.training.result`), these count
every transfer by itself: two at once count twice, and nobody may wait for what is exposed here.

Shapes: R rank classes, A axes, Q kernels of a template, W windows of time, B spans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine.cover import Cover
from mpsim.engine.timeline import Timeline
from mpsim.memo import remembered
from mpsim.parallel.axes import AXIS_NAMES, AXIS_OF_STREAM
from mpsim.program import COLLECTIVE, Stream, Template
from mpsim.program.csr import stable_order

_EXACT = 2.0**53  # up to here whole ticks are exact
_TOGETHER = 1 << 12  # transfers that are looked at together


@structs.dataclass(frozen=True, slots=True, eq=False)
class CommunicationTime:
    """Time in which ranks communicate."""

    # float64[R, 2, A], ticks of each rank class, hidden and exposed, by
    # `mpsim.parallel.axes.AXIS_NAMES`; their sum is the time that transfers run
    both: Floats

    @property
    def hidden(self) -> Floats:
        """Ticks beside kernels [R, A]."""
        return self.both[:, 0]

    @property
    def exposed(self) -> Floats:
        """All other ticks [R, A]."""
        return self.both[:, 1]


class Over(NamedTuple):
    """Axes that a program communicates over, where they are not those of its streams."""

    axis: Ints  # of each of its slots, -1 where it is none of a transfer
    axes: int


def communication_time(timeline: Timeline, over: Over | None = None) -> CommunicationTime:
    """Measure a finished step, of a program with templates or, with axes of its own, without."""
    program = timeline.program
    axis, axes = over or Over(AXIS_OF_STREAM[program.slots.stream], len(AXIS_NAMES))
    busy = _Busy(timeline)
    total, hidden = np.zeros((2, program.ranks, axes))
    if busy.inside:
        total += program.counts @ busy.inside.total
        hidden += program.counts @ busy.inside.hidden
    row = program.slots.row
    # rows with transfers of their own, by rank and stream, where moments ascend
    moves = np.flatnonzero((axis >= 0) & (program.duration[row] > 0))
    moves = moves[stable_order(program.slot[moves])]
    bounds = np.searchsorted(program.slots.rank[moves], np.arange(program.ranks + 1)).tolist()
    # some ranks at a time: arrays of all at once leave the caches of a processor
    step = max(1, min(busy.most, _TOGETHER * program.ranks // (len(moves) + 1)))
    for begin in range(0, program.ranks, step):
        ranks = slice(begin, min(begin + step, program.ranks))
        mine = moves[bounds[ranks.start] : bounds[ranks.stop]]
        rank = program.slots.rank[mine]
        start, end = timeline.start[row[mine]], timeline.end[row[mine]]
        before = busy.until(ranks, np.tile(rank, 2), np.concatenate([start, end]))
        took = end - start, before[len(mine) :] - before[: len(mine)]
        place, times = (rank - begin) * axes + axis[mine], program.times_of(row[mine])
        for sums, ticks in zip((total[ranks], hidden[ranks]), took, strict=True):
            sums += np.bincount(place, ticks * times, sums.size).reshape(sums.shape)
    return CommunicationTime(np.stack([hidden, total - hidden], axis=1))


def kernel_share(timeline: Timeline, edges: Floats) -> Floats:
    """Share of each span of time in which kernels of each rank class run, waits inside actions left
    out. `edges` (float64[B + 1]): edges of spans, ascending [ticks].

    Returns float64[R, B]: in [0, 1].
    """
    busy = _Busy(timeline)
    ran = [
        np.diff(busy.until(slice(rank, rank + 1), np.full(len(edges), rank), edges))
        for rank in range(timeline.program.ranks)
    ]
    return np.clip(np.stack(ran) / np.diff(edges), 0.0, 1.0)


class _Inside:
    """The kernels inside templates, and their transfers by axis.

    Templates stand one after the other on one axis of time, a tick apart, so that few array
    operations serve them all; ticks are whole, so nothing is rounded.

    Attributes
    ----------
    whole : float64[M]
        Time in which kernels of each template run [ticks].
    total, hidden : float64[M, A]
        Time of its transfers, and what of it runs beside kernels [ticks].
    """

    def __init__(self, templates: tuple[Template, ...], host: int) -> None:
        count = [len(template.start) for template in templates]
        columns = ("start", "duration", "stream", "part")
        start, duration, stream, part = (
            np.concatenate([getattr(template, name) for template in templates]) for name in columns
        )
        owner = np.repeat(np.arange(len(templates)), count)
        self._span = np.array([template.ticks for template in templates])
        np.maximum.at(self._span, owner, start + duration)
        self._base = np.cumsum(self._span + 1.0) - (self._span + 1.0)
        start = start + self._base[owner]
        end = start + duration
        kernels = (stream == Stream.COMPUTE) & (part != host)
        self._cover = Cover(start[kernels], end[kernels])
        self._before = self._cover.until(self._base)
        self.whole = self._cover.until(self._base + self._span) - self._before
        axis = AXIS_OF_STREAM[stream]
        moves = np.flatnonzero(axis >= 0)
        place = owner[moves] * len(AXIS_NAMES) + axis[moves]
        took = duration[moves], self._cover.within(start[moves], end[moves])
        size = len(templates) * len(AXIS_NAMES)
        self.total, self.hidden = (
            np.bincount(place, weights=ticks, minlength=size).reshape(len(templates), -1)
            for ticks in took
        )

    def until(self, template: NDArray[np.int32], since: Floats) -> Floats:
        """Time in which kernels of each template have run so long after it began [W]."""
        base = self._base[template]
        passed = np.minimum(since, self._span[template])
        return self._cover.until(base + passed) - self._before[template]


@remembered(64)  # points of a sweep share templates
def _inside(templates: tuple[Template, ...], host: int) -> _Inside | None:
    return _Inside(templates, host) if templates else None


class _Busy:
    """The intervals in which kernels run on each rank.

    Attributes
    ----------
    inside : _Inside, optional
        Of templates, where the program has some.
    most : int
        Ranks that are looked at together.
    """

    def __init__(self, timeline: Timeline) -> None:
        program = timeline.program
        self._rank, row = program.compute_rows
        self._first = np.searchsorted(self._rank, np.arange(program.ranks + 1))
        self._span = timeline.makespan + 1.0
        self.most = int(_EXACT / self._span)
        self._start, self._end, self._template = (
            column[row] for column in (timeline.start, timeline.end, program.template)
        )
        host = program.vocabulary.part("host")
        self.inside = _inside(program.templates, host)
        kernel = (program.kind[row] != COLLECTIVE) & (program.part[row] != host)
        self._plain = (self._template < 0) & kernel
        took = np.where(self._plain, self._end - self._start, 0.0)
        if self.inside:
            # rows without a template have the last, and add nothing
            took += np.where(self._template >= 0, self.inside.whole[self._template], 0.0)
        self._took = took
        # whole ticks of all ranks together may be more than a float counts
        after = np.cumsum(took, dtype=np.int64)
        before = np.append(0, after)[self._first[self._rank]]
        self._after = (after - before).astype(np.float64)

    def until(self, ranks: slice, rank: Ints, time: Floats) -> Floats:
        """Time in which kernels of a rank have run before a moment of the step. `ranks`: at most
        `most`. `rank` (int64[W]): among these. `time` (float64[W]): moment of each.
        """
        first, last = self._first[ranks.start], self._first[ranks.stop]
        # ranks stand one after the other on one axis of time, in whole ticks
        at, axis, own = time, self._start[first:last], first
        if ranks.stop > ranks.start + 1:
            at = time + (rank - ranks.start) * self._span
            axis = axis + (self._rank[first:last] - ranks.start) * self._span
            own = self._first[rank]
        row = np.searchsorted(axis, at, side="right") + (first - 1)
        # what has begun of another rank only stands before it
        result: Floats = np.where(row >= own, self._after[row], 0.0)
        # most transfers begin and end with a row, where there is nothing to look up inside it
        amid = np.flatnonzero((result > 0) & (time < self._end[row]))
        row = row[amid]
        since = time[amid] - self._start[row]
        ran = np.where(self._plain[row], since, 0.0)
        if self.inside:
            template = self._template[row]
            tiled = np.flatnonzero(template >= 0)
            ran[tiled] = self.inside.until(template[tiled], since[tiled])
        result[amid] += ran - self._took[row]
        return result
