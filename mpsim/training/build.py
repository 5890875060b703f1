"""Plan to Program: the pipeline's actions, and around them what a step does once.

The walk goes one way: cuts, what runs beside them, templates, rows of the pipeline, exchanges, end of the step.
"""

from __future__ import annotations

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.program.floors import held_to_links
from mpsim.program.program import Program
from mpsim.program.rows import Rows
from mpsim.program.unfold import UnequalCollectivesError, join, spans
from mpsim.training.actions import ActionVariants, exchanges_beside
from mpsim.training.blocks import Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.messages import blocking_actions
from mpsim.training.pipeline import add_pipeline
from mpsim.training.plan import Plan
from mpsim.training.replicas.exchanges import add_exchanges
from mpsim.training.replicas.issue import SegmentRuns, issue_exchanges
from mpsim.training.replicas.segments import cut_actions
from mpsim.training.step_end import StepRows
from mpsim.training.vocabulary import TRAINING


def build_program(
    plan: Plan, costs: PlanCosts | None = None, *, blocks: Blocks | None = None
) -> Program:
    """Expand a Plan into operations with durations. `costs`: made from the plan when absent.
    `blocks`: templates that this plan shares with others; made from the plan when absent.

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
    begun = step.overhead()
    blocks = blocks or Blocks(plan, costs)
    cuts = cut_actions(plan, costs, blocks)
    beside = exchanges_beside(plan, costs, cuts)
    actions = ActionVariants(plan, blocks, cuts, beside)
    placed = add_pipeline(
        rows,
        plan.orders,
        actions.chosen,
        actions.variants,
        costs.sends(),
        overlap="fused" if plan.fuses_blocks else "late-send",
        blocking=blocking_actions(plan),
    )
    runs = SegmentRuns.of(actions.segmented, actions.chosen, placed, plan.orders)
    exchanges = issue_exchanges(plan, runs, placed)
    reduced = add_exchanges(rows, plan, costs, exchanges, placed, begun)
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
