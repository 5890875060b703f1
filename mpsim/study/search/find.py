"""The search: enumerate, rule out, bound, then simulate what is left, the most promising first.

Every legal layout gets its memory and a bound of its step time. What fits is simulated in the order of the bounds, until no bound is below the
time of the last of the best. Nothing is ruled out by a guess, so the best of what was simulated are the best of all.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.scenario import Scenario
from mpsim.schedule import schedule
from mpsim.simulate import resolve, simulate_step
from mpsim.study.journal import Journal, name_of
from mpsim.study.search.bound import Bounder
from mpsim.study.search.candidate import Candidate, Machine
from mpsim.study.search.decisions import choices, decisions_of, turned
from mpsim.study.search.exact import Timer
from mpsim.study.search.found import Found
from mpsim.study.search.further import further, pipelines
from mpsim.study.search.limits import Clock, Limits, price_of
from mpsim.study.search.outcome import OBJECTIVES, Search
from mpsim.study.search.queue import Queue, WaitingFrame
from mpsim.study.search.space import AXES, Layout, Space, defaults, split_axes
from mpsim.training.intervals import setting_of
from mpsim.training.memory import account_memory
from mpsim.training.planning import Division, recompute_of

__all__ = ["search"]

Progress = Callable[[str, int, int], None]

_OVERLAP = "framework.expert_overlap"


def search(
    scenario: Scenario,
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    also: Sequence[str] = (),
    objective: str = "time",
    top: int | None = None,
    front: bool = True,
    explain: bool = False,
    max_memory: float | None = None,
    max_price: float | None = None,
    max_power: float | None = None,
    margin: float | None = None,
    budget: float | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Search:
    """Find the best layouts of a model on a cluster.

    Parameters
    ----------
    scenario : Scenario
        Its model, cluster, batch and framework; its own layout is only a place to start from.
    over : mapping of str to sequence, optional
        Values of single axes (``parallelism.tp``: [4, 8]) instead of all; other keys of a scenario (``cluster.nodes``) are searched as well.
    also : sequence of str
        Words of `FURTHER`: what is searched beside the layout's usual axes, or ``all``.
    objective : str
        ``time``: seconds a token, or ``cost``: dollars a token, for which the accelerators need a price.
    top : int, optional
        How many layouts to rank, 10 by default.
    front : bool
        Whether to simulate what no other layout beats in step time and memory at once, too.
    explain : bool
        Whether to find the best layout without each decision of the best one, too: `Search.decisions`.
    max_memory : float, optional
        Of the fullest rank, at most that of the accelerator [B].
    max_price : float, optional
        Of all accelerators [USD/h].
    max_power : float, optional
        Of all nodes, by their nameplate [W].
    margin : float, optional
        Share of the accelerator's memory that stays free, 0.05 by default: what a prediction of memory may miss.
    budget : float, optional
        Wall-clock time after which what was found counts [s].
    resume : path, optional
        JSON-lines file of simulated layouts: those in it are not simulated again, new ones are appended.
    progress : callable, optional
        Called with (what is done, how many are done, how many there are).

    Returns
    -------
    Search
        Also when the budget ran out, or after a KeyboardInterrupt: `Search.complete` says so.

    Raises
    ------
    ScenarioError
        If no layout is legal, or an argument is out of range.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.search(scenario, top=3).best.values["parallelism.tp"]  # doctest: +SKIP
    1
    """
    if objective not in OBJECTIVES:
        raise ScenarioError(f"got objective {objective!r}; {nearest(objective, OBJECTIVES)}")
    if scenario.has_uneven_replicas or scenario.training_step.batch_per_replica is not None:
        raise ScenarioError(
            f"{scenario.name}: got replicas that differ or uneven batches, which belong to one layout; search with nodes that are alike, or that differ along the pipeline (cluster.stages)"
        )
    free = float(defaults("search")["margin"]) if margin is None else margin
    if not 0.0 <= free < 1.0:
        raise ScenarioError(f"margin is {margin!r}; needed a share from 0 to below 1")
    limits = Limits(max_memory=max_memory, max_price=max_price, max_power=max_power)
    clock = Clock(budget)
    journal = Journal(resume, what="a layout of a search")
    run = _Run(
        scenario,
        objective=objective,
        also=also,
        top=int(defaults("search")["top"]) if top is None else top,
        front=front,
        explain=explain,
        limits=limits,
        margin=free,
        clock=clock,
        journal=journal,
        report=progress or (lambda what, done, total: None),
    )
    return run.search(over or {})


class _Run:
    """One search under way."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        objective: str,
        also: Sequence[str],
        top: int,
        front: bool,
        explain: bool,
        limits: Limits,
        margin: float,
        clock: Clock,
        journal: Journal,
        report: Progress,
    ) -> None:
        if top < 1:
            raise ScenarioError(f"top is {top}; needed at least 1")
        self._scenario, self._objective, self._top = scenario, objective, top
        self._also, self._explain = also, explain
        self._front, self._limits, self._clock = front, limits, clock
        self._usable = 1.0 - margin
        self._journal, self._report = journal, report
        self._counts: Counter[str] = Counter()
        self._number = itertools.count()
        self._waiting: list[
            tuple[float, int, Candidate]
        ] = []  # heap of what fits, by its least objective
        self._timed: list[tuple[Candidate, float]] = []
        self._scores: list[float] = []  # objectives of what was simulated, the best first
        self._keys: tuple[str, ...] = ()
        self._legal: dict[str, set[str]] = {}
        self._explained = False
        self._cut = False
        self._total, self._bounded, self._interrupted = 0, 0, False
        self._lost, self._unbatched = 0, 0
        self._refused = ""
        self._hides_nothing_too = False
        self._machines = 0

    def search(self, over: Mapping[str, Sequence[object]]) -> Search:
        """Enumerate, bound and simulate by turns, rank."""
        with self._journal.writing():
            try:
                self._look(over)
                self._simulate_others()
            except KeyboardInterrupt:
                self._interrupted = True
        return self._outcome()

    def _look(self, over: Mapping[str, Sequence[object]]) -> None:
        """Bound every legal layout, the most promising family first, and simulate the best of them by turns."""
        share, least = (
            float(defaults("search")[key]) for key in ("enumerating_share", "enumerated_at_least")
        )
        frames: list[WaitingFrame] = []
        count = 0
        for frame in self._frames(over):
            frames.append(frame)
            count += len(frame.layouts)
            if count > least and self._clock.spent(share):  # words may make millions of layouts
                self._cut = True
                break
        total = sum(len(frame.layouts) for frame in frames)
        if not total:
            raise ScenarioError(
                f"{self._scenario.name}: no legal layout{self._undivided()}; loosen the values given, or see 'mpsim check'"
            )
        self._total = total
        queue = Queue(frames)
        usual = defaults("search")
        for share in (float(usual["bounding_share"]), float(usual["bounding_share_at_last"])):
            self._look_until(queue, share)
            self._simulate_best()

    def _look_until(self, queue: Queue, share: float) -> None:
        """Look at layouts until a share of the time budget has gone, and simulate the best of them by turns."""
        turn = int(defaults("search")["bounded_a_turn"])
        begun = self._bounded

        def look(frame: WaitingFrame, layouts: list[Layout]) -> float:
            nonlocal begun
            best = self._bound_layouts(frame.machine, layouts)
            self._bounded += len(layouts)
            self._report("bounded", self._bounded, self._total)
            if self._bounded >= begun + turn and not self._clock.spent(share):
                begun = self._bounded
                self._simulate_some()
            return best

        # whatever the budget is, something is looked at
        while (not self._clock.spent(share) or not self._bounded) and (frame := queue.next()):
            queue.back(frame, frame.look(look))

    def _frames(self, over: Mapping[str, Sequence[object]]) -> Iterator[WaitingFrame]:
        """Every frame that has layouts, with what makes its machine."""
        if "parallelism.dp" in over:
            raise ScenarioError(
                "parallelism.dp follows from the cluster and the other degrees; give values of tp, pp or cp"
            )
        own, other = split_axes({**further(self._scenario, self._also), **over}, AXES)
        self._keys = tuple(key for key in other if key in over)
        self._hides_nothing_too = "none" in other.get(_OVERLAP, ())
        _check_schedules(own.get("schedule", ()))
        places = itertools.count()
        for chosen in itertools.product(*other.values()):
            values = dict(zip(other, chosen, strict=True))
            base = self._scenario.with_values(values, checked=False) if values else self._scenario
            for parts, given in pipelines(base, own):
                yield from self._frames_of(next(places), base, {**values, **parts}, given)

    def _frames_of(
        self,
        place: int,
        base: Scenario,
        values: Mapping[str, object],
        given: Mapping[str, Sequence[object]],
    ) -> Iterator[WaitingFrame]:
        """Every frame of one combination of keys that are no axes."""
        if values:
            base = self._scenario.with_values(values, checked=False)
        space = Space(base, given)
        made: list[Machine | None] = []

        def machine(layout: Layout) -> Machine | None:
            if not made:
                made.append(self._machine(base, values, layout))
            return made[0]

        hides = values.get(_OVERLAP, "none") != "none" and self._hides_nothing_too
        for frame in space.frames():
            if hides and frame.ep == 1:
                continue  # no exchange to hide: the same as without
            if layouts := space.layouts(frame):
                yield WaitingFrame(place, machine, layouts)
        self._lost += space.undivided
        self._unbatched += space.unbatched

    def _machine(
        self, base: Scenario, values: Mapping[str, object], layout: Layout
    ) -> Machine | None:
        """None where a limit refuses all of its layouts."""
        if reason := self._limits.refuses(base):
            self._refused = reason
            return None
        price = price_of(base)
        if self._objective == "cost" and price is None:
            raise ScenarioError(
                f"{base.hardware.accelerator.name} has no price; give cluster.price_per_hour, or search for time"
            )
        first = base.with_values(layout.values())
        plan = resolve(first)
        bounder = Bounder(plan, Division.of(base), recompute_of(base))
        self._machines += 1
        return Machine(
            self._machines,
            base,
            values,
            bounder,
            Timer(bounder, base),
            first.digest,
            price,
            setting_of(plan),
        )

    def _undivided(self) -> str:
        """How many layouts fell away since their layers do not divide, in words; empty for none."""
        count = self._lost
        return f" ({count} have layers that do not divide as the framework needs)" if count else ""

    def _bound_layouts(
        self, make: Callable[[Layout], Machine | None], layouts: list[Layout]
    ) -> float:
        """Memory and bound of layouts of one frame; the least objective that any of those that fit may have."""
        machine = make(layouts[0])
        if machine is None:
            self._counts[self._refused] += len(layouts)
            return math.inf
        for layout in layouts if self._explain else ():
            for key, value in choices({**machine.values, **layout.values()}).items():
                self._legal.setdefault(key, set()).add(value)
        runs = [layout for layout in layouts if machine.bounder.order(layout).runs()]
        self._counts["schedule"] += len(layouts) - len(runs)
        if not runs:
            return math.inf
        most = self._limits.max_memory or math.inf
        try:
            known = machine.bounder.bound(runs, usable=self._usable, most=most)
        except MpsimError:
            self._counts["refused"] += len(runs)
            return math.inf
        fits = known.bound < math.inf
        self._counts["memory"] += int((~fits).sum())
        weight = machine.weight(self._objective)
        best = math.inf
        for place in np.flatnonzero(fits).tolist():
            bound = float(known.bound[place])
            candidate = Candidate(machine, runs[place], float(known.memory[place]), bound)
            heapq.heappush(self._waiting, (bound * weight, next(self._number), candidate))
            best = min(best, bound * weight)
        return best

    def _simulate_some(self) -> None:
        """Simulate the most promising candidates so far, as far as one may be the best."""
        size = int(defaults("search")["simulated_a_turn"])
        best = self._scores[0] if self._scores else math.inf
        batch: list[Candidate] = []
        while self._waiting and len(batch) < size and self._waiting[0][0] < best:
            batch.append(heapq.heappop(self._waiting)[2])
        self._time(batch)

    def _simulate_best(self) -> None:
        """Simulate candidates in the order of their bounds, as long as one could be among the best."""
        size = int(defaults("search")["batch"])
        while self._waiting and not self._clock.spent():
            worst = self._scores[self._top - 1] if len(self._scores) >= self._top else math.inf
            if self._waiting[0][0] > worst:
                break
            batch: list[Candidate] = []
            while self._waiting and len(batch) < size and self._waiting[0][0] <= worst:
                batch.append(heapq.heappop(self._waiting)[2])
            self._time(batch)
            self._report("simulated", len(self._timed), len(self._timed) + len(self._waiting))

    def _simulate_others(self) -> None:
        """Simulate candidates that lead in something else: with one value of a key that is searched beside the layout, or in memory."""
        size, aside = int(defaults("search")["batch"]), 0
        if self._keys:
            self._simulate_each()
        if self._explain:
            self._simulate_alternatives()
            self._explained = not self._clock.spent()
        while self._waiting and not self._clock.spent():
            batch: list[Candidate] = []
            while self._waiting and len(batch) < size:
                candidate = heapq.heappop(self._waiting)[2]
                if self._may_lead(candidate):
                    batch.append(candidate)
                else:
                    aside += 1
            self._time(batch)
            self._report("simulated", len(self._timed), len(self._timed) + len(self._waiting))
        self._counts["bound"] += aside
        self._report("simulated", len(self._timed), len(self._timed))

    def _simulate_each(self) -> None:
        """Simulate until the best layout of each value of the keys searched beside it is known, however far it is behind the best of all."""
        self._settle(lambda candidate: [self._beside(candidate)])

    def _simulate_alternatives(self) -> None:
        """Simulate until the best layout without each decision of the best one is known."""
        chosen: dict[str, str] = {}
        # a search that was cut short may find a better one on the way
        while self._timed and not self._clock.spent():
            best = min(self._timed, key=self._score)[0]
            if choices(best.values()) == chosen:
                break
            chosen, beside = choices(best.values()), self._beside(best)

            def labels(
                candidate: Candidate,
                chosen: Mapping[str, str] = chosen,
                beside: tuple[object, ...] = beside,
            ) -> Sequence[object]:
                alike = self._beside(candidate) == beside
                return turned(chosen, candidate.values()) if alike else ()

            self._settle(labels)

    def _settle(self, labels: Callable[[Candidate], Sequence[object]]) -> None:
        """Simulate until the best layout of each label is known."""
        best: dict[object, float] = {}

        def note(pair: tuple[Candidate, float]) -> None:
            for label in labels(pair[0]):
                best[label] = min(self._score(pair), best.get(label, math.inf))

        for pair in self._timed:
            note(pair)
        left = []
        for entry in sorted(self._waiting, key=lambda entry: entry[:2]):
            score, _, candidate = entry
            promising = any(score < best.get(label, math.inf) for label in labels(candidate))
            if not promising or self._clock.spent():
                left.append(entry)
                continue
            known = len(self._timed)
            self._time([candidate])
            for pair in self._timed[known:]:
                note(pair)
        self._waiting = left  # sorted, so it is a heap

    def _score(self, pair: tuple[Candidate, float]) -> float:
        return pair[1] * pair[0].machine.weight(self._objective)

    def _beside(self, candidate: Candidate) -> tuple[object, ...]:
        """Values of the keys that are searched beside the layout."""
        return tuple(candidate.machine.values[key] for key in self._keys)

    def _may_lead(self, candidate: Candidate) -> bool:
        """Whether a layout may be one that no simulated one beats in everything."""
        if not self._front:
            return False
        price = candidate.machine.price or 0.0
        return not any(
            took <= candidate.bound
            and other.memory <= candidate.memory
            and (other.machine.price or 0.0) <= price
            for other, took in self._timed
        )

    def _time(self, batch: Sequence[Candidate]) -> None:
        """Simulate a batch, machine by machine; what was simulated before is not again."""
        by_machine: dict[int, list[Candidate]] = {}
        for candidate in batch:
            by_machine.setdefault(candidate.machine.number, []).append(candidate)
        for same in by_machine.values():
            machine = same[0].machine
            names = [name_of(machine.digest, candidate.values()) for candidate in same]
            fresh = [i for i, name in enumerate(names) if name not in self._journal]
            took = _seconds(machine.timer, [same[i].layout for i in fresh])
            for i, seconds in zip(fresh, took, strict=True):
                entry = {"values": same[i].values(), "step_time_s": seconds}
                self._journal.add(names[i], entry)
            for candidate, name in zip(same, names, strict=True):
                known = self._journal[name]["step_time_s"]
                if known is None:
                    self._counts["deadlock"] += 1
                else:
                    self._timed.append((candidate, float(known)))
                    bisect.insort(self._scores, float(known) * machine.weight(self._objective))
            # not before: what is on disk is in the table, too, whenever an interrupt comes
            self._journal.flush()

    def _own(self) -> tuple[float | None, str]:
        """Step of the layout that the scenario itself has [s], and why it cannot be used."""
        try:
            result = simulate_step(self._scenario.with_values({}))
        except MpsimError as error:
            return None, _fault(error)
        plan, most = result.plan, self._limits.max_memory or math.inf
        room = [
            min(most, self._usable * plan.layout.cluster_of(rank).accelerator.memory_bytes)
            for rank in range(plan.layout.mesh.pp)
        ]
        fits = bool((account_memory(plan).total <= room).all())
        return float(result.summary["step_time_s"]), "" if fits else "does not fit into memory"

    def _shown(self, rows: Sequence[Found]) -> list[int]:
        """Places of the rows that are printed: the best, and the best of each value of each key."""
        places = set(range(min(self._top, len(rows))))
        for key in self._keys:
            first: dict[str, int] = {}
            for place, row in enumerate(rows):
                first.setdefault(str(row.values[key]), place)
            places.update(first.values())
        return sorted(places)

    def _outcome(self) -> Search:
        worst = self._scores[self._top - 1] if len(self._scores) >= self._top else math.inf
        late = sum(score <= worst for score, _, _ in self._waiting)
        unseen = self._total - self._bounded
        self._counts += Counter(
            simulated=len(self._timed),
            bound=len(self._waiting) - late,
            unsimulated=late,
            unseen=unseen,
        )
        complete = not late and not unseen and not self._cut
        order = sorted(self._timed, key=lambda pair: (self._score(pair), pair[0].memory))
        rows = [candidate.found(took) for candidate, took in order]
        try:
            # somebody who stops a search does not wait for whole results
            for place in () if self._interrupted else self._shown(rows):
                candidate = order[place][0]
                summary = simulate_step(self._scenario.with_values(candidate.values())).summary
                rows[place] = dataclasses.replace(rows[place], summary=summary)
        except KeyboardInterrupt:
            self._interrupted = True
        own, reason = (None, "") if self._interrupted else self._own()
        return Search(
            keys=self._keys,
            own_step_time_s=own,
            own_reason=reason,
            scenario=self._scenario.name,
            objective=self._objective,
            top=self._top,
            rows=tuple(rows),
            counts={name: count for name, count in self._counts.items() if count},
            complete=complete,
            front_complete=complete and not self._waiting,
            undivided=self._lost,
            unbatched=self._unbatched,
            decisions=decisions_of(
                rows,
                self._legal,
                keys=self._keys,
                proved=self._explained and not unseen and not self._cut,
            )
            if self._explain
            else (),
            remarks=self._journal.remarks,
            floor=min(score for score, _, _ in self._waiting)
            if late and not unseen and not self._cut
            else None,
            interrupted=self._interrupted,
        )


def _fault(error: MpsimError) -> str:
    return str(error).partition("\n")[0]


def _seconds(timer: Timer, layouts: Sequence[Layout]) -> list[float | None]:
    """Step times [s]; None where operations would wait for each other."""
    try:
        return [*timer.seconds(layouts)]
    except MpsimError:
        if len(layouts) == 1:
            return [None]
        return [took for layout in layouts for took in _seconds(timer, [layout])]


def _check_schedules(names: Sequence[object]) -> None:
    """Refuse schedules that search their own order: what they hold is not known before they have."""
    for name in names:
        if "times" in schedule(str(name)).options:
            raise ScenarioError(
                f"schedule {name} makes an order of its own for every layout; search over the others, then try it on the best"
            )
