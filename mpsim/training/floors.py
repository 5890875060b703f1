"""Floors of a step: the least time in which compute, memory and links of its fullest rank class can do what it asks of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.program import TICK
from mpsim.program.floors import Floor, link_floors
from mpsim.result import Result
from mpsim.training.plan import Plan

__all__ = ["floor_warnings", "floors_of"]

_FULL = 1.001  # of a floor: what ticks round is not told


def floors_of(result: Result, plan: Plan) -> dict[str, float]:
    """Least time by what is needed [s]: ``compute``, ``memory``, ``scale_up``, ``nic``, ``fabric``.

    Notes
    -----
    Compute is what products execute over the peaks of their formats, memory what kernels of layers read and write over its bandwidth, each of the rank class with most;
    links are the busiest port of a rank, and the busiest link of a fabric that could be too thin, at their usable rates (`mpsim.program.floors.link_floors`).
    """
    links = _links(result, plan)
    program = result.program
    chosen = program.template >= 0
    rank, template = program.rank[chosen], program.template[chosen]

    def most(seconds: NDArray[np.float64]) -> float:
        each = np.bincount(rank, weights=seconds[template], minlength=program.ranks)
        return float(each.max(initial=0.0))

    inside = np.array([(t.peak_seconds, t.memory_seconds) for t in program.templates])
    compute, memory = inside.reshape(-1, 2).T
    return {
        "compute": most(compute),
        "memory": most(memory),
        **{floor.name: floor.ticks * TICK for floor in links},
    }


def _links(result: Result, plan: Plan) -> tuple[Floor, ...]:
    return link_floors(result.program, plan)


def floor_warnings(result: Result, plan: Plan, floors: dict[str, float]) -> list[str]:
    """Warnings of a step that links hold up, or that is shorter than anything it needs."""
    timeline, program = result.timeline, result.program
    step = timeline.step_time_s
    warnings = []
    if timeline.makespan > timeline.last:
        busiest = max(_links(result, plan), key=lambda floor: floor.ticks)
        warnings.append(
            f"network: analytic lets transfers overlap that share {busiest.where}, which alone takes {step:.4g} s to carry them: the step is held to that, and the "
            f"{step - timeline.last * TICK:.3g} s more than its operations take count as {program.vocabulary.parts[program.least_part]}; "
            "set simulation.network to flow to let them meet"
        )
    slowest = max(floors, key=floors.__getitem__)
    if floors[slowest] > step * _FULL:
        warnings.append(
            f"takes {step:.4g} s, but needs {floors[slowest]:.4g} s of {slowest.replace('_', '-')} at least: no step is this short; please report it with the scenario"
        )
    return warnings
