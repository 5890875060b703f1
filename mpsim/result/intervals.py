"""Time covered by sets of intervals, for many windows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cover"]

Floats = NDArray[np.float64]


class Cover:
    """The union of intervals, ready to say how much of a window it covers.

    Parameters
    ----------
    start, end : float64[n]
        In any order; they may overlap.

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
