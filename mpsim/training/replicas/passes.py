"""Passes over memory on the compute stream: laying out what was gathered or is to be reduced, adding up gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mpsim.cost import copy_seconds, update_seconds
from mpsim.hardware import Calibration
from mpsim.memo import remembered
from mpsim.program.program import Template
from mpsim.program.template import one_kernel, ticks
from mpsim.training.blocks import Block
from mpsim.training.plan import Plan
from mpsim.training.vocabulary import TRAINING

__all__ = ["MemoryPasses"]

_Seconds: TypeAlias = Callable[[float, float, Calibration | None], float]
_KEPT = 1024  # passes that stay ready: equal ones are one template, whoever asks


class MemoryPasses:
    """Templates of one memory-bound kernel, each distinct one once.

    Parameters
    ----------
    plan : Plan

    Notes
    -----
    Copies that only sharding needs count as ``exposed_dp``, adding up gradients as ``other``. Copies move memory as fast as
    `mpsim.cost.copy_seconds` says, additions in place as fast as the optimizer.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: dict[tuple[str, float, int], Template] = {}
        clusters = plan.layout.stage_clusters
        # the first pipeline rank with the same nodes: chips of equal speed share their passes
        self._chip = [clusters.index(cluster) for cluster in clusters]

    def gathered(self, parameters: float, rank: int) -> list[Block]:
        """Laying out a gathered unit on a pipeline rank."""
        traffic = self._plan.layout.framework.data.gather_copy_traffic
        return self._blocks("copy gathered parameters", "exposed_dp", parameters * traffic, rank)

    def to_reduce(self, parameters: float, rank: int) -> list[Block]:
        """Laying out gradients before they are reduced."""
        traffic = self._plan.layout.framework.data.reduce_copy_traffic
        return self._blocks("copy gradients", "exposed_dp", parameters * traffic, rank)

    def added(self, parameters: float, rank: int) -> list[Block]:
        """Adding the gradients of a microbatch to those of the ones before it."""
        traffic = self._plan.layout.framework.data.accumulation_traffic
        return self._blocks(
            "accumulate gradients", "other", parameters * traffic, rank, update_seconds
        )

    def _blocks(
        self, name: str, part: str, moved: float, rank: int, time: _Seconds = copy_seconds
    ) -> list[Block]:
        """A block of one kernel that moves so many bytes, or none."""
        if not moved:
            return []
        chip = self._plan.layout.cluster_of(rank).accelerator
        key = (name, moved, self._chip[rank] if self._chip else 0)
        if key not in self._made:
            seconds = time(moved, chip.memory_bandwidth, chip.calibration)
            self._made[key] = _pass(name, part, float(ticks(seconds)))
        return [Block(-1, self._made[key], 0.0)]


@remembered(_KEPT)
def _pass(name: str, part: str, duration: float) -> Template:
    return one_kernel(TRAINING, name, part, duration)
