"""Segments of an action: consecutive blocks that share a gather of parameters or a reduction of gradients.

Where parameters are sharded (ZeRO 3, FSDP) every action is cut into *units*, each gathered before it runs. Otherwise the last
backward of a stage is cut into *buckets* of gradients where the framework reduces them beside it, and the first forward likewise
where parameters are gathered beside it.

Shapes: N actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import Stage
from mpsim.schedule import Action
from mpsim.training.blocks import Block
from mpsim.training.pipeline import first_forward, last_gradient
from mpsim.training.plan import Plan

__all__ = ["Bucket", "Segment", "gathering_actions", "reducing_actions", "split_action"]

_NEEDING = (Action.F, Action.B, Action.I)  # a weight gradient needs activations and gradients only
_GRADIENT = (Action.B, Action.W)


class Bucket(NamedTuple):
    """Parameters on one rank that travel in one exchange; those of routed experts apart, as other ranks share them."""

    dense: float
    experts: float


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive blocks of an action.

    Parameters
    ----------
    blocks : tuple of Block
        In the order they run.
    gathers : tuple of Bucket
        Gathered before it, in order.
    reduces : tuple of Bucket
        Reduced after it, in order.
    """

    blocks: tuple[Block, ...]
    gathers: tuple[Bucket, ...] = ()
    reduces: tuple[Bucket, ...] = ()


def gathering_actions(plan: Plan) -> NDArray[np.bool_]:
    """Actions that wait for parameters to be gathered, bool[N].

    Notes
    -----
    Sharded parameters: every forward, and every backward too where they are given up after the forward; with a pipeline that keeps
    them gathered, the first forward of each stage. Recomputation runs on what was gathered for the backward. Otherwise: the
    first forward, where the framework gathers beside it what the optimizer updated.
    """
    orders = plan.orders
    if plan.gathers_units and not plan.keeps_gathered:
        needing = _NEEDING if plan.layout.framework.data.reshard_after_forward else (Action.F,)
        return np.isin(orders.kind, [int(kind) for kind in needing])
    once = plan.gathers_units or plan.gathers_beside
    return _only(plan, first_forward(plan.orders) if once else None)


def reducing_actions(plan: Plan) -> NDArray[np.bool_]:
    """Actions after which gradients are reduced, bool[N]."""
    if plan.replicas == 1:
        return _only(plan, None)
    if plan.reduces_every_microbatch:
        return np.isin(plan.orders.kind, [int(kind) for kind in _GRADIENT])
    return _only(plan, last_gradient(plan.orders))


def _only(plan: Plan, actions: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    chosen = np.zeros(len(plan.orders), dtype=bool)
    if actions is not None:
        chosen[actions] = True
    return chosen


def split_action(
    plan: Plan,
    stage: Stage,
    action: Action,
    blocks: Sequence[Block],
    *,
    gather: bool,
    reduce: bool,
) -> list[Segment]:
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
    list of Segment
        At least one; their blocks in order are `blocks`.
    """
    if plan.gathers_units:
        return _units(plan, action, blocks, gather=gather, reduce=reduce)
    overlaps = plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp)
    groups = _grouped(plan, stage, blocks) if gather or (reduce and overlaps) else [list(blocks)]
    buckets = [(_bucket(group),) for group in groups]
    return [
        Segment(tuple(group), bucket if gather else (), bucket if reduce else ())
        for group, bucket in zip(groups, buckets, strict=True)
    ]


def _bucket(blocks: Sequence[Block]) -> Bucket:
    experts = sum(block.experts for block in blocks)
    return Bucket(_parameters(blocks) - experts, experts)


def _parameters(blocks: Iterable[Block]) -> float:
    return sum(block.parameters for block in blocks)


def _grouped(plan: Plan, stage: Stage, blocks: Sequence[Block]) -> list[list[Block]]:
    """Group blocks until each group's gradients fill a bucket."""
    data = plan.layout.framework.data
    first_chunk = stage.rank == 0 and plan.orders.stage_chunk[stage.index] == 0
    if data.first_chunk_buckets and not first_chunk:
        return [list(blocks)]
    element = plan.layout.framework.optimizer.gradient_bytes
    usual = max(data.bucket_bytes, data.bucket_bytes_per_replica * plan.replicas) / element
    size = data.first_bucket_bytes / element or usual
    groups: list[list[Block]] = [[]]
    for block in blocks:
        if groups[-1] and _parameters(groups[-1]) >= size:
            groups.append([])
            size = usual
        groups[-1].append(block)
    return groups


def _units(
    plan: Plan, action: Action, blocks: Sequence[Block], *, gather: bool, reduce: bool
) -> list[Segment]:
    """Units of sharded parameters: some layers each; embedding and head one together (the root) or one each.

    The root is gathered with the first unit of a forward and kept until its gradients are reduced after the last unit of the
    backward. A head of its own is kept too: its backward follows its forward.
    """
    data = plan.layout.framework.data
    groups = _unit_groups(blocks, data.unit_layers)
    ends = [block for block in blocks if block.layer < 0]
    root = _bucket(ends) if data.root_unit and ends else None
    outermost = 0 if action is Action.F else len(groups) - 1
    segments = []
    for place, group in enumerate(groups):
        is_end = group[0].layer < 0
        own = () if is_end and root else (_bucket(group),)
        extra = (root,) if root and place == outermost else ()
        forward = (*extra, *own) if gather and action is Action.F else ()
        again = own if gather and action is not Action.F and not is_end else ()
        segments.append(Segment(tuple(group), forward or again, (*own, *extra) if reduce else ()))
    return segments


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
