"""Intervals of recordings, which may overlap: joined, measured, cut with each other."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Array", "busy_time", "overlap", "union"]

Array: TypeAlias = "npt.NDArray[np.float64]"


def union(intervals: Sequence[float] | Array) -> Array:
    """Intervals joined where they touch, in order.

    Parameters
    ----------
    intervals : sequence of float
        Start and end of each, one after the other.

    Returns
    -------
    ndarray of shape (n, 2)

    Examples
    --------
    >>> union([3, 4, 0, 1, 0.5, 2]).tolist()
    [[0.0, 2.0], [3.0, 4.0]]
    """
    import numpy as np

    pairs = (
        np.frombuffer(intervals)
        if isinstance(intervals, array.array)
        else np.array(intervals, dtype=float)
    )
    pairs = pairs.reshape(-1, 2)
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(pairs[:, 1])
    first = np.append(True, pairs[1:, 0] > ends[:-1])  # no interval before reaches it
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pairs) - 1)
    return np.column_stack([pairs[first, 0], ends[last]])


def busy_time(intervals: Sequence[float] | Array) -> float:
    """Time that any of the intervals covers."""
    joined = union(intervals)
    return float((joined[:, 1] - joined[:, 0]).sum())


def overlap(left: Sequence[float], right: Sequence[float]) -> float:
    """Time that intervals of both sides cover.

    Examples
    --------
    >>> overlap([0, 2, 3, 5], [1, 4])
    2.0
    """
    import numpy as np

    together = busy_time(np.concatenate([union(left).ravel(), union(right).ravel()]))
    return max(0.0, busy_time(left) + busy_time(right) - together)
