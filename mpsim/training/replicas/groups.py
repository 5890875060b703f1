"""Groups of ranks that share parameters: over which communicators they exchange them, and how long that takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel
from mpsim.framework import ParameterGather, Reduction
from mpsim.parallel import REPLICATING, GroupShape, placed
from mpsim.program.program import Stream
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import SHARDED_PARAMETERS, Plan

__all__ = [
    "GATHERS",
    "ReplicaGroup",
    "collective_columns",
    "dense_group",
    "expert_group",
    "reduction_kind",
    "rooted_kind",
]

Floats = NDArray[np.float64]

GATHERS: Mapping[ParameterGather, str] = MappingProxyType(
    {ParameterGather.ALL_GATHER: "all_gather", ParameterGather.BROADCAST: "broadcast"}
)
"""Collective of each way to hand out parameters, as `collective_columns` names it."""
_ROOTED = {"rooted": "reduce", "broadcast": "broadcast"}


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A group of ranks that share the parameters of one kind.

    Parameters
    ----------
    name : str
        Added to labels.
    stream : Stream
        Queue of the communicator inside a group of sharers; gathers and reductions share it.
    sharers, copies : int
        Ranks that divide one copy among them, and how many copies there are.
    inside, between, everyone : callable
        Pipeline rank to where the communicator of the sharers, of the holders of one share, and of all peers sits.
    owners : int
        Sharers that own something at most; 0 for all.
    """

    name: str
    stream: Stream
    sharers: int
    copies: int
    inside: Callable[[int], GroupShape]
    between: Callable[[int], GroupShape]
    everyone: Callable[[int], GroupShape]
    owners: int = 0


def dense_group(plan: Plan, costs: PlanCosts) -> ReplicaGroup:
    """Data- and context-parallel ranks: those of one context-parallel group hold the same parameters."""
    mesh, cluster = plan.layout.mesh, plan.layout.cluster
    sharers = plan.sharers if plan.zero else plan.replicas

    def everyone(rank: int) -> GroupShape:
        return costs.group(REPLICATING, rank)

    def inside(rank: int) -> GroupShape:
        return placed(cluster, mesh.shard_groups(sharers, rank))

    def between(rank: int) -> GroupShape:
        return placed(cluster, mesh.replica_groups(sharers, rank))

    whole = sharers == plan.replicas
    return ReplicaGroup(
        name="",
        stream=Stream.DP,
        sharers=sharers,
        copies=plan.replicas // sharers,
        inside=everyone if whole else inside,
        between=between,
        everyone=everyone,
        owners=plan.layout.framework.data.owned_tensors * -(-plan.layout.model.layers // mesh.pp),
    )


def expert_group(plan: Plan, costs: PlanCosts) -> ReplicaGroup:
    """Ranks that share the same routed experts.

    Notes
    -----
    A group of sharers spans as many copies as that of the dense parameters does, as far as there are experts' peers for it.
    """
    mesh, cluster = plan.layout.mesh, plan.layout.cluster
    copies = plan.replicas // plan.sharers if plan.zero else 1
    copies = copies if mesh.edp % copies == 0 else 1
    sharers = mesh.edp // copies

    def members(rank: int) -> NDArray[np.int64]:
        groups: NDArray[np.int64] = mesh.expert_groups(("edp",), rank)
        return groups

    def everyone(rank: int) -> GroupShape:
        return placed(cluster, members(rank))

    def inside(rank: int) -> GroupShape:
        return placed(cluster, members(rank).reshape(-1, sharers))

    def between(rank: int) -> GroupShape:
        groups = members(rank)
        across = groups.reshape(len(groups), copies, sharers).swapaxes(1, 2)
        return placed(cluster, across.reshape(-1, copies))

    return ReplicaGroup(
        name=" of experts",
        stream=Stream.EDP,
        sharers=sharers,
        copies=copies,
        inside=inside,
        between=between,
        everyone=everyone,
    )


def reduction_kind(plan: Plan) -> str:
    """Which collective sums gradients, as the cost model calls it, or ``rooted``."""
    if plan.zero == 0:
        return "all_reduce"
    if plan.zero == SHARDED_PARAMETERS:
        return "reduce_scatter"
    return {
        Reduction.REDUCE_SCATTER: "reduce_scatter",
        Reduction.ALL_REDUCE: "all_reduce",
        Reduction.ROOTED: "rooted",
    }[plan.layout.framework.data.gradient_reduction]


def rooted_kind(kind: str) -> str:
    """Kind of the cost model: ``rooted`` stands for reductions to one rank each."""
    return _ROOTED.get(kind, kind)


def collective_columns(
    model: CollectiveModel, kind: str, size: Floats, shapes: list[GroupShape], owners: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Seconds of collectives, and bytes one rank sends over scale-up and scale-out links.

    Parameters
    ----------
    model : CollectiveModel
    kind : str
        As the cost model names it; ``rooted`` and ``broadcast`` stand for one rooted collective of a share for each member.
    size : float64[n]
        Whole tensor [B].
    shapes : list of GroupShape
        Where each takes place.
    owners : int
        Members that own a share at most; 0 for all.
    """
    seconds, up, out = np.zeros((3, len(size)))
    numbers: dict[GroupShape, int] = {}
    which = np.array([numbers.setdefault(shape, len(numbers)) for shape in shapes], dtype=np.int64)
    for shape, number in numbers.items():
        mine = which == number
        distinct = np.array(sorted(set(size[mine].tolist())))
        index = np.searchsorted(distinct, size[mine])
        times = min(shape.ranks, owners or shape.ranks) if kind in _ROOTED else 1
        whole = rooted_kind(kind)
        seconds[mine] = times * model.seconds(whole, distinct / times, shape)[index]
        sent = model.wire_bytes(whole, distinct / times, shape)
        up[mine], out[mine] = (times * column[index] for column in sent)
    return seconds, up, out
