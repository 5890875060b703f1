"""The result of a training step: its account, memory and summary."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mpsim import structs
from mpsim.archive import Archive
from mpsim.arrays import Floats
from mpsim.hardware import Cluster
from mpsim.program.links import Links, links_of
from mpsim.program.program import Program
from mpsim.result import Memory, MemoryCurve, Result
from mpsim.result.intervals import Waits
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.training.account import attribute, idle_waits
from mpsim.training.memory.account import account_memory
from mpsim.training.plan import Plan
from mpsim.training.summary import Needs, Work, headline, least_of, needs_of, summarise, work_of

if TYPE_CHECKING:
    from mpsim.training.memory.trace import Played


@structs.dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """One simulated training step."""

    kind: ClassVar = "training"
    plan: Plan

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it."""
        return self.plan.class_clusters

    @functools.cached_property
    def parts(self) -> Floats:
        """Time of each rank class by part of the step [ticks]."""
        return self.measured("parts", lambda step: attribute(step.timeline))

    @functools.cached_property
    def idle(self) -> Waits:
        """Idle time of compute streams as intervals, each of one part of the step."""
        return idle_waits(self.timeline)

    def links_of(self, program: Program) -> Links:
        """Links that rows of one of its programs use."""
        return links_of(program, self.plan)

    @functools.cached_property
    def memory(self) -> Memory:
        """Memory of each pipeline rank at its fullest moment."""
        return account_memory(self.plan)

    def memory_curve(self, rank: int) -> MemoryCurve:
        """Memory of rank class `rank` (the pipeline rank, where replicas are alike) over time."""
        from mpsim.training.memory.curve import memory_curve

        return memory_curve(self.timeline, self.plan, self.memory, rank)

    def allocations(self, rank: int | None = None, *, expandable: bool = False) -> Played:
        """Play a rank class's allocations (the fullest's) through torch's caching allocator."""
        # like the snapshot, for those who ask: a run does without
        from mpsim.training.memory.trace import allocation_trace, play

        rank = self.memory.fullest if rank is None else rank
        changes = allocation_trace(self.timeline, self.plan, self.memory, rank)
        return play(changes, expandable=expandable)

    def write_memory_snapshot(self, path: str | Path, rank: int | None = None) -> Played:
        """Write `allocations` as the pickle that torch's memory_viz opens, and return them."""
        from mpsim.training.memory.snapshot import write_snapshot

        played = self.allocations(rank)
        write_snapshot(played, path)
        return played

    @functools.cached_property
    def work(self) -> Work:
        """FLOPs of all ranks."""
        return work_of(self.program)

    @functools.cached_property
    def needs(self) -> Needs:
        """Least time of each rank class and link by what is needed [s]."""
        return needs_of(self.program, self.plan, self.measured("least", least_of))

    @functools.cached_property
    def headline(self) -> Figures:
        """The figures that people measure, with their interval."""
        if self.saved_summary is not None:
            return self.saved_summary
        return headline(self, self.plan, self.work.hardware)

    def _figures(self) -> Figures:
        return summarise(self, self.plan, self.work, self.needs)

    @classmethod
    def _fields(cls, saved: Archive, scenario: Scenario) -> dict[str, object]:
        return {**super()._fields(saved, scenario), "plan": saved.part("plan", Plan)}
