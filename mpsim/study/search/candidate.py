"""Candidates of a search: layouts that fit, each on the machine that it was found for, before any is simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mpsim.result.residuals import Setting
from mpsim.scenario import Scenario
from mpsim.study.search.bound import Bounder
from mpsim.study.search.exact import Timer
from mpsim.study.search.found import Found
from mpsim.study.search.space import Layout
from mpsim.training.intervals import of_layout

__all__ = ["Candidate", "Machine"]

_HOUR = 3600.0


@dataclasses.dataclass(slots=True, eq=False)
class Machine:
    """One combination of keys that are no axes: a scenario with its bounds and its timer."""

    number: int
    scenario: Scenario
    values: Mapping[str, object]
    bounder: Bounder
    timer: Timer
    digest: str
    price: float | None
    setting: Setting

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        training, model = self.scenario.training_step, self.scenario.transformer
        return training.global_batch * (training.sequence_length + model.decoder_length)

    def weight(self, objective: str) -> float:
        """Objective of a second of a step: seconds, or dollars, a token."""
        each = 1.0 if objective == "time" else (self.price or 0.0) / _HOUR
        return each / self.tokens


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layout that fits, before it is simulated."""

    machine: Machine
    layout: Layout
    memory: float
    bound: float

    def values(self) -> dict[str, object]:
        """By dotted key."""
        return {**self.machine.values, **self.layout.values()}

    def found(self, took: float) -> Found:
        """The layout with the time of its step [s]."""
        frame = self.layout.frame
        return Found(
            values=self.values(),
            step_time_s=took,
            bound_s=self.bound,
            memory_bytes=self.memory,
            accelerators=self.machine.scenario.world_size,
            tokens=self.machine.tokens,
            price_per_hour=self.machine.price,
            setting=of_layout(
                self.machine.setting,
                frame.degrees,
                micro_batch=self.layout.micro_batch,
                zero=self.layout.zero,
                schedule=frame.schedule,
                recompute=self.layout.recompute,
            ),
        )
