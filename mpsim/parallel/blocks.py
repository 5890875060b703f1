"""Blocks: the forward and the backward of one layer, embedding or head on one rank, as a list of items in issue order.

A block's operators fall into runs: those of an attention core, those of routed experts, and all others; each kind has its own collectives.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterator, Sequence

from mpsim.parallel.context import core_backward, core_forward
from mpsim.parallel.experts import (
    expert_backward,
    expert_forward,
    is_fused_away,
    is_of_experts,
    is_shared,
    overlaps_shared,
    split_shared,
    way_back,
)
from mpsim.parallel.items import Compute, Item
from mpsim.parallel.shard import Sharding
from mpsim.parallel.tensor import backward_items, forward_items, norm_items
from mpsim.workload import Expansion, Operator, Phase

__all__ = ["block_backward", "block_forward"]

Plain = Callable[[Operator], Iterator[Item]]


class _Part(enum.Enum):
    CORE = "attention core"
    EXPERTS = "routed experts"
    OTHER = "other"


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """Operators that follow each other and belong to one part."""

    part: _Part
    operators: tuple[Operator, ...]


def block_forward(
    expansion: Expansion, sharding: Sharding, *, recompute: bool = False
) -> list[Item]:
    """Forward of one layer (or embedding, or head) on one rank, with its collectives.

    Parameters
    ----------
    expansion : Expansion
    sharding : Sharding
    recompute : bool
        Mark everything as run again.
    """
    runs = _runs(expansion.forward, sharding, _core_names(expansion))

    def plain(one: Operator) -> Iterator[Item]:
        return forward_items(one, sharding, recompute=recompute)

    items: list[Item] = []
    if any(run.part is _Part.CORE for run in runs):
        items += norm_items(expansion.forward[0], sharding, recompute=recompute)
    shared = _hidden_shared(expansion.forward, sharding)
    for before, run in _with_previous(runs):
        if run.part is _Part.CORE:
            items += core_forward(run.operators, sharding, recompute=recompute)
        elif run.part is _Part.EXPERTS:
            beside = _beside(shared, plain)
            items += expert_forward(run.operators, sharding, beside=beside, recompute=recompute)
        else:
            returned = way_back(sharding, backward=False) if shared and before else frozenset()
            items += _in_turn(run, plain, shared, returned)
    return items


def block_backward(
    expansion: Expansion,
    sharding: Sharding,
    *,
    recompute: str = "none",
    phases: frozenset[Phase] = frozenset({Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT}),
) -> list[Item]:
    """Backward of one layer (or embedding, or head) on one rank, with its collectives.

    Parameters
    ----------
    expansion : Expansion
    sharding : Sharding
    recompute : str
        ``none``, ``selective`` (the attention core runs again) or ``full`` (the whole forward does).
    phases : set of Phase
        Both for a full backward; one of them where the schedule splits it.
    """
    again = Phase.INPUT_GRADIENT in phases
    items: list[Item] = []
    if recompute == "full" and again:
        items += block_forward(expansion, sharding, recompute=True)
    wanted = [one for one in expansion.backward if one.phase in phases]
    shared = _hidden_shared(wanted, sharding) if again else []

    def plain(one: Operator) -> Iterator[Item]:
        return backward_items(one, sharding, together=len(phases) > 1)

    for before, run in _with_previous(_runs(wanted, sharding, _core_names(expansion))):
        if run.part is _Part.CORE:
            if recompute == "selective" and again:
                items += core_forward(_answered(run, expansion), sharding, recompute=True)
            items += core_backward(run.operators, sharding)
        elif run.part is _Part.EXPERTS:
            items += expert_backward(run.operators, sharding, beside=_beside(shared, plain))
        else:
            returned = way_back(sharding, backward=True) if shared and before else frozenset()
            items += _in_turn(run, plain, shared, returned)
    return items


def _core_names(expansion: Expansion) -> tuple[str, ...]:
    return tuple(one.name for one in expansion.forward if one.recomputed_selectively)


def _runs(operators: Sequence[Operator], sharding: Sharding, core: tuple[str, ...]) -> list[_Run]:
    def part(one: Operator) -> _Part:
        if one.name.startswith(core):  # scores_dq answers scores
            return _Part.CORE
        return _Part.EXPERTS if is_of_experts(one) else _Part.OTHER

    kept = [one for one in operators if not is_fused_away(one, sharding)]
    return [_Run(which, tuple(run)) for which, run in itertools.groupby(kept, key=part)]


def _answered(run: _Run, expansion: Expansion) -> list[Operator]:
    """Forward operators of the core that a run of backward operators answers."""
    names = tuple(one.name for one in run.operators)
    return [
        one
        for one in expansion.forward
        if one.recomputed_selectively and any(name.startswith(one.name) for name in names)
    ]


def _with_previous(runs: Sequence[_Run]) -> Iterator[tuple[bool, _Run]]:
    """Each run, with whether the one before it is that of the experts."""
    previous: _Run | None = None
    for run in runs:
        yield previous is not None and previous.part is _Part.EXPERTS, run
        previous = run


def _hidden_shared(operators: Sequence[Operator], sharding: Sharding) -> list[Operator]:
    """Operators of the shared experts, if they run beside dispatch and combine; else none."""
    if not overlaps_shared(sharding) or not any(map(is_of_experts, operators)):
        return []
    return [one for one in operators if is_shared(one)]


def _beside(shared: Sequence[Operator], plain: Plain) -> tuple[list[Item], list[Item]]:
    first, second = split_shared(shared)
    return [item for one in first for item in plain(one)], [
        item for one in second for item in plain(one)
    ]


def _in_turn(
    run: _Run, plain: Plain, hidden: Sequence[Operator], returned: frozenset[str]
) -> Iterator[Item]:
    """The operators of a run but the hidden ones; the first kernel waits for what has `returned` from the experts."""
    for item in (item for one in run.operators if one not in hidden for item in plain(one)):
        if isinstance(item, Compute) and returned:
            yield dataclasses.replace(item, needs=item.needs | returned)
            returned = frozenset()
        else:
            yield item
