"""Covers: the time that intervals fill together.

Shapes: n intervals.
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Flags, Floats, Ints


class Cover:
    """The union of intervals, ready to say how much of a window it covers. `start` and `end`
    (float64[n]): in any order; they may overlap.

    Examples
    --------
    >>> cover = Cover(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> cover.within(np.array([1.0]), np.array([5.5]))
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
        self._edges = np.stack([self.start, self.end], axis=1).ravel()
        self._covered = np.repeat(np.append(0.0, np.cumsum(self.end - self.start)), 2)[1:-1]

    def until(self, time: Floats) -> Floats:
        """Covered time before each of `time`."""
        if not len(self.start):
            return np.zeros_like(time)
        # slopes are 0 and 1, so that whole ticks stay exact
        covered: Floats = np.interp(time, self._edges, self._covered)
        return covered

    def within(self, start: Floats, end: Floats) -> Floats:
        """Covered time inside each window; 0 for a window that ends before it starts."""
        before = self.until(np.concatenate([start, np.maximum(end, start)]))
        return np.maximum(before[len(start) :] - before[: len(start)], 0.0)

    def contains(self, time: Floats) -> Flags:
        """Whether each moment is covered, an interval's end not included."""
        index = np.searchsorted(self.start, time, side="right")
        if not len(self.start):
            return np.zeros(len(time), dtype=bool)
        covered: Flags = (index > 0) & (time < self.end[index - 1])
        return covered

    def cut(self, start: Floats, end: Floats) -> tuple[Ints, Floats, Floats]:
        """Covered pieces of each window: its number, start and end, in order within it.

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
