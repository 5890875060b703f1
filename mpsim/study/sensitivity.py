"""Sensitivity: how the step time answers to each parameter of hardware and software."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import Structure
from mpsim.errors import ScenarioError
from mpsim.frame import Tabular
from mpsim.program import TICK, Program
from mpsim.result import Result
from mpsim.sheet import Sheet, Shown
from mpsim.simulate import Prepared
from mpsim.study.parameters import parameters
from mpsim.study.words import sensitivity_sheet

if TYPE_CHECKING:
    from mpsim.plot import SensitivityDisplay
    from mpsim.plot.display import Axes

__all__ = ["Elasticity", "Sensitivity", "measure_sensitivity"]

_STEP = 0.01  # one per cent each way: well above rounding to ticks, well below most kinks


@dataclasses.dataclass(frozen=True, slots=True)
class Elasticity:
    """Elasticity of the step time in one parameter.

    Parameters
    ----------
    name : str
        Such as ``nic.bandwidth``.
    kind : str
        ``hardware`` or ``software``.
    value : str
        With unit; empty where it is no single number.
    less_s, more_s : float
        Step time with the parameter a little smaller and a little larger [s].
    elasticity : float
        Per cent by which the step gets longer for one per cent more of the parameter; below 0 for what helps.
    """

    name: str
    kind: str
    value: str
    less_s: float
    more_s: float
    elasticity: float


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Sensitivity(Shown, Tabular):
    """Elasticities of one step, the strongest first.

    Parameters
    ----------
    step_time_s : float
        Undisturbed [s].
    step : float
        By which share each parameter was made smaller and larger.
    """

    scenario: str
    step_time_s: float
    step: float
    rows: tuple[Elasticity, ...]

    def __getitem__(self, name: str) -> Elasticity:
        return next(row for row in self.rows if row.name == name)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return dataclasses.asdict(self)

    def plot(self, ax: Axes | None = None) -> SensitivityDisplay:
        """Draw a tornado."""
        from mpsim.plot import SensitivityDisplay

        return SensitivityDisplay.from_sensitivity(self).plot(ax)

    def table(self) -> list[dict[str, object]]:
        """One mapping a parameter."""
        return [dataclasses.asdict(row) for row in self.rows]

    def sheet(self) -> Sheet:
        """Elasticities, the strongest first, as ``mpsim run --sensitivity`` prints them."""
        return sensitivity_sheet(self.to_json())


def measure_sensitivity(result: Result, *, step: float = _STEP) -> Sensitivity:
    """Measure how the step time answers to each parameter.

    Parameters
    ----------
    result : Result
        Where rates change while a step runs (``network: flow``, ``interference``), each variant is simulated on its own.
    step : float
        By which share each parameter is made smaller and larger, in (0, 1).

    Raises
    ------
    ScenarioError
        If the step is out of range.

    Notes
    -----
    Elasticity is ``d ln T / d ln x`` by central difference. The order of actions, buckets and waits stay; every operation is costed again,
    and where durations are known beforehand one replay evaluates all variants. Elasticities over all parameters need not sum to a whole: what a formula fixes is in none of them.
    """
    if not 0 < step < 1:
        raise ScenarioError(f"got a step of {step:g}; needed a share between 0 and 1")
    base = Prepared.of(result)
    chosen = parameters(base.plan)
    variants = [
        base.at(parameter.scaled(factor)) for parameter in chosen for factor in (1 - step, 1 + step)
    ]
    spans = _step_times(base, variants).reshape(-1, 2).tolist()
    width = math.log((1 + step) / (1 - step))
    rows = [
        Elasticity(
            parameter.name,
            parameter.kind,
            parameter.value,
            less,
            more,
            math.log(more / less) / width,
        )
        for parameter, (less, more) in zip(chosen, spans, strict=True)
    ]
    rows.sort(key=lambda row: -abs(row.elasticity))
    return Sensitivity(base.plan.name, result.timeline.step_time_s, step, tuple(rows))


def _step_times(base: Prepared, variants: Sequence[Prepared]) -> NDArray[np.float64]:
    """Step time of each variant of a step [s]."""
    programs = [variant.program for variant in variants]
    if base.replays and all(_alike(base.program, program) for program in programs):
        durations = np.stack([program.duration for program in programs])
        spans = Structure.of(base.program).makespans(durations)
        spans = np.maximum(spans, [program.least for program in programs])
    else:  # rates change while a step runs, or a cost decided how something is cut
        spans = np.array([variant.timeline().makespan for variant in variants])
    return spans * TICK


def _alike(program: Program, other: Program) -> bool:
    """Whether two programs have the same structure."""
    return all(
        np.array_equal(getattr(program, name), getattr(other, name))
        for name in ("dep_ptr", "dep", "slot_ptr", "slot")
    )
