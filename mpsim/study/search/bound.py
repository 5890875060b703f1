"""Bounds: for every layout of a frame, the memory it needs and a time that its step cannot beat.

Shapes: K layouts, S stages, P pipeline ranks, A parts of the model.

Rank r cannot start its first action before a microbatch has come through the stages before; then it
has all its own actions to run; and after its last one gradients have to go back to the first stage.
So, with ``n`` microbatches a stage,

    head_r + sum over its stages of n (F + B) + tail_r + what follows once gradients are there

bounds the step from below, for any order of actions. Reductions of gradients count where they may
not run beside the pipeline, and what a step does once (norm, optimizer, gathers) is replayed. Of a
layout without exposed extras the bound is the step time itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.engine import run
from mpsim.errors import ScheduleError
from mpsim.hardware import Cluster
from mpsim.memo import asked_once, remembered
from mpsim.parallel import Mesh, Stage, whole_groups
from mpsim.program import Rows, Stream
from mpsim.program.program import TICK
from mpsim.program.template import ticks
from mpsim.schedule import Action, Orders, schedule
from mpsim.study.search.layouts import Frame, Layout
from mpsim.study.search.shapes import Exposed, Shapes, StageParts, content, part_names
from mpsim.training.memory.account import overhead
from mpsim.training.memory.activations import KEPT
from mpsim.training.memory.flight import Flight
from mpsim.training.memory.fresh import Fresh, fresh_gradients
from mpsim.training.memory.states import (
    gradient_scratch,
    message_buffers,
    model_states,
    sharing_buffers,
    step_scratch,
)
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.planning import Division, place_layers, runs_beside, step_orders
from mpsim.training.recompute import NOTHING, Recompute
from mpsim.training.replicas.groups import replica_groups
from mpsim.training.step_end import StepEnd, add_ending, host_overhead
from mpsim.training.vocabulary import TRAINING


@structs.dataclass(frozen=True, slots=True)
class Order:
    """The order of actions that ranks follow, and what is known of it without writing it out.

    Orders of 1F1B and its interleaved form repeat themselves in the middle, so a few rounds of
    microbatches show every moment of many.
    """

    schedule: str
    pp: int
    microbatches: int
    virtual_stages: int | None
    # whether the framework makes blocks of forwards and backwards, to hide exchanges of experts
    beside: bool = False
    flushes: int = 1

    @property
    def _repeats(self) -> bool:
        """Whether the order repeats in the middle: few rounds show all its moments."""
        rounds, whole = schedule(self.schedule).rounds, self.microbatches % self.pp == 0
        return rounds is not None and whole and self.flushes == 1

    def of(self, microbatches: int) -> Order:
        """The same with another number of microbatches."""
        return structs.replace(self, microbatches=microbatches)

    def flight(self) -> Flight:
        """Distinct moments of the order; ScheduleError if it cannot run so many microbatches."""
        shortest = (schedule(self.schedule).rounds or 0) * self.pp
        shorter = self._repeats and self.microbatches > shortest
        return _flight(self.of(shortest) if shorter else self)

    def orders(self) -> Orders:
        """The order itself."""
        return step_orders(
            self.schedule,
            pp=self.pp,
            microbatches=self.microbatches,
            virtual_stages=self.virtual_stages,
            beside=self.beside,
            flushes=self.flushes,
        )

    def stage_map(self) -> Orders:
        """An order with the same stages, of as few microbatches as there can be."""
        return (self.of(self.pp) if self._repeats else self).orders()

    def runs(self) -> bool:
        """Whether the schedule can run so many microbatches."""
        if self._repeats:
            return True
        try:
            orders = self.orders()
        except ScheduleError:
            return False
        return not orders.forward_only and orders.microbatches == self.microbatches


@remembered(4096)
def _flight(order: Order) -> Flight:
    return Flight.of(order.orders(), beside=order.beside)


@structs.dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Memory and lower bounds of layouts, before any is simulated."""

    # float64[K]: what the fullest rank needs [B]: that of `mpsim.training.memory.account`,
    # to rounding; of layouts that need more than there is, something above that
    memory: Floats
    bound: Floats  # float64[K]: no step is shorter [s]; infinite for those
    # float64[K]: share of what is usable that a rank needs at most; above 1 of those
    filled: Floats


class Bounder:
    """Bounds layouts of one scenario, sharing what they have in common.

    `plan`: of any legal layout: all but the layout is taken from it. `division`: how layers are
    divided among stages. `recompute`: that of the scenario, with its modules and chunks; that of
    the plan by default. `cluster`: with whole scale-up domains, of which each layout fills what its
    groups need; that of the plan by default.
    """

    def __init__(
        self,
        plan: Plan,
        division: Division | None = None,
        recompute: Recompute | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._recompute = recompute or plan.recompute
        self._division = division or Division()

    def order(self, layout: Layout) -> Order:
        """The order of actions of a layout."""
        frame, plan = layout.frame, self._plan
        return Order(
            frame.schedule,
            frame.pp,
            plan.global_batch // (frame.dp * layout.micro_batch),
            frame.virtual_stages,
            runs_beside(plan.layout.framework, plan.layout.model),
            plan.orders.flushes,
        )

    def plan(self, layout: Layout, orders: Orders) -> Plan:
        """The plan of a layout, with the given orders."""
        split = layout.frame.layers_per_stage
        division = self._division if split is None else Division(given=split)
        stages = place_layers(self._plan.layout.model.layers, orders, division)
        return structs.replace(
            self._divided(layout, stages),
            orders=orders,
            schedule=layout.frame.schedule,
            zero=layout.zero,
            offload=self._plan.offload if layout.offload is None else layout.offload,
            recompute=self.recompute(layout),
        )

    def _divided(self, layout: Layout, stages: tuple[Stage, ...]) -> Plan:
        """The plan with the mesh, the stages and the microbatch of a layout."""
        mesh, whole = self._mesh(layout.frame), self._cluster
        laid = structs.replace(
            self._plan.layout,
            cluster=whole_groups(whole, mesh) if whole else self._plan.layout.cluster,
            mesh=mesh,
            stages=stages,
            sequence_parallel=layout.sequence_parallel,
        )
        return structs.replace(self._plan, layout=laid, micro_batch=layout.micro_batch)

    @asked_once(
        lambda layout, *, roughly: (
            *(layout.frame.order, *layout.frame.degrees.values(), roughly),
            *layout.division[: 2 if roughly else None],
            schedule(layout.frame.schedule).splits,
        )
    )
    def least(self, layout: Layout, *, roughly: bool) -> float:
        """A time that neither the bound of a layout nor its step beats, whatever its stages are: of
        n microbatches the busiest of P ranks has no less to do than the mean, n (F + B) / P, of the
        whole model as one stage on the fastest ranks [s]. `roughly`: of layers alone and without
        what runs again, which is sooner known.
        """
        recompute, model = self.recompute(layout), self._plan.layout.model
        # how many layers run again may hang on how they are divided among stages
        plain = not roughly and recompute.method == "uniform" and recompute.layers == 1
        # and a stage without a head may gather what it was sent
        ends = not roughly or self._plan.layout.framework.pipeline.stage_gathers > 0
        whole = Stage(0, 0, model.layers, embedding=ends, head=ends)
        plan = self._divided(layout, (whole,))
        plan = structs.replace(plan, recompute=recompute if plain else NOTHING)
        shapes, took = self.shapes(plan), []
        costs = shapes.costs(plan)
        splits = schedule(layout.frame.schedule).splits
        actions = tuple(Action) if splits else (Action.F, Action.B)
        for rank in dict.fromkeys(costs.alike.tolist()):
            stage = structs.replace(whole, rank=rank)
            (each,) = shapes.ticks(plan, {content(plan, costs, stage): stage}, actions)
            split = each[Action.I] + each[Action.W]
            back = min(each[Action.B], split) if splits else each[Action.B]
            took.append(float(each[Action.F] + back))
        return self.order(layout).microbatches * min(took) / layout.frame.pp * TICK

    @asked_once(lambda plan: plan.layout.cluster.node.domain)
    def shapes(self, plan: Plan) -> Shapes:
        """Shapes of all layouts that fill as much of a scale-up domain as `plan`."""
        return Shapes(plan)

    @asked_once(lambda layout: layout.again)
    def recompute(self, layout: Layout) -> Recompute:
        """Recomputation of a layout."""
        known = self._recompute.at(layout.recompute)
        return known if layout.modules is None else structs.replace(known, modules=layout.modules)

    def bound(
        self, layouts: Sequence[Layout], *, usable: float = math.inf, most: float = math.inf
    ) -> Bounded:
        """Memory and bound of layouts of one frame and microbatch.

        `most`: memory that any accelerator may use at most [B]. `usable`: share of that, or of its
        own memory where this is less, that may be full. Layouts that need more are not looked at
        any further.

        Raises ScenarioError, ScheduleError: if the frame cannot be laid out after all.
        """
        around = self._around(layouts[0])
        room = np.array([min(most, size) for size in around.capacity])
        return Bounded(*around.price(layouts, self.order(layouts[0]), room, usable))

    @asked_once(lambda layout: layout.frame)
    def _around(self, layout: Layout) -> _Around:
        """The frame of a layout."""
        return _Around(self, layout.frame, self.plan(layout, self.order(layout).stage_map()))

    # the same for all layouts with these states: replayed once, added to every bound
    @asked_once(
        lambda plan, _: (
            *(plan.layout.mesh, plan.zero, plan.offload),
            plan.layout.rank_parameters.tobytes(),
        )
    )
    def step(self, plan: Plan, costs: PlanCosts) -> tuple[Floats, float]:
        """Ticks until each rank is done once all is reduced, float64[P]; host time before."""
        rows, pp = Rows(TRAINING), plan.layout.mesh.pp
        end = StepEnd(plan, costs, replica_groups(plan, costs), lambda: np.zeros(pp))
        add_ending(rows, end.ending, pp, np.zeros(0, dtype=np.int64))
        graph = rows.graph(f"pp {rank}" for rank in range(pp))
        program = graph.priced(end.prices, class_size=np.ones(pp))
        timeline = run(program, "replay")
        owner = np.repeat(np.arange(len(program)), np.diff(program.slot_ptr))
        done = np.zeros(pp)
        np.maximum.at(done, program.slot // len(Stream), timeline.end[owner])
        return done, float(ticks(host_overhead(plan)))

    def standing(self, plan: Plan) -> Floats:
        """Model states of each rank, float64[P] [B]."""
        states = np.zeros(plan.layout.mesh.pp)
        for state in model_states(plan).values():
            states += state
        return states

    @asked_once(lambda frame: (frame.order, *frame.degrees.values()))
    def _mesh(self, frame: Frame) -> Mesh:
        mesh = self._plan.layout.mesh
        order = mesh.order if frame.order is None else tuple(frame.order.split("-"))
        return Mesh(order=order, etp=mesh.etp, **frame.degrees)


class _Ends(NamedTuple):
    """Consequences of where model states are: ticks of the step's end and begin, exchanges."""

    done: Floats
    overhead: float
    exchanges: Exposed


class _Around:
    """A frame: stages, ranks and what they hold, whatever a microbatch is."""

    def __init__(self, bounder: Bounder, frame: Frame, plan: Plan) -> None:
        self._bounder, self._frame, self._plan = bounder, frame, plan
        self.capacity = [
            plan.layout.cluster_of(rank).accelerator.memory_bytes
            for rank in range(plan.layout.mesh.pp)
        ]
        costs = bounder.shapes(plan).costs(plan)
        keys = [content(plan, costs, stage) for stage in plan.layout.stages]
        # stages of equal content are costed once; reversed, as the first stands for equals
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

    def price(
        self, layouts: Sequence[Layout], order: Order, room: Floats, usable: float
    ) -> tuple[Floats, Floats, Floats]:
        """Memory [B], bound [s] and share of `room`, float64[P], of layouts that differ in habits
        only, float64[K] each; of what fills more than `usable` of it no bound.

        What does not fit is found out as early as can be: model states alone come before
        activations, and both before any time.
        """
        count = len(layouts)
        memory, bound = np.empty(count), np.full(count, np.inf)
        standing = np.stack([self._standing(layout, order.microbatches) for layout in layouts])
        memory[:], filled = standing.max(axis=1), (standing / room).max(axis=1)
        left = np.flatnonzero(filled <= usable)
        if not len(left):
            return memory, bound, filled
        chosen = [layouts[place] for place in left.tolist()]
        fresh = [self._fresh(layout.sharing, order.microbatches) for layout in chosen]
        kept = np.stack([self._kept(layout) for layout in chosen])
        lists = np.stack([self._of_sharing(layout.sharing)[2] for layout in chosen])
        held = self._memory(kept, order, fresh, lists) + standing[left]
        (memory[left], _), (_, filled[left]) = held.max(axis=2), (held / room).max(axis=2)
        left = left[filled[left] <= usable]
        if len(left):
            chosen = [layouts[place] for place in left.tolist()]
            zeros = [self._at(layout.sharing) for layout in chosen]
            took, sends = zip(*(self._times(layout) for layout in chosen), strict=True)
            ticks = np.moveaxis(np.stack(took)[:, self._which], 1, 2)  # [K, 4, S]
            bound[left] = self._seconds(ticks, np.stack(sends), zeros, order.microbatches)
        return memory, bound, filled

    def _standing(self, layout: Layout, microbatches: int) -> Floats:
        """Memory of each rank that does not depend on the order of actions, float64[P] [B]."""
        held = self._of_sharing(layout.sharing)[1] - self._fresh(layout.sharing, microbatches).total
        return held + message_buffers(self._divided(layout))

    @asked_once(lambda sharing, microbatches: (sharing, microbatches))
    def _fresh(self, sharing: tuple[int, str | None], microbatches: int) -> Fresh:
        """Gradients that are not there before the backward of the only microbatch of a step."""
        return fresh_gradients(self._shared(sharing), microbatches)

    @asked_once(lambda layout: layout.division)
    def _divided(self, layout: Layout) -> Plan:
        """The plan with a layout's microbatch and habits, which decide its actions' time."""
        laid = self._plan.layout
        if laid.sequence_parallel != layout.sequence_parallel:
            laid = structs.replace(laid, sequence_parallel=layout.sequence_parallel)
        again = self._bounder.recompute(layout)
        return structs.replace(
            self._plan, layout=laid, micro_batch=layout.micro_batch, recompute=again
        )

    @asked_once(lambda layout: layout.division)
    def _kept(self, layout: Layout) -> Floats:
        """Bytes that distinct stages keep, float64[D, columns of `Kept`]."""
        plan = self._divided(layout)
        return self._bounder.shapes(plan).kept(plan, self._distinct)

    @asked_once(lambda layout: layout.division)
    def _times(self, layout: Layout) -> tuple[Floats, Floats]:
        """Ticks of actions of distinct stages, float64[D, 4], and of messages, float64[2, P]."""
        plan = self._divided(layout)
        shapes = self._bounder.shapes(plan)
        return shapes.ticks(plan, self._distinct, self._actions), shapes.sends(plan)

    def _memory(self, kept: Floats, order: Order, fresh: Sequence[Fresh], lists: Floats) -> Floats:
        """Activations, gradients that come in a backward, `fresh` ones among them, or `lists` of
        the optimizer, and overhead of each rank, reserved and needed, float64[2, K, P] [B].
        """
        by_stage = dict(zip(KEPT, np.moveaxis(kept[:, self._which], 2, 0), strict=True))
        peaks, apart, others = order.flight().peaks(by_stage, fresh)
        others[0] = np.maximum(others[0], np.minimum(lists, peaks))
        step = lists + np.array([[each.total - each.root] for each in fresh])
        peaks, apart = np.maximum(peaks, step), np.where(step > peaks, step, apart)
        held: Floats = peaks + overhead(self._plan, peaks, apart, others)
        return held

    def _seconds(
        self, stage_ticks: Floats, sends: Floats, zeros: Sequence[_Ends], microbatches: int
    ) -> Floats:
        """Bound of each layout, float64[K] [s]."""
        forward = stage_ticks[:, Action.F]
        backward = stage_ticks[:, Action.I if self._splits else Action.B]
        gradients = stage_ticks[:, Action.I] + stage_ticks[:, Action.W]
        # orders may have whole backwards and split ones; a bound takes the shorter
        if Action.B in self._actions:
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
        # with weight gradients split off, a rank's last action may not be on the way back
        if not self._splits:
            ends = np.maximum(ends, (began + last).max(axis=1) + self._least_at_start(reduces))
        ends = np.maximum(ends, overhead + each * queued.max(axis=1))
        # a rank's own update follows its own reductions; with a norm, everybody's follows the last
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
        """Ticks from stages to the next and the one before, float64[K, S]; 0 at the ends."""
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

    @asked_once(lambda sharing: sharing)
    def _at(self, sharing: tuple[int, str | None]) -> _Ends:
        """Work of a step that is done once, for a ZeRO stage and what the host keeps."""
        plan = self._shared(sharing)
        costs = self._bounder.shapes(plan).costs(plan)
        done, overhead = self._bounder.step(plan, costs)
        return _Ends(done, overhead, self._held.exposed(plan, costs))

    def _shared(self, sharing: tuple[int, str | None]) -> Plan:
        return self._of_sharing(sharing)[0]

    @asked_once(lambda sharing: sharing)
    def _of_sharing(self, sharing: tuple[int, str | None]) -> tuple[Plan, Floats, Floats]:
        """The plan with that sharing, what ranks hold anyway, the optimizer's scratch [B]."""
        zero, offload = sharing
        kept = self._plan.offload if offload is None else offload
        plan = structs.replace(self._plan, zero=zero, offload=kept)
        standing = self._bounder.standing(plan) + sharing_buffers(plan) + self._scratch
        return plan, standing, step_scratch(plan)
