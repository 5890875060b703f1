"""Pieces of an action: consecutive blocks that share a gather of parameters or a reduction of gradients.

Where parameters are sharded (ZeRO 3, FSDP) every action is cut into *units*, each gathered before it runs. Otherwise the last
backward of a stage is cut into *buckets* of gradients where the framework reduces them beside it, and the first forward likewise
where parameters are gathered beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from mpsim.parallel import Stage
from mpsim.schedule import Action
from mpsim.training.blocks import Block
from mpsim.training.plan import Plan

__all__ = ["Amount", "Piece", "cut"]


class Amount(NamedTuple):
    """Parameters on one rank that travel together; those of routed experts apart, as other ranks share them."""

    dense: float
    experts: float


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive blocks of an action.

    Parameters
    ----------
    blocks : tuple of Block
        In the order they run.
    gathers : tuple of Amount
        Gathered before it, in order.
    reduces : tuple of Amount
        Reduced after it, in order.
    """

    blocks: tuple[Block, ...]
    gathers: tuple[Amount, ...] = ()
    reduces: tuple[Amount, ...] = ()


def cut(
    plan: Plan,
    stage: Stage,
    action: Action,
    blocks: Sequence[Block],
    *,
    gather: bool,
    reduce: bool,
) -> list[Piece]:
    """Cut an action of a stage where parameters or gradients travel.

    Parameters
    ----------
    plan : Plan
    stage : Stage
    action : Action
    blocks : sequence of Block
        In the order they run.
    gather, reduce : bool
        Whether this action needs parameters gathered, and completes gradients that are reduced.

    Returns
    -------
    list of Piece
        At least one; their blocks in order are `blocks`.
    """
    if plan.gathers_units:
        return _units(plan, action, blocks, gather=gather, reduce=reduce)
    beside = gather or (reduce and plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp))
    groups = _buckets(plan, stage, blocks) if beside else [list(blocks)]
    amounts = [(_amount(group),) for group in groups]
    return [
        Piece(tuple(group), amount if gather else (), amount if reduce else ())
        for group, amount in zip(groups, amounts, strict=True)
    ]


def _amount(blocks: Sequence[Block]) -> Amount:
    experts = sum(one.experts for one in blocks)
    return Amount(sum(one.parameters for one in blocks) - experts, experts)


def _buckets(plan: Plan, stage: Stage, blocks: Sequence[Block]) -> list[list[Block]]:
    """Group blocks until each group's gradients fill a bucket."""
    data, orders = plan.layout.framework.data, plan.orders
    first_chunk = orders.stage_rank[stage.index] == 0 and orders.stage_chunk[stage.index] == 0
    if data.first_chunk_buckets and not first_chunk:
        return [list(blocks)]
    element = plan.layout.framework.optimizer.gradient_bytes
    usual = max(data.bucket_bytes, data.bucket_bytes_per_replica * plan.replicas) / element
    size = data.first_bucket_bytes / element or usual
    groups: list[list[Block]] = [[]]
    for block in blocks:
        if groups[-1] and sum(one.parameters for one in groups[-1]) >= size:
            groups.append([])
            size = usual
        groups[-1].append(block)
    return groups


def _units(
    plan: Plan, action: Action, blocks: Sequence[Block], *, gather: bool, reduce: bool
) -> list[Piece]:
    """Units of sharded parameters: some layers each; embedding and head one together (the root) or one each.

    The root is gathered with the first unit of a forward and kept until its gradients are reduced after the last unit of the
    backward. A head of its own is kept too: its backward follows its forward.
    """
    groups = _unit_groups(blocks, plan.layout.framework.data.unit_layers)
    ends = [one for one in blocks if one.layer < 0]
    root = _amount(ends) if plan.layout.framework.data.root_unit and ends else None
    pieces = []
    for place, group in enumerate(groups):
        is_end = group[0].layer < 0
        own = () if is_end and root else (_amount(group),)
        outermost = 0 if action is Action.F else len(groups) - 1
        whole = (*own, root) if root and place == outermost else own
        first = (root, *own) if root and place == outermost else own
        forward = first if gather and action is Action.F else ()
        again = own if gather and action is not Action.F and not is_end else ()
        pieces.append(Piece(tuple(group), forward or again, whole if reduce else ()))
    return pieces


def _unit_groups(blocks: Sequence[Block], layers: int) -> list[list[Block]]:
    """Blocks by unit, in the order they run; embedding and head are groups of their own."""
    groups: list[list[Block]] = []
    previous: int | None = None
    for block in blocks:
        unit = block.layer // layers if block.layer >= 0 else None
        if unit is None or unit != previous:
            groups.append([])
        groups[-1].append(block)
        previous = unit
    return groups
