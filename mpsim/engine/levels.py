"""Levels: the rows of a graph in layers, each of which waits only for earlier ones.

Shapes: K duration vectors, N rows, L levels, D most waits of a row of a level.

In the *layout* rows are sorted by level and K vectors lie side by side, so one array operation works on a level for all vectors. The place
after the last row stands for what has always ended.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Lists, stable_order

__all__ = ["Levels"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_COLUMNS = 6  # up to so many waits a row, a maximum over columns beats one over segments (measured)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Places ``begin:end``, and what they wait for.

    Parameters
    ----------
    begin, end : int
    columns : list of intp[end - begin]
        The first, second, ... place that each waits for; empty where rows wait for many.
    waits, offset : intp
        Then the same as one list in which the waits of a place begin at its offset.
    """

    begin: int
    end: int
    columns: list[Ints]
    waits: Ints
    offset: Ints

    def start(self, end: Floats) -> Floats:
        """When the rows start, from when earlier ones end [places, K]."""
        if not self.columns:
            latest: Floats = np.maximum.reduceat(end.take(self.waits, axis=0), self.offset, axis=0)
            return latest
        latest = end.take(self.columns[0], axis=0)
        for column in self.columns[1:]:
            np.maximum(latest, end.take(column, axis=0), out=latest)
        return latest


class Levels:
    """Evaluates a graph level by level.

    Parameters
    ----------
    level : int64[N]
        Larger than that of every row that it waits for.
    waits : Lists
        Rows that each waits for.

    Attributes
    ----------
    order : int64[N]
        Rows in the order of the layout.
    """

    def __init__(self, level: Ints, waits: Lists) -> None:
        self.order = stable_order(level)
        self._levels = list(_cut(np.bincount(level), *_laid_out(self.order, waits)))

    def __len__(self) -> int:
        return len(self._levels)

    def sweep(self, takes: Floats) -> tuple[Floats, Floats]:
        """Evaluate durations.

        Parameters
        ----------
        takes : float64[N, K] or float64[N]
            Durations in the order of the layout.

        Returns
        -------
        start, end : float64
            Of the same shape and order.
        """
        start = np.empty_like(takes)
        end = np.empty((len(takes) + 1, *takes.shape[1:]))
        end[-1] = 0.0
        for one in self._levels:
            begin, stop = one.begin, one.end
            latest = start[begin:stop] = one.start(end)
            np.add(latest, takes[begin:stop], out=end[begin:stop])
        return start, end[:-1]


def _laid_out(order: Ints, waits: Lists) -> tuple[Ints, Ints]:
    """Places that each place waits for, CSR; at least one each."""
    count = len(order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    size = np.diff(waits.ptr)[order]
    pointer = np.concatenate([[0], np.cumsum(np.maximum(size, 1))])
    value = np.full(int(pointer[-1]), count, dtype=np.int64)
    has = np.repeat(size > 0, np.maximum(size, 1))
    within = np.arange(len(value)) - np.repeat(pointer[:-1], np.maximum(size, 1))
    source = np.repeat(waits.ptr[order], np.maximum(size, 1)) + within
    value[has] = place[waits.value[source[has]]]
    return pointer, value


def _cut(size: Ints, pointer: Ints, value: Ints) -> Iterator[_Level]:
    """Levels of the given sizes, one after the other."""
    nowhere = len(pointer) - 1
    waits = np.diff(pointer)
    bounds = np.concatenate([[0], np.cumsum(size)])
    most = np.maximum.reduceat(waits, bounds[:-1]) if len(waits) else waits
    columns = []
    for k in range(min(int(most.max(initial=0)), _COLUMNS)):
        column = np.full(nowhere, nowhere, dtype=np.int64)
        has = waits > k
        column[has] = value[pointer[:-1][has] + k]
        columns.append(column)
    for (begin, end), deepest in zip(
        itertools.pairwise(bounds.tolist()), most.tolist(), strict=True
    ):
        if deepest <= _COLUMNS:
            chosen = [column[begin:end] for column in columns[:deepest]]
            yield _Level(begin, end, chosen, value[:0], value[:0])
        else:
            span = slice(int(pointer[begin]), int(pointer[end]))
            yield _Level(begin, end, [], value[span], pointer[begin:end] - pointer[begin])
