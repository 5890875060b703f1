"""Costs of a Plan: the cost models bound to its accelerator, its groups and its messages."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel, Constant, KernelModel
from mpsim.parallel import Communication, GroupShape
from mpsim.program.messages import Sends
from mpsim.program.plan import Plan
from mpsim.program.template import ticks
from mpsim.workload import Operator

__all__ = ["PlanCosts", "StageCosts"]


class PlanCosts:
    """Cost models of one Plan.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernels = KernelModel(
            plan.cluster.accelerator,
            plan.precision,
            attention_kernel=plan.framework.attention_kernel,
            eager_factor=plan.framework.memory_kernel_factor,
        )
        self.collectives = CollectiveModel(plan.cluster)

    @functools.cache  # noqa: B019 - one instance a simulation
    def group(self, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return self.plan.mesh.shape(axes, rank, self.plan.cluster)

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant used so far, kernels first."""
        return (*self.kernels.provenance(), *self.collectives.provenance())

    def stage(self, rank: int) -> StageCosts:
        """Costs inside the stages of pipeline rank `rank`."""
        return StageCosts(self, self.group(("tp",), rank), self.group(("cp",), rank))

    def sends(self) -> Sends:
        """Messages between neighbouring stages, in ticks.

        Notes
        -----
        With sequence parallelism each tensor-parallel rank sends the 1/t of the tokens that it has. Without, it sends
        everything, or with scatter/gather 1/t, which the receivers all-gather over scale-up links.
        """
        plan, mesh = self.plan, self.plan.mesh
        stages = len(plan.stages)
        whole = float(plan.sharding.tokens * plan.model.hidden * plan.sharding.activation_bytes)
        divided = plan.sequence_parallel or plan.framework.scatter_gather
        size = whole / mesh.tp if divided else whole
        seconds, up, out = np.zeros((3, 2, stages))
        rank = plan.orders.stage_rank
        for stage in range(stages):
            for direction, other in ((0, stage + 1), (1, stage - 1)):
                if not 0 <= other < stages or rank[stage] == rank[other]:
                    continue
                crosses = mesh.crosses(int(rank[stage]), int(rank[other]), plan.cluster)
                seconds[direction, stage] = self.collectives.send(size, crosses=crosses)
                sent = self.collectives.send_wire_bytes(size, crosses=crosses)
                if plan.framework.scatter_gather and not plan.sequence_parallel and mesh.tp > 1:
                    group = self.group(("tp",), int(rank[other]))
                    seconds[direction, stage] += self.collectives.seconds(
                        "all_gather", whole, group
                    )
                    gathered = self.collectives.wire_bytes("all_gather", whole, group)
                    sent = (sent[0] + gathered[0], sent[1] + gathered[1])
                up[direction, stage], out[direction, stage] = sent
        return Sends(ticks(seconds), up, out)


class StageCosts:
    """`mpsim.program.template.BlockCosts` of one pipeline rank; equal for ranks whose groups sit alike."""

    def __init__(self, costs: PlanCosts, tp: GroupShape, cp: GroupShape) -> None:
        self._costs = costs
        self._groups = {"tp": tp, "cp": cp}
        self.key = (tp, cp)

    def kernels(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        """Seconds of sharded operators [s]."""
        return self._costs.kernels.seconds(operators)

    def collective(self, item: Communication) -> tuple[float, float, float]:
        """Seconds of a collective and bytes one rank sends over scale-up and scale-out links."""
        group = self._groups[item.axis]
        model = self._costs.collectives
        up, out = model.wire_bytes(item.kind, item.size, group)
        return float(model.seconds(item.kind, item.size, group)), float(up), float(out)
