"""The search of services: enumerate, rule out, bound, then simulate what is left, the most promising first.

Every layout that has room for a cache gets closed-form bounds (`mpsim.serving.bounds`): what cannot keep the limits even when it is empty is left out, the others are simulated in the
order of the bound of the objective, until no bound is better than the last of the best. So the best of what was simulated are the best of all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpsim.errors import ScenarioError, nearest
from mpsim.scenario import Scenario
from mpsim.serving.bounds import bound_service
from mpsim.serving.requests import Requests
from mpsim.serving.result import run_service, serve_requests
from mpsim.serving.stream import draw_requests
from mpsim.study.journal import Journal, name_of
from mpsim.study.search.limits import Clock, Limits, nameplate_power
from mpsim.study.search.space import defaults, split_axes
from mpsim.study.service_search.outcome import (
    SERVICE_OBJECTIVES,
    FoundService,
    ServiceSearch,
    score_of,
)
from mpsim.study.service_search.rate import largest_rate, require_stream, saturation
from mpsim.study.service_search.space import AXES, ServiceCandidate, ServiceSpace

__all__ = ["search_services"]

_HOUR = 3600.0
_MEGA = 1e6

Progress = Callable[[str, int, int], None]


def search_services(
    scenario: Scenario,
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    objective: str | None = None,
    top: int | None = None,
    pools: bool = False,
    prune: bool = True,
    max_memory: float | None = None,
    max_price: float | None = None,
    max_power: float | None = None,
    budget: float | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> ServiceSearch:
    """Find the best layouts to serve a model's requests on a cluster.

    Parameters
    ----------
    scenario : Scenario
        Its model, cluster, engine, workload and limits (``serving.slo``); its own layout counts for nothing.
    over : mapping of str to sequence, optional
        Values of single axes (``parallelism.tp``: [4, 8]) instead of the usual ones; other keys (``serving.weights``) are searched as well.
    objective : str, optional
        One of `SERVICE_OBJECTIVES`; ``goodput`` where there are limits, else ``throughput``.
    top : int, optional
        How many services to rank, 10 by default.
    pools : bool
        Whether to look at prefill and decode on pools of their own, too.
    prune : bool
        Whether bounds rule layouts out; the ranking is the same without.
    max_memory : float, optional
        Weights, activations and reserve of an accelerator [B].
    max_price : float, optional
        Of the accelerators that a layout uses [USD/h].
    max_power : float, optional
        Their share of the nameplate of the nodes [W].
    budget : float, optional
        Wall-clock time after which what was found counts [s].
    resume : path, optional
        JSON-lines file of simulated services: those in it are not simulated again, new ones are appended.
    progress : callable, optional
        Called with (what is done, how many are done, how many there are).

    Returns
    -------
    ServiceSearch
        Also when the budget ran out, or after a KeyboardInterrupt.

    Raises
    ------
    ScenarioError
        If no layout can be served, or an argument is out of range.
    """
    slo = scenario.service.slo
    if objective is None:
        objective = "throughput" if slo.ttft is None and slo.tpot is None else "goodput"
    if objective not in SERVICE_OBJECTIVES:
        raise ScenarioError(
            f"got objective {objective!r}; {nearest(objective, SERVICE_OBJECTIVES)}"
        )
    if objective == "goodput" and slo.ttft is None and slo.tpot is None:
        raise ScenarioError("got no limits; needed serving.slo with ttft or tpot to count goodput")
    if objective == "rate":
        require_stream(scenario.service.workload, slo)
    if top is not None and top < 1:
        raise ScenarioError(f"top is {top}; needed at least 1")
    run = _Run(
        scenario,
        objective=objective,
        top=int(defaults("serving")["top"]) if top is None else top,
        pools=pools,
        prune=prune,
        limits=Limits(max_memory=max_memory, max_price=max_price, max_power=max_power),
        clock=Clock(budget),
        journal=Journal(resume, what="a service of a search"),
        report=progress or (lambda what, done, total: None),
    )
    return run.search(over or {})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Bounded:
    """A layout before it is simulated."""

    candidate: ServiceCandidate
    requests: Requests | None
    bound: float


class _Run:
    """One search under way."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        objective: str,
        top: int,
        pools: bool,
        prune: bool,
        limits: Limits,
        clock: Clock,
        journal: Journal,
        report: Progress,
    ) -> None:
        self._scenario, self._objective, self._top = scenario, objective, top
        self._pools, self._prune, self._limits = pools, prune, limits
        self._clock, self._journal, self._report = clock, journal, report
        self._counts: Counter[str] = Counter()
        self._rows: list[FoundService] = []
        self._complete, self._interrupted = True, False

    def search(self, over: Mapping[str, Sequence[object]]) -> ServiceSearch:
        """Enumerate, bound, simulate, rank."""
        with self._journal.writing():
            try:
                waiting = self._bound(over)
                self._simulate(waiting)
            except KeyboardInterrupt:
                self._complete, self._interrupted = False, True
        self._counts["simulated"] = len(self._rows)
        return ServiceSearch(
            scenario=self._scenario.name,
            objective=self._objective,
            top=self._top,
            rows=tuple(sorted(self._rows, key=self._rank)),
            counts={name: count for name, count in self._counts.items() if count},
            complete=self._complete,
            interrupted=self._interrupted,
            remarks=self._journal.remarks,
        )

    def _rank(self, row: FoundService) -> tuple[bool, float, int, float]:
        """Order of layouts: what keeps the limits first, of equal ones the fewest accelerators, then the fastest."""
        score = score_of(self._objective, row.objective)
        return not row.meets_slo, -score, row.accelerators, -row.per_user

    def _bound(self, over: Mapping[str, Sequence[object]]) -> list[_Bounded]:
        """Bounds of every layout within the limits, the best bound first."""
        waiting: list[_Bounded] = []
        candidates = list(self._candidates(over))
        if not candidates:
            raise ScenarioError(
                f"{self._scenario.name}: no layout can be served within the limits; loosen the values or limits given, or see 'mpsim check'"
            )
        drawn: dict[int, Requests | None] = {}
        for done, (number, candidate) in enumerate(candidates):
            if self._clock.spent(0.5):
                self._counts["unseen"] += len(candidates) - done
                self._complete = False
                break
            if number not in drawn:
                drawn[number] = _stream(candidate)
            self._keep(candidate, drawn[number], waiting)
            self._report("bounded", done + 1, len(candidates))
        waiting.sort(key=lambda bounded: -score_of(self._objective, bounded.bound))
        return waiting

    def _keep(
        self, candidate: ServiceCandidate, requests: Requests | None, waiting: list[_Bounded]
    ) -> None:
        """Bound a layout, or count why it is out."""
        if reason := self._refused(candidate):
            self._counts[reason] += 1
            return
        plan, bound = candidate.plan, score_of(self._objective, math.inf)
        if requests is not None:
            bounds = bound_service(plan, requests)
            share = bounds.share_within(plan.slo.ttft, plan.slo.tpot)
            if self._prune and share < plan.slo.share:
                self._counts["slo"] += 1
                return
            if not plan.workload.warmup:
                bound = self._best(candidate, requests, bounds.duration, share)
        waiting.append(_Bounded(candidate, requests, bound))

    def _best(
        self, candidate: ServiceCandidate, requests: Requests, duration: float, share: float
    ) -> float:
        """The objective at the bounds."""
        plan, output = candidate.plan, float(requests.output.sum())
        if self._objective == "goodput":
            return share * len(requests) / duration
        if self._objective == "throughput":
            return output / duration / plan.accelerators
        if self._objective == "cost":
            return self._price(candidate) * duration / _HOUR / output * _MEGA
        return saturation(plan, requests)

    def _candidates(
        self, over: Mapping[str, Sequence[object]]
    ) -> Iterator[tuple[int, ServiceCandidate]]:
        """Layouts of every combination of the keys that are no axes, with its number."""
        own, other = split_axes(over, AXES)
        for number, chosen in enumerate(itertools.product(*other.values())):
            values = dict(zip(other, chosen, strict=True))
            base = self._scenario.with_values(values, checked=False) if values else self._scenario
            most = self._affordable(base)
            if not most:
                raise ScenarioError("got limits that not one accelerator keeps; loosen them")
            space = ServiceSpace(base, own, most, pools=self._pools)
            for candidate in space.candidates():
                yield number, dataclasses.replace(candidate, values={**values, **candidate.values})
            self._counts["refused"] += space.refused

    def _affordable(self, scenario: Scenario) -> int:
        """Accelerators within the limits of price and power."""
        cluster, limits = scenario.hardware, self._limits
        most = cluster.accelerators
        each = cluster.accelerator.price_per_hour
        if limits.max_price is not None or self._objective == "cost":
            if each is None:
                raise ScenarioError(
                    f"{cluster.accelerator.name} has no price; give cluster.price_per_hour, or leave price and cost out"
                )
            if limits.max_price is not None:
                most = min(most, int(limits.max_price / each))
        if limits.max_power is not None:
            most = min(
                most, int(limits.max_power / (nameplate_power(cluster) / cluster.accelerators))
            )
        return most

    def _refused(self, candidate: ServiceCandidate) -> str:
        """The limit that refuses a layout; empty where none does."""
        for pool in candidate.plan.pools.values():
            memory = pool.memory
            need = memory.weights + memory.activations + memory.reserve
            if self._limits.max_memory is not None and need > self._limits.max_memory:
                return "memory"
        return ""

    def _price(self, candidate: ServiceCandidate) -> float:
        each = candidate.plan.cluster.accelerator.price_per_hour
        return (each or 0.0) * candidate.plan.accelerators

    def _simulate(self, waiting: list[_Bounded]) -> None:
        """Simulate in the order of the bounds, as long as one could be among the best."""
        for place, bounded in enumerate(waiting):
            if self._clock.spent():
                self._counts["unseen"] += len(waiting) - place
                self._complete = False
                return
            if self._prune and self._beaten(bounded):
                self._counts["bound"] += 1
                continue
            self._run(bounded)
            self._report("simulated", place + 1, len(waiting))

    def _beaten(self, bounded: _Bounded) -> bool:
        """Whether as many as were asked for are better than a layout can be."""
        if (
            self._objective == "rate"
        ):  # a short stream may come faster than it can be served for long: what its bound is good for is the order
            return False
        score = score_of(self._objective, bounded.bound)
        better = sum(
            row.meets_slo and score_of(self._objective, row.objective) > score for row in self._rows
        )
        return better >= self._top

    def _last_of_the_best(self) -> float:
        """The objective of the last of as many as were asked for; 0 while there are fewer."""
        kept = sorted((row.objective for row in self._rows if row.meets_slo), reverse=True)
        return kept[self._top - 1] if len(kept) >= self._top else 0.0

    def _run(self, bounded: _Bounded) -> None:
        candidate = bounded.candidate
        name = name_of(self._scenario.digest, self._objective, dict(candidate.values))
        if name not in self._journal:
            try:
                entry: dict[str, Any] = self._entry(bounded)
            except ScenarioError as error:
                entry = {"objective": None, "summary": None, "reason": str(error)}
            self._journal.add(name, {"values": dict(candidate.values), **entry})
        entry = self._journal[name]
        if entry["summary"] is None:
            self._counts["requests"] += 1
            return
        if self._objective == "rate" and not entry["objective"] and self._last_of_the_best():
            self._counts["rate"] += 1
            return
        summary: Mapping[str, Any] = entry["summary"]
        each = candidate.plan.cluster.accelerator.price_per_hour
        self._rows.append(
            FoundService(
                values=candidate.values,
                objective=entry["objective"],
                bound=bounded.bound,
                accelerators=candidate.plan.accelerators,
                price_per_hour=None if each is None else self._price(candidate),
                meets_slo=bool(summary["slo"]["met"]),
                summary=summary,
            )
        )

    def _entry(self, bounded: _Bounded) -> dict[str, Any]:
        candidate, requests = bounded.candidate, bounded.requests
        if self._objective == "rate":
            assert requests is not None, "a stream with a rate is drawn"
            steps = int(defaults("serving")["rate_steps"])
            found = largest_rate(
                candidate.scenario,
                candidate.plan,
                requests,
                steps=steps,
                at_least=self._last_of_the_best() if self._prune else 0.0,
            )
            return {"objective": found.rate, "summary": dict(found.summary)}
        result = (
            run_service(candidate.scenario, candidate.plan)
            if requests is None
            else serve_requests(candidate.scenario, candidate.plan, requests)
        )
        figure = {
            "goodput": "goodput_per_s",
            "throughput": "output_tokens_per_s_per_accelerator",
            "cost": "cost_per_million_output_tokens",
        }[self._objective]
        return {"objective": result.summary[figure], "summary": dict(result.summary)}


def _stream(candidate: ServiceCandidate) -> Requests | None:
    """Requests of a workload; None where only the run shows how many there are."""
    workload = candidate.plan.workload
    if workload.duration is not None and workload.concurrency is not None:
        return None
    return draw_requests(workload, seed=candidate.plan.seed, folder=candidate.plan.folder)
