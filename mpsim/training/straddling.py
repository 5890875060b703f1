"""Groups that lie across scale-up domains though they need not, and what that costs a step."""

from __future__ import annotations

import dataclasses

from mpsim.engine import run
from mpsim.parallel import best_domain, straddling
from mpsim.program.program import Program
from mpsim.training.build import build_program
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.units import Dimension, format_quantity

__all__ = ["straddling_words"]


def straddling_words(plan: Plan, program: Program) -> str:
    """Which groups straddle scale-up domains, with the step as it is and as it would be without; empty where none do.

    Parameters
    ----------
    program : Program
        Of the plan, replayed to compare like with like, whatever the scenario's engine and network are.
    """
    layout = plan.layout
    if plan.classes or layout.stage_clusters:  # parts say where their ranks are
        return ""
    found = straddling(layout.cluster, layout.mesh)
    if not found:
        return ""
    node, whole = layout.cluster.node, best_domain(layout.cluster, layout.mesh)
    said = f"{', '.join(map(str, found))} straddle scale-up domains of {node.domain}"
    if whole.node.domain == node.domain:
        degrees = ", ".join(groups.axis for groups in found)
        return f"{said}: choose degrees ({degrees}) that divide {node.domain}"
    nodes = layout.cluster.domains * whole.node.domain // node.accelerators
    times = " and ".join(
        format_quantity(seconds, Dimension.TIME)
        for seconds in (_step(program), _step(_on(plan, whole.node.domain)))
    )
    return (
        f"{said}: the step takes {times} with {whole.node.domain} accelerators of each; set cluster.nodes to {nodes}, "
        "or choose degrees that divide a domain"
    )


def _on(plan: Plan, domain: int) -> Program:
    """The step of the plan with so many accelerators of each scale-up domain."""
    cluster = plan.layout.cluster
    node = dataclasses.replace(cluster.node, domain=domain)
    moved = plan.on(
        dataclasses.replace(plan.layout, cluster=dataclasses.replace(cluster, node=node))
    )
    return build_program(moved, PlanCosts(moved))


def _step(program: Program) -> float:
    return run(program, "replay").step_time_s
