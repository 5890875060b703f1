"""Expansion: the same Program with every kernel a row of its own.

Nothing is timed again. A row with a template becomes the template's kernels, each on its own stream, with the waits that the
template was evaluated with; a row starts when the row before it on the compute stream has ended on every stream.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Lists, compress, owners
from mpsim.program.program import Kind, Program, Span, Stream
from mpsim.program.template import exits

__all__ = ["expand"]

Ints = NDArray[np.int64]
Number = TypeVar("Number", np.int8, np.float64)

_SPANS = np.zeros(len(Stream), dtype=np.int8)
_SPANS[Stream.TP], _SPANS[Stream.CP] = Span.TP, Span.CP
# experts' groups are cut from all ranks of a stage, across its axes: whoever waits for one of them is taken to wait for all
_SPANS[Stream.EP] = Span.TP | Span.CP | Span.DP


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """A list of integers a template, CSR; index M stands for rows without a template: one kernel."""

    ptr: Ints
    value: Ints

    @classmethod
    def of(cls, lists: list[Ints]) -> _Lists:
        return cls(
            np.cumsum([0, *(len(one) for one in lists)]),
            np.concatenate([*lists, np.zeros(0, np.int64)]),
        )

    def count(self, template: Ints) -> Ints:
        return self.ptr[template + 1] - self.ptr[template]

    def spread(self, template: Ints) -> tuple[Ints, Ints]:
        """For every element of every list of `template`: which of `template`, and the element."""
        count = self.count(template)
        which = np.repeat(np.arange(len(template)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        return which, self.value[self.ptr[template[which]] + within]


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
    count = len(program.templates)
    template = np.where(program.template < 0, count, program.template).astype(np.int64)
    single = np.zeros(1, dtype=np.int64)
    kernels = _Lists.of([*(np.arange(len(one.stream)) for one in program.templates), single])
    row, kernel = kernels.spread(template)
    base = np.cumsum(kernels.count(template)) - kernels.count(template)
    dep_ptr, dep = _edges(program, template, base, len(row))
    slot_ptr, slot = _slots(program, row, kernel, template, base)
    labels = tuple(
        dict.fromkeys([*program.labels, *(n for one in program.templates for n in one.names)])
    )
    pick = _Pick(program, template[row], kernel, row)
    return dataclasses.replace(
        program,
        labels=labels,
        rank=program.rank[row],
        stream=pick("stream", program.stream),
        kind=np.where(
            pick.has, _kinds(pick("stream", program.stream), program.kind[row]), program.kind[row]
        ),
        stage=program.stage[row],
        chunk=program.chunk[row],
        microbatch=program.microbatch[row],
        peer=program.peer[row],
        label=_labels(program, labels, pick),
        part=pick("part", program.part),
        span=np.where(pick.has, _SPANS[pick("stream", program.stream)], program.span[row]),
        template=np.full(len(row), -1, dtype=np.int32),
        duration=pick("duration", program.duration),
        up_bytes=pick("up_bytes", program.up_bytes),
        out_bytes=pick("out_bytes", program.out_bytes),
        dep_ptr=dep_ptr,
        dep=dep,
        slot_ptr=slot_ptr,
        slot=slot,
        templates=(),
    )


class _Pick:
    """Chooses a column from the template where a row has one, else from the row."""

    def __init__(self, program: Program, template: Ints, kernel: Ints, row: Ints) -> None:
        self._templates = program.templates
        sizes = [len(one.stream) for one in program.templates]
        self.index = np.cumsum([0, *sizes])[template] + kernel
        self.has = template < len(program.templates)
        self.row = row

    def __call__(self, name: str, own: NDArray[Number]) -> NDArray[Number]:
        columns: list[NDArray[np.float64]] = [getattr(one, name) for one in self._templates]
        inside = np.concatenate([*columns, np.zeros(1)])[np.where(self.has, self.index, 0)]
        return np.where(self.has, inside, own[self.row]).astype(own.dtype)


def _kinds(stream: NDArray[np.int8], kind: NDArray[np.int8]) -> NDArray[np.int8]:
    return np.where(stream == Stream.COMPUTE, kind, Kind.COLLECTIVE).astype(np.int8)


def _labels(program: Program, labels: tuple[str, ...], pick: _Pick) -> NDArray[np.int16]:
    place = {name: i for i, name in enumerate(labels)}
    tables = [
        np.array([place[n] for n in one.names], dtype=np.int64)[one.name_index]
        for one in program.templates
    ]
    inside = np.concatenate([*tables, np.zeros(1, np.int64)])[np.where(pick.has, pick.index, 0)]
    return np.where(pick.has, inside, program.label[pick.row]).astype(np.int16)


def _edges(program: Program, template: Ints, base: Ints, total: int) -> Lists:
    """Edges inside templates, and from the exits of a row to the entries of the rows that wait for it."""
    one = np.zeros(1, dtype=np.int64)
    owner = _Lists.of(
        [
            *(
                np.repeat(np.arange(len(t.stream)), np.diff(t.before_ptr))
                for t in program.templates
            ),
            one[:0],
        ]
    )
    before = _Lists.of([*(t.before.astype(np.int64) for t in program.templates), one[:0]])
    which, target = owner.spread(template)
    _, source = before.spread(template)
    after_row, before_row = program.waits([Stream.COMPUTE])
    entries = _Lists.of([*(t.entries for t in program.templates), one])
    ends = _Lists.of([*(exits(t) for t in program.templates), one])
    edge, entry = entries.spread(template[after_row])
    pair, end = ends.spread(template[before_row[edge]])
    row = np.concatenate([base[which] + target, base[after_row[edge[pair]]] + entry[pair]])
    on = np.concatenate([base[which] + source, base[before_row[edge[pair]]] + end])
    return compress(row, on, total)


def _slots(program: Program, row: Ints, kernel: Ints, template: Ints, base: Ints) -> Lists:
    """Kernels occupy their own stream of the row's rank; rows without template keep their slots."""
    plain = template[row] == len(program.templates)
    pick = _Pick(program, template[row], kernel, row)
    own = program.rank[row].astype(np.int64) * len(Stream) + pick("stream", program.stream)
    owner = owners(program.slot_ptr)
    kept = template[owner] == len(program.templates)
    rows = np.concatenate([np.flatnonzero(~plain), base[owner[kept]]])
    slots = np.concatenate([own[~plain], program.slot[kept]])
    return compress(rows, slots.astype(np.int64), len(row))
