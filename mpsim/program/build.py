"""Plan to Program: pipeline actions, then what a step does once: gradients, norm, optimizer, parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import optimizer_seconds
from mpsim.framework import BlockingSends
from mpsim.program.blocks import Block, Blocks
from mpsim.program.costs import PlanCosts
from mpsim.program.messages import has_exchanges, warmup_and_flush
from mpsim.program.pipeline import (
    PipelineRows,
    Variants,
    add_pipeline,
    first_forward,
    last_gradient,
)
from mpsim.program.plan import Plan
from mpsim.program.program import PARTS, Kind, Program, Span, Stream, Template
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.schedule import Action

__all__ = ["build_program"]

_DP = (
    "dp",
    "cp",
)  # context-parallel ranks hold the same parameters: gradients are reduced over both
_EXPOSED_DP = PARTS.index("exposed_dp")


def build_program(plan: Plan, costs: PlanCosts | None = None) -> Program:
    """Expand a Plan into operations with durations.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts, optional
        Made from the plan when absent.

    Returns
    -------
    Program
        One rank class a pipeline rank; each stands for tp x cp x dp ranks that do the same at the same time.
    """
    costs = costs or PlanCosts(plan)
    return _Builder(plan, costs).build()


@dataclasses.dataclass(frozen=True, slots=True)
class _Bucket:
    """Gradients reduced together: which stage, after which segment of its last backward, how many bytes."""

    stage: int
    segment: int
    parameters: float


class _Builder:
    """Holds what the steps of building share."""

    def __init__(self, plan: Plan, costs: PlanCosts) -> None:
        self.plan = plan
        self.costs = costs
        self.rows = Rows()
        self.blocks = Blocks(plan, costs)
        self.templates: list[Template] = []
        self.segments: list[list[int]] = []  # templates of each variant
        self._index: dict[int, int] = {}
        self._variant_index: dict[tuple[int, ...], int] = {}
        self.ranks = np.arange(plan.mesh.pp)

    # ---- variants -----------------------------------------------------------------------------------------

    def build(self) -> Program:
        plan = self.plan
        self._overhead()
        variant, buckets, gathers = self._variants()
        gathered = self._gather_before(gathers)
        placed = add_pipeline(
            self.rows,
            plan.orders,
            variant,
            self._frozen_variants(),
            self.costs.sends(),
            blocking=self._blocking(),
        )
        self._wait_for_parameters(placed, gathers, gathered)
        reduced = self._reduce(placed, buckets)
        reduced = self._shared_weights(reduced, placed)
        self._optimizer(reduced, gather_after=not gathers)
        names = [f"pp {rank}" for rank in range(plan.mesh.pp)]
        each = plan.mesh.world // plan.mesh.pp
        return self.rows.finish(
            rank_name=names,
            class_size=np.full(plan.mesh.pp, each),
            templates=tuple(self.templates),
        )

    def _variants(self) -> tuple[NDArray[np.int64], list[_Bucket], list[_Bucket]]:
        """Choose the inside of every action; cut the last backward (first forward) where buckets hook in."""
        plan, orders = self.plan, self.plan.orders
        stages = len(plan.stages)
        table = np.zeros((len(Action), stages), dtype=np.int64)
        for kind in sorted({int(one) for one in np.unique(orders.kind)}):
            for stage in plan.stages:
                whole = self.blocks.of(stage, Action(kind))
                table[kind, stage.index] = self._variant(Action(kind), [whole])
        variant = table[orders.kind, orders.stage]
        buckets = self._cut(
            variant, last_gradient(orders), plan.framework.overlaps_gradients(plan.mesh.pp)
        )
        overlap = (
            plan.zero >= 1 and plan.framework.parameter_gather_overlap and self._replicas() > 1
        )
        gathers = self._cut(variant, first_forward(orders), True) if overlap else []
        return variant, buckets, gathers

    def _cut(
        self, variant: NDArray[np.int64], action: NDArray[np.int64], overlap: bool
    ) -> list[_Bucket]:
        """Cut one action of every stage into buckets, in the order they run; one bucket without overlap."""
        result = []
        for stage in self.plan.stages:
            row = int(action[stage.index])
            kind = Action(int(self.plan.orders.kind[row]))
            blocks = self.blocks.of(stage, kind)
            pieces = self._pieces(blocks) if overlap and self._replicas() > 1 else [blocks]
            variant[row] = self._variant(kind, pieces)
            result += [
                _Bucket(stage.index, i, sum(one.parameters for one in piece))
                for i, piece in enumerate(pieces)
            ]
        return result

    def _pieces(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Group blocks until each group's gradients fill a bucket."""
        size = self.plan.framework.bucket_bytes / self.plan.framework.gradient_bytes
        pieces: list[list[Block]] = [[]]
        for block in blocks:
            if pieces[-1] and sum(one.parameters for one in pieces[-1]) >= size:
                pieces.append([])
            pieces[-1].append(block)
        return pieces

    def _variant(self, kind: Action, pieces: Sequence[Sequence[Block]]) -> int:
        chosen = tuple(self._register(self.blocks.join(kind, piece)) for piece in pieces)
        if chosen not in self._variant_index:
            self._variant_index[chosen] = len(self.segments)
            self.segments.append(list(chosen))
        return self._variant_index[chosen]

    def _register(self, template: Template) -> int:
        if id(template) not in self._index:
            self._index[id(template)] = len(self.templates)
            self.templates.append(template)
        return self._index[id(template)]

    def _frozen_variants(self) -> Variants:
        template = np.array([one for piece in self.segments for one in piece], dtype=np.int32)
        counts = [len(piece) for piece in self.segments]
        return Variants(
            ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            template=template,
            duration=np.array([one.parts.sum() for one in self.templates])[template],
            up_bytes=np.array([one.up_bytes.sum() for one in self.templates])[template],
            out_bytes=np.array([one.out_bytes.sum() for one in self.templates])[template],
        )

    # ---- once a step --------------------------------------------------------------------------------------

    def _replicas(self) -> int:
        return self.plan.mesh.dp * self.plan.mesh.cp

    def _blocking(self) -> NDArray[np.bool_]:
        """Around which actions messages block."""
        orders, software = self.plan.orders, self.plan.framework
        if software.blocking_sends is BlockingSends.NEVER:
            return np.zeros(len(orders), dtype=bool)
        if software.blocking_sends is BlockingSends.ALWAYS or has_exchanges(orders):
            return np.ones(len(orders), dtype=bool)
        nowhere = np.zeros(len(orders), dtype=bool)
        return nowhere if software.overlap_warmup_flush else warmup_and_flush(orders)

    def _overhead(self) -> None:
        self.rows.add(
            len(self.ranks),
            rank=self.ranks,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("host"),
            duration=ticks(self.plan.framework.step_overhead),
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
        model = self.costs.collectives
        seconds, up, out = np.zeros((3, len(rank)))
        for one in np.unique(rank):
            mine = rank == one
            group = self.costs.group(_DP, int(one))
            seconds[mine] = model.seconds(kind, size[mine], group)
            up[mine], out[mine] = model.wire_bytes(kind, size[mine], group)
        return self.rows.add(
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
        self, buckets: Sequence[_Bucket]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        stage = np.array([one.stage for one in buckets], dtype=np.int64)
        rank = self.plan.orders.stage_rank[stage].astype(np.int64)
        return stage, rank, np.array([one.parameters for one in buckets])

    def _gather_before(self, gathers: Sequence[_Bucket]) -> NDArray[np.int64]:
        """Gather sharded parameters from the start of the step, bucket by bucket."""
        if not gathers:
            return np.zeros(0, dtype=np.int64)
        stage, rank, parameters = self._bucket_columns(gathers)
        size = parameters * self.plan.framework.parameter_bytes
        return self._collective("all_gather", "gather parameters", stage, rank, size)

    def _wait_for_parameters(
        self, placed: PipelineRows, gathers: Sequence[_Bucket], gathered: NDArray[np.int64]
    ) -> None:
        action = first_forward(self.plan.orders)
        for bucket, row in zip(gathers, gathered, strict=True):
            self.rows.depend(placed.first[action[bucket.stage]] + bucket.segment, row)

    def _reduce(self, placed: PipelineRows, buckets: Sequence[_Bucket]) -> NDArray[np.int64]:
        """Reduce gradients over data parallelism, each bucket when its last backward segment has ended.

        Without overlap every bucket also waits for the last pipeline action of its rank.
        """
        if self._replicas() == 1:
            return np.zeros(0, dtype=np.int64)
        plan = self.plan
        action = last_gradient(plan.orders)
        ready = np.array([placed.first[action[one.stage]] + one.segment for one in buckets])
        order = np.argsort(ready)  # the order in which a rank's gradients complete
        stage, rank, parameters = self._bucket_columns([buckets[i] for i in order])
        kind, label = (
            ("reduce_scatter", "reduce-scatter gradients")
            if plan.zero
            else ("all_reduce", "all-reduce gradients")
        )
        ids = self._collective(kind, label, stage, rank, parameters * plan.framework.gradient_bytes)
        self.rows.depend(ids, ready[order])
        if not plan.framework.overlaps_gradients(plan.mesh.pp):
            final = placed.last[plan.orders.rank_ptr[1:] - 1]
            self.rows.depend(ids, final[rank])
        return ids

    def _shared_weights(
        self, reduced: NDArray[np.int64], placed: PipelineRows
    ) -> NDArray[np.int64]:
        """Sum the gradients of weights that two ranks hold: a tied embedding, copies of stages."""
        plan = self.plan
        rows = [reduced]
        if plan.ends is not None:
            table = plan.padded_vocab * plan.model.hidden / plan.mesh.tp
            rows.append(self._between(*plan.ends, table, "all-reduce tied embedding", placed))
        for pair in plan.copies:
            first, last = (int(plan.orders.stage_rank[stage.index]) for stage in pair)
            counts = plan.stage_parameters(pair[0]).values()
            held = sum(count.per_rank(plan.mesh.tp) for count in counts)
            if first != last:
                rows.append(self._between(first, last, held, "all-reduce weight copies", placed))
        return np.concatenate(rows)

    def _between(
        self, first: int, last: int, parameters: float, label: str, placed: PipelineRows
    ) -> NDArray[np.int64]:
        """All-reduce between two ranks: each sends half of its gradients, then half of the sums."""
        plan = self.plan
        size = parameters * plan.framework.gradient_bytes
        crosses = plan.mesh.crosses(first, last, plan.cluster)
        up, out = self.costs.collectives.send_wire_bytes(size, crosses=crosses)
        row = self.rows.add(
            1,
            rank=first,
            stream=Stream.DP,
            kind=Kind.COLLECTIVE,
            part=_EXPOSED_DP,
            peer=last,
            duration=ticks(self.costs.collectives.send(size, crosses=crosses)),
            up_bytes=up,
            out_bytes=out,
            label=label,
        )
        self.rows.occupy(row, last, Stream.DP)
        for rank in (first, last):
            self.rows.depend(row, placed.last[plan.orders.rank_ptr[rank + 1] - 1])
        return row

    def _optimizer(self, reduced: NDArray[np.int64], *, gather_after: bool) -> None:
        plan = self.plan
        waits = reduced
        if plan.framework.gradient_norm and (plan.mesh.pp > 1 or plan.mesh.tp > 1):
            waits = self._norm(reduced)
        owned = self._owned_parameters()
        share = owned / (self._replicas() if plan.zero else 1)
        bandwidth = plan.cluster.accelerator.memory_bandwidth
        traffic = plan.framework.optimizer_traffic
        seconds = np.array([optimizer_seconds(one, traffic, bandwidth) for one in share.tolist()])
        ids = self.rows.add(
            len(self.ranks),
            rank=self.ranks,
            stream=Stream.COMPUTE,
            kind=Kind.OPTIMIZER,
            part=PARTS.index("optimizer"),
            duration=ticks(seconds),
            label="optimizer step",
        )
        for row in waits:
            self.rows.depend(ids, row)
        if plan.zero and gather_after and self._replicas() > 1:
            size = owned * plan.framework.parameter_bytes
            after = self._collective(
                "all_gather", "gather parameters", np.full(len(owned), -1), self.ranks, size
            )
            self.rows.depend(after, ids)

    def _owned_parameters(self) -> NDArray[np.float64]:
        """Parameters of each pipeline rank on one tensor-parallel rank."""
        plan = self.plan
        return np.array(
            [
                sum(
                    count.per_rank(plan.mesh.tp)
                    for stage in plan.rank_stages(rank)
                    for count in plan.stage_parameters(stage).values()
                )
                for rank in range(plan.mesh.pp)
            ]
        )

    def _norm(self, reduced: NDArray[np.int64]) -> NDArray[np.int64]:
        """All-reduce the gradient norm over tensor and pipeline parallelism: every stage waits for the last."""
        plan = self.plan
        shape = plan.mesh.model_parallel_shape(plan.cluster)
        seconds = self.costs.collectives.seconds("all_reduce", 4.0, shape)
        row = self.rows.add(
            1,
            rank=0,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("other"),
            span=Span.TP,
            duration=ticks(seconds),
            label="all-reduce gradient norm",
        )
        self.rows.occupy(row, self.ranks, Stream.COMPUTE)
        if len(reduced):
            self.rows.depend(row, reduced)
        return row
