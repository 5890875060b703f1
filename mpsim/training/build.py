"""Plan to Program: the pipeline's actions, and around them what a step does once.

The walk goes one way: cuts, what runs beside them, templates, end of the step; then the graph of
them all, which plans of one shape share, and its prices.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.framework import BlockingSends, PipelineBehaviour
from mpsim.memo import Memo, remembered
from mpsim.program.floors import held_to_links, may_be_held
from mpsim.program.program import Program
from mpsim.program.rows import Graph, Rows
from mpsim.schedule import Orders
from mpsim.training.actions import ActionVariants, exchanges_beside
from mpsim.training.blocks import Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.messages import MESSAGES, blocking_actions
from mpsim.training.pipeline import ACTIONS, add_pipeline
from mpsim.training.plan import Plan
from mpsim.training.replicas.exchanges import Travels, add_exchanges, exchange_prices
from mpsim.training.replicas.groups import exchanging, replica_groups
from mpsim.training.replicas.issue import Exchanging, SegmentRuns, issue_exchanges
from mpsim.training.replicas.segments import CutRows, cut_actions
from mpsim.training.step_end import Ending, StepEnd, add_ending, add_overhead, add_shared_sums
from mpsim.training.vocabulary import TRAINING

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
        program = _joined(plan, [_build(part.plan, part, None) for part in costs.parts])
    else:
        program = _build(plan, costs, blocks)
    # where transfers share links, what these can carry comes out of the run
    if plan.network == "flow" or not may_be_held(program, plan):
        return program
    if blocks is not None and blocks.sums:
        program = _build(plan, costs, None)  # by how much, the kernels inside say
    return held_to_links(program, plan)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


def _build(plan: Plan, costs: PlanCosts, blocks: Blocks | None) -> Program:
    """The program of replicas that are alike."""
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
    return graph.priced(prices, class_size=size, templates=actions.templates)


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
        raise ScenarioError(
            "replicas that differ would not gather and reduce the same tensors in the same order"
            f" ({counts} collectives by class); give every replica as many microbatches, or take a"
            " framework and a zero that reduce gradients once a step"
        ) from None
