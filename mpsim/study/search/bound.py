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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import run
from mpsim.parallel import Mesh
from mpsim.program import Rows, Stream
from mpsim.program.program import TICK
from mpsim.program.template import ticks
from mpsim.schedule import Action, Orders
from mpsim.study.search.exposed import Exposed, StageParts
from mpsim.study.search.order import Order
from mpsim.study.search.shapes import KEPT, Shape, Shapes, content, part_names, varied
from mpsim.study.search.space import Frame, Layout
from mpsim.training.costs import PlanCosts
from mpsim.training.memory import (
    Fresh,
    buffers,
    fragments,
    fresh_gradients,
    gradient_scratch,
    memory_constants,
    model_states,
)
from mpsim.training.plan import Plan
from mpsim.training.planning import Division, place_layers, runs_beside
from mpsim.training.step_end import StepRows, host_overhead
from mpsim.training.vocabulary import TRAINING

__all__ = ["Bounded", "Bounder"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Memory and lower bounds of layouts, before any is simulated.

    Parameters
    ----------
    layouts : list of Layout
    memory : float64[K]
        What the fullest rank needs [B]: that of `mpsim.training.memory.account_memory`, to rounding.
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
    division : Division, optional
        How layers are divided among stages.
    """

    def __init__(
        self,
        plan: Plan,
        division: Division | None = None,
    ) -> None:
        self._plan = plan
        self._division = division or Division()
        self.shapes = Shapes(plan)
        self._around: dict[Frame, _Around] = {}
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        self._steps: dict[tuple[object, ...], tuple[Floats, float]] = {}
        self.constants = memory_constants()

    def order(self, layout: Layout) -> Order:
        """The order of actions of a layout."""
        frame, plan = layout.frame, self._plan
        return Order(
            frame.schedule,
            frame.pp,
            plan.global_batch // (frame.dp * layout.micro_batch),
            frame.virtual_stages,
            runs_beside(plan.layout.framework, plan.layout.model),
        )

    def plan(self, layout: Layout, orders: Orders) -> Plan:
        """The plan of a layout, with the given orders."""
        split = layout.frame.layers_per_stage
        division = self._division if split is None else Division(given=split)
        return dataclasses.replace(
            self._plan,
            layout=dataclasses.replace(
                self._plan.layout,
                mesh=self._mesh(layout.frame),
                stages=place_layers(self._plan.layout.model.layers, orders, division),
                sequence_parallel=layout.sequence_parallel,
            ),
            orders=orders,
            schedule=layout.frame.schedule,
            micro_batch=layout.micro_batch,
            zero=layout.zero,
            recompute=self._plan.recompute.at(layout.recompute),
        )

    def bound(self, layouts: Sequence[Layout]) -> Bounded:
        """Memory and bound of layouts of one frame.

        Raises
        ------
        ScenarioError, ScheduleError
            If the frame cannot be laid out after all.
        """
        first = layouts[0]
        if first.frame not in self._around:
            plan = self.plan(first, self.order(first).stage_map())
            self._around[first.frame] = _Around(self, first.frame, plan)
        around = self._around[first.frame]
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
        key = (plan.layout.mesh, plan.zero, plan.layout.rank_parameters.tobytes())
        if key not in self._steps:
            rows = Rows(TRAINING)
            closing = StepRows(rows, plan, costs)
            closing.optimizer_step(np.zeros(0, dtype=np.int64))
            program = rows.finish(
                rank_name=[f"pp {rank}" for rank in range(plan.layout.mesh.pp)],
                class_size=np.ones(plan.layout.mesh.pp),
            )
            timeline = run(program, "replay")
            owner = np.repeat(np.arange(len(program)), np.diff(program.slot_ptr))
            done = np.zeros(plan.layout.mesh.pp)
            np.maximum.at(done, program.slot // len(Stream), timeline.end[owner])
            self._steps[key] = done, float(ticks(host_overhead(plan)))
        return self._steps[key]

    def standing(self, plan: Plan) -> Floats:
        """Model states of each rank, float64[P] [B]."""
        states = np.zeros(plan.layout.mesh.pp)
        for state in model_states(plan).values():
            states += state
        return states

    def _mesh(self, frame: Frame) -> Mesh:
        key = tuple(frame.degrees.values())
        if key not in self._meshes:
            mesh = self._plan.layout.mesh
            self._meshes[key] = Mesh(order=mesh.order, etp=mesh.etp, **frame.degrees)
        return self._meshes[key]


class _Zero(NamedTuple):
    """Consequences of a ZeRO stage: the plan, model states [B], ticks of the step's end and begin, exchanges."""

    plan: Plan
    states: Floats
    done: Floats
    overhead: float
    exchanges: Exposed


class _Around:
    """A frame: stages, ranks and what they hold, whatever a microbatch is."""

    def __init__(self, bounder: Bounder, frame: Frame, plan: Plan) -> None:
        self._bounder, self._frame, self._plan = bounder, frame, plan
        costs = bounder.shapes.costs(plan)
        keys = [content(plan, costs, stage) for stage in plan.layout.stages]
        self._distinct = dict(zip(reversed(keys), reversed(plan.layout.stages), strict=True))
        places = {key: place for place, key in enumerate(self._distinct)}
        self._which = np.array([places[key] for key in keys])
        orders = plan.orders
        self._rank = orders.stage_rank.astype(np.int64)
        self._chain = orders.chain
        self._actions = tuple(action for action in Action if (orders.kind == action).any())
        self._splits = Action.W in self._actions
        self._chains = int(self._chain.max()) + 1
        names = part_names(plan)
        count = np.zeros((len(plan.layout.stages), len(names)))
        for place, stage in enumerate(plan.layout.stages):
            for kind in plan.layout.layer_kinds(stage):
                count[place, names.index(kind)] += 1
            count[place, -2:] = stage.embedding, stage.head
        self._held = StageParts(self._rank, count)
        self._scratch = gradient_scratch(plan)
        self._by_division: dict[tuple[object, ...], tuple[list[Shape], Floats]] = {}
        self._by_room: dict[tuple[object, ...], Floats] = {}
        self._by_zero: dict[int, _Zero] = {}

    def price(self, layouts: Sequence[Layout], order: Order) -> tuple[Floats, Floats]:
        """Memory [B] and bound [s] of layouts that differ in habits only, float64[K] each."""
        divided = [self._divided(layout) for layout in layouts]
        shapes, sends = [division[0] for division in divided], [division[1] for division in divided]
        room = [self._room(layout) for layout in layouts]
        zeros = [self._at(layout.zero) for layout in layouts]
        fresh = [fresh_gradients(zero.plan, order.microbatches) for zero in zeros]
        standing = np.stack(
            [zero.states - gradients.total for zero, gradients in zip(zeros, fresh, strict=True)]
        )
        standing += np.stack(room)
        memory = self._memory(shapes, order, fresh) + standing
        took = np.stack([np.stack([shape.ticks for shape in some], axis=1) for some in shapes])
        stage_ticks = took[:, :, self._which]  # [K, 4, S]
        seconds = self._seconds(stage_ticks, np.stack(sends), zeros, order.microbatches)
        return memory.max(axis=1), seconds

    def _room(self, layout: Layout) -> Floats:
        """Buffers and scratch of each rank, float64[P] [B]."""
        key = (layout.micro_batch, layout.sequence_parallel, layout.zero)
        if key not in self._by_room:
            plan = varied(
                self._at(layout.zero).plan,
                micro_batch=layout.micro_batch,
                sequence_parallel=layout.sequence_parallel,
            )
            self._by_room[key] = buffers(plan) + self._scratch
        return self._by_room[key]

    def _divided(self, layout: Layout) -> tuple[list[Shape], Floats]:
        """Shape and ticks of messages of a layout."""
        key = (layout.micro_batch, layout.sequence_parallel, layout.recompute)
        if key not in self._by_division:
            plan = varied(
                self._plan,
                micro_batch=layout.micro_batch,
                sequence_parallel=layout.sequence_parallel,
                recompute=self._plan.recompute.at(layout.recompute),
            )
            shapes = self._bounder.shapes
            self._by_division[key] = (
                shapes.of(plan, self._distinct, self._actions),
                shapes.sends(plan),
            )
        return self._by_division[key]

    def _memory(
        self, shapes: Sequence[Sequence[Shape]], order: Order, fresh: Sequence[Fresh]
    ) -> Floats:
        """Activations, gradients that come in a backward, `fresh` ones among them, and overhead of each rank, float64[K, P] [B]."""
        kept = np.stack([np.stack([shape.kept for shape in some], axis=1) for some in shapes])
        by_stage = dict(zip(KEPT, np.moveaxis(kept[:, :, self._which], 1, 0), strict=True))
        peaks, collected = order.flight().peaks(by_stage, fresh)
        constants = self._bounder.constants
        held: Floats = peaks + fragments(peaks, collected) + constants["context"]
        return held

    def _seconds(
        self,
        stage_ticks: Floats,
        sends: Floats,
        zeros: Sequence[_Zero],
        microbatches: int,
    ) -> Floats:
        """Bound of each layout, float64[K] [s]."""
        forward = stage_ticks[:, Action.F]
        backward = stage_ticks[:, Action.I if self._splits else Action.B]
        gradients = stage_ticks[:, Action.I] + stage_ticks[:, Action.W]
        if Action.B in self._actions:  # orders may have both
            whole = stage_ticks[:, Action.B]
            gradients = np.minimum(whole, gradients) if self._splits else whole
        onward, back = self._messages(sends)
        head = self._summed(forward + onward) - forward - onward
        tail = self._summed(backward + back) - backward
        each = microbatches / self._chains
        own = each * (forward + gradients)
        ranks = self._plan.layout.mesh.pp
        busy = np.zeros((len(own), ranks))
        first, last = (np.full((len(own), ranks), np.inf) for _ in range(2))
        for stage, rank in enumerate(self._rank.tolist()):
            busy[:, rank] += own[:, stage]
            first[:, rank] = np.minimum(first[:, rank], head[:, stage])
            last[:, rank] = np.minimum(last[:, rank], tail[:, stage])
        done = np.stack([zero.done for zero in zeros])  # after reductions [K, P]
        overhead = np.array([zero.overhead for zero in zeros])
        reduces, beside, queued = (
            np.stack([getattr(zero.exchanges, name) for zero in zeros]) for name in Exposed._fields
        )
        began = overhead[:, None] + first + busy + each * beside
        ends = (began + reduces).max(axis=1)
        if not self._splits:
            ends = np.maximum(ends, (began + last).max(axis=1) + self._least_at_start(reduces))
        ends = np.maximum(ends, overhead + each * queued.max(axis=1))
        alone = (began + reduces + done).max(axis=1)
        joint = ends + done.max(axis=1) if self._joins else ends + done.min(axis=1)
        bound: Floats = np.maximum(alone, joint) * TICK
        return bound

    @property
    def _joins(self) -> bool:
        """Whether all ranks wait for the norm of all gradients."""
        plan = self._plan
        return plan.layout.framework.optimizer.gradient_norm and (
            plan.layout.mesh.pp > 1 or plan.layout.mesh.tp > 1
        )

    def _least_at_start(self, reduces: Floats) -> Floats:
        """Least reduction of ranks on which a gradient can end its way back, float64[K]."""
        starts = np.flatnonzero(np.diff(self._chain, prepend=-1))
        least: Floats = reduces[:, self._rank[starts]].min(axis=1)
        return least

    def _messages(self, sends: Floats) -> tuple[Floats, Floats]:
        """Ticks from each stage to the next, and to the one before, float64[K, S] each; 0 at the ends of a chain."""
        pp, stages = self._plan.layout.mesh.pp, len(self._rank)
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

    def _at(self, zero: int) -> _Zero:
        """Consequences of a ZeRO stage, worked out once."""
        if zero not in self._by_zero:
            plan = dataclasses.replace(self._plan, zero=zero)
            costs = self._bounder.shapes.costs(plan)
            done, overhead = self._bounder.step(plan, costs)
            reduces = self._held.exposed(plan, costs)
            states = self._bounder.standing(plan)
            self._by_zero[zero] = _Zero(plan, states, done, overhead, reduces)
        return self._by_zero[zero]
