"""Communication: how long ranks communicate over each axis, and how much of it runs beside kernels.

Hidden is the time in which a message or collective of a rank runs while a kernel runs on that rank; exposed is the rest of the time it runs. Unlike the
parts of the step (`mpsim.training.account`), these count every transfer by itself: two at once count twice, and what is exposed here may still be
waited for by nobody.

Shapes: R rank classes, A axes, Q kernels of a template, W windows of time, B spans.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.memo import remembered
from mpsim.parallel.axes import AXIS_NAMES
from mpsim.program import COLLECTIVE, Program, Stream, Template
from mpsim.program.csr import owners
from mpsim.program.devices import AXIS_OF_STREAM
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
    total, hidden = np.zeros((2, program.ranks, len(AXIS_NAMES)))
    host = program.vocabulary.part("host")
    inside = _inside(program.templates, host)
    rank, row = program.compute_rows
    template = program.template[row]
    if inside:
        chosen = template >= 0
        count = np.zeros((program.ranks, len(program.templates)))
        np.add.at(count, (rank[chosen], template[chosen]), 1.0)
        total += count @ inside.total
        hidden += count @ inside.hidden
    windows = _windows(program)
    begins = np.searchsorted(rank, np.arange(program.ranks + 1))
    for number, (first, last) in enumerate(itertools.pairwise(begins.tolist())):
        mine, axis = windows[number]
        busy = _Busy(timeline, row[first:last], inside)
        start, end = timeline.start[mine], timeline.end[mine]
        np.add.at(total[number], axis, end - start)
        np.add.at(hidden[number], axis, busy.within(start, end))
    return CommunicationTime(hidden, total - hidden)


def kernel_share(timeline: Timeline, edges: Floats) -> Floats:
    """Share of each span of time in which kernels of each rank class run, waits inside actions left
    out. `edges` (float64[B + 1]): edges of spans, ascending [ticks].

    Returns
    -------
    float64[R, B]
        In [0, 1].
    """
    program = timeline.program
    host = program.vocabulary.part("host")
    inside = _inside(program.templates, host)
    rank, row = program.compute_rows
    begins = np.searchsorted(rank, np.arange(program.ranks + 1))
    busy = [
        np.diff(_Busy(timeline, row[first:last], inside).until(edges))
        for first, last in itertools.pairwise(begins.tolist())
    ]
    return np.clip(np.stack(busy) / np.diff(edges), 0.0, 1.0)


def _windows(program: Program) -> list[tuple[Ints, Ints]]:
    """Rows with transfers of their own on each rank, and the axis of each."""
    row, stream = owners(program.slot_ptr), program.slot % len(Stream)
    rank, axis = program.slot // len(Stream), AXIS_OF_STREAM[stream]
    chosen = np.flatnonzero((axis >= 0) & (program.duration[row] > 0))
    order = chosen[np.argsort(rank[chosen], kind="stable")]
    begins = np.searchsorted(rank[order], np.arange(program.ranks + 1))
    return [
        (row[order[first:last]], axis[order[first:last]])
        for first, last in itertools.pairwise(begins.tolist())
    ]


class _Inside:
    """The kernels inside templates, and their transfers by axis.

    Templates stand one after the other on one axis of time, a tick apart, so that few array operations serve them all; ticks are whole, so nothing is rounded.

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
    """The intervals in which kernels run on one rank."""

    def __init__(self, timeline: Timeline, row: Ints, inside: _Inside | None) -> None:
        program = timeline.program
        self._inside, self._template = inside, program.template[row]
        self._start, self._end = timeline.start[row], timeline.end[row]
        host = program.vocabulary.part("host")
        kernel = (program.kind[row] != COLLECTIVE) & (program.part[row] != host)
        self._plain = (self._template < 0) & kernel
        took = np.where(self._plain, self._end - self._start, 0.0)
        if inside:
            took += np.where(self._template >= 0, inside.whole[np.maximum(self._template, 0)], 0.0)
        self._before = np.concatenate([[0.0], np.cumsum(took)])

    def within(self, start: Floats, end: Floats) -> Floats:
        """Time in which kernels run inside each window [W]."""
        before = self.until(np.concatenate([start, end]))
        return before[len(start) :] - before[: len(start)]

    def until(self, time: Floats) -> Floats:
        """Time in which kernels have run before each of `time` [W]."""
        if not len(self._start):
            return np.zeros_like(time)
        at = np.searchsorted(self._start, time, side="right") - 1
        row = np.maximum(at, 0)
        since = np.minimum(time, self._end[row]) - self._start[row]
        result: Floats = self._before[row] + np.where(self._plain[row], since, 0.0)
        mine = np.flatnonzero(self._template[row] >= 0)
        if self._inside:
            result[mine] += self._inside.until(self._template[row[mine]], since[mine])
        return np.where(at >= 0, result, 0.0)
