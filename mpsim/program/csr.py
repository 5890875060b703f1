"""Compressed sparse rows: a list of integers for every row, in two arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.arrays import Ints

Column: TypeAlias = NDArray[Any]  # an array of any type, such as one of a table of columns
Columns: TypeAlias = dict[str, Any]  # columns by name, to be spread over the fields of a program

_DIGIT_BITS = 16  # numpy sorts integers of up to 16 bits by radix


class Lists(NamedTuple):
    """Values of row i are ``value[ptr[i]:ptr[i + 1]]``."""

    ptr: Ints
    value: NDArray[np.int32]

    def pick(self, rows: Ints) -> Lists:
        """Lists of `rows`, in that order."""
        size = np.diff(self.ptr)[rows]
        pointer = np.concatenate([[0], np.cumsum(size)])
        place = np.arange(int(pointer[-1])) + np.repeat(self.ptr[rows] - pointer[:-1], size)
        return Lists(pointer, self.value[place])


def compress(row: Ints, value: Ints, count: int) -> Lists:
    """Collect (row, value) pairs by row; each pair once, values ascending. `row` and `value`
    (int64[pairs]): not negative. `count`: rows there are.

    Examples
    --------
    >>> compress(np.array([1, 0, 1, 1]), np.array([7, 3, 5, 7]), 3).value.tolist()
    [3, 5, 7]
    """
    bits = int(value.max(initial=0)).bit_length()
    key = row << bits | value
    if not (key[1:] > key[:-1]).all():
        key.sort(kind="stable")  # pairs come in long runs, which it merges
        again = key[1:] == key[:-1]
        if again.any():
            key = np.delete(key, np.flatnonzero(again))
    pointer = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(key >> bits, minlength=count), out=pointer[1:])
    return Lists(pointer, (key & ((1 << bits) - 1)).astype(np.int32))


def owners(pointer: Ints) -> Ints:
    """Row of every value."""
    return np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))


def stable_order(value: Column) -> Ints:
    """Indices that sort `value` (int[n], not negative), equal values in their given order.

    Notes
    -----
    Sorted digit by digit, so the cost grows with the length and hardly with the disorder.

    Examples
    --------
    >>> stable_order(np.array([70_000, 3, 70_000, 0])).tolist()
    [3, 1, 0, 2]
    """
    order = np.argsort(value.astype(np.uint16), kind="stable")
    rest = int(value.max(initial=0)) >> _DIGIT_BITS
    shift = _DIGIT_BITS
    while rest:
        digit = (value >> shift).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        rest >>= _DIGIT_BITS
        shift += _DIGIT_BITS
    return order
