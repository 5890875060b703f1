"""What a step does once: gather parameters, reduce gradients, sum shared weights, clip, step the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import optimizer_seconds
from mpsim.program.costs import PlanCosts
from mpsim.program.insides import Bucket
from mpsim.program.messages import PipelineRows
from mpsim.program.pipeline import first_forward, last_gradient
from mpsim.program.plan import Plan
from mpsim.program.program import PARTS, Kind, Span, Stream
from mpsim.program.rows import Rows
from mpsim.program.template import ticks

__all__ = ["StepRows"]

# Context-parallel ranks hold the same parameters, so gradients are reduced over both axes.
_REPLICAS = ("dp", "cp")
_EXPOSED_DP = PARTS.index("exposed_dp")


class StepRows:
    """Appends the rows that surround the pipeline of one step.

    Parameters
    ----------
    rows : Rows
    plan : Plan
    costs : PlanCosts
    """

    def __init__(self, rows: Rows, plan: Plan, costs: PlanCosts) -> None:
        self._rows = rows
        self._plan = plan
        self._costs = costs
        self._ranks = np.arange(plan.mesh.pp)

    def overhead(self) -> None:
        """Serial host time, at the start of every rank."""
        self._rows.add(
            len(self._ranks),
            rank=self._ranks,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("host"),
            duration=ticks(self._plan.framework.host.step_overhead),
            label="step overhead",
        )

    def _collective(
        self,
        kind: str,
        label: str,
        stage: NDArray[np.int64],
        rank: NDArray[np.int64],
        size: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Append one collective a row on the DP stream over the data-parallel group of each rank."""
        model = self._costs.collectives
        seconds, up, out = np.zeros((3, len(rank)))
        alike = self._costs.alike[rank]
        for one in np.unique(alike):
            mine = alike == one
            group = self._costs.group(_REPLICAS, int(one))
            seconds[mine] = model.seconds(kind, size[mine], group)
            up[mine], out[mine] = model.wire_bytes(kind, size[mine], group)
        return self._rows.add(
            len(rank),
            rank=rank,
            stream=Stream.DP,
            kind=Kind.COLLECTIVE,
            part=_EXPOSED_DP,
            span=Span.DP | Span.CP,
            stage=stage,
            duration=ticks(seconds),
            up_bytes=up,
            out_bytes=out,
            label=label,
        )

    def _bucket_columns(
        self, buckets: Sequence[Bucket]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        stage = np.array([one.stage for one in buckets], dtype=np.int64)
        rank = self._plan.orders.stage_rank[stage].astype(np.int64)
        return stage, rank, np.array([one.parameters for one in buckets])

    def gather_parameters(self, gathers: Sequence[Bucket]) -> NDArray[np.int64]:
        """Gather sharded parameters from the start of the step, bucket by bucket."""
        if not gathers:
            return np.zeros(0, dtype=np.int64)
        stage, rank, parameters = self._bucket_columns(gathers)
        size = parameters * self._plan.framework.optimizer.parameter_bytes
        return self._collective("all_gather", "gather parameters", stage, rank, size)

    def wait_for_parameters(
        self, placed: PipelineRows, gathers: Sequence[Bucket], gathered: NDArray[np.int64]
    ) -> None:
        """Hold the first forward of every stage until its parameters are there."""
        action = first_forward(self._plan.orders)
        for bucket, row in zip(gathers, gathered, strict=True):
            self._rows.depend(placed.first[action[bucket.stage]] + bucket.segment, row)

    def reduce_gradients(
        self, placed: PipelineRows, buckets: Sequence[Bucket]
    ) -> NDArray[np.int64]:
        """Reduce gradients over data parallelism, each bucket when its last backward segment has ended.

        Without overlap every bucket also waits for the last pipeline action of its rank.
        """
        if self._plan.replicas == 1:
            return np.zeros(0, dtype=np.int64)
        plan = self._plan
        action = last_gradient(plan.orders)
        ready = np.array([placed.first[action[one.stage]] + one.segment for one in buckets])
        order = np.argsort(ready)  # the order in which a rank's gradients complete
        stage, rank, parameters = self._bucket_columns([buckets[i] for i in order])
        kind, label = (
            ("reduce_scatter", "reduce-scatter gradients")
            if plan.zero
            else ("all_reduce", "all-reduce gradients")
        )
        ids = self._collective(
            kind, label, stage, rank, parameters * plan.framework.optimizer.gradient_bytes
        )
        self._rows.depend(ids, ready[order])
        if not plan.framework.overlaps_gradients(plan.mesh.pp):
            final = placed.last[plan.orders.rank_ptr[1:] - 1]
            self._rows.depend(ids, final[rank])
        return ids

    def sum_shared_weights(
        self, reduced: NDArray[np.int64], placed: PipelineRows
    ) -> NDArray[np.int64]:
        """Sum the gradients of weights that two ranks hold: a tied embedding, copies of stages."""
        plan = self._plan
        rows = [reduced]
        if plan.ends is not None:
            table = plan.padded_vocab * plan.model.hidden / plan.mesh.tp
            rows.append(self._between(*plan.ends, table, "all-reduce tied embedding", placed))
        for pair in plan.copies:
            first, last = (int(plan.orders.stage_rank[stage.index]) for stage in pair)
            counts = plan.stage_parameters(pair[0]).values()
            held = sum(plan.held(count) for count in counts)
            if first != last:
                rows.append(self._between(first, last, held, "all-reduce weight copies", placed))
        return np.concatenate(rows)

    def _between(
        self, first: int, last: int, parameters: float, label: str, placed: PipelineRows
    ) -> NDArray[np.int64]:
        """All-reduce between two ranks: each sends half of its gradients, then half of the sums."""
        plan = self._plan
        size = parameters * plan.framework.optimizer.gradient_bytes
        crosses = plan.mesh.crosses(first, last, plan.cluster)
        up, out = self._costs.collectives.send_wire_bytes(size, crosses=crosses)
        row = self._rows.add(
            1,
            rank=first,
            stream=Stream.DP,
            kind=Kind.COLLECTIVE,
            part=_EXPOSED_DP,
            peer=last,
            duration=ticks(self._costs.collectives.send(size, crosses=crosses)),
            up_bytes=up,
            out_bytes=out,
            label=label,
        )
        self._rows.occupy(row, last, Stream.DP)
        for rank in (first, last):
            self._rows.depend(row, placed.last[plan.orders.rank_ptr[rank + 1] - 1])
        return row

    def optimizer_step(self, reduced: NDArray[np.int64], *, gather_after: bool) -> None:
        """Clip by the global norm, update, and gather what was updated unless the next forward does."""
        plan = self._plan
        waits = reduced
        if plan.framework.optimizer.gradient_norm and (plan.mesh.pp > 1 or plan.mesh.tp > 1):
            waits = self._norm(reduced)
        owned = plan.rank_parameters
        share = owned / (self._plan.replicas if plan.zero else 1)
        bandwidth = plan.cluster.accelerator.memory_bandwidth
        traffic = plan.framework.optimizer.optimizer_traffic
        seconds = np.array([optimizer_seconds(one, traffic, bandwidth) for one in share.tolist()])
        ids = self._rows.add(
            len(self._ranks),
            rank=self._ranks,
            stream=Stream.COMPUTE,
            kind=Kind.OPTIMIZER,
            part=PARTS.index("optimizer"),
            duration=ticks(seconds),
            label="optimizer step",
        )
        for row in waits:
            self._rows.depend(ids, row)
        if plan.zero and gather_after and self._plan.replicas > 1:
            size = owned * plan.framework.optimizer.parameter_bytes
            after = self._collective(
                "all_gather", "gather parameters", np.full(len(owned), -1), self._ranks, size
            )
            self._rows.depend(after, ids)
            ids = after
        self._cast_weights(ids)

    def _cast_weights(self, updated: NDArray[np.int64]) -> None:
        """Cast the weights of the linear layers to a narrow precision; the microbatches of the next step share the casts."""
        seconds = self._costs.cast_weights(self._plan.rank_linear_weights)
        if not seconds.any():
            return
        ids = self._rows.add(
            len(self._ranks),
            rank=self._ranks,
            stream=Stream.COMPUTE,
            kind=Kind.OPTIMIZER,
            part=PARTS.index("optimizer"),
            duration=ticks(seconds),
            label="quantise weights",
        )
        self._rows.depend(ids, updated)

    def _norm(self, reduced: NDArray[np.int64]) -> NDArray[np.int64]:
        """All-reduce the gradient norm over tensor and pipeline parallelism: every stage waits for the last."""
        plan = self._plan
        shape = plan.mesh.model_parallel_shape(plan.cluster)
        seconds = self._costs.collectives.seconds("all_reduce", 4.0, shape)
        row = self._rows.add(
            1,
            rank=0,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("other"),
            span=Span.TP,
            duration=ticks(seconds),
            label="all-reduce gradient norm",
        )
        self._rows.occupy(row, self._ranks, Stream.COMPUTE)
        if len(reduced):
            self._rows.depend(row, reduced)
        return row
