"""Expansion: the same Program with every kernel a row of its own.

Nothing is timed again. A row with a template becomes the template's kernels, each on its own
stream, with the waits that the template was evaluated with; a row starts when the row before it on
the compute stream has ended on every stream.

Shapes: N rows, M templates, X kernels of all rows, Y kernels of all templates; a row without a
template is one kernel, *plain*.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.parallel.axes import AXES
from mpsim.program.csr import Column, Lists, compress, owners
from mpsim.program.program import COLLECTIVE, Program, Stream, Template
from mpsim.program.template import exits

_SPANS = np.zeros(len(Stream), dtype=np.int8)
for _axis in AXES:
    if _axis.communicators:  # templates have no others
        _SPANS[_axis.streams[0]] = _axis.span


def expand(program: Program) -> Program:
    """Give every kernel of every template a row.

    Returns Program: without templates; engines give it the same step time.
    """
    tiles = _Tiles(program)
    labels = tuple(
        dict.fromkeys(
            [*program.labels, *(n for template in program.templates for n in template.names)]
        )
    )
    number = {name: i for i, name in enumerate(labels)}
    label = [
        np.array([number[n] for n in template.names], dtype=np.int16)[template.name_index]
        for template in program.templates
    ]
    stream = tiles.inside([template.stream for template in program.templates], program.stream)
    dependencies, slots = tiles.dependencies(), tiles.slots(stream)
    # one block of memory for several columns touches fewer new pages
    rank, stage, chunk, microbatch, peer = tiles.along(
        np.stack([program.rank, program.stage, program.chunk, program.microbatch, program.peer])
    )
    duration, up_bytes, out_bytes, size = tiles.inside(
        [
            np.stack([template.duration, template.up_bytes, template.out_bytes, template.size])
            for template in program.templates
        ],
        np.stack([program.duration, program.up_bytes, program.out_bytes, program.size]),
    )
    return structs.replace(
        program,
        labels=labels,
        rank=rank,
        stream=stream,
        kind=tiles.kinds(stream),
        stage=stage,
        chunk=chunk,
        microbatch=microbatch,
        peer=peer,
        label=tiles.inside(label, program.label),
        part=tiles.inside([template.part for template in program.templates], program.part),
        span=tiles.inside(
            [_SPANS[template.stream] for template in program.templates], program.span
        ),
        template=np.broadcast_to(np.int32(-1), len(stream)),
        duration=duration,
        up_bytes=up_bytes,
        out_bytes=out_bytes,
        collective=tiles.inside(
            [template.collective for template in program.templates], program.collective
        ),
        size=size,
        dep_ptr=dependencies.ptr,
        dep=dependencies.value,
        slot_ptr=slots.ptr,
        slot=slots.value,
        templates=(),
    )


def expanded_flops(program: Program) -> Floats:
    """Work of every row of ``expand(program)`` [FLOP]."""
    plain = np.zeros(len(program))
    return _Tiles(program).inside([template.flops for template in program.templates], plain)


class _Tiles:
    """Where the kernels of every row go, and their columns and lists tiled there."""

    def __init__(self, program: Program) -> None:
        self._program = program
        size = [len(template.stream) for template in program.templates]
        self._template = np.where(program.template < 0, len(size), program.template)
        self._plain = np.flatnonzero(program.template < 0)
        # kernels of each row, and the first of them, int64[N]
        self.count = np.array([*size, 1], dtype=np.int64)[self._template]
        self.base = np.cumsum(self.count) - self.count
        first = np.cumsum([0, *size])[self._template]
        # place among the kernels of all templates, int64[X]; plain rows share that after the last
        self.place = np.repeat(first - self.base, self.count)
        self.place += np.arange(len(self.place))
        self.single = self.base[self._plain]  # kernels that are plain rows

    def along(self, column: Column) -> Column:
        """A column that the kernels of a row share, or several [..., N]."""
        return np.repeat(column, self.count, axis=-1)

    def inside(self, columns: list[Column], own: Column) -> Column:
        """A column of templates by kernel, or several [..., Q]; plain rows have `own` [..., N]."""
        nothing = np.zeros((*own.shape[:-1], 1), own.dtype)
        table = np.concatenate([*columns, nothing], axis=-1).astype(own.dtype, copy=False)
        result: Column = table.take(self.place, axis=-1)
        result[..., self.single] = own[..., self._plain]
        return result

    def kinds(self, stream: NDArray[np.int8]) -> NDArray[np.int8]:
        """Kernels that compute are of the kind of their row; the rest are collectives."""
        kind = self.along(self._program.kind)
        kind[stream != Stream.COMPUTE] = COLLECTIVE
        kind[self.single] = self._program.kind[self._plain]
        return kind

    def slots(self, stream: NDArray[np.int8]) -> Lists:
        """Kernels occupy their own stream of the row's rank; plain rows keep their slots."""
        program = self._program
        own = Lists(program.slot_ptr, program.slot).pick(self._plain)
        size = np.diff(own.ptr)
        more = np.zeros(len(program), dtype=np.int64)
        more[self._plain] = size - 1
        pointer = np.arange(len(stream) + 1)
        pointer[:-1] += self.along(np.cumsum(more) - more)
        pointer[-1] += int(more.sum())
        value = np.empty(int(pointer[-1]), dtype=np.int32)
        value[pointer[:-1]] = self.along(program.rank * np.int32(len(Stream))) + stream
        value[_ranges(pointer[self.single], size)] = own.value
        return Lists(pointer, value)

    def dependencies(self) -> Lists:
        """Edges inside templates, and from exits of a row to entries of rows that wait for it.

        Notes
        -----
        From an entry to the next of its row come the entry's waits, which are the row's own, then
        those of the kernels behind it, which lie side by side in the template.
        """
        edges = [_edges(template) for template in self._program.templates]
        table = Lists(
            np.cumsum(np.concatenate([[0], *(np.diff(edge.ptr) for edge in edges), [0]])),
            np.concatenate([*(edge.value for edge in edges), np.zeros(1, np.int32)]),
        )
        waits = self._exits_awaited()
        entry, row = self._entries()
        awaited = np.diff(waits.ptr)[row]
        first = table.ptr[self.place[entry]]
        kernels = np.diff(entry, append=len(self.place))
        inside = table.ptr[self.place[entry] + kernels] - first
        stop = np.cumsum(awaited + inside)
        begin = stop - awaited - inside
        shift = begin + awaited - first
        pointer = np.append(np.repeat(shift, kernels), int((awaited + inside).sum()))
        pointer[:-1] += table.ptr.take(self.place)
        pointer[entry] = begin
        value = np.repeat(self.base[row].astype(np.int32), awaited + inside)
        source = np.arange(len(value))
        source -= np.repeat(shift, awaited + inside)
        value += table.value.take(source, mode="clip")  # waits of entries are clipped, and set next
        value[_ranges(begin, awaited)] = waits.value[_ranges(waits.ptr[row], awaited)]
        return Lists(pointer, value)

    def _entries(self) -> tuple[Ints, Ints]:
        """Kernels that wait for nothing inside their row, and the row of each."""
        lists = [*(template.entries for template in self._program.templates), np.zeros(1, np.int64)]
        entries = _joined(lists).pick(self._template)
        row = owners(entries.ptr)
        return self.base[row] + entries.value, row

    def _exits_awaited(self) -> Lists:
        """Kernels that each row waits for: the exits of the rows before it."""
        before = compress(*self._program.waits([Stream.COMPUTE]), len(self._program))
        lists = [*(exits(template) for template in self._program.templates), np.zeros(1, np.int64)]
        ends = _joined(lists).pick(self._template[before.value])
        size = np.diff(ends.ptr)
        value = np.repeat(self.base[before.value], size) + ends.value
        reach = np.concatenate([[0], np.cumsum(size)])
        return Lists(reach[before.ptr], value.astype(np.int32))


def _edges(template: Template) -> Lists:
    """Kernels that each kernel of a template waits for, each once, ascending."""
    return compress(
        owners(template.before_ptr.astype(np.int64)),
        template.before.astype(np.int64),
        len(template.stream),
    )


def _joined(lists: list[Ints]) -> Lists:
    """Lists one after the other."""
    pointer = np.cumsum([0, *(len(each) for each in lists)])
    return Lists(pointer, np.concatenate(lists).astype(np.int32))


def _ranges(begin: Ints, size: Ints) -> Ints:
    """Numbers from each begin on, so many of each."""
    offset = np.cumsum(size) - size
    return np.repeat(begin - offset, size) + np.arange(int(size.sum()))
