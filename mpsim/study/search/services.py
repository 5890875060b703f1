"""The search of services: what cannot keep its limits even when it is empty is left out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mpsim.errors import ScenarioError, nearest
from mpsim.scenario import Scenario
from mpsim.serving.bounds import bound_service
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.result import run_service, serve_requests
from mpsim.serving.stream import draw_requests
from mpsim.study.journal import Entry, Journal, name_of
from mpsim.study.search.branch_and_bound import BranchAndBound, Progress, Space
from mpsim.study.search.given import Clock, Limits, defaults, nameplate_power, split_axes
from mpsim.study.search.queue import Waiting
from mpsim.study.search.rate import Streams, largest_rate, require_stream, saturation
from mpsim.study.search.service_layouts import AXES, ServiceLayout, ServiceLayouts
from mpsim.study.search.service_outcome import (
    SERVICE_OBJECTIVES,
    FoundService,
    ServiceSearch,
    score_of,
)

__all__ = ["search_services"]

_HOUR = 3600.0
_MEGA = 1e6
_FIGURES = {
    "goodput": "goodput_per_s",
    "throughput": "output_tokens_per_s_per_accelerator",
    "cost": "cost_per_million_output_tokens",
}
"""Figure of a summary that each objective is."""


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
    unlimited = slo.ttft is None and slo.tpot is None
    if objective is None:
        objective = "throughput" if unlimited else "goodput"
    if objective not in SERVICE_OBJECTIVES:
        raise ScenarioError(
            f"got objective {objective!r}; {nearest(objective, SERVICE_OBJECTIVES)}"
        )
    if objective == "goodput" and unlimited:
        raise ScenarioError("got no limits; needed serving.slo with ttft or tpot to count goodput")
    if objective == "rate":
        require_stream(scenario.service.workload, slo)
    services = Services(
        scenario=scenario,
        over=over or {},
        objective=objective,
        pools=pools,
        prunes=prune,
        limits=Limits(max_memory=max_memory, max_price=max_price, max_power=max_power),
        clock=Clock(budget),
    )
    journal = Journal(resume, what="a service of a search")
    most = int(defaults("serving")["top"]) if top is None else top
    run = BranchAndBound(services, top=most, journal=journal, report=progress)
    run.run()
    return ServiceSearch(
        scenario=scenario.name,
        objective=objective,
        top=most,
        rows=services.ranking,
        counts={name: count for name, count in services.counts.items() if count},
        complete=run.complete and not run.interrupted,
        interrupted=run.interrupted,
        remarks=journal.remarks,
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A service that may be among the best.

    Parameters
    ----------
    requests : Streams, Requests or None
        Streams for the rate; None where only a run shows how many there are.
    bound : float
        The objective is no better.
    """

    layout: ServiceLayout
    requests: Streams | Requests | None
    bound: float
    least: float
    digest: str
    group: int = 0

    @property
    def plan(self) -> ServicePlan:
        """Its plan."""
        return self.layout.plan

    @property
    def price(self) -> float | None:
        """Price of its accelerators [USD/h]; None without one."""
        each = self.plan.cluster.accelerator.price_per_hour
        return None if each is None else each * self.plan.accelerators


@dataclasses.dataclass(eq=False, kw_only=True)
class Services(Space[_Candidate]):
    """Layouts of a service, on every machine that is searched; as `search_services` has them."""

    scenario: Scenario
    over: Mapping[str, Sequence[object]]
    objective: str
    pools: bool
    limits: Limits

    def __post_init__(self) -> None:
        self._streams: dict[int, Streams | Requests | None] = {}
        self._rows: list[FoundService] = []

    @property
    def nothing(self) -> str:
        """Refusal where no layout has room for a cache."""
        return (
            f"{self.scenario.name}: no layout can be served within the limits; "
            "loosen the values or limits given, or see 'mpsim check'"
        )

    @property
    def ranking(self) -> tuple[FoundService, ...]:
        """Rank by the limits kept first, of equal ones by the fewest accelerators, then the fastest."""

        def rank(row: FoundService) -> tuple[bool, float, int, float]:
            score = score_of(self.objective, row.objective)
            return not row.meets_slo, score, row.accelerators, -row.per_user

        return tuple(sorted(self._rows, key=rank))

    def frames(self) -> Iterator[Waiting]:
        """All layouts of every combination of the keys that are no axes, looked at one by one."""
        split = split_axes(self.over, AXES)
        layouts: list[tuple[int, ServiceLayout]] = []
        for place, chosen in enumerate(itertools.product(*split.others.values())):
            values = dict(zip(split.others, chosen, strict=True))
            base = self.scenario.with_values(values, checked=False) if values else self.scenario
            most = self._affordable(base)
            if not most:
                raise ScenarioError("got limits that not one accelerator keeps; loosen them")
            legal = ServiceLayouts(base, split.axes, most, pools=self.pools)
            for layout in legal.layouts():
                named = dataclasses.replace(layout, values={**values, **layout.values})
                layouts.append((place, named))
            self.counts["refused"] += legal.refused
        if layouts:
            yield Waiting((), [[layout] for layout in layouts])

    def bounded(
        self, frame: Waiting, part: Sequence[tuple[int, ServiceLayout]]
    ) -> Iterable[_Candidate]:
        """Layouts that can keep the limits, with the best that each can do."""
        for place, layout in part:
            if place not in self._streams:
                self._streams[place] = (
                    Streams(layout.plan) if self.objective == "rate" else _stream(layout)
                )
            if self._too_large(layout):
                self.counts["memory"] += 1
                continue
            bound = self._bound(layout, self._streams[place])
            if bound is None:
                self.counts["slo"] += 1
                continue
            least = score_of(self.objective, bound)
            name = name_of(self.scenario.digest, self.objective, dict(layout.values))
            yield _Candidate(layout, self._streams[place], bound, least, name)

    def _bound(self, layout: ServiceLayout, requests: Streams | Requests | None) -> float | None:
        """The best that the objective can be; None where too few requests can keep the limits."""
        plan = layout.plan
        anything = -math.inf if self.objective == "cost" else math.inf
        if requests is None:
            return anything
        sample = requests.sample if isinstance(requests, Streams) else requests
        bounds = bound_service(plan, sample)
        share = bounds.share_within(plan.slo.ttft, plan.slo.tpot)
        if self.prunes and share < plan.slo.share:
            return None
        if isinstance(requests, Streams):
            return saturation(plan, requests)
        if plan.workload.warmup:  # requests that do not count are among those bounded
            return anything
        duration, output = bounds.duration, float(requests.output.sum())
        if self.objective == "goodput":
            return share * len(requests) / duration
        if self.objective == "throughput":
            return output / duration / plan.accelerators
        each = plan.cluster.accelerator.price_per_hour or 0.0
        return each * plan.accelerators * duration / _HOUR / output * _MEGA

    def _affordable(self, scenario: Scenario) -> int:
        """Accelerators within the limits of price and power."""
        cluster, limits = scenario.hardware, self.limits
        most = cluster.accelerators
        each = cluster.accelerator.price_per_hour
        if limits.max_price is not None or self.objective == "cost":
            if each is None:
                raise ScenarioError(
                    f"{cluster.accelerator.name} has no price; give cluster.price_per_hour, or leave price and cost out"
                )
            if limits.max_price is not None:
                most = min(most, int(limits.max_price / each))
        if limits.max_power is not None:
            power = nameplate_power(cluster) / cluster.accelerators
            most = min(most, int(limits.max_power / power))
        return most

    def _too_large(self, layout: ServiceLayout) -> bool:
        """Whether a pool needs more memory than allowed."""
        most = self.limits.max_memory
        memories = (pool.memory for pool in layout.plan.pools.values())
        return most is not None and any(
            memory.weights + memory.activations + memory.reserve > most for memory in memories
        )

    def entries(self, candidates: Sequence[_Candidate], worst: float) -> Iterable[Entry]:
        """Values, objective and summary of each service, or why it cannot hold a request."""
        for candidate in candidates:
            try:
                entry = self._simulated(candidate, worst)
            except ScenarioError as error:
                entry = {"objective": None, "summary": None, "reason": str(error)}
            yield {"values": dict(candidate.layout.values), **entry}

    def _simulated(self, candidate: _Candidate, worst: float) -> Entry:
        scenario, plan, requests = candidate.layout.scenario, candidate.plan, candidate.requests
        if isinstance(requests, Streams):
            found = largest_rate(
                scenario,
                plan,
                requests,
                steps=int(defaults("serving")["rate_steps"]),
                at_least=-worst if self.prunes and worst < math.inf else 0.0,
            )
            return {"objective": found.rate, "above": found.above, "summary": dict(found.summary)}
        result = (
            run_service(scenario, plan)
            if requests is None
            else serve_requests(scenario, plan, requests)
        )
        summary = dict(result.summary)
        return {"objective": summary[_FIGURES[self.objective]], "summary": summary}

    def score(self, candidate: _Candidate, entry: Entry, worst: float) -> float | None:
        """The objective; infinite for what misses the limits."""
        objective, summary = entry["objective"], entry["summary"]
        if summary is None:
            self.counts["requests"] += 1
            return None
        if self.objective == "rate" and not objective and worst < 0:
            self.counts["rate"] += 1
            return None
        row = FoundService(
            values=candidate.layout.values,
            objective=objective,
            bound=candidate.bound,
            accelerators=candidate.plan.accelerators,
            above=entry.get("above"),
            price_per_hour=candidate.price,
            meets_slo=bool(summary["slo"]["met"]),
            summary=summary,
        )
        self._rows.append(row)
        return score_of(self.objective, objective) if row.meets_slo else math.inf


def _stream(layout: ServiceLayout) -> Requests | None:
    """Requests of a workload; None where only the run shows how many there are."""
    workload = layout.plan.workload
    if workload.duration is not None and workload.concurrency is not None:
        return None
    return draw_requests(workload, seed=layout.plan.seed, folder=layout.plan.folder)
