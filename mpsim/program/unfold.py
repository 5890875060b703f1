"""Unfolding: ranks of a class by themselves, all of them or those that something touches.

Folding is a matter of speed, never of result: while all ranks of a class do the same at the same
time, one stands for all. Unfolded, each has rows of its own, and a collective is one row on the
streams of all its members. Partly unfolded, each axis of the mesh falls into the coordinates that
are touched, one by one, and all the others together: ranks that differ in nothing stay one class.

Joined, programs of replicas that differ, folded as usual, become one. Rows in which data-parallel
replicas take part together (`Span.DP`) are one row of it: it waits for what each class waits for,
occupies the streams of all, and takes as long as the slowest says.

Shapes: N folded rows, A copies of each rank class (one a combination of the axes' parts), S spans,
C classes of replicas, J joint rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.memo import asked_once
from mpsim.parallel.axes import FOLDED
from mpsim.program.csr import Columns, Lists, compress, owners
from mpsim.program.program import COLUMNS, Program, Span, Stream

_AXES = tuple((axis.name, axis.span) for axis in reversed(FOLDED))  # slowest first


def _parts(degree: int, touched: Iterable[int] | None) -> list[list[int]]:
    """Coordinates of one axis that stay together."""
    if touched is None:
        return [[coordinate] for coordinate in range(degree)]
    alone = set(touched)
    if not alone <= set(range(degree)):
        raise ValueError(f"got coordinates {sorted(alone)} on an axis of {degree}")
    others = [coordinate for coordinate in range(degree) if coordinate not in alone]
    return sorted([[coordinate] for coordinate in alone] + ([others] if others else []))


def spans(numbers: Sequence[int]) -> str:
    """Write ``0,2-7``."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


class Unfolding:
    """How the rows of a folded program become those of one whose ranks have rows of their own.

    `program`: expanded: collectives inside templates have no members to meet. `degrees`: ranks that
    the classes were folded over, by axis; 1 where one is left out. `touched`: coordinates that will
    differ from the others of their class, by axis; all of all axes by default. ValueError if the
    program still has templates, or a coordinate is not there.
    """

    _spans = range(sum(Span) + 1)

    def __init__(
        self,
        program: Program,
        degrees: Mapping[str, int],
        *,
        touched: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        if program.templates:
            raise ValueError("unfolding needs an expanded program: call expand(program) first")
        self._folded = program
        self._parts = {
            name: _parts(degrees.get(name, 1), None if touched is None else touched.get(name, ()))
            for name, _ in _AXES
        }
        self._grid = tuple(len(self._parts[name]) for name, _ in _AXES)
        self.copies = int(np.prod(self._grid))  # classes that each rank class becomes
        self._member = [self._members(span) for span in self._spans]
        self._each = np.array([int(rows.max()) + 1 for rows in self._member])
        # rows that each row becomes, int64[N]; they follow each other
        self.count: Ints = self._each[program.span]

    def _members(self, span: int) -> Ints:
        """Which of the rows that one of `span` becomes each copy takes part in [A]."""
        free = [
            1 if span & flag else size for (_, flag), size in zip(_AXES, self._grid, strict=True)
        ]
        number = np.arange(int(np.prod(free))).reshape(free)
        return np.broadcast_to(number, self._grid).ravel()

    # dependencies and slots of every draw ask again
    @asked_once(lambda span, other: (span, other))
    def _partners(self, span: int, other: int) -> Ints:
        """Rows of `other` that share a rank with each row of `span` [rows of span, partners]."""
        here, there = self._member[span], self._member[other]
        pairs = np.unique(np.stack([here, there], axis=1), axis=0)
        return pairs[:, 1].reshape(int(here.max()) + 1, -1)

    def lists(self, lists: Lists, order: Ints | None = None) -> Lists:
        """Lists of rows for every folded row, such as its dependencies, become lists for every
        unfolded one.

        `order` (int64[N], optional): folded rows in another order: lists and their values then
        count rows in that order.
        """
        span = self._folded.span if order is None else self._folded.span[order]
        count = self._each[span]
        base = np.cumsum(count) - count
        return self._tile(lists.ptr, span, span[lists.value], base[lists.value], 1)

    def _slots(self) -> Lists:
        """Slots of every unfolded row: those of all copies that take part."""
        folded = self._folded
        rank, stream = np.divmod(folded.slot.astype(np.int64), len(Stream))
        origin = rank * self.copies * len(Stream) + stream
        alone = np.zeros(len(origin), dtype=np.int8)
        return self._tile(folded.slot_ptr, folded.span, alone, origin, len(Stream))

    def _tile(
        self,
        pointer: Ints,
        span: NDArray[np.int8],
        other: NDArray[np.int8],
        origin: Ints,
        scale: int,
    ) -> Lists:
        """Turn every value of a list into the values ``origin + scale * partner``, for every row
        that its row becomes.

        `pointer` (int64[N + 1]): of the folded lists. `other`: span of what each value stands for.
        """
        row = owners(pointer)
        count = self._each[span]
        base = np.cumsum(count) - count
        pair = span[row].astype(np.int64) * len(self._spans) + other
        kinds = np.unique(pair).tolist()
        tables = {kind: self._partners(*divmod(kind, len(self._spans))) for kind in kinds}
        fan = np.zeros(len(self._spans) ** 2, dtype=np.int64)
        fan[kinds] = [table.shape[1] for table in tables.values()]
        reach = np.concatenate([[0], np.cumsum(fan[pair])])
        width = np.diff(reach[pointer])  # values of each row that a row becomes
        result = np.concatenate([[0], np.cumsum(np.repeat(width, count))])
        first = result[base[row]] + reach[:-1] - reach[pointer[row]]
        value = np.empty(int(result[-1]), dtype=np.int32)
        for kind, table in tables.items():
            mine = np.flatnonzero(pair == kind)
            step = width[row[mine], None] * np.arange(len(table))
            for k, partner in enumerate(table.T):  # the k-th partner of every row, all at once
                value[first[mine, None] + k + step] = origin[mine, None] + scale * partner
        return Lists(result, value)

    def program(self) -> Program:
        """The unfolded program: each rank class in its parts, which follow each other, the fastest
        axis first, named ``pp 1 dp 0 ... tp 2-7`` and the like.
        """
        folded = self._folded
        home = self._home()
        each: Columns = {name: np.repeat(getattr(folded, name), self.count) for name in COLUMNS}
        dependencies, slots = self.lists(Lists(folded.dep_ptr, folded.dep)), self._slots()
        rank, peer = each.pop("rank"), each.pop("peer")
        return Program(
            vocabulary=folded.vocabulary,
            labels=folded.labels,
            class_size=np.tile(self._sizes(), folded.ranks),
            rank_name=tuple(
                f"{name} {part}" for name in folded.rank_name for part in self._names()
            ),
            rank=rank * np.int32(self.copies) + home,
            peer=np.where(peer < 0, np.int32(-1), peer * np.int32(self.copies) + home),
            dep_ptr=dependencies.ptr,
            dep=dependencies.value,
            slot_ptr=slots.ptr,
            slot=slots.value,
            least=folded.least,
            least_part=folded.least_part,
            **each,
        )

    def _home(self) -> NDArray[np.int32]:
        """Home copy of each unfolded row: the first that takes part in it."""
        home = np.empty(int(self.count.sum()), dtype=np.int32)
        base = np.cumsum(self.count) - self.count
        for span in np.unique(self._folded.span).tolist():
            mine = np.flatnonzero(self._folded.span == span)
            first = self._partners(span, Span.NONE)[:, 0]
            home[base[mine, None] + np.arange(len(first))] = first
        return home

    def _sizes(self) -> Ints:
        """Ranks in each copy."""
        lengths = [np.array([len(part) for part in self._parts[name]]) for name, _ in _AXES]
        sizes: Ints = functools.reduce(np.multiply.outer, lengths).ravel()
        return sizes

    def _names(self) -> list[str]:
        axes = [[f"{name} {spans(part)}" for part in self._parts[name]] for name, _ in _AXES]
        return [" ".join(parts) for parts in itertools.product(*axes)]


class UnequalCollectivesError(ValueError):
    """Classes of replicas have different collectives. `counts`: collectives of each class."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(f"got {counts} collectives by class; needed the same in each")
        self.counts = counts


def beside(programs: Sequence[Program]) -> Program:
    """Lay programs side by side: rank classes and rows of each follow those of the one before it,
    and nothing of one waits for another.

    Returns Program: with equal templates once; what links hold up (`Program.least`) is each one's
    own, and left out.
    """
    if len(programs) == 1:
        return programs[0]
    templates = dict.fromkeys(itertools.chain(*(program.templates for program in programs)))
    labels = dict.fromkeys(itertools.chain(*(program.labels for program in programs)))
    rows = np.array([len(program) for program in programs])
    ranks = np.array([program.ranks for program in programs])
    first_row, first_rank = np.cumsum(rows) - rows, np.cumsum(ranks) - ranks
    each: Columns = {
        name: np.concatenate([getattr(program, name) for program in programs])
        for name in (*COLUMNS, "class_size")
    }
    home = np.repeat(first_rank.astype(np.int32), rows)
    each["rank"] += home
    each["peer"] += np.where(each["peer"] < 0, np.int32(0), home)
    for name, known in (("template", templates), ("label", labels)):
        number = dict(zip(known, range(len(known)), strict=True))
        each[name] = np.concatenate(
            [
                # the last is of rows that have none
                np.array([*map(number.get, getattr(program, f"{name}s")), -1], each[name].dtype)[
                    getattr(program, name)
                ]
                for program in programs
            ]
        )
    for name, shift in (("dep", first_row), ("slot", first_rank * len(Stream))):
        values = [getattr(program, name) for program in programs]
        count = np.array([*map(len, values)])
        each[name] = np.concatenate(values) + np.repeat(shift.astype(np.int32), count)
        pointers = [getattr(program, f"{name}_ptr")[:-1] for program in programs]
        each[f"{name}_ptr"] = np.append(
            np.concatenate(pointers) + np.repeat(np.cumsum(count) - count, rows), count.sum()
        )
    return Program(
        vocabulary=programs[0].vocabulary,
        labels=tuple(labels),
        rank_name=tuple(itertools.chain(*(program.rank_name for program in programs))),
        templates=tuple(templates),
        **each,
    )


def join(programs: Sequence[Program], names: Sequence[str], sizes: Sequence[int]) -> Program:
    """Let the programs of several classes of replicas run beside each other.

    `programs`: one a class, with the same pipeline ranks. `names`: of the classes, which follow the
    names of their ranks. `sizes`: replicas in each class; the programs are of all of them.
    UnequalCollectivesError if the classes do not exchange the same tensors in the same order, so
    that they could not meet.

    Returns Program: rank classes of the first program first.
    """
    joint, laid = _joint(programs), beside(programs)
    number, order = _numbers(programs, joint)
    count, place = len(order), np.concatenate(number)
    each: Columns = {name: getattr(laid, name)[order] for name in COLUMNS}
    for name in ("duration", "up_bytes", "out_bytes", "size"):
        slowest = np.max(
            [getattr(program, name)[rows] for program, rows in zip(programs, joint, strict=True)],
            axis=0,
        )
        each[name][number[0][joint[0]]] = slowest
    dependencies = compress(place[owners(laid.dep_ptr)], place[laid.dep], count)
    slots = compress(place[owners(laid.slot_ptr)], laid.slot.astype(np.int64), count)
    ranks, total = [program.ranks for program in programs], sum(sizes)
    return structs.replace(
        laid,
        class_size=laid.class_size * np.repeat(sizes, ranks) // total,
        rank_name=tuple(
            f"{rank} {name}"
            for program, name in zip(programs, names, strict=True)
            for rank in program.rank_name
        ),
        dep_ptr=dependencies.ptr,
        dep=dependencies.value,
        slot_ptr=slots.ptr,
        slot=slots.value,
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
    Rows of a stream run in the order of their numbers. Between two joint rows come the rows that
    lie between them in each program.
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
    # an even key lies between two joint rows, the odd one after it is the joint row itself; a
    # stable sort keeps each program's own order
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
