"""Blocks: the forward and the backward of one layer, embedding or head on one rank, as a list of
items in issue order.

A block's operators fall into runs: those of an attention core, those of routed experts, and all
others; each kind has its own collectives.

A forward of some tokens may run beside a backward of others, those of each travelling while the
other computes (`fused_blocks`). Per pair of layers the exchange stream carries combine of the
backward, dispatch of the forward, dispatch of the backward, combine of the forward, in this order;
the compute stream runs attention of the forward beside the first, experts of the backward beside
the second, experts of the forward beside the third and attention of the backward beside the last
(Megatron-Core's 1F1B overlap, DualPipe's block).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from mpsim import structs
from mpsim.parallel.context import core_items
from mpsim.parallel.experts import (
    expert_backward,
    expert_forward,
    is_fused_away,
    overlaps_shared,
    split_shared,
    way_back,
)
from mpsim.parallel.shard import (
    Communication,
    Compute,
    Item,
    Sharding,
    Synchronization,
    Waits,
    shard,
)
from mpsim.parallel.tensor import backward_items, forward_items, norm_items
from mpsim.workload import Expansion, Module, Operator, Phase, Role, Split

Plain = Callable[[Operator], Iterator[Item]]


def repeated(items: Iterable[Item]) -> list[Item]:
    """The same items, marked as done again; a wait of the host is one like the first."""
    return [
        item if isinstance(item, Synchronization) else structs.replace(item, repeated=True)
        for item in items
    ]


@structs.dataclass(frozen=True, slots=True)
class Repeat:
    """Forward kernels that run again together in a backward."""

    operators: tuple[Operator, ...]  # of the forward, in order
    # places of forward operators: the first backward kernel in any of them waits for it
    before: frozenset[tuple[Module, Role]]
    # whether they run when what that kernel reads has arrived, not before it is sent
    late: bool = False


class _Part(enum.Enum):
    CORE = "attention core"
    EXPERTS = "routed experts"
    OTHER = "other"


@structs.dataclass(frozen=True, slots=True)
class _Run:
    """Operators that follow each other and belong to one part."""

    part: _Part
    operators: tuple[Operator, ...]
    after_experts: bool


def block_forward(expansion: Expansion, sharding: Sharding) -> list[Item]:
    """Forward of one layer (or embedding, or head) on one rank, with its collectives."""
    items: list[Item] = []
    if any(operator.in_attention_core for operator in expansion.forward):
        items += norm_items(expansion.forward[0], sharding)
    return items + _forward(expansion.forward, sharding)


def _forward(operators: Sequence[Operator], sharding: Sharding) -> list[Item]:
    def plain(operator: Operator) -> Iterator[Item]:
        return forward_items(operator, sharding)

    items: list[Item] = []
    shared = _hidden_shared(operators, sharding)
    for run in _runs(operators, sharding):
        if run.part is _Part.CORE:
            items += core_items(run.operators, sharding, backward=False)
        elif run.part is _Part.EXPERTS:
            beside = _beside(shared, plain)
            items += expert_forward(run.operators, sharding, beside=beside)
        else:
            returned = (
                way_back(sharding, backward=False) if shared and run.after_experts else frozenset()
            )
            items += _in_turn(run, plain, shared, returned)
    return items


def block_backward(
    expansion: Expansion,
    sharding: Sharding,
    *,
    again: Sequence[Repeat] = (),
    phases: frozenset[Phase] = frozenset({Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT}),
) -> list[Item]:
    """Backward of one layer (or embedding, or head) on one rank, with its collectives.

    `again`: forward kernels that run again, before the first kernel of `Phase.INPUT_GRADIENT` that
    waits for them. `phases`: both for a full backward; one of them where the schedule splits it.
    """
    splits = Phase.INPUT_GRADIENT in phases
    repeats = _Repeats(expansion, sharding, again if splits else ())
    wanted = [operator for operator in expansion.backward if operator.phase in phases]
    shared = _hidden_shared(wanted, sharding) if splits else []

    def plain(operator: Operator) -> Iterator[Item]:
        yield from repeats.before([operator])
        yield from backward_items(operator, sharding, together=len(phases) > 1)

    items: list[Item] = []
    for run in _runs(wanted, sharding):
        if run.part is _Part.CORE:
            items += repeats.before(run.operators)
            items += core_items(run.operators, sharding, backward=True)
        elif run.part is _Part.EXPERTS:
            items += repeats.before(run.operators)
            beside = _beside(shared, plain)
            items += repeats.among(expert_backward(run.operators, sharding, beside=beside))
        else:
            returned = (
                way_back(sharding, backward=True) if shared and run.after_experts else frozenset()
            )
            items += _in_turn(run, plain, shared, returned)
    return items


class _Repeats:
    """Parts of a forward that run again in a backward, once, before who needs them."""

    def __init__(self, expansion: Expansion, sharding: Sharding, again: Sequence[Repeat]) -> None:
        self._expansion = expansion
        self._sharding = sharding
        self._left = list(again)

    def before(self, operators: Sequence[Operator]) -> Iterator[Item]:
        """Items that have to run before the first of these backward operators."""
        for part in self._due(operators, late=False):
            yield from self._items(part)

    def among(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, with what runs again late right before the kernel that waits for it."""
        for item in items:
            if isinstance(item, Compute):
                for part in self._due([item.operator], late=True):
                    for operator in part.operators:
                        yield Compute(
                            shard(operator, self._sharding), repeated=True, needs=item.needs
                        )
            yield item

    def _due(self, operators: Sequence[Operator], *, late: bool) -> list[Repeat]:
        places = {operator.place for operator in operators}
        due = [part for part in self._left if part.late is late and part.before & places]
        self._left = [part for part in self._left if part not in due]
        return due

    def _items(self, part: Repeat) -> list[Item]:
        if part.operators == self._expansion.forward:
            return repeated(block_forward(self._expansion, self._sharding))
        return repeated(_forward(part.operators, self._sharding))


def _runs(operators: Sequence[Operator], sharding: Sharding) -> list[_Run]:
    def part(operator: Operator) -> _Part:
        if operator.in_attention_core:
            return _Part.CORE
        return _Part.EXPERTS if operator.split is Split.EXPERT else _Part.OTHER

    present = [operator for operator in operators if not is_fused_away(operator, sharding)]
    runs: list[_Run] = []
    for which, run in itertools.groupby(present, key=part):
        after_experts = bool(runs) and runs[-1].part is _Part.EXPERTS
        runs.append(_Run(which, tuple(run), after_experts))
    return runs


def _hidden_shared(operators: Sequence[Operator], sharding: Sharding) -> list[Operator]:
    """Operators of the shared experts, if they run beside dispatch and combine; else none."""
    if not overlaps_shared(sharding) or all(each.split is not Split.EXPERT for each in operators):
        return []
    return [operator for operator in operators if operator.module is Module.SHARED_EXPERTS]


def _beside(shared: Sequence[Operator], plain: Plain) -> tuple[list[Item], list[Item]]:
    first, second = split_shared(shared)
    return [item for operator in first for item in plain(operator)], [
        item for operator in second for item in plain(operator)
    ]


def _in_turn(
    run: _Run, plain: Plain, hidden: Sequence[Operator], returned: frozenset[str]
) -> Iterator[Item]:
    """The operators of a run but hidden ones; the first kernel waits for what has `returned`."""
    for item in (
        item for operator in run.operators if operator not in hidden for item in plain(operator)
    ):
        if isinstance(item, Compute) and returned:
            yield structs.replace(item, needs=item.needs | returned)
            returned = frozenset()
        else:
            yield item


_TRAVEL = ("ep", "etp", "etp-ep")


@structs.dataclass(frozen=True, slots=True)
class _Cut:
    """A block of an expert layer: before the way there, the experts, after the way back."""

    before: list[Item]
    there: list[Communication]
    experts: list[Item]
    back: list[Communication]
    after: list[Item]


def fused_blocks(forward: Sequence[Item], backward: Sequence[Item]) -> list[Item]:
    """Interleave `block_forward` and `block_backward` of two expert layers.

    Neither recomputes in full. Exchanges of tokens are awaited by what needs them alone; one
    follows the other where nothing travels.
    """
    ahead, behind = _cut(forward), _cut(backward)
    if ahead is None or behind is None:
        return [*forward, *backward]
    return [
        *behind.before,
        *behind.there,
        *ahead.before,
        *ahead.there,
        *_needing(behind.experts, behind.there),
        *behind.back,
        *_needing(ahead.experts, ahead.there),
        *ahead.back,
        *_needing(behind.after, behind.back),
        *_needing(ahead.after, ahead.back),
    ]


def _cut(items: Sequence[Item]) -> _Cut | None:
    travels = [i for i, item in enumerate(items) if _travels(item)]
    if not travels:
        return None
    start, end = travels[0], travels[-1] + 1
    there = next(i for i in range(start, len(items)) if not _travels(items[i]))
    back = next(i for i in range(end - 1, -1, -1) if not _travels(items[i])) + 1
    return _Cut(
        before=list(items[:start]),
        there=_tagged(items[start:there]),
        experts=list(items[there:back]),
        back=_tagged(items[back:end]),
        after=list(items[end:]),
    )


def _travels(item: Item) -> bool:
    return isinstance(item, Communication) and item.axis in _TRAVEL


def _tagged(items: Sequence[Item]) -> list[Communication]:
    return [
        structs.replace(item, waits=Waits.TAGGED)
        for item in items
        if isinstance(item, Communication)
    ]


def _needing(items: Sequence[Item], ways: Sequence[Communication]) -> list[Item]:
    """All kernels wait for the tokens they are given; the first does for all."""
    tags = frozenset(item.tag for item in ways)
    return [
        structs.replace(item, needs=item.needs | tags) if isinstance(item, Compute) else item
        for item in items
    ]
