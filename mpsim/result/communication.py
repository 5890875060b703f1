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
from mpsim.result.intervals import Cover, compute_rows

__all__ = ["CommunicationTime", "communication_time", "kernel_share"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CommunicationTime:
    """Time in which ranks communicate.

    Parameters
    ----------
    hidden, exposed : float64[R, A]
        Ticks of each rank class, by `mpsim.parallel.axes.AXIS_NAMES`; their sum is the time that transfers run.
    """

    hidden: Floats
    exposed: Floats


def communication_time(timeline: Timeline) -> CommunicationTime:
    """Measure a finished step, of a program with templates or without."""
    program = timeline.program
    total, hidden = np.zeros((2, program.ranks, len(AXIS_NAMES)))
    host = program.vocabulary.part("host")
    inside = [_inside(template, host) for template in program.templates]
    rank, row = compute_rows(program)
    template = program.template[row]
    if inside:
        chosen = template >= 0
        count = np.zeros((program.ranks, len(inside)))
        np.add.at(count, (rank[chosen], template[chosen]), 1.0)
        total += count @ np.stack([template.total for template in inside])
        hidden += count @ np.stack([template.hidden for template in inside])
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
    """Share of each span of time in which kernels of each rank class run, waits inside actions left out.

    Parameters
    ----------
    edges : float64[B + 1]
        Edges of spans, ascending [ticks].

    Returns
    -------
    float64[R, B]
        In [0, 1].
    """
    program = timeline.program
    host = program.vocabulary.part("host")
    inside = [_inside(template, host) for template in program.templates]
    rank, row = compute_rows(program)
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
    """The kernels inside a template, and its transfers by axis."""

    def __init__(self, template: Template, host: int) -> None:
        start, end = template.start, template.start + template.duration
        kernels = (template.stream == Stream.COMPUTE) & (template.part != host)
        self.cover = Cover(start[kernels], end[kernels])
        self.whole = float(self.cover.until(np.array([np.inf]))[0])
        self.total, self.hidden = np.zeros((2, len(AXIS_NAMES)))
        axis = AXIS_OF_STREAM[template.stream]
        moves = axis >= 0
        np.add.at(self.total, axis[moves], template.duration[moves])
        np.add.at(self.hidden, axis[moves], self.cover.within(start[moves], end[moves]))


@remembered(64)  # points of a sweep share templates
def _inside(template: Template, host: int) -> _Inside:
    return _Inside(template, host)


class _Busy:
    """The intervals in which kernels run on one rank."""

    def __init__(self, timeline: Timeline, row: Ints, inside: list[_Inside]) -> None:
        program = timeline.program
        self._inside, self._template = inside, program.template[row]
        self._start, self._end = timeline.start[row], timeline.end[row]
        host = program.vocabulary.part("host")
        kernel = (program.kind[row] != COLLECTIVE) & (program.part[row] != host)
        self._plain = (self._template < 0) & kernel
        took = np.where(self._plain, self._end - self._start, 0.0)
        if inside:
            whole = np.array([template.whole for template in inside])
            took += np.where(self._template >= 0, whole[np.maximum(self._template, 0)], 0.0)
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
        result = self._before[row] + np.where(self._plain[row], since, 0.0)
        kinds = self._template[row]
        for kind in set(kinds[kinds >= 0].tolist()):
            mine = np.flatnonzero(kinds == kind)
            result[mine] += self._inside[kind].cover.until(since[mine])
        return np.where(at >= 0, result, 0.0)
