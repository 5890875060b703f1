"""Rows that a step has once: its start, the sum of shared weights, clipping, the optimizer, the gather of what it updated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import COLLECTIVES, update_seconds
from mpsim.hardware import host_of
from mpsim.parallel import spread
from mpsim.program.program import TICK, Span, Stream
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.training.costs import PlanCosts
from mpsim.training.memory import account_memory
from mpsim.training.messages import PipelineRows
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import (
    GATHERS,
    ReplicaGroup,
    add_collectives,
    dense_group,
    expert_group,
)
from mpsim.training.replicas.offload import add_host_optimizer
from mpsim.training.replicas.residency import matrices
from mpsim.training.vocabulary import PARTS, PIPELINE, Kind
from mpsim.workload import Phase, orthogonal_products

_NORM_BYTES = 4.0  # one float32
_EXPOSED_DP = PARTS.index("exposed_dp")


def host_overhead(plan: Plan) -> float:
    """Serial host time of a step, before its first action [s]."""
    host = plan.layout.framework.host
    return host.step_overhead + host.step_rank_time * plan.layout.mesh.world


class StepRows:
    """Appends the rows that surround the pipeline of one step."""

    def __init__(self, rows: Rows, plan: Plan, costs: PlanCosts) -> None:
        self._rows = rows
        self._plan = plan
        self._costs = costs
        self._ranks = np.arange(plan.layout.mesh.pp)

    def overhead(self) -> NDArray[np.int64]:
        """Serial host time, at the start of every rank."""
        seconds = host_overhead(self._plan)
        return self._on_every_rank(Kind.COLLECTIVE, "host", seconds, label="step overhead")

    def sum_shared_weights(
        self, reduced: NDArray[np.int64], placed: PipelineRows
    ) -> NDArray[np.int64]:
        """Sum the gradients of weights that two ranks hold: a tied embedding, copies of stages."""
        plan = self._plan
        rows = [reduced]
        if plan.layout.embedding_ends is not None and plan.layout.tuning.trains_all:
            table = plan.layout.padded_vocab * plan.layout.model.hidden / plan.layout.mesh.tp
            ends, label = plan.layout.embedding_ends, "all-reduce tied embedding"
            rows.append(self._between(*ends, table, label, placed))
        for pair in plan.layout.stage_copies:
            first, last = (stage.rank for stage in pair)
            counts = plan.layout.trained_parameters(pair[0]).values()
            held = sum(plan.layout.held(count) for count in counts)
            if first != last:
                rows.append(self._between(first, last, held, "all-reduce weight copies", placed))
        return np.concatenate(rows)

    def _between(
        self, first: int, last: int, parameters: float, label: str, placed: PipelineRows
    ) -> NDArray[np.int64]:
        """All-reduce between two ranks: each sends half of its gradients, then half of the sums."""
        plan = self._plan
        size = parameters * plan.layout.framework.optimizer.gradient_bytes
        crosses = plan.layout.mesh.crosses(first, last, plan.layout.cluster)
        slower, models = self._costs.slowdown(first, last), self._costs.models((first, last))
        up, out = models[0].send_wire_bytes(size, crosses=crosses)
        seconds = max(model.send(size, crosses=crosses, slowdown=slower) for model in models)
        row = self._rows.add(
            1,
            rank=first,
            stream=Stream.DP,
            kind=Kind.COLLECTIVE,
            part=_EXPOSED_DP,
            peer=last,
            duration=ticks(seconds),
            up_bytes=up,
            out_bytes=out,
            collective=COLLECTIVES.index("all_reduce"),
            size=size,
            label=label,
        )
        self._rows.occupy(row, last, Stream.DP)
        for rank in (first, last):
            self._rows.depend(row, placed.last[plan.orders.rank_ptr[rank + 1] - 1])
        return row

    def optimizer_step(self, reduced: NDArray[np.int64]) -> None:
        """Clip by the global norm, update, and gather what was updated unless a forward does."""
        plan = self._plan
        waits = reduced
        alone = plan.layout.mesh.pp == plan.layout.mesh.tp == 1 and not plan.shares_gradients
        if plan.layout.framework.optimizer.gradient_norm and not alone:
            waits = self._norm(reduced)
        waits = self._wait_for_slowest(waits)
        dense, experts = plan.layout.trained_kinds
        groups = (dense_group(plan, self._costs), expert_group(plan, self._costs))
        divided = [group.sharers if plan.zero else 1 for group in groups]
        share = dense / divided[0] + experts / divided[1]
        waits = self._prepare(self._move_pages(waits, share), groups[0])
        on_host = 0.0 if plan.offload == "none" else plan.offload_fraction
        if on_host < 1:
            last = device = self._after(waits, self._update((1.0 - on_host) * share))
        if on_host:
            first, last = add_host_optimizer(self._rows, plan, on_host * share)
            if on_host < 1:
                self._rows.depend(last, device)
            self._after(waits, first)
        if self._gathers_after:
            for group, owned in zip(groups, (dense, experts), strict=True):
                last = self._gather(group, owned, last)
        self._cast_weights(last)

    def _move_pages(
        self, ready: NDArray[np.int64], share: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Pages of states that come and go where no device has room for all of them, in both directions at once.

        The driver evicts what was used longest ago (NVIDIA/open-gpu-kernel-modules, uvm_pmm_gpu.c), which of states that are passed through once a step is what comes next.
        """
        plan = self._plan
        states = plan.layout.framework.optimizer.paged_bytes * share
        if not states.any():
            return ready
        memory = account_memory(plan)
        states *= states > memory.capacities - memory.total
        seconds = states / host_of(plan.layout.cluster).link_bandwidth
        return self._behind(ready, "move pages of states", seconds)

    def _prepare(self, ready: NDArray[np.int64], group: ReplicaGroup) -> NDArray[np.int64]:
        """An optimizer's work before it updates: passes for its own estimates, and products that make updates of matrices orthogonal."""
        plan, optimizer = self._plan, self._plan.layout.framework.optimizer
        if optimizer.repeated_share:
            again = optimizer.repeated_share * self._rows.busy(PIPELINE, len(self._ranks))
            ready = self._behind(ready, "optimizer's own passes", again * TICK)
        if optimizer.orthogonal_iterations:
            divided = group.sharers if plan.zero else 1
            if divided > 1 and optimizer.orthogonal_gather:
                gathered = self._gathered(group, matrices(plan) * optimizer.orthogonal_gather)
                ready = self._after(ready, gathered)
            ready = self._behind(ready, "orthogonal updates", self._orthogonal() / divided)
        return ready

    def _behind(
        self, ready: NDArray[np.int64], label: str, seconds: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """A row of the optimizer on every rank, after what is ready there."""
        rows = self._on_every_rank(Kind.OPTIMIZER, "optimizer", seconds, label=label)
        return self._after(ready, rows)

    def _after(self, ready: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same rows, one a rank, each after what it takes part in of what is ready, and no more."""
        row, rank = self._rows.ranks_of(ready)
        self._rows.depend(rows[rank], row)
        return rows

    def _orthogonal(self) -> NDArray[np.float64]:
        """Time of the products of Newton and Schulz on every matrix of each rank's layers, whole over tensor parallelism [s]."""
        plan, seconds = self._plan, np.zeros(len(self._ranks))
        each = plan.layout.framework.optimizer.orthogonal_iterations
        alone = {
            kind: [
                product
                for weight in plan.weights[kind].backward
                if weight.phase is Phase.WEIGHT_GRADIENT and weight.flops
                for product in orthogonal_products(weight)
            ]
            for kind in dict.fromkeys(plan.layout.model.layer_kinds)
        }
        for stage in plan.layout.stages:
            costs = self._costs.stage(stage.rank)
            for kind in plan.layout.layer_kinds(stage):
                seconds[stage.rank] += each * float(costs.kernels(alone[kind]).sum())
        return seconds

    def _wait_for_slowest(self, ready: NDArray[np.int64]) -> NDArray[np.int64]:
        """Wait of every rank for accelerators and links that are slower than the others; no rows where nothing is lost."""
        if not (seconds := self._costs.straggling()):
            return ready
        label = "wait for stragglers"
        waits = self._on_every_rank(Kind.COLLECTIVE, "straggling", seconds, label=label)
        return self._after(ready, waits)

    def _on_every_rank(
        self, kind: Kind, part: str, seconds: float | NDArray[np.float64], *, label: str
    ) -> NDArray[np.int64]:
        """A row on the compute stream of every rank."""
        return self._rows.add(
            len(self._ranks),
            rank=self._ranks,
            stream=Stream.COMPUTE,
            kind=kind,
            part=PARTS.index(part),
            duration=ticks(seconds),
            label=label,
        )

    @property
    def _gathers_after(self) -> bool:
        """Whether the step ends with gathering the parameters that others have updated."""
        plan = self._plan
        return plan.sharers > 1 and not plan.gathers_units and not plan.gathers_beside

    def _update(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        seconds, moved = [], share * self._plan.layout.framework.update_traffic
        for rank, size in zip(self._ranks.tolist(), moved.tolist(), strict=True):
            chip = self._plan.layout.cluster_of(rank).accelerator
            seconds.append(update_seconds(size, chip.memory_bandwidth, chip.calibration))
        return self._on_every_rank(
            Kind.OPTIMIZER, "optimizer", np.array(seconds), label="optimizer step"
        )

    def _gather(
        self, group: ReplicaGroup, owned: NDArray[np.float64], updated: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Gather what every rank has updated."""
        if not owned.any():
            return updated
        data = self._plan.layout.framework.data
        element = data.gathered_bytes or self._plan.layout.framework.optimizer.parameter_bytes
        after = self._gathered(group, owned * element)
        self._rows.depend(after, updated)
        return after

    def _gathered(self, group: ReplicaGroup, size: NDArray[np.float64]) -> NDArray[np.int64]:
        """A gather of so many bytes of every rank, of no stage."""
        kind = GATHERS[self._plan.layout.framework.data.parameter_gather]
        kinds, stage = np.full(len(size), kind), np.full(len(size), -1)
        return add_collectives(
            self._rows, self._costs, group, kinds, size, rank=self._ranks, stage=stage
        )

    def _cast_weights(self, updated: NDArray[np.int64]) -> None:
        """Cast the weights of the linear layers to a narrow precision; the microbatches of the next step share the casts."""
        if not self._costs.casts_weights or self._plan.layout.tuning.base == "fp8":
            return
        seconds = self._costs.cast_weights(self._plan.layout.rank_linear_weights)
        ids = self._on_every_rank(Kind.OPTIMIZER, "optimizer", seconds, label="quantise weights")
        self._rows.depend(ids, updated)

    def _norm(self, reduced: NDArray[np.int64]) -> NDArray[np.int64]:
        """All-reduce the gradient norm among all that share one copy of the gradients: every stage waits for the last."""
        plan = self._plan
        mesh = plan.layout.mesh
        groups = mesh.ranks.reshape(1, -1) if plan.shares_gradients else mesh.model_groups()
        shape = spread(plan.layout.cluster.domain_of(groups))
        models = self._costs.models(self._ranks.tolist())
        seconds = max(model.seconds("all_reduce", _NORM_BYTES, shape) for model in models)
        row = self._rows.add(
            1,
            rank=0,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("other"),
            span=Span.TP | (Span.DP | Span.CP if plan.shares_gradients else Span.NONE),
            duration=ticks(seconds),
            collective=COLLECTIVES.index("all_reduce"),
            size=_NORM_BYTES,
            label="all-reduce gradient norm",
        )
        self._rows.occupy(row, self._ranks, Stream.COMPUTE)
        if len(reduced):
            self._rows.depend(row, reduced)
        return row
