"""Rows of a compiled computation and their waits, in pieces: loops and calls are pieces."""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints


@structs.dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows of a computation, N of them, with what they wait for inside it."""

    # int[5, N], number of the price; kind by the vocabulary; axis, or -1; phase; label
    columns: Ints
    times: Floats  # float64[N], executions that the row stands for
    row: Ints
    on: Ints
    # entries, exits: int64[...], rows that wait for what comes before, and that what follows awaits
    entries: Ints
    exits: Ints
    first: dict[str, int]  # first, last: the first and the last of each queue
    last: dict[str, int]

    def __len__(self) -> int:
        return len(self.times)


class Assembly:
    """A piece under construction."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Ints, Floats]] = []
        self.edges: list[tuple[Ints, Ints]] = []
        self.plain: list[tuple[int, int, int, int, int]] = []
        self.row: list[int] = []
        self.on: list[int] = []
        self.count = 0
        self.front: list[int] | None = None  # None: whatever comes before this piece
        self.entries: list[int] = []
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.open: dict[str, int] = {}

    def add(self, cost: int, kind: int, axis: int, phase: int, label: int) -> int:
        """Append a row that waits for the front."""
        row = self.count
        self.count += 1
        self.plain.append((cost, kind, axis, phase, label))
        self._follow(row)
        return row

    def _follow(self, row: int) -> None:
        if self.front is None:
            self.entries.append(row)
            return
        self.row += [row] * len(self.front)
        self.on += self.front

    def queued(self, row: int, queue: str) -> None:
        """Let a row wait for the one before it on a queue."""
        if queue in self.last:
            self.row.append(row)
            self.on.append(self.last[queue])
        self.first.setdefault(queue, row)
        self.last[queue] = row

    def wait(self, row: int) -> None:
        """Let what follows wait for a row."""
        if self.front is None:
            self.front = []
        if row not in self.front:
            self.front = [*self.front, row]

    def embed(self, piece: Piece, times: int, scale: float) -> None:
        """Append a piece so many times, one execution after the other."""
        size = len(piece)
        if not size:
            return
        self._flush()
        base = self.count
        self.blocks.append((np.tile(piece.columns, times), np.tile(piece.times * scale, times)))
        shift = np.arange(times)[:, None] * size + base
        self.edges.append(((piece.row + shift).ravel(), (piece.on + shift).ravel()))
        self.count += size * times
        if self.front is None:
            self.entries += (piece.entries + base).tolist()
        else:
            self._connect(piece.entries + base, np.array(self.front, dtype=np.int64))
        between = np.arange(1, times) * size + base
        for entry in piece.entries.tolist():
            for leave in piece.exits.tolist():
                self.edges.append((between + entry, between - size + leave))
        for queue, row in piece.first.items():
            if queue in self.last:
                self._connect(np.array([base + row]), np.array([self.last[queue]]))
            self.first.setdefault(queue, base + row)
        last = base + size * (times - 1)
        for queue, row in piece.last.items():
            self.last[queue] = last + row
        self.front = (piece.exits + last).tolist()

    def _connect(self, rows: Ints, before: Ints) -> None:
        self.edges.append((np.repeat(rows, len(before)), np.tile(before, len(rows))))

    def _flush(self) -> None:
        if self.plain:
            columns = np.array(self.plain, dtype=np.int64).T
            self.blocks.append((columns, np.ones(columns.shape[1])))
            self.plain = []
        if self.row:
            self.edges.append(
                (np.array(self.row, dtype=np.int64), np.array(self.on, dtype=np.int64))
            )
            self.row, self.on = [], []

    def finish(self) -> Piece:
        """Freeze; what was started and not awaited is waited for by what follows."""
        for begun in self.last.values():
            self.wait(begun)
        self._flush()
        nothing = np.zeros((5, 0), dtype=np.int64)
        columns = np.concatenate([nothing, *(block for block, _ in self.blocks)], axis=1)
        times = np.concatenate([np.zeros(0), *(scale for _, scale in self.blocks)])
        none = np.zeros(0, dtype=np.int64)
        row = np.concatenate([none, *(rows for rows, _ in self.edges)])
        on = np.concatenate([none, *(before for _, before in self.edges)])
        return Piece(
            columns=columns,
            times=times,
            row=row,
            on=on,
            entries=np.array(self.entries, dtype=np.int64),
            exits=np.array(self.front or [], dtype=np.int64),
            first=self.first,
            last=self.last,
        )
