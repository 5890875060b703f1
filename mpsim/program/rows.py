"""Rows: a Program under construction, whole columns at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.program.csr import Lists, compress
from mpsim.program.program import Kind, Program, Stream, Template

__all__ = ["Rows"]

_COLUMNS: dict[str, tuple[Any, float]] = {
    "rank": (np.int32, 0),
    "stream": (np.int8, 0),
    "kind": (np.int8, 0),
    "stage": (np.int32, -1),
    "chunk": (np.int32, -1),
    "microbatch": (np.int32, -1),
    "peer": (np.int32, -1),
    "label": (np.int16, 0),
    "part": (np.int8, 0),
    "span": (np.int8, 0),
    "template": (np.int32, -1),
    "duration": (np.float64, 0),
    "up_bytes": (np.float64, 0),
    "out_bytes": (np.float64, 0),
}


class Rows:
    """Collects columns; rows added later come later in the order of every stream.

    Examples
    --------
    >>> rows = Rows()
    >>> first = rows.add(1, kind=Kind.FORWARD, duration=3.0)
    >>> second = rows.add(1, kind=Kind.BACKWARD, duration=4.0)
    >>> len(rows.finish(rank_name=("pp 0",), class_size=[1]))
    2
    """

    def __init__(self) -> None:
        self._count = 0
        self._blocks: list[dict[str, NDArray[Any]]] = []
        self._edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._slots: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._labels: dict[str, int] = {"": 0}

    def add(
        self,
        count: int,
        *,
        label: str | NDArray[np.str_] = "",
        **columns: ArrayLike | Kind | Stream,
    ) -> NDArray[np.int64]:
        """Append `count` rows.

        Parameters
        ----------
        count : int
        label : str or array of str
            Name of rows that have no template, one for all or one each.
        **columns
            Columns of `Program`, scalars or arrays of length `count`; each row occupies its home (rank, stream).

        Returns
        -------
        int64[count]
            Row numbers.
        """
        rows = np.arange(self._count, self._count + count)
        given: dict[str, ArrayLike | Kind | Stream] = dict(columns)
        given["label"] = self._number(label)
        self._blocks.append(
            {
                name: np.broadcast_to(np.asarray(given.pop(name, default), dtype=kind), (count,))
                for name, (kind, default) in _COLUMNS.items()
            }
        )
        assert not given, f"unknown columns {sorted(given)}"
        self._count += count
        self.occupy(rows, self._blocks[-1]["rank"], self._blocks[-1]["stream"])
        return rows

    def _number(self, label: str | NDArray[np.str_]) -> ArrayLike:
        """Number of a label, or of every one of an array."""
        if isinstance(label, str):
            return self._labels.setdefault(label, len(self._labels))
        distinct, index = np.unique(label, return_inverse=True)
        numbers = [self._labels.setdefault(str(one), len(self._labels)) for one in distinct]
        return np.array(numbers, dtype=np.int64)[index.reshape(-1)]

    def occupy(self, rows: ArrayLike, rank: ArrayLike, stream: ArrayLike) -> None:
        """Let rows occupy further (rank, stream) pairs; arrays of one length, or scalars."""
        row, where, queue = np.broadcast_arrays(
            np.asarray(rows, np.int64), np.asarray(rank, np.int64), np.asarray(stream, np.int64)
        )
        self._slots.append((row.ravel(), (where * len(Stream) + queue).ravel()))

    def depend(self, rows: ArrayLike, on: ArrayLike) -> None:
        """Let each row wait for the end of another; arrays of one length, or scalars."""
        row, before = np.broadcast_arrays(np.asarray(rows, np.int64), np.asarray(on, np.int64))
        self._edges.append((row.ravel(), before.ravel()))

    def finish(
        self,
        *,
        rank_name: Iterable[str],
        class_size: ArrayLike,
        templates: tuple[Template, ...] = (),
    ) -> Program:
        """Freeze into a Program."""
        columns = {
            name: np.concatenate([block[name] for block in self._blocks])
            if self._blocks
            else np.zeros(0, kind)
            for name, (kind, _) in _COLUMNS.items()
        }
        dep_ptr, dep = self._lists(self._edges)
        slot_ptr, slot = self._lists(self._slots)
        return Program(
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

    def _lists(self, pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Lists:
        nothing = np.zeros(0, dtype=np.int64)
        row = np.concatenate([nothing, *(one for one, _ in pairs)])
        value = np.concatenate([nothing, *(one for _, one in pairs)])
        return compress(row, value, self._count)
