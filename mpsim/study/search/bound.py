"""Bounds: for every layout of a frame, the memory it needs and a time that its step cannot beat.

Shapes: K layouts, S stages, P pipeline ranks, A parts of the model.

Rank r cannot start its first action before a microbatch has come through the stages before; then it has all its own actions to run; and after
its last one gradients have to go back to the first stage. So, with ``n`` microbatches a stage,

    head_r + sum over its stages of n (F + B) + tail_r + what follows once gradients are there

bounds the step from below, for any order of actions. Reductions of gradients count where they may not run beside the pipeline, and what a
step does once (norm, optimizer, gathers) is replayed. Of a layout without exposed extras the bound is the step time itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import run
from mpsim.framework import ExpertOverlap
from mpsim.parallel import Mesh, Stage, partition_layers
from mpsim.program import Rows, Stream
from mpsim.program.closing import StepRows
from mpsim.program.costs import PlanCosts
from mpsim.program.data.habits import reduction_kind
from mpsim.program.data.peers import collective_columns, dense_peers
from mpsim.program.plan import Plan
from mpsim.program.program import TICK
from mpsim.program.template import ticks
from mpsim.result.memory import buffers, gradient_scratch, memory_constants, model_states
from mpsim.schedule import Action, Orders
from mpsim.study.search.flight import Order
from mpsim.study.search.shapes import Shape, Shapes, part_names
from mpsim.study.search.space import Frame, Layout

__all__ = ["Bounded", "Bounder"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """What is known of layouts before any is simulated.

    Parameters
    ----------
    layouts : list of Layout
    memory : float64[K]
        What the fullest rank needs [B]: that of `mpsim.result.memory.account_memory`, to rounding.
    bound : float64[K]
        No step is shorter [s].
    """

    layouts: list[Layout]
    memory: Floats
    bound: Floats


class Bounder:
    """Bounds layouts of one scenario, sharing what they have in common.

    Parameters
    ----------
    plan : Plan
        Of any legal layout: all but the layout is taken from it.
    layers_per_stage : sequence of int, optional
    embedding_counts, loss_counts : bool
        How layers are divided (see `mpsim.parallel.partition_layers`).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        layers_per_stage: Sequence[int] | None = None,
        embedding_counts: bool = False,
        loss_counts: bool = False,
    ) -> None:
        self._plan = plan
        self._given = layers_per_stage
        self._counts = {"embedding_counts": embedding_counts, "loss_counts": loss_counts}
        self.shapes = Shapes(plan)
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        self._steps: dict[tuple[object, ...], tuple[Floats, float]] = {}
        self._scratch: dict[tuple[object, ...], float] = {}
        self._constants = memory_constants()

    def order(self, layout: Layout) -> Order:
        """The order of actions of a layout."""
        frame, plan = layout.frame, self._plan
        beside = plan.framework.experts.expert_overlap is ExpertOverlap.MICROBATCH
        return Order(
            frame.schedule,
            frame.pp,
            plan.global_batch // (frame.dp * layout.micro_batch),
            frame.virtual_stages,
            beside and plan.model.moe is not None,
        )

    def plan(self, layout: Layout, orders: Orders) -> Plan:
        """The plan of a layout, with the given orders."""
        return dataclasses.replace(
            self._plan,
            mesh=self._mesh(layout.frame),
            orders=orders,
            stages=self._stages(orders),
            schedule=layout.frame.schedule,
            micro_batch=layout.micro_batch,
            sequence_parallel=layout.sequence_parallel,
            zero=layout.zero,
            recompute=layout.recompute,
        )

    def bound(self, layouts: Sequence[Layout]) -> Bounded:
        """Memory and bound of layouts of one frame.

        Raises
        ------
        ScenarioError, ScheduleError
            If the frame cannot be laid out after all.
        """
        first = layouts[0]
        order = self.order(first)
        around = _Around(self, first.frame, self.plan(first, order.stage_map()))
        memory, bound = np.empty(len(layouts)), np.empty(len(layouts))
        by_batch: dict[int, list[int]] = {}
        for place, layout in enumerate(layouts):
            by_batch.setdefault(layout.micro_batch, []).append(place)
        for places in by_batch.values():
            chosen = [layouts[place] for place in places]
            memory[places], bound[places] = around.price(chosen, self.order(chosen[0]))
        return Bounded(list(layouts), memory, bound)

    def step(self, plan: Plan, costs: PlanCosts) -> tuple[Floats, float]:
        """Ticks after which each rank is done once all gradients are reduced, float64[P], and host time before the first action."""
        key = (plan.mesh, plan.zero, plan.rank_parameters.tobytes())
        if key not in self._steps:
            rows = Rows()
            closing = StepRows(rows, plan, costs)
            closing.optimizer_step(np.zeros(0, dtype=np.int64))
            program = rows.finish(
                rank_name=[f"pp {rank}" for rank in range(plan.mesh.pp)],
                class_size=np.ones(plan.mesh.pp),
            )
            timeline = run(program, "replay")
            owner = np.repeat(np.arange(len(program)), np.diff(program.slot_ptr))
            done = np.zeros(plan.mesh.pp)
            np.maximum.at(done, program.slot // len(Stream), timeline.end[owner])
            self._steps[key] = done, float(ticks(plan.framework.host.step_overhead))
        return self._steps[key]

    def standing(self, plan: Plan) -> Floats:
        """Model states of each rank, float64[P] [B]."""
        return np.sum(list(model_states(plan).values()), axis=0)

    def scratch(self, plan: Plan) -> Floats:
        """Buffers of each rank, float64[P] [B]."""
        return buffers(plan) + gradient_scratch(plan)

    def _mesh(self, frame: Frame) -> Mesh:
        key = (frame.tp, frame.cp, frame.ep, frame.dp, frame.pp)
        if key not in self._meshes:
            self._meshes[key] = dataclasses.replace(
                self._plan.mesh, tp=frame.tp, cp=frame.cp, ep=frame.ep, dp=frame.dp, pp=frame.pp
            )
        return self._meshes[key]

    def _stages(self, orders: Orders) -> tuple[Stage, ...]:
        parts = partition_layers(
            self._plan.model.layers,
            int(orders.model_stage.max()) + 1,
            given=self._given,
            **self._counts,
        )
        return tuple(
            dataclasses.replace(parts[part], index=index)
            for index, part in enumerate(orders.model_stage.tolist())
        )


class _Around:
    """A frame: stages, ranks and what they hold, whatever a microbatch is."""

    def __init__(self, bounder: Bounder, frame: Frame, plan: Plan) -> None:
        self._bounder, self._frame, self._plan = bounder, frame, plan
        self._costs = bounder.shapes.costs(plan)
        orders = plan.orders
        self._rank = orders.stage_rank.astype(np.int64)
        self._chain = orders.chain
        self._splits = bool((orders.kind == Action.W).any())
        self._chains = int(self._chain.max()) + 1
        names = part_names(plan)
        self._count = np.zeros((len(plan.stages), len(names)))  # parts of each stage [S, A]
        for place, stage in enumerate(plan.stages):
            for kind in plan.layer_kinds(stage):
                self._count[place, names.index(kind)] += 1
            self._count[place, -2:] = stage.embedding, stage.head
        self._by_zero: dict[int, tuple[Plan, Floats, Floats, float, Floats]] = {}

    def price(self, layouts: Sequence[Layout], order: Order) -> tuple[Floats, Floats]:
        """Memory [B] and bound [s] of layouts that differ in habits only, float64[K] each."""
        shapes, sends, room = [], [], []
        for one in layouts:
            plan = dataclasses.replace(
                self._plan,
                micro_batch=one.micro_batch,
                sequence_parallel=one.sequence_parallel,
                recompute=one.recompute,
            )
            shapes.append(self._bounder.shapes.shape(plan, self._costs_of(plan), splits=self._splits))
            sends.append(self._bounder.shapes.sends(plan, self._costs_of(plan)))
            room.append(self._bounder.scratch(plan))
        zeros = [self._at(one.zero) for one in layouts]
        memory = self._memory(shapes, order) + np.stack([one[1] for one in zeros]) + np.stack(room)
        seconds = self._seconds(
            np.stack([one.ticks for one in shapes]), np.stack(sends), zeros, order.microbatches
        )
        return memory.max(axis=1), seconds

    def _costs_of(self, plan: Plan) -> PlanCosts:
        """Cost models of the frame bound to another of its plans."""
        costs = self._bounder.shapes.costs(plan)
        costs.__dict__["alike"] = self._costs.alike  # the mesh is the same
        return costs

    def _memory(self, shapes: Sequence[Shape], order: Order) -> Floats:
        """Activations and overhead of each rank, float64[K, P] [B]."""
        kept = np.stack([one.kept for one in shapes])  # [K, 5, A]
        for_input, for_weight, logits = (kept[:, i] @ self._count.T for i in range(3))
        has = self._count > 0
        in_layers, in_head = (
            np.where(has, kept[:, i, None, :], 0.0).max(axis=2) for i in (3, 4)
        )
        beside = np.maximum(in_layers - logits, in_head)
        peaks = order.flight().peaks(for_input + logits, for_weight, beside)
        constants = self._bounder._constants
        return peaks * (1 + constants["fragmentation"]) + constants["context"]

    def _seconds(
        self,
        part_ticks: Floats,
        sends: Floats,
        zeros: Sequence[tuple[Plan, Floats, Floats, float, Floats]],
        microbatches: int,
    ) -> Floats:
        """Bound of each layout, float64[K] [s]."""
        stage_ticks = part_ticks @ self._count.T  # [K, 4, S]
        forward = stage_ticks[:, Action.F]
        backward = stage_ticks[:, Action.I if self._splits else Action.B]
        weight = stage_ticks[:, Action.W]
        onward, back = self._messages(sends)
        head = self._summed(forward + onward) - forward - onward
        tail = self._summed(backward + back) - backward
        each = microbatches / self._chains
        own = each * (forward + backward + weight)
        ranks = self._plan.mesh.pp
        busy = np.zeros((len(own), ranks))
        np.add.at(busy, (slice(None), self._rank), own)
        first, last = (np.full((len(own), ranks), np.inf) for _ in range(2))
        np.minimum.at(first, (slice(None), self._rank), head)
        np.minimum.at(last, (slice(None), self._rank), tail)
        done = np.stack([one[2] for one in zeros])  # after reductions [K, P]
        overhead = np.array([one[3] for one in zeros])
        reduces = np.stack([one[4] for one in zeros])
        began = overhead[:, None] + first + busy
        ends = (began + reduces).max(axis=1)
        if not self._splits:
            ends = np.maximum(ends, (began + last).max(axis=1) + self._least_at_start(reduces))
        alone = (began + reduces + done).max(axis=1)
        joint = ends + done.max(axis=1) if self._joins else ends + done.min(axis=1)
        bound: Floats = np.maximum(alone, joint) * TICK
        return bound

    @property
    def _joins(self) -> bool:
        """Whether all ranks wait for the norm of all gradients."""
        plan = self._plan
        return plan.framework.optimizer.gradient_norm and (plan.mesh.pp > 1 or plan.mesh.tp > 1)

    def _least_at_start(self, reduces: Floats) -> Floats:
        """Least reduction of ranks on which a gradient can end its way back, float64[K]."""
        starts = np.flatnonzero(np.diff(self._chain, prepend=-1))
        least: Floats = reduces[:, self._rank[starts]].min(axis=1)
        return least

    def _messages(self, sends: Floats) -> tuple[Floats, Floats]:
        """Ticks from each stage to the next, and to the one before, float64[K, S] each; 0 at the ends of a chain."""
        pp, stages = self._plan.mesh.pp, len(self._rank)
        onward, back = np.zeros((2, len(sends), stages))
        for stage in range(stages - 1):
            here, there = self._rank[stage], self._rank[stage + 1]
            if self._chain[stage] != self._chain[stage + 1] or here == there:
                continue
            up = there == (here + 1) % pp
            onward[:, stage] = sends[:, 0 if up else 1, here]
            back[:, stage + 1] = sends[:, 1 if here == (there - 1) % pp else 0, there]
        return onward, back

    def _summed(self, values: Floats) -> Floats:
        """Sums along each chain up to and including each stage, float64[K, S]."""
        total = values.cumsum(axis=1)
        starts = np.flatnonzero(np.diff(self._chain, prepend=-1))
        before = np.concatenate([np.zeros((len(values), 1)), total], axis=1)[:, starts]
        summed: Floats = total - before[:, self._chain]
        return summed

    def _at(self, zero: int) -> tuple[Plan, Floats, Floats, float, Floats]:
        """Plan, model states, ticks of the end of the step, of its begin, and of reductions that nothing hides."""
        if zero not in self._by_zero:
            plan = dataclasses.replace(self._plan, zero=zero)
            costs = self._costs_of(plan)
            done, overhead = self._bounder.step(plan, costs)
            reduces = self._reductions(plan, costs)
            self._by_zero[zero] = plan, self._bounder.standing(plan), done, overhead, reduces
        return self._by_zero[zero]

    def _reductions(self, plan: Plan, costs: PlanCosts) -> Floats:
        """Ticks of the reductions of each rank that start when its last action has ended, float64[P]."""
        hidden = plan.framework.overlaps_gradients(plan.mesh.pp) or plan.reduces_every_microbatch
        if plan.replicas == 1 or hidden or plan.gathers_units:
            return np.zeros(plan.mesh.pp)
        peers, data = dense_peers(plan, costs), plan.framework.data
        element = data.reduced_bytes or plan.framework.optimizer.gradient_bytes
        size = self._dense(plan) * element
        seconds, _, _ = collective_columns(
            costs.collectives, reduction_kind(plan), size, [peers.inside(int(r)) for r in self._rank]
        )
        return np.bincount(self._rank, weights=ticks(seconds), minlength=plan.mesh.pp)

    def _dense(self, plan: Plan) -> Floats:
        """Parameters of each stage that every replica holds, on one tensor-parallel rank, float64[S]."""
        tp, layers = plan.mesh.tp, plan.layer_parameters
        names = part_names(plan)[:-2]
        each = np.array([layers[one].sharded / tp + layers[one].replicated for one in names])
        dense: Floats = self._count[:, :-2] @ each
        for place in np.flatnonzero(self._count[:, -2:].any(axis=1)).tolist():
            parts = plan.stage_parameters(plan.stages[place])
            ends = (parts[name] for name in ("embedding", "head") if name in parts)
            dense[place] += sum(one.sharded / tp + one.replicated for one in ends)
        return dense
