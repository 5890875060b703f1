"""Plan to Program: the pipeline's actions, and around them what a step does once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.framework import BlockingSends
from mpsim.program.floors import held_to_links
from mpsim.program.join import UnequalCollectivesError, join
from mpsim.program.program import Program
from mpsim.program.rows import Rows
from mpsim.program.unfold import spans
from mpsim.schedule import Orders
from mpsim.training.actions import ActionVariants
from mpsim.training.blocks import Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.messages import warmup_and_flush
from mpsim.training.pipeline import add_pipeline
from mpsim.training.plan import Plan
from mpsim.training.replicas.exchanges import add_exchanges
from mpsim.training.replicas.issue import SegmentRuns
from mpsim.training.step_end import StepRows
from mpsim.training.vocabulary import TRAINING

__all__ = ["build_program"]


def build_program(
    plan: Plan, costs: PlanCosts | None = None, *, blocks: Blocks | None = None
) -> Program:
    """Expand a Plan into operations with durations.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts, optional
        Made from the plan when absent.
    blocks : Blocks, optional
        Templates that this plan shares with others; made from the plan when absent.

    Returns
    -------
    Program
        One rank class a pipeline rank; each stands for all ranks of its stage, which do the same at the same time. Where replicas
        differ, one a pipeline rank and class of replicas.
    """
    costs = costs or PlanCosts(plan)
    if plan.classes:
        program = _joined(plan, [_build(part.plan, part, None) for part in costs.parts])
    else:
        program = _build(plan, costs, blocks)
    # where transfers share links, what these can carry comes out of the run
    return program if plan.network == "flow" else held_to_links(program, plan)


def _build(plan: Plan, costs: PlanCosts, blocks: Blocks | None) -> Program:
    """The program of replicas that are alike."""
    rows = Rows(TRAINING)
    step = StepRows(rows, plan, costs)
    actions = ActionVariants(plan, costs, blocks)
    begun = step.overhead()
    placed = add_pipeline(
        rows,
        plan.orders,
        actions.chosen,
        actions.variants,
        costs.sends(),
        overlap="fused" if plan.fuses_blocks else "late-send",
        blocking=_blocking(plan),
    )
    runs = SegmentRuns.of(actions.segmented, actions.chosen, placed, plan.orders)
    reduced = add_exchanges(rows, plan, costs, runs, placed, begun)
    reduced = step.sum_shared_weights(reduced, placed)
    step.optimizer_step(reduced)
    return rows.finish(
        rank_name=[f"pp {rank}" for rank in range(plan.layout.mesh.pp)],
        class_size=np.full(plan.layout.mesh.pp, plan.layout.mesh.world // plan.layout.mesh.pp),
        templates=actions.templates,
    )


def _joined(plan: Plan, programs: list[Program]) -> Program:
    """Let the classes of replicas run beside each other."""
    names = [f"dp {spans(replicas.replicas)}" for replicas in plan.classes]
    try:
        return join(programs, names, [len(replicas.replicas) for replicas in plan.classes])
    except UnequalCollectivesError as error:
        counts = ", ".join(map(str, error.counts))
        raise ScenarioError(
            f"replicas that differ would not gather and reduce the same tensors in the same order ({counts} collectives by class); "
            "give every replica as many microbatches, or take a framework and a zero that reduce gradients once a step"
        ) from None


def _blocking(plan: Plan) -> NDArray[np.bool_]:
    """Around which actions messages block; a fused block has both its inputs before it and both its outputs after it."""
    return _blocking_actions(plan) & ~(plan.fuses_blocks & _in_blocks(plan.orders))


def _in_blocks(orders: Orders) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = orders.fused | np.roll(orders.fused, 1)
    return inside


def _blocking_actions(plan: Plan) -> NDArray[np.bool_]:
    orders, software = plan.orders, plan.layout.framework
    if software.pipeline.blocking_sends is BlockingSends.NEVER:
        return np.zeros(len(orders), dtype=bool)
    if software.pipeline.blocking_sends is BlockingSends.ALWAYS or orders.exchanges:
        return np.ones(len(orders), dtype=bool)
    nowhere = np.zeros(len(orders), dtype=bool)
    return nowhere if software.pipeline.overlap_warmup_flush else warmup_and_flush(orders)
