"""Levels: the rows of a graph in layers, each of which waits only for earlier ones.

Shapes: K duration vectors, N rows, L levels, D most waits of a row of a level.

In the *layout* rows are sorted by level and K vectors lie side by side, so one array operation works on a level for all vectors. The place
after the last row stands for what has always ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Lists, stable_order

__all__ = ["Levels"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_COLUMNS = 6  # up to so many waits a row, a maximum over columns beats one over segments (measured)
_BROAD = 512  # from so many rows a level columns are not worth their memory


class _Level(NamedTuple):
    """Places ``begin:end``, and the first, second, ... place that each waits for; no columns where segments do better."""

    begin: int
    end: int
    columns: list[Ints]


class Levels:
    """Evaluates a graph level by level.

    Parameters
    ----------
    order : int64[N]
        Rows in the order of the layout.
    size : int64[L]
        Rows of each level.
    waits : Lists
        Places that each place waits for: of the first level nothing, of others something.
    """

    def __init__(self, order: Ints, size: Ints, waits: Lists) -> None:
        self.order = order
        self._waits = waits
        self._levels = list(_cut(size, waits))

    @classmethod
    def of(cls, level: Ints, waits: Lists) -> Levels:
        """Lay out rows whose levels and waits are known."""
        order = stable_order(level)
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order))
        picked = waits.pick(order)
        return cls(order, np.bincount(level), Lists(picked.ptr, place[picked.value]))

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
        for level in self._levels:
            begin, stop = level.begin, level.end
            latest = start[begin:stop] = self._start(level, end)
            np.add(latest, takes[begin:stop], out=end[begin:stop])
        return start, end[:-1]

    def _start(self, level: _Level, end: Floats) -> Floats:
        """When the rows of a level start, from when those of earlier ones end."""
        if level.columns:
            latest = end.take(level.columns[0], axis=0)
            for column in level.columns[1:]:
                np.maximum(latest, end.take(column, axis=0), out=latest)
            return latest
        if not level.begin:
            return np.zeros((level.end, *end.shape[1:]))
        pointer = self._waits.ptr[level.begin : level.end + 1]
        # few rows wait for many: a column for each of their waits would be mostly padding, so waits are reduced by segment
        ended = end.take(self._waits.value[pointer[0] : pointer[-1]], axis=0)
        result: Floats = np.maximum.reduceat(ended, pointer[:-1] - pointer[0], axis=0)
        return result


def _cut(size: Ints, waits: Lists) -> Iterator[_Level]:
    """Levels of the given sizes, one after the other."""
    bounds = np.concatenate([[0], np.cumsum(size)])
    count = np.diff(waits.ptr)
    most = np.maximum.reduceat(count, bounds[:-1]) if len(count) else count
    columns = [] if len(count) > _BROAD * len(size) else _columns(waits, int(most.max(initial=0)))
    for (begin, end), deepest in zip(
        itertools.pairwise(bounds.tolist()), most.tolist(), strict=True
    ):
        fits = deepest <= len(columns)
        yield _Level(
            begin, end, [column[begin:end] for column in columns[:deepest]] if fits else []
        )


def _columns(waits: Lists, most: int) -> list[Ints]:
    """The first, second, ... place that each place waits for; the place after the last where there is none."""
    count = np.diff(waits.ptr)
    columns = []
    for k in range(min(most, _COLUMNS)):
        column = np.full(len(count), len(count), dtype=np.int64)
        has = count > k
        column[has] = waits.value[waits.ptr[:-1][has] + k]
        columns.append(column)
    return columns
