"""Communication: how long ranks communicate over each axis, and how much of it runs beside kernels.

Hidden is the time in which a transfer of a rank runs while a kernel runs on that rank; exposed is
the rest of the time it runs. Unlike the parts of the step (`mpsim.training.account`), these count
every transfer by itself: two at once count twice, and nobody may wait for what is exposed here.

Shapes: R rank classes, A axes, Q kernels of a template, W windows of time, B spans.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.memo import remembered
from mpsim.parallel.axes import AXIS_NAMES, AXIS_OF_STREAM
from mpsim.program import COLLECTIVE, Stream, Template
from mpsim.program.csr import stable_order
from mpsim.result.intervals import Cover

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CommunicationTime:
    """Time in which ranks communicate."""

    # hidden, exposed: float64[R, A], ticks of each rank class, by `mpsim.parallel.axes.AXIS_NAMES`;
    # their sum is the time that transfers run
    hidden: Floats
    exposed: Floats


def communication_time(timeline: Timeline) -> CommunicationTime:
    """Measure a finished step, of a program with templates or without."""
    program = timeline.program
    busy = _Busy(timeline)
    rank, row = program.compute_rows
    template = program.template[row]
    total, hidden = np.zeros((2, program.ranks, len(AXIS_NAMES)))
    if busy.inside:
        chosen, kinds = template >= 0, len(program.templates)
        place, size = rank[chosen] * kinds + template[chosen], program.ranks * kinds
        count = np.bincount(place, minlength=size).reshape(-1, kinds).astype(float)
        total += count @ busy.inside.total
        hidden += count @ busy.inside.hidden
    # rows with transfers of their own, by rank
    row, axis = program.slots.row, AXIS_OF_STREAM[program.slots.stream]
    moves = np.flatnonzero((axis >= 0) & (program.duration[row] > 0))
    rank = program.slots.rank[moves]
    moves = moves[stable_order(rank)]
    bounds = np.cumsum(np.bincount(rank, minlength=program.ranks)).tolist()
    # one rank after the other: arrays of all at once leave the caches of a processor
    for number, (first, last) in enumerate(itertools.pairwise([0, *bounds])):
        mine, along = row[moves[first:last]], axis[moves[first:last]]
        start, end = timeline.start[mine], timeline.end[mine]
        before = busy.until(number, np.concatenate([start, end]))
        took = end - start, before[len(start) :] - before[: len(start)]
        for sums, ticks in zip((total, hidden), took, strict=True):
            sums[number] += np.bincount(along, weights=ticks, minlength=len(AXIS_NAMES))
    return CommunicationTime(hidden, total - hidden)


def kernel_share(timeline: Timeline, edges: Floats) -> Floats:
    """Share of each span of time in which kernels of each rank class run, waits inside actions left
    out. `edges` (float64[B + 1]): edges of spans, ascending [ticks].

    Returns float64[R, B]: in [0, 1].
    """
    busy = _Busy(timeline)
    ran = [np.diff(busy.until(rank, edges)) for rank in range(timeline.program.ranks)]
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
        self._span = np.array([template.parts.sum() for template in templates])
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
    """

    def __init__(self, timeline: Timeline) -> None:
        program = timeline.program
        rank, row = program.compute_rows
        self._first = np.searchsorted(rank, np.arange(program.ranks + 1))
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
        self._before = np.concatenate([[0], np.cumsum(took, dtype=np.int64)])

    def until(self, rank: int, time: Floats) -> Floats:
        """Time in which kernels of a rank have run before each of `time` [W]."""
        first, last = self._first[rank : rank + 2].tolist()
        begun = np.searchsorted(self._start[first:last], time, side="right")
        before = (self._before[first : last + 1] - self._before[first]).astype(np.float64)
        result: Floats = before[begun]
        # most transfers begin and end with a row, where there is nothing to look up inside it
        ends = np.concatenate([[-np.inf], self._end[first:last]])
        amid = np.flatnonzero(time < ends[begun])
        row = first - 1 + begun[amid]
        since = time[amid] - self._start[row]
        ran = np.where(self._plain[row], since, 0.0)
        if self.inside:
            tiled = np.flatnonzero(self._template[row] >= 0)
            ran[tiled] = self.inside.until(self._template[row[tiled]], since[tiled])
        result[amid] += ran - self._took[row]
        return result
