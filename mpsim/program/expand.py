"""Expansion: the same Program with every kernel a row of its own.

Nothing is timed again. A row with a template becomes the template's kernels, each on its own stream, with the waits that the
template was evaluated with; a row starts when the row before it on the compute stream has ended on every stream.

Shapes: N rows, M templates, X kernels of all rows, Y kernels of all templates; a row without a template is one kernel, *plain*.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Lists, compress, owners
from mpsim.program.program import Kind, Program, Span, Stream, Template
from mpsim.program.template import exits

__all__ = ["expand", "expanded_flops"]

Ints = NDArray[np.int64]

_AT_ONCE = 2**17  # edges placed at a time: what stays in the processor's cache
_SPANS = np.zeros(len(Stream), dtype=np.int8)
_SPANS[Stream.TP], _SPANS[Stream.CP] = Span.TP, Span.CP
# experts' groups are cut from all ranks of a stage, across its axes: whoever waits for one of them is taken to wait for all
_SPANS[Stream.EP] = Span.TP | Span.CP | Span.DP


def expand(program: Program) -> Program:
    """Give every kernel of every template a row.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Program
        Without templates; engines give it the same step time.
    """
    tiles = _Tiles(program)
    labels = tuple(
        dict.fromkeys([*program.labels, *(n for one in program.templates for n in one.names)])
    )
    number = {name: i for i, name in enumerate(labels)}
    label = [
        np.array([number[n] for n in one.names], dtype=np.int16)[one.name_index]
        for one in program.templates
    ]
    stream = tiles.inside([one.stream for one in program.templates], program.stream)
    dependencies, slots = tiles.dependencies(), tiles.slots(stream)
    return dataclasses.replace(
        program,
        labels=labels,
        rank=tiles.along(program.rank),
        stream=stream,
        kind=tiles.kinds(stream),
        stage=tiles.along(program.stage),
        chunk=tiles.along(program.chunk),
        microbatch=tiles.along(program.microbatch),
        peer=tiles.along(program.peer),
        label=tiles.inside(label, program.label),
        part=tiles.inside([one.part for one in program.templates], program.part),
        span=tiles.inside([_SPANS[one.stream] for one in program.templates], program.span),
        template=np.full(len(stream), -1, dtype=np.int32),
        duration=tiles.inside([one.duration for one in program.templates], program.duration),
        up_bytes=tiles.inside([one.up_bytes for one in program.templates], program.up_bytes),
        out_bytes=tiles.inside([one.out_bytes for one in program.templates], program.out_bytes),
        dep_ptr=dependencies.ptr,
        dep=dependencies.value,
        slot_ptr=slots.ptr,
        slot=slots.value,
        templates=(),
    )


def expanded_flops(program: Program) -> NDArray[np.float64]:
    """What every row of ``expand(program)`` computes [FLOP]."""
    plain = np.zeros(len(program))
    return _Tiles(program).inside([one.flops for one in program.templates], plain)


class _Tiles:
    """Where the kernels of every row go, and their columns and lists tiled there.

    Parameters
    ----------
    program : Program

    Attributes
    ----------
    count : int64[N]
        Kernels of each row.
    base : int64[N]
        First of them.
    place : int64[X]
        Where each stands among the kernels of all templates; plain rows share the place after the last.
    single : int64[plain]
        Kernels that are plain rows.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        size = [len(one.stream) for one in program.templates]
        self._template = np.where(program.template < 0, len(size), program.template)
        self._plain = np.flatnonzero(program.template < 0)
        self.count = np.array([*size, 1], dtype=np.int64)[self._template]
        self.base = np.cumsum(self.count) - self.count
        first = np.cumsum([0, *size])[self._template]
        self.place = np.repeat(first - self.base, self.count)
        self.place += np.arange(len(self.place))
        self.single = self.base[self._plain]

    def along(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column that the kernels of a row share."""
        return np.repeat(column, self.count)

    def inside(self, columns: list[NDArray[Any]], own: NDArray[Any]) -> NDArray[Any]:
        """A column that templates have for each kernel; plain rows have their `own`."""
        table = np.concatenate([*columns, np.zeros(1, own.dtype)]).astype(own.dtype, copy=False)
        result: NDArray[Any] = table.take(self.place)
        result[self.single] = own[self._plain]
        return result

    def kinds(self, stream: NDArray[np.int8]) -> NDArray[np.int8]:
        """What computes does what its row does; the rest are collectives."""
        kind = self.along(self._program.kind)
        kind[stream != Stream.COMPUTE] = Kind.COLLECTIVE
        kind[self.single] = self._program.kind[self._plain]
        return kind

    def slots(self, stream: NDArray[np.int8]) -> Lists:
        """Kernels occupy their own stream of the row's rank; plain rows keep their slots."""
        program = self._program
        kept = Lists(program.slot_ptr, program.slot).pick(self._plain)
        count = np.ones(len(stream), dtype=np.int64)
        count[self.single] = np.diff(kept.ptr)
        pointer = np.concatenate([[0], np.cumsum(count)])
        value = np.repeat(self.along(program.rank) * np.int32(len(Stream)) + stream, count)
        value[_ranges(pointer[self.single], np.diff(kept.ptr))] = kept.value
        return Lists(pointer, value)

    def dependencies(self) -> Lists:
        """Edges inside templates, and from the exits of a row to the entries of the rows that wait for it."""
        edges = [_edges(one) for one in self._program.templates]
        waits = self._exits_awaited()
        awaited = np.diff(waits.ptr)
        own = np.concatenate([*(np.diff(one.ptr) for one in edges), [0]])
        count = own.take(self.place)
        entry, row = self._entries()
        count[entry] = awaited[row]
        pointer = np.concatenate([[0], np.cumsum(count)])
        value = np.empty(int(pointer[-1]), dtype=np.int32)
        for number, one in enumerate(edges):
            mine = self.base[self._template == number]
            # edges of a template lie side by side but for those of its entries, which come from outside
            target = owners(one.ptr)
            within = np.arange(len(target)) - one.ptr[target]
            for begin in _blocks(mine, len(target)):
                value[pointer[begin[:, None] + target] + within] = begin[:, None] + one.value
        size = awaited[row]
        value[_ranges(pointer[entry], size)] = waits.value[_ranges(waits.ptr[row], size)]
        return Lists(pointer, value)

    def _entries(self) -> tuple[Ints, Ints]:
        """Kernels that wait for nothing inside their row, and the row of each."""
        lists = [*(one.entries for one in self._program.templates), np.zeros(1, np.int64)]
        found = _joined(lists).pick(self._template)
        row = owners(found.ptr)
        return self.base[row] + found.value, row

    def _exits_awaited(self) -> Lists:
        """Kernels that each row waits for: the exits of the rows before it."""
        before = compress(*self._program.waits([Stream.COMPUTE]), len(self._program))
        lists = [*(exits(one) for one in self._program.templates), np.zeros(1, np.int64)]
        ends = _joined(lists).pick(self._template[before.value])
        size = np.diff(ends.ptr)
        value = np.repeat(self.base[before.value], size) + ends.value
        reach = np.concatenate([[0], np.cumsum(size)])
        return Lists(reach[before.ptr], value.astype(np.int32))


def _edges(template: Template) -> Lists:
    """What each kernel of a template waits for, each once, ascending."""
    return compress(
        owners(template.before_ptr.astype(np.int64)),
        template.before.astype(np.int64),
        len(template.stream),
    )


def _joined(lists: list[Ints]) -> Lists:
    """Lists one after the other."""
    pointer = np.cumsum([0, *(len(one) for one in lists)])
    return Lists(pointer, np.concatenate(lists).astype(np.int32))


def _ranges(begin: Ints, size: Ints) -> Ints:
    """Numbers from each begin on, so many of each."""
    offset = np.cumsum(size) - size
    return np.repeat(begin - offset, size) + np.arange(int(size.sum()))


def _blocks(rows: Ints, width: int) -> list[Ints]:
    """Pieces of `rows` so that each has about `_AT_ONCE` elements of so many a row."""
    step = max(1, _AT_ONCE // max(width, 1))
    return [rows[begin : begin + step] for begin in range(0, len(rows), step)]
