"""Candidates of a search of training steps: layouts that fit, each on its machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from mpsim.hardware.routes import routes_of
from mpsim.program.program import TICK, Program
from mpsim.result.residuals import Setting
from mpsim.scenario import Scenario
from mpsim.simulate import prepare
from mpsim.study.journal import name_of
from mpsim.study.search.bound import Bounder
from mpsim.study.search.found import Found
from mpsim.study.search.layouts import Layout
from mpsim.study.search.queue import Look, Waiting
from mpsim.study.together import Graphs
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program
from mpsim.training.intervals import of_layout

__all__ = ["Candidate", "Machine", "Timer", "WaitingFrame", "weight_of"]

_HOUR = 3600.0


class Timer:
    """Times layouts of one scenario.

    Parameters
    ----------
    bounder : Bounder
        Whose cost models and templates serve here too.
    """

    def __init__(self, bounder: Bounder, scenario: Scenario) -> None:
        self._bounder, self._scenario = bounder, scenario
        self._graphs = Graphs()

    def seconds(self, layouts: Sequence[Layout]) -> list[float]:
        """Step time of each layout [s], that of `mpsim.simulate` bit for bit.

        Raises
        ------
        DeadlockError
            If an order cannot run.
        """
        simulation = self._scenario.simulation
        if simulation.network != "analytic" or simulation.interference:
            # rates change while a step runs: each is simulated by itself
            scenarios = [self._scenario.with_values(layout.values()) for layout in layouts]
            return [prepare(scenario).timeline().step_time_s for scenario in scenarios]
        programs = [self._program(layout) for layout in layouts]
        return [span * TICK for span in self._graphs.makespans(programs)]

    def _program(self, layout: Layout) -> Program:
        plan = self._bounder.plan(layout, self._bounder.order(layout).orders())
        shapes = self._bounder.shapes(plan)
        costs = shapes.costs(plan)
        # where links of the fabric may be too thin, the kernels that send have to be known one by
        # one
        sums = not routes_of(plan.layout.cluster).names
        blocks = Blocks(plan, costs, like=shapes.blocks(plan, costs), sums=sums)
        return build_program(plan, costs, blocks=blocks)


def _tokens(scenario: Scenario) -> int:
    """Tokens of a step."""
    training, model = scenario.training_step, scenario.transformer
    return training.global_batch * (training.sequence_length + model.decoder_length)


def weight_of(scenario: Scenario, price: float | None, objective: str) -> float:
    """Objective of a second of a step: seconds, or dollars, a token."""
    each = 1.0 if objective == "time" else (price or 0.0) / _HOUR
    return each / _tokens(scenario)


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

    def weight(self, objective: str) -> float:
        """Objective of a second of a step: seconds, or dollars, a token."""
        return weight_of(self.scenario, self.price, objective)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layout that fits, before it is simulated.

    Parameters
    ----------
    memory : float
        Of the fullest rank [B].
    bound : float
        No step is shorter [s].
    least : float
        The objective of a step of that time.
    """

    machine: Machine
    layout: Layout
    memory: float
    bound: float
    least: float

    @property
    def group(self) -> int:
        """Layouts of one machine share its timer."""
        return self.machine.number

    @property
    def digest(self) -> str:
        """Name of its entry in a journal."""
        return name_of(self.machine.digest, self.values())

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
            tokens=_tokens(self.machine.scenario),
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


class WaitingFrame(Waiting):
    """Layouts of one frame that wait to be bounded, the leanest of each recomputation ahead as a sample.

    Parameters
    ----------
    place : int
        Number of the combination of keys that are no axes.
    machine : callable
        Gives the machine of any of the layouts; None where a limit refuses it.
    """

    def __init__(
        self, place: int, machine: Callable[[Layout], Machine | None], layouts: list[Layout]
    ) -> None:
        frame = layouts[0].frame
        # all schedules of the same degrees are one family
        super().__init__((place, frame.tp, frame.cp, frame.pp, frame.ep), ())
        self.machine, self.layouts, self.size = machine, layouts, len(layouts)
        self._sampled = False

    def look(self, look: Look) -> float | None:
        """Look at the leanest layout of each recomputation until one fits, then at the others."""
        if self._sampled:
            return super().look(look)
        self._sampled = True
        leanest: dict[object, Layout] = {}
        for layout in self.layouts:
            known = leanest.get(layout.again)
            if known is None or _leanness(layout) < _leanness(known):
                leanest[layout.again] = layout
        looked, best = [], math.inf
        for layout in leanest.values():
            looked.append(layout)
            best = look(self, [layout])
            if best < math.inf:
                break
        by_batch: dict[int, list[Layout]] = {}
        for layout in self.layouts:
            if not any(layout is other for other in looked):
                by_batch.setdefault(layout.micro_batch, []).append(layout)
        self._parts = list(reversed(by_batch.values()))
        return best


def _leanness(layout: Layout) -> tuple[int, bool, bool, int]:
    """Order of layouts of one frame and recomputation by what they hold, the least first."""
    # what the host holds is lean and slow: such a layout says little of the others
    offloads = layout.offload not in (None, "none")
    return (layout.micro_batch, offloads, not layout.sequence_parallel, -layout.zero)
