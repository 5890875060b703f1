"""Long steps, of thousands of microbatches: a short one tells what they take.

A step of a few periods is simulated. Where it can be shown that further ones only repeat it
(`mpsim.engine.steady`), figures of the long step are those of the short one, in which rows of a
period count as often as it comes. Ticks add up exactly, other sums to rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.engine.steady import Fold, folded
from mpsim.engine.timeline import Step
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.scenario.extent import extent_of
from mpsim.schedule import schedule
from mpsim.training.planning import orders_of
from mpsim.training.result import TrainingResult, idle_waits

_WORTH = 2**15  # rows from which a short step and what shows that it repeats cost less than all
_SHORT = (4, 8, 32)
"""Periods of the short step, to fill, become steady and run out: as many as do, then more."""
_LEAST = 32  # microbatches of it
_TIMES = 2  # so many times as long is the whole at least


class Lengths(NamedTuple):
    """Microbatches of the short step and of a period, and periods that the whole has beside it."""

    short: int
    period: int
    further: int


def lengths_of(scenario: Scenario) -> Iterator[Lengths]:
    """Ways to shorten a step; none if it is short, or hangs on more than its microbatches."""
    name, simulation = scenario.schedule.name, scenario.simulation
    if scenario.serves or name is None or schedule(name).is_timed:
        return
    if simulation.network != "analytic" or simulation.interference or simulation.engine == "simpy":
        return
    if scenario.variation or scenario.has_uneven_replicas or scenario.schedule.flushes:
        return
    whole, period = scenario.microbatches, scenario.parallelism.pp
    if whole < _TIMES * _LEAST or extent_of(scenario).rows < _WORTH:
        return
    if scenario.software.memory.drops_gradients:  # adding to them costs less the first time
        return
    for filled in _SHORT:
        least = max(filled * period, _LEAST)
        if whole >= _TIMES * least:
            short = least + (whole - least) % period
            yield Lengths(short, period, (whole - short) // period)


def attribute(fold: Fold, further: int) -> Floats:
    """Split the time of a step with `further` periods, as `mpsim.training.result` does [ticks]."""
    counted = fold.counted(further)
    busy, idle = counted.program.busy_parts, idle_waits(counted)
    parts, again = busy.copy(), np.zeros_like(busy)
    idle.add_to(parts)
    idle.between(fold.since, fold.until).add_to(again)
    return parts + further * again


_WHOLE = ("timeline", "plan", "constants", "program")


class LongResult(TrainingResult):
    """A long step: its summary is counted, and what asks for every operation has them all.
    `short`: the step that was simulated. `whole`: makes the step with `further` periods.
    """

    if TYPE_CHECKING:
        _short: TrainingResult
        _fold: Fold
        _further: int
        _simulate: Callable[[Fold, int], TrainingResult]

    def __init__(
        self,
        short: TrainingResult,
        fold: Fold,
        further: int,
        whole: Callable[[Fold, int], TrainingResult],
    ) -> None:
        known = {"scenario": short.scenario, "saved_summary": None, "_short": short, "_fold": fold}
        for name, part in {**known, "_further": further, "_simulate": whole}.items():
            object.__setattr__(self, name, part)

    @classmethod
    def of(
        cls, short: TrainingResult, lengths: Lengths, whole: Callable[[Fold, int], TrainingResult]
    ) -> LongResult | None:
        """Count a step from a short one; None where it is not one inserted, or links hold it up."""
        if short.program.least:
            return None
        longer = orders_of(short.scenario, lengths.short + lengths.period)
        fold = folded(short.timeline, short.plan.orders, longer, lengths.period)
        return cls(short, fold, lengths.further, whole) if fold else None

    @functools.cached_property
    def _whole(self) -> TrainingResult:
        return self._simulate(self._fold, self._further)

    def __getattr__(self, name: str) -> object:
        if name not in _WHOLE:
            raise AttributeError(name)
        return getattr(self._whole, name)

    @functools.cached_property
    def headline(self) -> Figures:
        """The figures that people measure, with their interval."""
        counted = self._counted()
        needed = max(float(seconds.max(initial=0.0)) for seconds in counted.needs.values())
        figures = counted._figures() if needed <= counted.timeline.step_time_s else None
        # what straddles a domain is told with the times of the whole step
        return figures if figures and "straddling" not in figures else self._whole._figures()

    def _figures(self) -> Figures:
        return self.headline

    def _counted(self) -> TrainingResult:
        """The step as its summary sees it."""
        from mpsim.engine.lanes import Lane

        short, further, counted = self._short, self._further, self._fold.counted(self._further)
        whole = structs.replace(counted, end=counted.end + further * self._fold.ticks)
        known = {"parts": attribute(self._fold, further)}
        lane = Lane(Step(counted, counted.program, short.class_clusters), slice(None), known)
        return structs.replace(short, program=counted.program, timeline=whole, lane=lane)
