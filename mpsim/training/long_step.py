"""Long steps, of thousands of microbatches: ends are simulated, periods between counted.

Between warm-up and flush a pipeline repeats itself every so many microbatches (a *period*). Two
steps that are a period apart are simulated. Where the longer one is the shorter one with a period
inserted, in which nothing happens but what happened the period before, any number of periods can be
inserted in the same way (`inserted`): every figure of a step is then one of the longer step and a
multiple of what a period adds to it. Ticks add up exactly, other sums to rounding.

Shapes: N rows, B rows of both steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.scenario.extent import extent_of
from mpsim.schedule import schedule
from mpsim.training.result import TrainingResult
from mpsim.training.summary import Needs, Work

if TYPE_CHECKING:
    from mpsim.engine.lanes import Measure


_WORTH = 2**18  # rows from which two short steps cost less than the whole
_SHORT = (8, 32)
"""Periods of the shorter step, to fill, become steady and run out: as many as do, then more."""
_LEAST = 32  # microbatches of it
_TIMES = 4  # so many times as long is the whole at least


@structs.dataclass(frozen=True, slots=True)
class Lengths:
    """Microbatches of the two short steps, and the whole step's periods beyond the first."""

    short: int
    longer: int
    periods: int


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
    for filled in _SHORT:
        least = max(filled * period, _LEAST)
        if whole >= _TIMES * least:
            short = least + (whole - least) % period
            yield Lengths(short, short + period, (whole - short) // period)


def inserted(short: Timeline, longer: Timeline, period: int) -> float | None:
    """Ticks that a period adds; None where the longer step is not one inserted.

    Notes
    -----
    The microbatches of the middle are shown to run as in the shorter step, and, each a period
    later, so many ticks later. So they repeat themselves, over more microbatches than any row looks
    back or ahead: no row can tell how often they did.
    """
    programs = short.program, longer.program
    turns = [int(program.microbatch.max()) + 1 for program in programs]
    reach = max(map(_reach, programs)) + period
    first = (turns[0] - reach) // 2
    last = first + reach
    orders = [_by_turn(program) for program in programs]
    ticks = float(longer.end.max() - short.end.max())
    pairs = [
        _pair(programs, orders, lambda turn, _: (turn >= 0) & (turn < last)),
        _pair(programs, orders, lambda turn, later: turn >= first + later * period),
        _pair(programs, orders, lambda turn, _: turn < 0),
    ]
    if first < 1 or any(pair is None for pair in pairs):
        return None
    shifts = [
        (longer.start[there] - short.start[here], longer.end[there] - short.end[here])
        for here, there in (pair for pair in pairs if pair is not None)
    ]
    before, after, once = shifts
    holds = not any(shift.any() for shift in before) and all((s == ticks).all() for s in after)
    return ticks if holds and all(((s == 0) | (s == ticks)).all() for s in once) else None


def _reach(program: Program) -> int:
    """Most microbatches between two rows of which one waits for the other."""
    row, before = program.waits()
    turn, awaited = program.microbatch[row], program.microbatch[before]
    both = (turn >= 0) & (awaited >= 0)
    return int(np.abs(turn[both] - awaited[both]).max(initial=0))


_ALIKE = ("peer", "stage", "chunk", "kind", "stream", "rank")


def _by_turn(program: Program) -> Ints:
    """Rows of one stage, stream and kind beside each other, by microbatch."""
    columns = [getattr(program, name) for name in _ALIKE]
    return np.lexsort((program.microbatch, *columns))


def _pair(
    programs: tuple[Program, Program],
    orders: list[Ints],
    chosen: Callable[[NDArray[np.int32], int], Flags],
) -> tuple[Ints, Ints] | None:
    """Corresponding rows of both steps, chosen by their microbatch; None where more differs."""
    here, there = (
        order[chosen(program.microbatch[order], later)]
        for later, (program, order) in enumerate(zip(programs, orders, strict=True))
    )
    alike = len(here) == len(there) and all(
        (getattr(programs[0], name)[here] == getattr(programs[1], name)[there]).all()
        for name in (*_ALIKE, "duration", "up_bytes", "out_bytes", "size")
    )
    return (here, there) if alike else None


class _Counted(TrainingResult):
    """A long step as its summary sees it: figures of a short one, and of further periods."""

    if TYPE_CHECKING:  # set once, as a frozen dataclass sets its fields
        _short: TrainingResult
        _longer: TrainingResult
        _further: int

    @classmethod
    def of(
        cls, short: TrainingResult, longer: TrainingResult, ticks: float, further: int
    ) -> _Counted:
        """The step with `further` periods, each of so many ticks."""
        timeline = longer.timeline
        whole = structs.replace(timeline, end=timeline.end + further * ticks)
        counted = cls(
            **{
                field.name: getattr(longer, field.name)
                for field in structs.fields(longer)
                if field.name != "timeline"
            },
            timeline=whole,
        )
        for name, part in (("_short", short), ("_longer", longer), ("_further", further)):
            object.__setattr__(counted, name, part)
        return counted

    def _along(self, before: Floats, after: Floats) -> Floats:
        """A figure of the whole step from those of the two short ones."""
        return after + self._further * (after - before)

    def measured(self, name: str, measure: Measure) -> Floats:
        """A figure of the rank classes of the whole step."""
        return self._along(*(run.measured(name, measure) for run in (self._short, self._longer)))

    @functools.cached_property
    def work(self) -> Work:
        """FLOPs of all ranks."""
        pairs = zip(self._short.work, self._longer.work, strict=True)
        return Work(*(after + self._further * (after - before) for before, after in pairs))

    @functools.cached_property
    def needs(self) -> Needs:
        """Least time by what is needed [s]."""
        before, after = self._short.needs, self._longer.needs
        return {name: self._along(before[name], after[name]) for name in after}


_WHOLE = ("timeline", "plan", "constants", "program")


class LongResult(TrainingResult):
    """A long step: its summary is counted, and what asks for every operation simulates them all.
    `counted`: the figures of its summary. `whole`: simulates every microbatch.
    """

    if TYPE_CHECKING:
        _counted: Figures
        _simulate: Callable[[], TrainingResult]

    def __init__(
        self, scenario: Scenario, counted: Figures, whole: Callable[[], TrainingResult]
    ) -> None:
        known = {"scenario": scenario, "saved_summary": None}
        for name, part in {**known, "_counted": counted, "_simulate": whole}.items():
            object.__setattr__(self, name, part)

    @classmethod
    def of(
        cls,
        short: TrainingResult,
        longer: TrainingResult,
        lengths: Lengths,
        whole: Callable[[], TrainingResult],
    ) -> LongResult | None:
        """Count a step from two short ones; None where periods do not add up, or links hold up."""
        ticks = inserted(short.timeline, longer.timeline, lengths.longer - lengths.short)
        if ticks is None or short.program.least or longer.program.least:
            return None
        counted = _Counted.of(short, longer, ticks, lengths.periods - 1)
        figures = counted._figures()
        held = max(figures["floors_s"].values()) > counted.timeline.step_time_s
        # what straddles a domain is told with the times of the whole step
        return None if held or "straddling" in figures else cls(longer.scenario, figures, whole)

    @functools.cached_property
    def _whole(self) -> TrainingResult:
        return self._simulate()

    def __getattr__(self, name: str) -> object:
        if name not in _WHOLE:
            raise AttributeError(name)
        return getattr(self._whole, name)

    @property
    def headline(self) -> Figures:
        """The figures that people measure, with their interval."""
        return self._counted

    def _figures(self) -> Figures:
        return self._counted
