"""Compressed sparse rows: a list of integers for every row, in two arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lists", "compress", "owners"]


class Lists(NamedTuple):
    """Values of row i are ``value[ptr[i]:ptr[i + 1]]``."""

    ptr: NDArray[np.int64]
    value: NDArray[np.int32]


def compress(row: NDArray[np.int64], value: NDArray[np.int64], count: int) -> Lists:
    """Collect (row, value) pairs by row; each pair once, values ascending.

    Parameters
    ----------
    row, value : int64[pairs]
        Not negative.
    count : int
        Rows there are.

    Examples
    --------
    >>> compress(np.array([1, 0, 1, 1]), np.array([7, 3, 5, 7]), 3).value.tolist()
    [3, 5, 7]
    """
    width = int(value.max(initial=0)) + 1
    key = np.unique(row * width + value)
    rows = key // width
    pointer = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    return Lists(pointer.astype(np.int64), (key - rows * width).astype(np.int32))


def owners(pointer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of every value."""
    return np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
