"""Points of a design: a cluster, the scenario of each job on it, what the best layouts do.

Clusters that differ in their links alone share one search. No step is shorter on thinner links: a
layout's bound on the best of all links bounds it on every other. Layouts are looked at in the order
of what they take at least, bounded, bounded anew and timed until none that is left can beat the
best, and the answer is that of a search on each cluster.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from mpsim import structs
from mpsim.cost import KernelModel
from mpsim.errors import MpsimError, Problem, ScenarioError
from mpsim.hardware import Cluster
from mpsim.scenario import Scenario, load
from mpsim.scenario.design import DesignChoice, Job
from mpsim.shipped import say
from mpsim.simulate import resolve, simulate_step
from mpsim.study.executors import computed
from mpsim.study.facility import Facility
from mpsim.study.journal import Entry, Journal, name_of
from mpsim.study.plan import Assumptions, plan_training
from mpsim.study.rows import reason_of
from mpsim.study.search import search
from mpsim.study.search.bound import Bounder
from mpsim.study.search.found import name_of_layout
from mpsim.study.search.given import Clock, power_each, ranked_by
from mpsim.study.search.layouts import Layout
from mpsim.study.search.outcome import REASONS
from mpsim.study.search.service_outcome import ServiceSearch
from mpsim.study.search.trainings import Candidate, Timer, Trainings, WaitingFrame, seconds_of
from mpsim.study.together import Graphs
from mpsim.training.planning import Division, has_parts, recompute_of

LINKS = ("cluster.nics_per_node", "cluster.nic", "cluster.fabric")
"""Keys of the network between nodes."""


class Best(NamedTuple):
    """The best layout on one cluster."""

    values: Mapping[str, object]  # by dotted key
    step_time_s: float  # simulated [s]
    # whether no other layout can be better; a search that a budget cut short proves nothing
    proved: bool


def best_layouts(
    scenarios: Sequence[Scenario], *, budget: float | None = None
) -> list[Best | MpsimError]:
    """The best layout of each scenario, whose networks alone differ; an error where none is."""
    known = None
    if len(scenarios) > 1 and not any(has_parts(scenario) for scenario in scenarios):
        with contextlib.suppress(MpsimError):  # where no envelope is legal, one of them may be
            known = _Known(_envelope(scenarios), budget)
    answers: list[Best | MpsimError] = []
    graphs = Graphs()  # links change what rows take, not which there are
    for scenario in scenarios:
        try:
            answers.append(_timed(scenario, known or _Known(scenario, budget), graphs))
        except MpsimError as error:
            answers.append(error)
    return answers


class _Known:
    """Legal layouts, in parts: those of a frame that divide work alike. What these take at least is
    quickly known; which fit, and their bounds, are found out when somebody asks.
    """

    def __init__(self, scenario: Scenario, budget: float | None) -> None:
        self._space = Trainings(scenario=scenario, front=False, clock=Clock(budget))
        self._fitting: dict[int, list[Candidate]] = {}
        self.parts: list[tuple[WaitingFrame, list[Layout]]] = []
        self.whole = True  # whether every layout was looked at that may be the best
        for frame in self._space.frames():
            divided: dict[object, list[Layout]] = {}
            for layout in frame.layouts:
                divided.setdefault(layout.division, []).append(layout)
            self.parts += [(frame, layouts) for layouts in divided.values()]
        if not self.parts:
            raise ScenarioError(self._space.nothing)

    def least(self, place: int, *, roughly: bool) -> float:
        """Time that none of a part beats; `roughly` it is sooner known, and rules most out [s]."""
        frame, layouts = self.parts[place]
        with contextlib.suppress(MpsimError):  # it is refused, and counted, once it is looked at
            if machine := frame.machine(layouts[0]):
                return machine.bounder.least(layouts[0], roughly=roughly)
        return 0.0

    def fitting(self, place: int) -> list[Candidate]:
        """Layouts of a part that fit; none of a new part once the budget of time is spent."""
        if place not in self._fitting:
            if self._space.clock.spent() and any(self._fitting.values()):
                self.whole = False
                return []
            self._fitting[place] = [*self._space.bounded(*self.parts[place])]
        return self._fitting[place]

    @property
    def nothing(self) -> str:
        """Refusal where no layout fits; empty where one does."""
        name, counts = self._space.scenario.name, self._space.counts.items()
        counted = "; ".join(f"{n:,} {REASONS[reason]}" for reason, n in counts if n)
        return "" if any(self._fitting.values()) else f"{name}: no layout fits ({counted})"


def _timed(scenario: Scenario, known: _Known, graphs: Graphs) -> Best:
    """The best of known layouts on the cluster of a scenario."""
    bounder: Bounder | None = None
    best, step, values = (math.inf, math.inf, ""), math.inf, dict[str, object]()
    # what is known holds for any links; bounds on these links are the closest, and come last
    number, waiting = itertools.count(), list[tuple[float, int, int | Candidate, bool]]()

    def wait(least: float, item: int | Candidate, *, is_close: bool = False) -> None:
        heapq.heappush(waiting, (least, next(number), item, is_close))

    for place in range(len(known.parts)):
        wait(known.least(place, roughly=True), place)
    while waiting and waiting[0][0] <= best[0]:
        least, _, item, is_close = heapq.heappop(waiting)
        if isinstance(item, int):
            if not is_close:
                wait(max(least, known.least(item, roughly=False)), item, is_close=True)
            for candidate in known.fitting(item) if is_close else ():
                wait(ranked_by(candidate.bound, candidate.odds), candidate)
            continue
        mine = item.layout.values()
        if bounder is None:
            plan = resolve(scenario.with_values(mine))
            whole = None if has_parts(scenario) else scenario.hardware
            bounder = Bounder(plan, Division.of(scenario), recompute_of(scenario), whole)
            timer = Timer(bounder, scenario, graphs)
        if not is_close:
            bound = float(bounder.bound([item.layout]).bound[0])
            wait(max(least, ranked_by(bound, item.odds)), item, is_close=True)
            continue
        (seconds,) = seconds_of(timer, [item.layout])
        # of equal ones the leanest, then by name, whatever else was looked at
        rank = ranked_by(seconds or math.inf, item.odds), item.memory, str(mine)
        if rank < best:
            best, step, values = rank, seconds or math.inf, mine
    if step == math.inf:
        deadlock = f"{scenario.name}: every layout that fits would deadlock"
        raise ScenarioError(known.nothing or deadlock)
    return Best(values, step, known.whole)


def _envelope(scenarios: Sequence[Scenario]) -> Scenario:
    """A scenario with a network as good as each: the fastest NICs, one switch without latency."""
    machines = [scenario.hardware for scenario in scenarios]
    fastest = max(machines, key=lambda machine: machine.node.nic_bandwidth)
    place = machines.index(fastest)
    latency = min(machine.node.nic.latency for machine in machines)
    values: dict[str, object] = {
        "cluster.nics_per_node": max(machine.node.nics for machine in machines),
        "cluster.nic.bandwidth": f"{max(m.node.nic.bandwidth for m in machines)!r} B/s",
        "cluster.nic.latency": f"{latency!r} s",
        "cluster.fabric": {"kind": "single-switch", "oversubscription": 1, "hop_latency": "0 s"},
    }
    return scenarios[place].with_values(values, checked=False)


Values = Mapping[str, object]
_DAY = 86400.0
_FORWARD, _PASSES = 2.0, 6.0  # FLOPs a token and parameter: of a forward, and with its backward
_PRICES = ("cluster.price_per_hour", "cluster.fabric.switch_price", "cluster.fabric.cable_price")
"""Keys that change no job: points that differ in them alone share what their jobs do."""
_TOGETHER = 64  # points that share a search: what a kill can cost, and a process computes at a time


@structs.dataclass(slots=True, kw_only=True)
class Explorer:
    """Looks at points, at those of the journal not again."""

    scenario: Scenario
    spec: DesignChoice
    jobs: Mapping[str, Scenario]  # by name, on any cluster
    journal: Journal
    pool: Executor | None = None  # where points are computed; None for this process
    budget: float | None = None  # seconds that a search may take
    # called with how many searches are done, and how many there are in all as far as is known
    progress: Callable[[int, int], object] = lambda done, total: None
    done: int = 0  # searches
    later: int = 0  # searches after those of the next points

    def machine(self, values: Values) -> Cluster:
        """The cluster of a point."""
        laid = {"parallelism.dp": None, **values}
        return self.scenario.with_values(laid, checked=False).hardware

    def on(self, name: str, values: Values, machine: Cluster) -> Scenario:
        """A job on a point's cluster, with its share of nodes; layout and prices left alone."""
        share, nodes = self.spec.jobs[name].share, machine.nodes
        own = math.floor(share * nodes + 1e-9)
        if own < 1:
            message = f"{name}: {share:g} of {nodes} nodes is less than one"
            raise ScenarioError(f"{message}; needed a larger share, or more nodes")
        parts = {key: value for key, value in values.items() if key not in _PRICES}
        laid = {"parallelism.dp": None, **parts, "cluster.nodes": own}
        return self.jobs[name].with_values(laid, checked=False)

    @property
    def assumed(self) -> Assumptions:
        """Assumptions of every plan."""
        place = self.spec.place
        pue = None if place.pue is None else str(place.pue)
        return Assumptions(facility=Facility.of(pue=pue, region=place.region))

    def least_days(self, built: Mapping[str, Scenario]) -> float:
        """Days of trainings at least: products of weights at the best rate; 0 for services."""
        least = 0.0
        for name, scenario in built.items():
            model, step = scenario.transformer, scenario.training
            tokens = self.spec.jobs[name].tokens
            # with an encoder or a tower, or experts that drop, not every token meets every weight
            if step is None or tokens is None or model.decoder_length or model.vision is not None:
                continue
            if model.moe is not None and model.moe.capacity_factor:
                continue
            chip = scenario.hardware.accelerator
            kernels = KernelModel(chip, step.precision)
            own = chip.peak(step.precision) * kernels.peak_fraction(step.precision)
            rate = max(own, kernels.wide_rate) * scenario.world_size
            passes = _PASSES if step.tuning.trains_all else _FORWARD
            least = max(least, passes * model.active_parameters() * tokens / rate / _DAY)
        return least

    def group(self, values: Values) -> tuple[object, ...]:
        """All values but prices and links between nodes: points that share them share a search."""
        return tuple(
            (key, str(value))
            for key, value in values.items()
            if key not in _PRICES and not any(f"{key}.".startswith(f"{link}.") for link in LINKS)
        )

    def searches(self, points: Sequence[Values]) -> int:
        """Searches that points take: one for each where a job serves, else one a group."""
        groups = len({self.group(point) for point in points})
        return sum(len(points) if job.serves else groups for job in self.jobs.values())

    def entries(self, points: Sequence[Values]) -> list[dict[str, Entry]]:
        """Entry of each job on each point, for its best layout, or with an ``error``."""
        machines = [self.machine(point) for point in points]
        built = {
            (at, job): self.on(job, point, machines[at])
            for at, point in enumerate(points)
            for job in self.jobs
        }
        names = {
            key: name_of(
                *(scenario.digest, "design", self.spec.jobs[key[1]].model_dump()),
                *(self.assumed.facility.words, self.budget),
            )
            for key, scenario in built.items()
        }
        groups: dict[tuple[object, ...], list[tuple[int, str]]] = {}
        first: dict[str, tuple[int, str]] = {}
        for key, name in names.items():
            first.setdefault(name, key)
        for name, (at, job) in first.items():
            if name not in self.journal:
                groups.setdefault((job, *self.group(points[at])), []).append((at, job))
        chunks = [
            group[start : start + _TOGETHER]
            for group in groups.values()
            for start in range(0, len(group), _TOGETHER)
        ]
        tasks = [
            ([built[key] for key in chunk], self.spec.jobs[chunk[0][1]], self.assumed, self.budget)
            for chunk in chunks
        ]
        sizes = [len(chunk) if self.jobs[chunk[0][1]].serves else 1 for chunk in chunks]
        self.progress(self.done, self.done + sum(sizes) + self.later)
        found = computed(self.pool, explore, tasks)
        for place, (group, entries) in enumerate(zip(chunks, found, strict=True)):
            for key, entry in zip(group, entries, strict=True):
                self.journal.add(names[key], entry)
            self.journal.flush()
            self.done += sizes[place]
            self.progress(self.done, self.done + sum(sizes[place + 1 :]) + self.later)
        return [
            {job: self.journal[names[at, job]] for job in self.jobs} for at in range(len(points))
        ]


def explore(
    scenarios: Sequence[Scenario], job: Job, assumed: Assumptions, budget: float | None
) -> list[Entry]:
    """The best layout of a job on clusters that differ in links, and what it does there."""
    serves = scenarios[0].serves
    found = [None] * len(scenarios) if serves else best_layouts(scenarios, budget=budget)
    entries: list[Entry] = []
    for scenario, best in zip(scenarios, found, strict=True):
        try:
            if isinstance(best, MpsimError):
                raise best
            entries.append(
                _trained(scenario, job, assumed, best)
                if best is not None
                else _served(scenario, job, assumed, budget)
            )
        except MpsimError as error:
            entries.append({"error": reason_of(error)})
    return entries


def _trained(scenario: Scenario, job: Job, assumed: Assumptions, best: Best) -> Entry:
    result = simulate_step(scenario.with_values(best.values))
    planned = plan_training(result, job.tokens or 0.0, assumed)
    own = ("step_time_s", "tokens_per_s_per_accelerator", "accelerators", "mfu", "warnings")
    return {
        "layout": dict(best.values),
        "name": name_of_layout(best.values),
        "proved": best.proved,
        **{name: result.summary[name] for name in own},
        **structs.named(planned, "days", "goodput", "fits_probability", "basis"),
        "power_w": planned.energy_j / (planned.days * _DAY),
        "tco2": planned.figures["tco2"],
        "spread": list(planned.spread),
        "interval": {"of": result.summary["interval"]["of"]},
    }


def _served(scenario: Scenario, job: Job, assumed: Assumptions, budget: float | None) -> Entry:
    """The service with most requests/s within limits, at the job's rate or the workload's."""
    if job.rate is not None:
        scenario = scenario.with_values({"serving.workload.rate": job.rate}, checked=False)
    outcome = search(scenario, top=1, budget=budget)
    assert isinstance(outcome, ServiceSearch)
    best, cluster = outcome.chosen(), scenario.hardware
    return {
        "layout": dict(best.values),
        "name": best.name,
        "proved": outcome.complete,
        "rate": job.rate or best.objective,
        "accelerators": best.accelerators,
        "warnings": best.summary["warnings"],
        "power_w": power_each(cluster) * cluster.accelerators * assumed.facility.pue,
    }


def jobs_of(scenario: Scenario, spec: DesignChoice) -> dict[str, Scenario]:
    """The scenario of each job on the design's cluster; ScenarioError with all that is missing."""
    cluster = scenario.source.data["cluster"]
    said = map("cluster.{}".format, cluster if isinstance(cluster, Mapping) else ())
    mixed = {"cluster.stages", "cluster.replicas"} & {*spec.choices, *said}
    jobs: dict[str, Scenario] = {}
    problems = [Problem(say("study.mixed_design"), key=key) for key in sorted(mixed)]
    for name, job in spec.jobs.items():
        jobs[name] = scenario
        if job.scenario is not None:
            own = load(scenario.folder / job.scenario, checked=False)
            data = {**own.source.data, "cluster": scenario.source.data["cluster"]}
            jobs[name] = Scenario.of(structs.replace(own.source, data=data))
        wrong = _wrong(jobs[name], job)
        problems += [Problem(text, key=f"design.jobs.{name}.{key}") for key, text in wrong.items()]
    if problems:
        raise ScenarioError(scenario.locate(problems))
    return jobs


def _wrong(scenario: Scenario, job: Job) -> dict[str, str]:
    """Mistakes of a job, by key."""
    serves, slo = scenario.serves, scenario.serving and scenario.serving.slo
    idle = ("tokens", "deadline") if serves else ("rate",)
    kinds = ("trains", "serves") if serves else ("serves", "trains")
    wrong = {
        key: f"is for a job that {kinds[0]}, and this one {kinds[1]}; leave it out"
        for key in idle
        if getattr(job, key) is not None
    }
    if slo and slo.ttft is None and slo.tpot is None:
        wrong["scenario"] = "serves without limits, so any rate holds; give it serving.slo"
    if serves and any(pool.accelerator for pool in scenario.pools.values()):
        wrong["scenario"] = say("study.mixed_design")
    if not serves and job.tokens is None:
        wrong["tokens"] = "missing; needed the tokens of the training, such as 15T"
    return wrong
