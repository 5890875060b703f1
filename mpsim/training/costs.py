"""Costs of a Plan: the cost models bound to its accelerator, its groups and its messages."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel, Constant, KernelModel, host_constants, interference_of
from mpsim.cost.quantise import casting
from mpsim.errors import HardwareError
from mpsim.parallel import Communication, GroupShape
from mpsim.program.places import Places
from mpsim.program.remember import remembered
from mpsim.program.template import ticks
from mpsim.training.messages import Sends
from mpsim.training.plan import Plan
from mpsim.workload import Operator

__all__ = ["PlanCosts", "StageCosts"]

_ON_AVERAGE = (".lost", ".full_rate")  # of the constants of interference


class PlanCosts:
    """Cost models of one Plan.

    Parameters
    ----------
    plan : Plan
    like : PlanCosts, optional
        Of a plan on the same cluster, in the same precision and framework: what its models remember serves here too.
    """

    def __init__(self, plan: Plan, *, like: PlanCosts | None = None) -> None:
        self.plan = plan
        self.kernels: KernelModel
        self.collectives: CollectiveModel
        self.places: Places
        # of each pipeline rank, where they have different nodes: whose models they are
        self._first = [plan.layout.stage_clusters.index(one) for one in plan.layout.stage_clusters]
        self._others: dict[int, PlanCosts] = {}
        if like is not None:
            self.kernels, self.collectives, self.places = (
                like.kernels,
                like.collectives,
                like.places,
            )
            self._others = like._others
            return
        _check_casts(plan)
        self.kernels = KernelModel(
            plan.layout.cluster.accelerator,
            plan.layout.precision,
            attention_kernel=plan.layout.framework.kernels.attention_kernel,
            eager_factor=plan.layout.framework.kernels.memory_kernel_factor,
        )
        self.collectives, self.places = CollectiveModel(plan.layout.cluster), Places(plan.layout.cluster)
        self._others = {
            rank: PlanCosts(dataclasses.replace(plan, cluster=cluster, stage_clusters=()))
            for rank, cluster in enumerate(plan.layout.stage_clusters)
            if rank and self._first[rank] == rank
        }

    def of(self, rank: int) -> PlanCosts:
        """The cost models of pipeline rank `rank`: these, unless its nodes are others."""
        return self._others.get(self._first[rank], self) if self._first else self

    def models(self, ranks: Sequence[int]) -> list[CollectiveModel]:
        """Distinct models of collectives of pipeline ranks that meet; the slowest of them decides."""
        return list(
            {id(one): one for one in (self.of(rank).collectives for rank in ranks)}.values()
        )

    @functools.cached_property
    def parts(self) -> tuple[PlanCosts, ...]:
        """Costs of each class of replicas; these where all are alike."""
        if not self.plan.classes:
            return (self,)
        return tuple(PlanCosts(one) for one in self.plan.parts)

    @property
    def casts_weights(self) -> bool:
        """Whether linear layers compute in a precision narrower than their weights'."""
        return any(one.kernels.casts for one in (self, *self._others.values()))

    def cast_weights(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of casting so many weights of each pipeline rank to the narrow precision, once a step; 0 in a wide one [s]."""
        wide = self.plan.layout.framework.lowering.activation_bytes
        seconds = self.kernels.weight_cast_seconds(parameters, wide)
        for rank in range(len(self._first)):
            seconds[rank] = self.of(rank).kernels.weight_cast_seconds(parameters[rank], wide)
        return seconds

    @functools.cached_property
    def alike(self) -> NDArray[np.int64]:
        """For each pipeline rank, the first that has the same nodes and communicators of the same shapes."""
        return self.places.alike(self.plan.layout.mesh, tuple(self._first))

    def group(self, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return self.places.group(self.plan.layout.mesh, axes, int(self.alike[rank]))

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant used so far, kernels first."""
        own = (*self.kernels.provenance(), *self.collectives.provenance())
        others = [*self._others.values(), *(one for one in self.parts if one is not self)]
        if others:
            more = [one.provenance() for one in others]
            own = tuple(dict.fromkeys(itertools.chain(own, *more)))
        if self.plan.exchanges_beside:
            taken = interference_of(self.plan.layout.framework.name, self.plan.layout.cluster.accelerator)
            own += tuple(one for one in taken.constants if one.name.endswith(_ON_AVERAGE))
        return own if self.plan.offload == "none" else (*own, *host_constants(self.plan.layout.cluster))

    @remembered
    def stage(self, rank: int) -> StageCosts:
        """Costs inside the stages of pipeline rank `rank`; one object for ranks that are alike."""
        first = int(self.alike[rank])
        if first != rank:
            return self.stage(first)
        cp = self.group(("cp",), rank)
        return StageCosts(
            self.of(rank),
            self._first[rank] if self._first else 0,
            {
                "tp": self.group(("tp",), rank),
                "cp": cp,
                "cp-inside": GroupShape(cp.per_domain, cp.per_domain, 1),
                "cp-across": _across(cp),
                "ep": self.expert_group(("ep",), rank),
                "etp": self.expert_group(("etp",), rank),
                "etp-ep": self.expert_group(("etp", "ep"), rank),
            },
        )

    def expert_group(self, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of the experts' mesh sits."""
        return self.places.expert_group(self.plan.layout.mesh, axes, int(self.alike[rank]))

    @property
    def scatters_messages(self) -> bool:
        """Whether tensor-parallel ranks send a part of it each, which the receivers gather."""
        scatters = self.plan.layout.framework.pipeline.scatter_gather and not self.plan.layout.sequence_parallel
        return scatters and self.plan.layout.mesh.tp > 1

    def sends(self) -> Sends:
        """Messages between neighbouring stages, in ticks."""
        plan = self.plan
        stages, rank = len(plan.layout.stages), plan.orders.stage_rank.tolist()
        columns = np.zeros((3, 2, stages))
        for stage in range(stages):
            for direction, other in ((0, stage + 1), (1, stage - 1)):
                if 0 <= other < stages and rank[stage] != rank[other]:
                    columns[:, direction, stage] = self._sent(rank[stage], rank[other])
        seconds, up, out = columns
        return Sends(ticks(seconds), up, out)

    @remembered
    def _sent(self, source: int, target: int) -> tuple[float, float, float]:
        """A message between two pipeline ranks as the slower of them has it; see `_message`."""
        crosses = self.places.crosses(self.plan.layout.mesh, source, target)
        receivers = self.group(("tp",), target)
        slower = self.slowdown(source, target)
        return max(self.of(end)._message(crosses, receivers, slower) for end in (source, target))

    def slowdown(self, source: int, target: int) -> float | None:
        """How many times longer the fabric makes messages between two pipeline ranks; None where no link of it is thin."""
        return self.places.slowdown(self.plan.layout.mesh, source, target)

    @remembered
    def _message(
        self, crosses: bool, receivers: GroupShape, slower: float | None
    ) -> tuple[float, float, float]:
        """Seconds of one message, and bytes one rank sends for it over scale-up and scale-out links.

        Notes
        -----
        With sequence parallelism each tensor-parallel rank sends the 1/t of the tokens that it has. Without, it sends
        everything, or with scatter/gather 1/t, which the receivers all-gather over scale-up links.
        """
        plan, model = self.plan, self.collectives
        whole, gathers = self.plan.message_bytes, self.scatters_messages
        size = whole / plan.layout.mesh.tp if gathers or plan.layout.sequence_parallel else whole
        more = plan.layout.framework.pipeline.send_messages - 1
        first = model.send(size, crosses=crosses, slowdown=slower)
        seconds = float(first + more * model.send(0.0, crosses=crosses))
        up, out = model.send_wire_bytes(size, crosses=crosses)
        if gathers:
            seconds += float(model.seconds("all_gather", whole, receivers))
            gathered = model.wire_bytes("all_gather", whole, receivers)
            up, out = up + gathered[0], out + gathered[1]
        return seconds, float(up), float(out)


class StageCosts:
    """`mpsim.program.template.BlockCosts` of one pipeline rank; equal for ranks whose groups sit alike."""

    def __init__(self, costs: PlanCosts, nodes: int, groups: Mapping[str, GroupShape]) -> None:
        self._costs = costs
        self._groups = groups
        self.key = (nodes, *groups.values())

    def kernels(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        """Seconds of sharded operators [s]."""
        return self._costs.kernels.seconds(operators)

    def collective(self, item: Communication) -> tuple[float, float, float]:
        """Seconds of a collective and bytes one rank sends over scale-up and scale-out links."""
        group = self._groups[item.axis]
        model = self._costs.collectives
        if item.kind == "send":
            out = item.size * group.domains / group.ranks if group.crosses else 0.0
            took = model.send(item.size, crosses=group.crosses, slowdown=group.ring_slowdown)
            return float(took), item.size - out, out
        if item.across:
            return self._twice(item, group)
        up, out = model.wire_bytes(item.kind, item.size, group)
        seconds = self._issued + float(model.seconds(item.kind, item.size, group))
        return seconds, float(up), float(out)

    @property
    def _issued(self) -> float:
        """What the framework adds to a collective of the library [s]."""
        return self._costs.plan.layout.framework.host.collective_cost

    def _twice(self, item: Communication, group: GroupShape) -> tuple[float, float, float]:
        """An all-to-all between the peers of each domain, beside one inside that passes on what arrives."""
        model = self._costs.collectives
        inside = GroupShape(group.per_domain, group.per_domain, 1)
        across = _across(group)
        slower = max(
            model.seconds(item.kind, item.size, inside),
            model.seconds(item.kind, item.across, across),
        )
        up, _ = model.wire_bytes(item.kind, item.size, inside)
        out = item.across * (1.0 - 1.0 / group.domains)
        return self._issued + float(slower), float(up), float(out)


def _check_casts(plan: Plan) -> None:
    """Refuse stages whose accelerators cast to the narrow precision in different ways: messages between them would not fit."""
    chips = {one.accelerator.name: one.accelerator for one in plan.layout.stage_clusters}
    ways = {casting(plan.layout.precision, one) for one in chips.values()}
    if len(ways) > 1:
        raise HardwareError(
            f"{' and '.join(chips)} cast to {plan.layout.precision} in different ways; set training.precision to bf16"
        )


def _across(group: GroupShape) -> GroupShape:
    """One member of every scale-up domain of a group."""
    return dataclasses.replace(group, ranks=group.domains, per_domain=1)
