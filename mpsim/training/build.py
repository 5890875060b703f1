"""Plan to Program: the pipeline's actions, and around them what a step does once.

The walk goes one way: cuts, what runs beside them, templates, end of the step; then the graph of
them all, which plans of one shape share, and its prices.

An action is one row with one template, unless data parallelism cuts it
(`mpsim.training.replicas.segments`); then every segment is a row, and copies of its gradients
before they are reduced another. A segment takes longer where gathers and reductions run beside it:
a collective's blocks hold processors and memory bandwidth of the device, so a kernel beside them
loses a part of its rate (`Interference.lost_at`). Segments run in order; what is queued beside one
and does not end there runs on beside the next. What the next action finds still under way is left
out, and so are collectives of other axes. Shapes: N actions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.cost import copy_seconds, update_seconds
from mpsim.errors import ScenarioError
from mpsim.framework import BlockingSends, PipelineBehaviour
from mpsim.hardware import Calibration
from mpsim.memo import Memo, remembered
from mpsim.program.floors import held_to_links, may_be_held
from mpsim.program.program import TICK, Program, Template
from mpsim.program.rows import Graph, Prices, Rows, Totals
from mpsim.program.template import one_kernel, stretched, ticks
from mpsim.schedule import Action, Orders
from mpsim.shipped import say
from mpsim.training.blocks import Block, Blocks
from mpsim.training.pipeline import ACTIONS, MESSAGES, add_pipeline, blocking_actions
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.replicas.exchanges import Travels, add_exchanges, exchange_prices
from mpsim.training.replicas.groups import exchange_times, exchanging, replica_groups
from mpsim.training.replicas.issue import Exchanging, SegmentRuns, issue_exchanges
from mpsim.training.replicas.segments import (
    Bucket,
    CutAction,
    CutRows,
    Cuts,
    Segment,
    Segments,
    cut_actions,
)
from mpsim.training.step_end import Ending, StepEnd, add_ending, add_overhead, add_shared_sums
from mpsim.training.vocabulary import PARTS, TRAINING

_ROWS = 1 << 20  # of graphs that stay ready, for points of a sweep and layouts of a search
_EACH = 512  # rows that a graph weighs beside its own
_LONG = 1 << 16  # actions of a step


def build_program(
    plan: Plan, costs: PlanCosts | None = None, *, blocks: Blocks | None = None
) -> Program:
    """Expand a Plan into operations with durations. `costs`: made from the plan when absent.
    `blocks`: templates that this plan shares with others; made from the plan when absent.

    Returns Program: one rank class a pipeline rank; each stands for all ranks of its stage, which
    do the same at the same time. Where replicas differ, one a pipeline rank and class of replicas.
    """
    costs = costs or PlanCosts(plan)
    if plan.classes:
        parts = [_build(part.plan, part, None) for part in costs.parts]
        program, held = _joined(plan, [part for part, _ in parts]), True
    else:
        program, totals = _build(plan, costs, blocks)
        held = may_be_held(totals, plan)
    # where transfers share links, what these can carry comes out of the run
    if plan.network == "flow" or not held:
        return program
    if blocks is not None and blocks.sums:
        program, _ = _build(plan, costs, None)  # by how much, the kernels inside say
    return held_to_links(program, plan)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """All that decides the graph of a step: plans of one shape differ in what its rows cost."""

    orders: Orders
    chosen: bytes  # int64[N], which of the cuts each action is
    cuts: tuple[CutRows, ...]
    some: bytes  # bool[B, 2], whether buckets have dense parameters, and parameters of experts
    how: Exchanging
    pipeline: PipelineBehaviour
    fuses: bool
    ending: Ending


class _StepGraph(NamedTuple):
    """The graph of a step, and what its exchanges are."""

    graph: Graph
    travels: Mapping[str, Travels]


def _build(plan: Plan, costs: PlanCosts, blocks: Blocks | None) -> tuple[Program, Totals]:
    """The program of replicas that are alike, and what its ranks do."""
    blocks = blocks or Blocks(plan, costs)
    cuts = cut_actions(plan, costs, blocks)
    beside = exchanges_beside(plan, costs, cuts)
    actions = ActionVariants(plan, blocks, cuts, beside)
    groups = replica_groups(plan, costs)
    busy = functools.partial(actions.busy, plan.orders, cuts.chosen)
    end = StepEnd(plan, costs, groups, busy)
    buckets = (actions.gathers, actions.reduces)
    shape = _Shape(
        orders=plan.orders,
        chosen=cuts.chosen.tobytes(),
        cuts=tuple(actions.cuts),
        some=(np.array([*itertools.chain(*buckets)]) > 0).tobytes(),
        how=exchanging(plan, groups),
        pipeline=plan.layout.framework.pipeline,
        fuses=plan.fuses_blocks,
        ending=end.ending,
    )
    # the graph of a long step takes more memory than it is worth to keep
    known: dict[_Shape, _StepGraph] = _graphs() if len(plan.orders) <= _LONG else {}
    if (laid_out := known.get(shape)) is None:
        known[shape] = laid_out = _lay_out(shape)
    graph, travels = laid_out
    prices = {
        ACTIONS: actions.prices,
        **dict(zip(MESSAGES, costs.sends(), strict=True)),
        **exchange_prices(plan, costs, groups, travels, *buckets),
        **end.prices,
    }
    pp = plan.layout.mesh.pp
    size = np.full(pp, plan.layout.mesh.world // pp)
    program = graph.priced(prices, class_size=size, templates=actions.templates)
    return program, graph.totals(program)


def _lay_out(shape: _Shape) -> _StepGraph:
    """Lay out the rows of a step."""
    rows, orders, how = Rows(TRAINING), shape.orders, shape.how
    begun = add_overhead(rows, orders.pp)
    chosen = np.frombuffer(shape.chosen, dtype=np.int64)
    placed = add_pipeline(
        rows,
        orders,
        chosen,
        np.array([cut.rows for cut in shape.cuts]),
        overlap="fused" if shape.fuses else "late-send",
        blocking=blocking_actions(orders, shape.pipeline, fuses=shape.fuses),
        one_way=shape.pipeline.blocking_sends is BlockingSends.ONE_WAY,
    )
    runs = SegmentRuns.of(shape.cuts, chosen, placed, orders)
    exchanges = issue_exchanges(how, orders, runs, placed)
    some = np.frombuffer(shape.some, dtype=np.bool_).reshape(-1, 2)
    reduced, travels = add_exchanges(rows, how, orders, exchanges, some, placed, begun)
    shared = add_shared_sums(rows, shape.ending, orders, placed)
    add_ending(rows, shape.ending, orders.pp, np.concatenate([reduced, shared]))
    return _StepGraph(rows.graph(f"pp {rank}" for rank in range(orders.pp)), travels)


@remembered(1)
def _graphs() -> Memo[_Shape, _StepGraph]:
    """Graphs that stay ready; what their rows take decides how many."""
    return Memo(_ROWS, weigh=lambda step: len(step.graph.price) + _EACH)


def _joined(plan: Plan, programs: list[Program]) -> Program:
    """Let the classes of replicas run beside each other."""
    from mpsim.program.unfold import UnequalCollectivesError, join, spans

    names = [f"dp {spans(replicas.replicas)}" for replicas in plan.classes]
    try:
        return join(programs, names, [len(replicas.replicas) for replicas in plan.classes])
    except UnequalCollectivesError as error:
        counts = ", ".join(map(str, error.counts))
        raise ScenarioError(say("training.unlike_replicas", counts=counts)) from None


_GRADIENT = (Action.B, Action.W)
_HOST = PARTS.index("host")
_Seconds: TypeAlias = Callable[[float, float, Calibration | None], float]
_KEPT = 1024  # passes that stay ready: equal ones are one template, whoever asks


class ActionVariants:
    """Templates of the actions of one Plan, alike ones once; `beside`: what runs beside them."""

    def __init__(
        self, plan: Plan, blocks: Blocks, cuts: Cuts, beside: Sequence[Sequence[Load]]
    ) -> None:
        self._plan = plan
        self._blocks = blocks
        self._gathers_units = plan.gathers_units
        self._data = plan.layout.framework.data
        # where there is none yet, the first gradient of a step is kept as it was made
        made = plan.layout.framework.memory.drops_gradients / plan.orders.microbatches
        self._added = (1.0 - made) * self._data.accumulation_traffic * (not plan.divides_gradients)
        self._rows: list[ActionRow] = []  # of all variants
        self.cuts: list[CutRows] = []  # rows of every variant
        # what is gathered before the segments of all variants, and reduced after them
        self.gathers: list[Bucket] = []
        self.reduces: list[Bucket] = []
        for cut, queued in zip(cuts.distinct, beside, strict=True):
            self._append(cut, queued)

    @functools.cached_property
    def templates(self) -> tuple[Template, ...]:
        """Every template once; they compare by identity, as equal ones are made once."""
        return tuple(dict.fromkeys(row.template for row in self._rows if row.template))

    @functools.cached_property
    def prices(self) -> Prices:
        """Prices of the rows of all variants, one variant after the other."""
        number = {template: place for place, template in enumerate(self.templates)}
        duration, up, out = np.array([row[:3] for row in self._rows]).T
        numbers = [number[row.template] if row.template else -1 for row in self._rows]
        return Prices(duration, up, out, template=numbers)

    def busy(self, orders: Orders, chosen: Ints) -> Floats:
        """Time of each rank's actions, float64[R] [ticks]. `chosen` (int64[N]): variant of each."""
        ends = np.cumsum([0, *(cut.rows for cut in self.cuts)])[:-1]
        took = np.add.reduceat(self.prices.duration, ends)
        busy = np.bincount(orders.rank, weights=took[chosen], minlength=orders.pp)
        return busy.astype(np.float64)

    def _append(self, cut: CutAction, queued: Sequence[Load]) -> None:
        """Register an action's rows: one a segment, longer by what runs beside, one for copies."""
        key = self._added, self._blocks.sums, cut.fused
        alone = _alone_of(cut.segments).get_or(key, lambda: self._alone(cut))
        rows = [*alone.rows]
        if any(load.seconds for load in queued):
            factors = _slowdowns([rows[place] for place in alone.cut.row], queued)
            for place, factor in zip(alone.cut.row, factors, strict=True):
                rows[place] = rows[place] if factor == 1.0 else rows[place].longer(factor)
        self._rows += rows
        self.cuts.append(alone.cut)
        self.gathers += alone.gathers
        self.reduces += alone.reduces

    def _alone(self, cut: CutAction) -> Alone:
        """Rows of an action beside which nothing runs."""
        action, rank = cut.action, cut.stage.rank
        rows, own, ready = list[ActionRow](), [], []
        # a reference model's units are gathered beside the model's own
        times = 1.0 + (self._gathers_units and self._plan.reference and action is Action.F)
        for segment in cut.segments:
            own.append(len(rows))
            blocks = () if cut.fused else self._computed(action, segment, rank)
            rows.append(_row(cut.fused) if cut.fused else self._joined(action, blocks))
            reduced = _parameters(segment.reduces) * self._data.reduce_copy_traffic
            if copies := self._pass("copy gradients", "exposed_dp", reduced, rank):
                rows.append(self._joined(action, copies))
            ready.append(len(rows) - 1)
        gathers = [segment.gathers for segment in cut.segments]
        reduces = [segment.reduces for segment in cut.segments]
        made = (tuple(own), tuple(ready), tuple(map(len, gathers)), tuple(map(len, reduces)))
        return Alone(
            rows,
            CutRows(len(rows), *made),
            [Bucket(*(times * part for part in each)) for each in itertools.chain(*gathers)],
            [*itertools.chain(*reduces)],
        )

    def _joined(self, action: Action, blocks: Sequence[Block]) -> ActionRow:
        """A row of blocks end to end."""
        if self._blocks.sums:
            return _added(*[block.template for block in blocks])
        return _row(self._blocks.join(action, blocks))

    def _computed(self, action: Action, segment: Segment, rank: int) -> list[Block]:
        """Blocks of a segment with the passes over memory around them."""
        gathered = _parameters(segment.gathers) if self._gathers_units else 0.0
        gathered *= self._data.gather_copy_traffic
        before = self._pass("copy gathered parameters", "exposed_dp", gathered, rank)
        added = math.fsum([each.trained for each in segment.blocks]) if action in _GRADIENT else 0.0
        after = self._pass(
            "accumulate gradients", "other", added * self._added, rank, update_seconds
        )
        return [*before, *segment.blocks, *after]

    def _pass(
        self, name: str, part: str, moved: float, rank: int, time: _Seconds = copy_seconds
    ) -> list[Block]:
        """A pass over memory on the compute stream: a block of one kernel that moves so many bytes,
        or none. Copies that only sharding needs count as ``exposed_dp``; what is added in place
        moves as fast as the optimizer does it.
        """
        if not moved:
            return []
        chip = self._plan.layout.cluster_of(rank).accelerator
        seconds = time(moved, chip.memory_bandwidth, chip.calibration)
        return [Block(-1, _kernel(name, part, float(ticks(seconds))), 0.0)]


class ActionRow(NamedTuple):
    """A row of an action."""

    duration: float  # [ticks]
    up_bytes: float  # up_bytes, out_bytes: that one rank sends in it [B]
    out_bytes: float
    host: float  # for which the device waits for its host [ticks]
    template: Template | None = None  # kernels inside, where they are asked for

    def longer(self, factor: float) -> ActionRow:
        """The same with every kernel longer by a factor."""
        template = stretched(self.template, factor) if self.template else None
        # to whole ticks, as the template's parts add up to
        return self._replace(duration=float(round(self.duration * factor)), template=template)


class Alone(NamedTuple):
    """Rows of an action beside which nothing runs, and what travels around them."""

    rows: list[ActionRow]
    cut: CutRows
    gathers: list[Bucket]
    reduces: list[Bucket]


@remembered(_KEPT)
def _alone_of(segments: Segments) -> Memo[object, Alone]:
    """Rows by what is added to gradients, whether kernels are asked for, and what is fused."""
    del segments
    return Memo(_KEPT)


@remembered(_KEPT)
def _row(template: Template) -> ActionRow:
    """The row of a template."""
    up, out = (float(column.sum()) for column in (template.up_bytes, template.out_bytes))
    return ActionRow(template.ticks, up, out, float(template.parts[_HOST]), template)


@remembered(_KEPT)
def _added(*templates: Template) -> ActionRow:
    """A row of templates end to end, without their kernels."""
    columns = zip(*(_row(each)[:4] for each in templates), strict=True)
    duration, up, out, host = map(math.fsum, columns)
    return ActionRow(duration, up, out, host)


def _parameters(buckets: tuple[Bucket, ...]) -> float:
    return sum([bucket.dense + bucket.experts for bucket in buckets])


def _slowdowns(rows: Sequence[ActionRow], queued: Sequence[Load]) -> list[float]:
    """How many times longer than alone each segment takes, beside what is queued at its start.

    A segment that waits for the host is longer only by what does not fit into the waiting.
    """
    factors, left, lost = [], 0.0, 0.0
    for row, joining in zip(rows, queued, strict=True):
        left, lost = left + joining.seconds, lost + joining.lost
        alone = row.duration * TICK
        busy = alone - row.host * TICK
        share = lost / left if left else 0.0
        # either all that is queued ends beside this segment, or it runs all that time
        took = max(alone, min(busy + lost, busy / (1.0 - share)))
        left = max(left - took, 0.0)
        lost = share * left
        factors.append(took / alone if took > alone else 1.0)
    return factors


@remembered(_KEPT)
def _kernel(name: str, part: str, duration: float) -> Template:
    return one_kernel(TRAINING, name, part, duration)


class Load(NamedTuple):
    """Time of collectives, and what kernels beside them lose meanwhile [s]."""

    seconds: float
    lost: float


_NOTHING = Load(0.0, 0.0)


def exchanges_beside(plan: Plan, costs: PlanCosts, cuts: Cuts) -> list[list[Load]]:
    """Exchanges that join the queue as segments of distinct actions begin, a list an action."""
    if not plan.exchanges_beside:
        return [[_NOTHING] * len(cut.segments) for cut in cuts.distinct]
    groups, known = replica_groups(plan, costs), dict[tuple[Bucket, bool, int], Load]()

    def load(buckets: Sequence[Bucket], rank: int, *, gather: bool) -> Load:
        alike, loads = int(costs.alike[rank]), []
        for bucket in buckets:
            if (priced := known.get((bucket, gather, alike))) is None:
                lost = functools.partial(costs.of(alike).interference.lost_at, "dp")
                times = exchange_times(plan, costs, groups, bucket, gather=gather, rank=alike)
                priced = _sum(Load(t.seconds, t.seconds * lost(t.rate)) for t in times)
                known[bucket, gather, alike] = priced
            loads.append(priced)
        return loads[0] if len(loads) == 1 else _sum(loads)

    return [_queued(plan, load, cut.segments, cut.stage.rank) for cut in cuts.distinct]


def _queued(
    plan: Plan, load: Callable[..., Load], segments: Sequence[Segment], rank: int
) -> list[Load]:
    """Gathers for the segments behind each one, and the reduction of the one before it."""
    gathers, reduces = [_NOTHING] * len(segments), [_NOTHING] * len(segments)
    if len(segments) == 1:
        return gathers
    ahead = (load(segment.gathers, rank, gather=True) for segment in segments[1:])
    if plan.gathers_units and plan.units_in_flight > 1:
        gathers[:-1] = ahead
    elif plan.gathers_beside:
        gathers[0] = _sum(ahead)
    if plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp) and not plan.keeps_gathered:
        reduces[1:] = [load(segment.reduces, rank, gather=False) for segment in segments[:-1]]
    return [_sum(both) for both in zip(gathers, reduces, strict=True)]


def _sum(loads: Iterable[Load]) -> Load:
    seconds, lost = 0.0, 0.0
    for load in loads:
        seconds, lost = seconds + load.seconds, lost + load.lost
    return Load(seconds, lost)
