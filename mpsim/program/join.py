"""Joining: programs of replicas that differ become one, in which they meet in the collectives of all replicas.

Each class of replicas has a program of its own, folded as usual. Rows in which data-parallel replicas take part together (`Span.DP`) are one
row of the joined program: it waits for what each class waits for, occupies the streams of all, and takes as long as the slowest says.

Shapes: N rows of all programs, C classes, J joint rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Column, Columns, compress, owners
from mpsim.program.program import COLUMNS, Program, Span, Stream

Ints = NDArray[np.int64]


class UnequalCollectivesError(ValueError):
    """Classes of replicas have different collectives with each other. `counts`: collectives of each
    class.
    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__(f"got {counts} collectives by class; needed the same in each")
        self.counts = counts


def join(programs: Sequence[Program], names: Sequence[str], sizes: Sequence[int]) -> Program:
    """Let the programs of several classes of replicas run beside each other.

    `programs`: one a class, with the same pipeline ranks. `names`: of the classes, which follow the
    names of their ranks. `sizes`: replicas in each class; the programs are of all of them.
    UnequalCollectivesError if the classes do not exchange the same tensors in the same order, so
    that they could not meet.

    Returns
    -------
    Program
        Rank classes of the first program first.
    """
    joint = _joint(programs)
    number, order = _numbers(programs, joint)
    count = len(order)
    each: Columns = {
        name: np.concatenate([_column(programs, i, name) for i in range(len(programs))])[order]
        for name in COLUMNS
    }
    for name in ("duration", "up_bytes", "out_bytes", "size"):
        slowest = np.max(
            [getattr(program, name)[rows] for program, rows in zip(programs, joint, strict=True)],
            axis=0,
        )
        each[name][number[0][joint[0]]] = slowest
    dependencies = compress(*_pairs(programs, number, "dep"), count)
    slots = compress(*_pairs(programs, number, "slot"), count)
    ranks, total = programs[0].ranks, sum(sizes)
    return Program(
        vocabulary=programs[0].vocabulary,
        labels=tuple(dict.fromkeys(itertools.chain(*(program.labels for program in programs)))),
        class_size=np.concatenate(
            [
                program.class_size * size // total
                for program, size in zip(programs, sizes, strict=True)
            ]
        ),
        rank_name=tuple(
            f"{rank} {name}"
            for program, name in zip(programs, names, strict=True)
            for rank in program.rank_name[:ranks]
        ),
        dep_ptr=dependencies.ptr,
        dep=dependencies.value,
        slot_ptr=slots.ptr,
        slot=slots.value,
        templates=tuple(itertools.chain(*(program.templates for program in programs))),
        **each,
    )


def _joint(programs: Sequence[Program]) -> list[Ints]:
    """Rows of every program in which replicas take part together; those of equal place are one."""
    rows = [np.flatnonzero(program.span & Span.DP) for program in programs]
    places = [
        list(
            zip(
                *(getattr(program, name)[mine].tolist() for name in ("rank", "stream", "stage")),
                [program.labels[label] for label in program.label[mine].tolist()],
                strict=True,
            )
        )
        for program, mine in zip(programs, rows, strict=True)
    ]
    if any(place != places[0] for place in places):
        raise UnequalCollectivesError([len(place) for place in places])
    return rows


def _numbers(programs: Sequence[Program], joint: Sequence[Ints]) -> tuple[list[Ints], Ints]:
    """New number of every row, and for each new row its place in the programs laid end to end.

    Notes
    -----
    Rows of a stream run in the order of their numbers. Between two joint rows come the rows that lie between them in each program.
    """
    base = np.cumsum([0, *(len(program) for program in programs)])
    joined = [
        np.searchsorted(rows, np.arange(len(program)))
        for program, rows in zip(programs, joint, strict=True)
    ]
    is_joint = [
        np.isin(np.arange(len(program)), rows)
        for program, rows in zip(programs, joint, strict=True)
    ]
    # an even key lies between two joint rows, the odd one after it is the joint row itself; a stable sort keeps each program's own order
    keys = np.concatenate([2 * before + its for before, its in zip(joined, is_joint, strict=True)])
    first = np.ones(int(base[-1]), dtype=bool)  # a joint row is that of the first program
    for begin, rows in zip(base[1:-1], joint[1:], strict=True):
        first[begin + rows] = False
    order = np.flatnonzero(first)
    order = order[np.argsort(keys[order], kind="stable")]
    place = np.empty(int(base[-1]), dtype=np.int64)
    place[order] = np.arange(len(order))
    for begin, rows in zip(base[1:-1], joint[1:], strict=True):
        place[begin + rows] = place[joint[0]]
    return [place[begin:end] for begin, end in itertools.pairwise(base)], order


def _column(programs: Sequence[Program], which: int, name: str) -> Column:
    """A column of one program as the joined one counts."""
    program = programs[which]
    own: Column = getattr(program, name)
    before = programs[:which]
    shifts = {
        "rank": sum(other.ranks for other in before),
        "peer": sum(other.ranks for other in before),
        "template": sum(len(other.templates) for other in before),
    }
    if name in shifts:
        own = own.copy()
        own[own >= 0] += shifts[name]
    if name == "label":
        known = tuple(dict.fromkeys(itertools.chain(*(other.labels for other in programs))))
        own = np.array([known.index(text) for text in program.labels], dtype=own.dtype)[own]
    return own


def _pairs(programs: Sequence[Program], number: Sequence[Ints], name: str) -> tuple[Ints, Ints]:
    """Row and value of every entry of a list column."""
    rows, values = [], []
    shift = 0
    for program, mine in zip(programs, number, strict=True):
        rows.append(mine[owners(getattr(program, f"{name}_ptr"))])
        own = getattr(program, name).astype(np.int64)
        values.append(mine[own] if name == "dep" else own + shift * len(Stream))
        shift += program.ranks
    return np.concatenate(rows), np.concatenate(values)
