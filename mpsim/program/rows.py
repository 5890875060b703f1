"""Rows: a Program under construction, whole columns at a time.

What rows cost may be left open: rows *named* by a price belong to a `Graph`, which many programs
share that differ in their prices only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim import structs
from mpsim.program.csr import Column, Columns, Lists, compress
from mpsim.program.program import COLUMNS, SEND, Program, Stream, Template, Vocabulary

_PRICED = ("price", "place")
"""Columns of rows whose prices are left open: which prices, and which of them."""
_COLUMNS: Mapping[str, tuple[type[np.generic], float]] = {
    **COLUMNS,
    **dict.fromkeys(_PRICED, (np.int64, 0)),
}


class Prices(NamedTuple):
    """Prices of rows of one name, one entry each distinct price: float64[n], or one number."""

    duration: NDArray[np.float64]  # [ticks]
    up_bytes: ArrayLike = 0.0
    out_bytes: ArrayLike = 0.0
    size: ArrayLike = 0.0
    template: ArrayLike = -1


class Totals(NamedTuple):
    """Work and traffic of ranks of a program in all."""

    computing: NDArray[np.float64]  # float64[R], on the compute stream [ticks]
    # up_bytes, out_bytes: float64[R], that leave a rank and come, as if each were in all of the
    # collectives in which ranks meet [B]
    up_bytes: NDArray[np.float64]
    out_bytes: NDArray[np.float64]


@structs.dataclass(frozen=True, eq=False)
class Graph:
    """A Program without what its rows cost: their columns, order and dependencies.

    Shapes: C distinct prices, of which rows have many.
    """

    program: Program
    names: tuple[str, ...]  # of prices
    price: NDArray[np.int64]  # int64[N], which of the names each row has
    place: NDArray[np.int64]  # int64[N], which of the prices of that name

    @functools.cached_property
    def _tally(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first row of each distinct price [C], and how many rows of a rank compute at it, and
        leave or come at it [2, R, C].
        """
        program, ranks = self.program, self.program.ranks
        key = self.price * (int(self.place.max(initial=0)) + 1) + self.place
        used = np.bincount(key) > 0
        cell, width = (np.cumsum(used) - 1)[key], int(used.sum())
        first = np.zeros(width, dtype=np.int64)
        first[cell[::-1]] = np.arange(len(cell))[::-1]

        def counts(rank: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
            place = rank * width + cell[rows]
            return np.bincount(place, minlength=ranks * width).reshape(ranks, width).astype(float)

        sends, alone = program.kind == SEND, np.diff(program.slot_ptr) == 1
        every, computes = np.arange(len(cell)), np.flatnonzero(program.stream == Stream.COMPUTE)
        arrives, met = np.flatnonzero(sends), np.flatnonzero(~sends & ~alone)
        moves = counts(program.rank, every) + counts(program.peer[arrives], arrives)
        moves += np.bincount(cell[met], minlength=width)
        return first, np.stack([counts(program.rank[computes], computes), moves])

    def totals(self, program: Program) -> Totals:
        """Work and traffic of ranks in a program of this graph."""
        first, (computing, moves) = self._tally
        sent = (moves @ column[first] for column in (program.up_bytes, program.out_bytes))
        return Totals(computing @ program.duration[first], *sent)

    def priced(
        self,
        prices: Mapping[str, Prices],
        *,
        class_size: ArrayLike,
        templates: tuple[Template, ...] = (),
    ) -> Program:
        """The program at these prices, by name."""
        used = [prices[name] for name in self.names]
        ends = np.cumsum([0, *(len(each.duration) for each in used)])
        table = np.zeros((len(Prices._fields), int(ends[-1])))
        for begin, each in zip(ends.tolist(), used, strict=False):
            for row, column in enumerate(each):
                table[row, begin : begin + len(each.duration)] = column
        *columns, template = table.take(ends[self.price] + self.place, axis=1)
        return structs.replace(
            self.program,
            class_size=np.asarray(class_size, dtype=np.int64),
            templates=templates,
            template=template.astype(np.int32),
            **dict(zip(Prices._fields, columns, strict=False)),
        )


class Rows:
    """Collects columns; later rows come later in every stream. `vocabulary`: of the job."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._count = 0
        # how many rows, what they were given
        self._blocks: list[tuple[int, Mapping[str, ArrayLike]]] = []
        self._edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._slots: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._labels: dict[str, int] = {"": 0}
        self._prices: dict[str, int] = {}

    def add(
        self, count: int, *, label: str | NDArray[np.str_] = "", **columns: ArrayLike | Stream
    ) -> NDArray[np.int64]:
        """Append `count` rows.

        `label`: name of rows that have no template, one for all or one each. `**columns`: columns
        of `Program`, scalars or arrays of length `count`; each row occupies its home (rank,
        stream). What rows cost is left open with ``price``, the name of their prices, and
        ``place``, which of these each has; by default each has its own.

        Returns
        -------
        int64[count]
            Row numbers.
        """
        assert columns.keys() <= _COLUMNS.keys(), f"unknown columns {sorted(columns)}"
        rows = np.arange(self._count, self._count + count)
        if name := columns.get("price"):
            number = self._prices.setdefault(str(name), len(self._prices))
            columns = {"place": np.arange(count), **columns, "price": number}
        self._blocks.append((count, {**columns, "label": self._number(label)}))
        self._count += count
        self.occupy(rows, columns.get("rank", 0), columns.get("stream", 0))
        return rows

    def _number(self, label: str | NDArray[np.str_]) -> ArrayLike:
        """Number of a label, or of every one of an array."""
        if isinstance(label, str):
            return self._labels.setdefault(label, len(self._labels))
        texts = label.tolist()
        number = {
            text: self._labels.setdefault(text, len(self._labels)) for text in sorted(set(texts))
        }
        return np.array([*map(number.__getitem__, texts)], dtype=np.int64)

    def occupy(self, rows: ArrayLike, rank: ArrayLike, stream: ArrayLike) -> None:
        """Let rows occupy further (rank, stream) pairs; arrays of one length, or scalars."""
        # one integer a (rank, stream) pair, so that slots sort and compare as numbers
        slot = np.asarray(rank, np.int64) * len(Stream) + np.asarray(stream, np.int64)
        self._slots.append(_pairs(rows, slot))

    def depend(self, rows: ArrayLike, on: ArrayLike) -> None:
        """Let each row wait for the end of another; arrays of one length, or scalars."""
        self._edges.append(_pairs(rows, on))

    def ranks_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ranks of rows, as pairs of row and rank, each once and rows in the order given.

        A row of rank 0 that also occupies a stream of rank 2 is given as (row, 0) and (row, 2).
        """
        place = np.full(self._count, -1)
        place[rows] = np.arange(len(rows))
        row, slot = (np.concatenate(column) for column in zip(*self._slots, strict=True))
        mine = place[row] >= 0
        # not numpy.unique, which imports masked arrays: 6 ms of a start
        width = int(slot.max(initial=0)) + 1
        pairs = np.sort(place[row[mine]] * width + slot[mine] // len(Stream))
        places, ranks = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], width)
        return rows[places], ranks

    def finish(
        self,
        *,
        rank_name: Iterable[str],
        class_size: ArrayLike,
        templates: tuple[Template, ...] = (),
    ) -> Program:
        """Freeze into a Program."""
        dep_ptr, dep = self._lists(self._edges)
        slot_ptr, slot = self._lists(self._slots)
        columns: Columns = {name: self._column(name) for name in COLUMNS}
        return Program(
            vocabulary=self.vocabulary,
            labels=tuple(self._labels),
            class_size=np.asarray(class_size, dtype=np.int64),
            rank_name=tuple(rank_name),
            dep_ptr=dep_ptr,
            dep=dep,
            slot_ptr=slot_ptr,
            slot=slot,
            templates=templates,
            **columns,
        )

    def graph(self, rank_name: Iterable[str]) -> Graph:
        """Freeze rows that are all named by their prices."""
        names = tuple(rank_name)
        program = self.finish(rank_name=names, class_size=np.ones(len(names)))
        for name in (*COLUMNS, "dep_ptr", "dep", "slot_ptr", "slot"):
            getattr(program, name).setflags(write=False)  # programs share them
        return Graph(program, tuple(self._prices), *map(self._column, _PRICED))

    def _column(self, name: str) -> Column:
        """One column of all rows."""
        kind, default = _COLUMNS[name]
        column, begin = np.full(self._count, default, dtype=kind), 0
        for count, given in self._blocks:
            if name in given:
                column[begin : begin + count] = given[name]
            begin += count
        return column

    def _lists(self, pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Lists:
        nothing = np.zeros(0, dtype=np.int64)
        row = np.concatenate([nothing, *(rows for rows, _ in pairs)])
        value = np.concatenate([nothing, *(values for _, values in pairs)])
        return compress(row, value, self._count)


def _pairs(rows: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two flat arrays of one length."""
    row, value = np.asarray(rows, np.int64), np.asarray(values, np.int64)
    if row.shape != value.shape:
        row, value = np.broadcast_arrays(row, value)
    return row.ravel(), value.ravel()
