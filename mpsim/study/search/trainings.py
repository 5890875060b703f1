"""The space of training steps: every legal layout gets memory and a bound; some are simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.hardware.routes import routes_of
from mpsim.program.program import TICK, Program
from mpsim.result.residuals import Interval, Setting, residuals
from mpsim.scenario import Scenario
from mpsim.schedule import schedule
from mpsim.shipped import say
from mpsim.simulate import prepare, resolve, simulate_step
from mpsim.study.journal import Entry, name_of
from mpsim.study.search.bound import Bounder
from mpsim.study.search.branch_and_bound import BranchAndBound, Labels, Look, Space, Waiting
from mpsim.study.search.found import Found, folded, tie
from mpsim.study.search.given import Limits, defaults, price_of, ranked_by, split_axes, variants
from mpsim.study.search.layouts import AXES, Layout, Layouts, refuse_every_layout
from mpsim.study.search.outcome import OBJECTIVES, Own, Search
from mpsim.study.search.switches import (
    FURTHER,
    Switches,
    choices,
    decisions_of,
    further,
    pipelines,
    switches_of,
    turned,
)
from mpsim.study.together import Graphs
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program
from mpsim.training.intervals import fullness, of_layout, setting_of
from mpsim.training.memory.account import account_memory
from mpsim.training.plan import Plan
from mpsim.training.planning import Division, has_parts, recompute_of

_NEAR = 10  # of the ranking, among which are
_TIES = 4  # layouts of different degrees on which switches are turned
_TIES_WITHIN = 2.0  # no difference is known so badly that twice the objective could tie
_OVERLAP = "framework.expert_overlap"
_HOUR = 3600.0


class Timer:
    """Times layouts of one scenario. `bounder`: whose cost models and templates serve here too.
    `graphs`: structures that others of the same layouts have met; of this one alone when absent.
    """

    def __init__(self, bounder: Bounder, scenario: Scenario, graphs: Graphs | None = None) -> None:
        self._bounder, self._scenario = bounder, scenario
        self._graphs = graphs or Graphs()

    def seconds(self, layouts: Sequence[Layout]) -> list[float]:
        """Step time of each layout [s], that of `mpsim.simulate` bit for bit. Raises DeadlockError:
        if an order cannot run.
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
        costs = self._bounder.shapes(plan).costs(plan)
        # where links of the fabric may be thin, sending kernels are known one by one
        sums = not routes_of(plan.layout.cluster).names
        return build_program(plan, costs, blocks=Blocks(plan, costs, sums=sums))


def _tokens(scenario: Scenario) -> int:
    """Tokens of a step."""
    training, model = scenario.training_step, scenario.transformer
    return training.global_batch * (training.sequence_length + model.decoder_length)


def weight_of(scenario: Scenario, price: float | None, objective: str) -> float:
    """Objective of a second of a step: seconds, or dollars, a token."""
    each = 1.0 if objective == "time" else (price or 0.0) / _HOUR
    return each / _tokens(scenario)


@structs.dataclass(slots=True, eq=False)
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
    peaks: Interval  # measured peaks over predicted ones


@structs.dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layout that fits, before it is simulated."""

    machine: Machine
    layout: Layout
    memory: float  # of the fullest rank [B]
    bound: float  # no step is shorter [s]
    filled: float  # share of its memory that the rank needs which needs most
    odds: float  # of fitting
    least: float  # the objective of a step of that time

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
        full = fullness(self.machine.scenario.software, self.odds)
        return Found(
            values=self.values(),
            step_time_s=took,
            bound_s=self.bound,
            memory_bytes=self.memory,
            accelerators=self.machine.scenario.world_size,
            tokens=_tokens(self.machine.scenario),
            price_per_hour=self.machine.price,
            setting=of_layout(
                structs.replace(self.machine.setting, full=full),
                frame.degrees,
                micro_batch=self.layout.micro_batch,
                zero=self.layout.zero,
                schedule=frame.schedule,
                recompute=self.layout.recompute,
            ),
            fits_probability=self.odds,
            filled=self.filled,
        )


class WaitingFrame(Waiting):
    """Layouts of one frame that wait to be bounded, the leanest of each recomputation first.

    `place`: number of the combination of keys that are no axes. `machine`: gives the machine of any
    of the layouts; None where a limit refuses it.
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


@structs.dataclass(eq=False, kw_only=True)
class Trainings(Space[Candidate]):
    """Legal layouts of a training step on every machine of a search; as `mpsim.search` has them."""

    what = "a layout of a search"

    scenario: Scenario
    over: Mapping[str, Sequence[object]] = structs.field(default_factory=dict)
    also: Sequence[str] = ()
    objective: str = ""
    front: bool = True
    explain: bool = False
    limits: Limits = structs.field(default_factory=Limits)
    odds: float | None = None

    def __post_init__(self) -> None:
        self.objective = self.objective or "time"
        if self.objective not in OBJECTIVES:
            raise ScenarioError(
                f"got objective {self.objective!r}; {nearest(self.objective, OBJECTIVES)}"
            )
        scenario = self.scenario
        refuse_every_layout(scenario)
        if scenario.has_uneven_replicas or scenario.training_step.batch_per_replica is not None:
            raise ScenarioError(say("study.uneven_replicas", name=scenario.name))
        if scenario.variation is not None:
            raise ScenarioError(say("study.varies", name=scenario.name))
        training = scenario.training_step
        if training.lengths is not None and not training.packing:
            raise ScenarioError(say("study.padded", name=scenario.name))
        usual = defaults("search")
        if self.odds is not None and not 0.0 < self.odds < 1.0:
            raise ScenarioError(f"odds are {self.odds!r}; needed a number between 0 and 1")
        self.a_turn, self.a_batch = int(usual["bounded_a_turn"]), int(usual["batch"])
        self.timed: list[tuple[Candidate, float]] = []
        self._leader: tuple[Candidate, float] | None = None  # the best of them, and its score
        self._least = math.inf
        self._legal: dict[str, set[str]] = {}
        self._explained = self._hides_nothing_too = False
        self._undivided = self._unbatched = self._machines = 0
        self._refused = ""

    @property
    def nothing(self) -> str:
        """Refusal where no layout is legal."""
        lost = f" ({self._undivided} have layers that do not divide as the framework needs)"
        return say("study.no_layout", name=self.scenario.name, lost=lost if self._undivided else "")

    def frames(self) -> Iterator[WaitingFrame]:
        """Every frame that has layouts, with what makes its machine."""
        if "parallelism.dp" in self.over:
            raise ScenarioError(say("study.no_dp"))
        own, other = split_axes({**further(self.scenario, self.also), **self.over}, AXES)
        self.keys = tuple(key for key in other if key in self.over)
        self._hides_nothing_too = "none" in other.get(_OVERLAP, ())
        _check_schedules(own.get("schedule", ()))
        places = itertools.count()
        for values, base in variants(self.scenario, other):
            for parts, given in pipelines(base, own):
                yield from self._frames_of(next(places), {**values, **parts}, given)

    def _frames_of(
        self, place: int, values: Mapping[str, object], given: Mapping[str, Sequence[object]]
    ) -> Iterator[WaitingFrame]:
        """Every frame of one combination of keys that are no axes."""
        base = self.scenario.with_values(values, checked=False) if values else self.scenario
        legal = Layouts(base, given)
        made: list[Machine | None] = []

        def machine(layout: Layout) -> Machine | None:
            # made when the first of its layouts is looked at: a plan takes as long as many layouts
            if not made:
                made.append(self._machine(base, values, layout))
            return made[0]

        hides = values.get(_OVERLAP, "none") != "none" and self._hides_nothing_too
        for frame in legal.frames():
            if hides and frame.ep == 1:
                continue  # no exchange to hide: the same as without
            if layouts := legal.layouts(frame):
                yield WaitingFrame(place, machine, layouts)
        self._undivided += legal.undivided
        self._unbatched += legal.unbatched

    def _machine(
        self, base: Scenario, values: Mapping[str, object], layout: Layout
    ) -> Machine | None:
        """None where a limit refuses all of its layouts."""
        if reason := self.limits.refuses(base):
            self._refused = reason
            return None
        price = price_of(base)
        if self.objective == "cost" and price is None:
            raise ScenarioError(say("study.no_price", name=base.hardware.accelerator.name))
        first = base.with_values(layout.values())
        plan = resolve(first)
        whole = None if has_parts(base) else base.hardware
        bounder = Bounder(plan, Division.of(base), recompute_of(base), whole)
        self._machines += 1
        return Machine(
            self._machines,
            base,
            values,
            bounder,
            Timer(bounder, base),
            first.digest,
            price,
            (setting := setting_of(plan)),
            residuals("memory").interval(1.0, setting),
        )

    def bounded(self, frame: Waiting, part: Sequence[Layout]) -> Iterable[Candidate]:
        """Layouts of one frame that fit, with the memory and the bound of each."""
        assert isinstance(frame, WaitingFrame)
        machine = frame.machine(part[0])
        if machine is None:
            self.counts[self._refused] += len(part)
            return []
        for layout in part if self.explain else ():
            for key, value in choices({**machine.values, **layout.values()}).items():
                self._legal.setdefault(key, set()).add(value)
        runs = [layout for layout in part if machine.bounder.order(layout).runs()]
        self.counts["schedule"] += len(part) - len(runs)
        if not runs:
            return []
        most = self.limits.max_memory or math.inf
        try:
            known = machine.bounder.bound(runs, usable=self._usable(machine.peaks), most=most)
        except MpsimError:
            self.counts["refused"] += len(runs)
            return []
        fits = known.bound < math.inf
        self.counts["memory"] += int((~fits).sum())
        weight = weight_of(machine.scenario, machine.price, self.objective)
        peaks = machine.peaks
        figures = np.stack([known.memory, known.bound, known.filled], axis=1)
        found = []
        for place in np.flatnonzero(fits).tolist():
            memory, bound, filled = figures[place].tolist()
            odds = peaks.odds(1.0 / filled)
            least = ranked_by(bound, odds) * weight
            found.append(Candidate(machine, runs[place], memory, bound, filled, odds, least))
        return found

    def entries(self, candidates: Sequence[Candidate], worst: float) -> Iterable[Entry]:
        """Values and step time of each layout [s], None where it would deadlock."""
        if not candidates:
            return
        timer = candidates[0].machine.timer
        took = seconds_of(timer, [candidate.layout for candidate in candidates])
        for candidate, seconds in zip(candidates, took, strict=True):
            yield {"values": candidate.values(), "step_time_s": seconds}

    def score(self, candidate: Candidate, entry: Entry, worst: float) -> float | None:
        """Seconds, or dollars, a token."""
        seconds = entry["step_time_s"]
        if seconds is None:
            self.counts["deadlock"] += 1
            return None
        self.timed.append((candidate, float(seconds)))
        score = self._score(self.timed[-1])
        if score < self._least:
            self._leader, self._least = self.timed[-1], score
        return score

    def labellings(self) -> Iterator[Labels[Candidate]]:
        """The best for each further key, of simpler layouts that may tie, and without decisions."""
        if self.keys:
            yield lambda candidate: [self._beside(candidate)]
        if self.timed:
            yield self._simpler
        if self.explain:
            yield from self._alternatives()
            self._explained = not self.clock.spent()

    def _simpler(self, candidate: Candidate) -> Iterable[object]:
        """Axes and switches of a layout that has fewer than the best and may tie with it."""
        if self._leader is None or candidate.least > _TIES_WITHIN * self._least:
            return ()
        best, took = self._leader
        leader, row = best.found(took), candidate.found(candidate.bound)
        simpler = row.complexity < leader.complexity and tie(leader, row)
        return (row.complexity,) if simpler else ()

    def _alternatives(self) -> Iterator[Labels[Candidate]]:
        """Decisions of the best layout, until they stay."""
        # a search that was cut short may find a better one on the way
        chosen: dict[str, str] = {}
        while self._leader and not self.clock.spent():
            best = self._leader[0]
            if choices(best.values()) == chosen:
                return
            chosen, beside = choices(best.values()), self._beside(best)

            def labels(
                candidate: Candidate,
                chosen: Mapping[str, str] = chosen,
                beside: tuple[object, ...] = beside,
            ) -> Iterable[object]:
                alike = self._beside(candidate) == beside
                return turned(chosen, candidate.values()) if alike else ()

            yield labels

    def may_lead(self, candidate: Candidate) -> bool:
        """Whether no simulated layout beats it in step time, memory and price at once."""
        if not self.front:
            return False
        price = candidate.machine.price or 0.0
        return not any(
            took <= candidate.bound
            and other.memory <= candidate.memory
            and (other.machine.price or 0.0) <= price
            for other, took in self.timed
        )

    def _score(self, pair: tuple[Candidate, float]) -> float:
        candidate, took = pair
        machine, seconds = candidate.machine, ranked_by(took, candidate.odds)
        return seconds * weight_of(machine.scenario, machine.price, self.objective)

    def _beside(self, candidate: Candidate) -> tuple[object, ...]:
        """Values of the keys that are searched beside the layout."""
        return tuple(candidate.machine.values[key] for key in self.keys)

    def outcome(
        self, run: BranchAndBound[Candidate], *, top: int, remarks: tuple[str, ...]
    ) -> Search:
        """The ranking, with whole results of the rows that are printed."""
        order = sorted(self.timed, key=lambda pair: (self._score(pair), pair[0].memory))
        rows = [candidate.found(took) for candidate, took in order]
        own, switches = Own(), Switches()
        try:
            # somebody who stops a search does not wait for whole results
            if not run.interrupted:
                self._complete_rows(rows, top)
                own = self._own(rows)
                switches = self._switches(rows)
        except KeyboardInterrupt:
            run.interrupted = True
        decisions = (
            decisions_of(rows, self._legal, keys=self.keys, proved=self._explained and run.seen)
            if self.explain
            else ()
        )
        return Search(
            scenario=self.scenario.name,
            objective=self.objective,
            top=top,
            rows=tuple(rows),
            counts={name: count for name, count in self.counts.items() if count},
            complete=run.complete,
            interrupted=run.interrupted,
            remarks=remarks,
            keys=self.keys,
            own=own,
            switches=switches,
            may_tie=self._may_tie(rows, run.left),
            usable_bytes=self._room(),
            front_complete=run.exhausted,
            floor=run.floor,
            undivided=self._undivided,
            unbatched=self._unbatched,
            decisions=decisions,
        )

    def _odds(self, plan: Plan) -> float | None:
        """Odds that a plan fits; None where predicted not to, or with less than is asked for."""
        most = self.limits.max_memory or math.inf
        peaks = residuals("memory").interval(1.0, setting_of(plan))
        memory = account_memory(plan)
        filled = float((memory.needed / memory.capacities.clip(max=most)).max())
        return peaks.odds(1.0 / filled) if filled <= self._usable(peaks) else None

    def _switches(self, rows: Sequence[Found]) -> Switches:
        """Switches that were not searched, on the best and on ties of other degrees."""
        near = [line.row for line in folded(rows[:_NEAR]) if tie(rows[0], line.row)]

        def seconds(scenario: Scenario) -> float | None:
            result = simulate_step(scenario)
            return result.timeline.step_time_s if self._odds(result.plan) is not None else None

        searched = (*self.over, *(FURTHER[word] for word in self.also if word in FURTHER))
        asked = tuple(FURTHER.values()) if "all" in self.also else ()
        return switches_of(
            self.scenario,
            [*rows[:1], *near[1:_TIES]],
            searched=(*searched, *asked),
            seconds=seconds,
            spent=self.clock.spent,
        )

    def _may_tie(self, rows: Sequence[Found], left: Sequence[Candidate]) -> int:
        """How many of those not simulated may tie with the best, as far as their bounds say."""
        most = _TIES_WITHIN * (rows[0].objective(self.objective) if rows else 0.0)
        near = (each.found(each.bound) for each in left if each.least <= most)
        return sum(tie(rows[0], row) for row in near)

    def _usable(self, peaks: Interval) -> float:
        """Share of an accelerator's memory that a layout may be predicted to fill."""
        return 1.0 if self.odds is None else min(1.0, 1.0 / peaks.limit(self.odds))

    def _room(self) -> float:
        """Memory of the best layout's accelerator [B]; on mixed clusters unknown."""
        if self._leader is None:
            return math.inf
        scenario = self._leader[0].machine.scenario
        if scenario.stage_clusters:
            return math.inf
        return min(self.limits.max_memory or math.inf, scenario.hardware.accelerator.memory_bytes)

    def _complete_rows(self, rows: list[Found], top: int) -> None:
        """Give a whole result to the best rows, and to the best of each value of each key."""
        places = set(range(min(top, len(rows))))
        for key in self.keys:
            first: dict[str, int] = {}
            for place, row in enumerate(rows):
                first.setdefault(str(row.values[key]), place)
            places.update(first.values())
        for place in sorted(places):
            summary = simulate_step(self.scenario.with_values(rows[place].values)).summary
            rows[place] = structs.replace(rows[place], summary=summary)

    def _own(self, rows: Sequence[Found]) -> Own:
        """Step of the scenario's own layout, and the best layout of the same machine."""
        try:
            result = simulate_step(self.scenario.with_values({}))
        except MpsimError as error:
            return Own(reason=str(error).partition("\n")[0])
        odds = self._odds(result.plan)
        reason = "does not fit into memory" if odds is None else ""
        took, price = float(result.summary["step_time_s"]), price_of(self.scenario)
        weight = weight_of(self.scenario, price, self.objective)
        machines = dict.fromkeys(candidate.machine for candidate, _ in self.timed)
        mine = (each for each in machines if each.scenario.digest == self.scenario.digest)
        values = next((each.values.items() for each in mine), None)
        alike = (row for row in rows if values is not None and values <= row.values.items())
        return Own(took, reason, ranked_by(took, odds) * weight, next(alike, None))


def seconds_of(timer: Timer, layouts: Sequence[Layout]) -> list[float | None]:
    """Step times [s]; None where operations would wait for each other."""
    try:
        return [*timer.seconds(layouts)]
    except MpsimError:
        # replayed together, one that cannot run fails all: find out which
        if len(layouts) == 1:
            return [None]
        return [took for layout in layouts for took in seconds_of(timer, [layout])]


def _check_schedules(names: Sequence[object]) -> None:
    """Refuse schedules that search their own order: what they hold is not known before."""
    for name in names:
        if schedule(str(name)).is_timed:
            raise ScenarioError(say("study.timed_schedule", name=name))
