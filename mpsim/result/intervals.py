"""Intervals of time: when compute streams are busy and idle, and how much of a window a set of intervals covers.

Shapes: R rank classes, n intervals.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline

Floats = NDArray[np.float64]


class Cover:
    """The union of intervals, ready to say how much of a window it covers. `start` and `end`
    (float64[n]): in any order; they may overlap.

    Examples
    --------
    >>> Cover(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0])).within(np.array([1.0]), np.array([5.5]))
    array([2.5])
    """

    def __init__(self, start: Floats, end: Floats) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reach = np.maximum.accumulate(end) if len(end) else end
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > reach[:-1]
        first = np.flatnonzero(opens)
        self.start = start[first]
        self.end = reach[np.append(first[1:] - 1, len(start) - 1)] if len(first) else reach
        self._before = np.concatenate([[0.0], np.cumsum(self.end - self.start)])

    def until(self, time: Floats) -> Floats:
        """Covered time before each of `time`."""
        if not len(self.start):
            return np.zeros_like(time)
        index = np.searchsorted(self.start, time, side="right")
        inside = np.where(
            index > 0, np.minimum(time, self.end[index - 1]) - self.start[index - 1], 0.0
        )
        return self._before[np.maximum(index - 1, 0)] + np.where(index > 0, inside, 0.0)

    def within(self, start: Floats, end: Floats) -> Floats:
        """Covered time inside each window; 0 for a window that ends before it starts."""
        before = self.until(np.concatenate([start, np.maximum(end, start)]))
        return np.maximum(before[len(start) :] - before[: len(start)], 0.0)

    def contains(self, time: Floats) -> NDArray[np.bool_]:
        """Whether each moment is covered, an interval's end not included."""
        index = np.searchsorted(self.start, time, side="right")
        if not len(self.start):
            return np.zeros(len(time), dtype=bool)
        covered: NDArray[np.bool_] = (index > 0) & (time < self.end[index - 1])
        return covered

    def cut(self, start: Floats, end: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Covered pieces of each window: number of the window, start and end, in order within a window.

        Examples
        --------
        >>> Cover(np.array([0.0, 5.0]), np.array([2.0, 6.0])).cut(np.array([1.0]), np.array([5.5]))
        (array([0, 0]), array([1., 5.]), array([2. , 5.5]))
        """
        first = np.searchsorted(self.end, start, side="right")
        count = np.maximum(np.searchsorted(self.start, end, side="left") - first, 0)
        window = np.repeat(np.arange(len(start)), count)
        piece = np.arange(len(window)) + np.repeat(first - (np.cumsum(count) - count), count)
        begins = np.maximum(self.start[piece], start[window])
        return window, begins, np.minimum(self.end[piece], end[window])

    @property
    def rest(self) -> Cover:
        """All other time."""
        return Cover(np.append(-np.inf, self.end), np.append(self.start, np.inf))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Idle intervals of compute streams: which rank, from when to when, before which row (-1: after the last)."""

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    row: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> Gaps:
        """Some of them."""
        return Gaps(self.rank[chosen], self.start[chosen], self.end[chosen], self.row[chosen])


def idle_gaps(timeline: Timeline) -> Gaps:
    """Every interval in which a rank's compute stream is idle: before each of its rows, then after its last."""
    program = timeline.program
    rank, row = program.compute_rows
    start, end = timeline.start[row], timeline.end[row]
    first = np.ones(len(row), dtype=bool)
    first[1:] = rank[1:] != rank[:-1]
    previous = np.where(first, 0.0, np.roll(end, 1))
    last = np.zeros(program.ranks)
    np.maximum.at(last, rank, end)
    everyone = np.arange(program.ranks)
    gaps = Gaps(
        rank=np.concatenate([rank, everyone]),
        start=np.concatenate([previous, last]),
        end=np.concatenate([start, np.full(program.ranks, timeline.makespan)]),
        row=np.concatenate([row, np.full(program.ranks, -1)]),
    )
    return gaps.where(gaps.end > gaps.start)


def busy_ticks(timeline: Timeline) -> NDArray[np.float64]:
    """Ticks in which each rank's compute stream runs kernels [R]; waits inside an action are not busy."""
    program = timeline.program
    busy: NDArray[np.float64] = program.busy_parts[:, program.vocabulary.computing_parts].sum(
        axis=1
    )
    return busy
