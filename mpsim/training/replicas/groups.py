"""Groups of ranks that share parameters: their communicators, and how long exchanges take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.cost import COLLECTIVES, CollectiveModel
from mpsim.framework import ParameterGather, Reduction
from mpsim.parallel import REPLICATING, GroupShape
from mpsim.program.program import Span, Stream
from mpsim.program.rows import Prices
from mpsim.program.template import ticks
from mpsim.training.plan import SHARDED_PARAMETERS, Plan, PlanCosts
from mpsim.training.replicas.issue import Exchanging
from mpsim.training.replicas.segments import Bucket
from mpsim.training.vocabulary import Kind, Link

GATHERS: Mapping[ParameterGather, str] = MappingProxyType(
    {ParameterGather.ALL_GATHER: "all_gather", ParameterGather.BROADCAST: "broadcast"}
)
"""Collective of each way to hand out parameters, as `alike_columns` names it."""
STREAMS: Mapping[str, Stream] = MappingProxyType({"": Stream.DP, " of experts": Stream.EDP})
"""Queue of the communicator inside a group of sharers, by the group's name; gathers and reductions
share it."""
_LABELS = {
    "all_gather": "gather parameters",
    "broadcast": "broadcast parameters",
    "all_reduce": "all-reduce gradients",
    "reduce_scatter": "reduce-scatter gradients",
    "rooted": "reduce gradients to their owners",
}
_ROOTED = {"rooted": "reduce", "broadcast": "broadcast"}


@structs.dataclass(frozen=True, slots=True, eq=False)
class ReplicaGroup:
    """A group of ranks that share the parameters of one kind."""

    name: str
    axes: tuple[str, ...]  # along which they lie
    costs: PlanCosts
    # sharers, copies: ranks that divide one copy among them, and how many copies there are
    sharers: int
    copies: int
    owners: int = 0  # sharers that own something at most; 0 for all

    def everyone(self, rank: int) -> GroupShape:
        """Where the communicator of all peers on a pipeline rank sits."""
        return self.costs.group(self.axes, rank)

    def inside(self, rank: int) -> GroupShape:
        """Where that of the sharers sits, who are neighbours."""
        if self.copies == 1:
            return self.everyone(rank)
        name = (self.axes, "inside", self.copies)
        return self.costs.sits(name, rank, lambda: self._members(rank).reshape(-1, self.sharers))

    def between(self, rank: int) -> GroupShape:
        """Where that of the holders of one share sits."""
        name, copies = (self.axes, "between", self.copies), self.copies

        def holders() -> Ints:
            return self._members(rank).swapaxes(1, 2).reshape(-1, copies)

        return self.costs.sits(name, rank, holders)

    def _members(self, rank: int) -> Ints:
        groups: Ints = self.costs.layout.mesh.groups(self.axes, rank)
        return groups.reshape(-1, self.copies, self.sharers)


def dense_group(plan: Plan, costs: PlanCosts) -> ReplicaGroup:
    """Data- and context-parallel ranks: one context-parallel group holds the same parameters."""
    sharers = plan.sharers if plan.zero else plan.replicas
    tensors, layers = plan.layout.framework.data.owned_tensors, plan.layout.model.layers
    owners = tensors * -(-layers // plan.layout.mesh.pp)
    return ReplicaGroup("", REPLICATING, costs, sharers, plan.replicas // sharers, owners)


def replica_groups(plan: Plan, costs: PlanCosts) -> tuple[ReplicaGroup, ReplicaGroup]:
    """Groups of ranks that share dense parameters, and the same routed experts.

    Notes
    -----
    A group of sharers of experts spans as many copies as that of the dense parameters does, as far
    as there are experts' peers for it.
    """
    peers = plan.layout.mesh.edp
    copies = plan.replicas // plan.sharers if plan.zero else 1
    copies = copies if peers % copies == 0 else 1
    experts = ReplicaGroup(" of experts", ("edp",), costs, peers // copies, copies)
    return dense_group(plan, costs), experts


def exchanging(plan: Plan, groups: Sequence[ReplicaGroup]) -> Exchanging:
    """How a plan exchanges the parameters of groups."""
    framework, pp, kind = plan.layout.framework, plan.layout.mesh.pp, reduction_kind(plan)
    dense, experts = (kind != "all_reduce" and group.copies > 1 for group in groups)
    return Exchanging(
        data=framework.data,
        gathers=collective_of(plan, gather=True)[0],
        reduces=kind,
        between=(dense, experts),
        gathers_units=plan.gathers_units,
        units_in_flight=plan.units_in_flight,
        keeps_gathered=plan.keeps_gathered,
        reduces_every_microbatch=plan.reduces_every_microbatch,
        overlaps_gradients=framework.overlaps_gradients(pp),
        defers_sums=framework.defers_sums(pp),
        offload=plan.offload,
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
) -> Floats:
    """`alike_columns` of collectives of groups of several shapes."""
    columns, places = np.empty((3, len(size))), dict[GroupShape, list[int]]()
    for place, shape in enumerate(shapes):
        places.setdefault(shape, []).append(place)
    for shape, mine in places.items():
        columns[:, mine] = alike_columns(model, kind, size[mine], shape, owners)
    return columns


def alike_columns(
    model: CollectiveModel, kind: str, size: Floats, shape: GroupShape, owners: int = 0
) -> Floats:
    """Seconds of collectives, bytes a rank sends on scale-up and on scale-out links [3, n].

    `kind`: as the cost model names it; ``rooted`` and ``broadcast`` stand for one rooted collective
    of a share for each member. `size` (float64[n]): whole tensor [B]. `owners`: members that own a
    share at most; 0 for all.
    """
    times = min(shape.ranks, owners or shape.ranks) if kind in _ROOTED else 1
    columns, whole, each = np.empty((3, len(size))), rooted_kind(kind), size / times
    columns[0] = model.seconds(whole, each, shape)
    columns[1], columns[2] = model.wire_bytes(whole, each, shape)
    return times * columns


def collective_of(plan: Plan, *, gather: bool) -> tuple[str, float]:
    """Which collective an exchange is, and bytes of a parameter in it."""
    if not gather:
        return reduction_kind(plan), plan.reduced_bytes
    if not plan.gathers_units:
        return GATHERS[plan.layout.framework.data.parameter_gather], plan.gathered_bytes
    return "all_gather", float(plan.layout.frozen_bytes(plan.gathered_bytes).mean())


class ExchangeTime(NamedTuple):
    """Time of one collective [s], and the rate at which its ranks send over all of it [B/s]."""

    seconds: float
    rate: float


def exchange_times(
    plan: Plan,
    costs: PlanCosts,
    groups: Sequence[ReplicaGroup],
    bucket: Bucket,
    *,
    gather: bool,
    rank: int,
) -> list[ExchangeTime]:
    """Times of the collectives that gather a bucket on a pipeline rank, or reduce its gradients."""
    kind, element = collective_of(plan, gather=gather)
    model, times = costs.of(rank).collectives, []
    for group, parameters in zip(groups, bucket, strict=True):
        if not parameters:
            continue
        size = parameters * element
        members = group.everyone if kind == "all_reduce" else group.inside
        times.append(_time_and_rate(model, kind, size, members(rank), group.owners))
        if not gather and kind != "all_reduce" and group.copies > 1:
            share = size / group.sharers
            times.append(_time_and_rate(model, "all_reduce", share, group.between(rank), 0))
    return times


def _time_and_rate(
    model: CollectiveModel, kind: str, size: float, shape: GroupShape, owners: int
) -> ExchangeTime:
    columns = alike_columns(model, kind, np.array([size]), shape, owners)
    seconds, up, out = (float(column[0]) for column in columns)
    return ExchangeTime(seconds, (up + out) / seconds if seconds else 0.0)


def collective_prices(
    costs: PlanCosts,
    group: ReplicaGroup,
    kinds: NDArray[np.str_],
    size: Floats,
    rank: Ints,
    beyond: Floats | float = 0.0,
    *,
    between: bool = False,
) -> Prices:
    """Prices of collectives of a group, each on the communicator of its rank. `size` (float64[n]):
    whole tensor [B]. `beyond` (float64[n]): time each takes beyond the collective itself [s].
    `between`: whether holders of one share meet.
    """
    columns, places = np.zeros((3, len(size))), dict[tuple[str, int], list[int]]()
    for place, key in enumerate(zip(kinds.tolist(), costs.alike[rank].tolist(), strict=True)):
        places.setdefault(key, []).append(place)
    for (kind, first), mine in places.items():
        members = group.everyone if kind == "all_reduce" else group.inside
        members, owners = (group.between, 0) if between else (members, group.owners)
        model = costs.of(first).collectives
        columns[:, mine] = alike_columns(model, kind, size[mine], members(first), owners)
    seconds, up, out = columns
    return Prices(ticks(seconds + beyond), up, out, size)


def collective_link(kind: str, name: str, stream: Stream) -> Link:
    """Columns of a collective of a group of some name, on a stream."""
    number, part = COLLECTIVES.index(rooted_kind(kind)), "exposed_dp"
    return Link(_LABELS[kind] + name, Kind.COLLECTIVE, part, stream, Span.DP | Span.CP, number)
