"""A training step as results see it: its clusters, account, memory and summary."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import Timeline
from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster
from mpsim.program.links import Links, links_of
from mpsim.program.program import Program
from mpsim.result import Memory, MemoryCurve, Result
from mpsim.result.waits import Waits
from mpsim.training.account import attribute, idle_waits
from mpsim.training.memory import account_memory, memory_curve
from mpsim.training.plan import Plan
from mpsim.training.summary import summarise

__all__ = ["TrainingStep", "plan_of"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """A training step as `mpsim.result.Job`.

    Parameters
    ----------
    known_memory : Memory, optional
        What was accounted before for the same plan; accounted when a result asks for it otherwise.
    """

    plan: Plan
    known_memory: Memory | None = None

    @property
    def kind(self) -> str:
        """Name of this kind of job."""
        return "training"

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it."""
        return self.plan.class_clusters

    def account(self, timeline: Timeline) -> NDArray[np.float64]:
        """Ticks of each rank class by part of the step."""
        return attribute(timeline)

    def idle(self, timeline: Timeline) -> Waits:
        """Idle time of every rank class as intervals of one part of the step each."""
        return idle_waits(timeline)

    def links(self, program: Program) -> Links:
        """Links that rows of one of its programs use."""
        return links_of(program, self.plan)

    def memory(self) -> Memory:
        """Memory of each pipeline rank at its fullest moment."""
        return account_memory(self.plan) if self.known_memory is None else self.known_memory

    def memory_curve(self, timeline: Timeline, memory: Memory, rank: int) -> MemoryCurve:
        """Memory of a rank class over time."""
        return memory_curve(timeline, self.plan, memory, rank)

    def summary(self, result: Result) -> dict[str, Any]:
        """The figures of the outside contract, SI units."""
        return summarise(result, self.plan)


def plan_of(result: Result) -> Plan:
    """The plan of the training step that a result is of.

    Raises
    ------
    ScenarioError
        If it is of another job.
    """
    if not isinstance(result.job, TrainingStep):
        raise ScenarioError(f"{result.scenario.name}: got another job; needed a training step")
    return result.job.plan
