"""The space of services: what cannot keep its limits even when it is empty is left out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.memo import asked_once
from mpsim.scenario import Scenario
from mpsim.scenario.serving import Disaggregated, PoolChoice
from mpsim.serving.bounds import bound_service
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import engine_of, make_service, pool_cluster
from mpsim.serving.requests import Requests
from mpsim.serving.result import run_service, serve_requests
from mpsim.serving.stream import draw_requests
from mpsim.shipped import read_shipped, say
from mpsim.study.journal import Entry, name_of
from mpsim.study.search import rate, service_outcome
from mpsim.study.search.branch_and_bound import BranchAndBound, Space, Waiting
from mpsim.study.search.given import Limits, defaults, price_each, split_axes, variants

AXES: Final[Mapping[str, str]] = read_shipped("mpsim.study.data", "search.yaml")["service_keys"]
"""What a search of services varies by itself: name of each axis, and its key in a scenario."""
_SHARED: Final = ("weights", "kv", "routing", "speculation", "workload", "slo")
_APART: Final = "serving.disaggregated."
_POOL: Final = {"accelerator", "price_per_hour", "weights", "kv", "engine"}


@structs.dataclass(frozen=True, slots=True, eq=False)
class ServiceLayout:
    """A service that could be run."""

    values: Mapping[str, object]  # by dotted key
    scenario: Scenario
    plan: ServicePlan


class ServiceLayouts:
    """Layouts of one service.

    `scenario`: its model, cluster, engine and workload; its own layout counts for nothing. `given`:
    values of axes, instead of the usual ones. `pools`: whether to look at prefill and decode on
    pools of their own, too. ScenarioError for limits that no accelerator keeps.
    """

    def __init__(
        self, scenario: Scenario, given: Mapping[str, Sequence[Any]], limits: Limits, *, pools: bool
    ) -> None:
        self._base, self._given, self._limits = scenario, given, limits
        self._pools, self._apart = pools, scenario.service.disaggregated
        self._most = limits.room(scenario.hardware)
        if not self._most:
            raise ScenarioError("got limits that not one accelerator keeps; loosen them")
        self.refused = Counter[str]()
        """Combinations that the checks of a scenario refused, and those that leave no cache."""
        self.why = ""  # of the first of them

    def layouts(self) -> Iterator[ServiceLayout]:
        """Every layout that the checks accept and that has room for a cache."""
        for budget in self._budgets():
            for values in itertools.chain(self._alike(), self._splits() if self._pools else ()):
                chosen = {**values, "max_tokens": budget}
                scenario = self._scenario(chosen)
                try:
                    keys = (AXES.get(axis, f"serving.disaggregated.{axis}") for axis in chosen)
                    named = dict(zip(keys, chosen.values(), strict=True))
                    yield ServiceLayout(named, scenario, make_service(scenario))
                except MpsimError as error:
                    self.refused["refused" if scenario.problems else "room"] += 1
                    self.why = self.why or str(error)

    def _alike(self) -> Iterator[dict[str, Any]]:
        """Instances of one kind, as many as there is room for, or as were given."""
        for shape in self._shapes():
            most = self._most // (shape["tp"] * shape["pp"])
            for replicas in self._given.get("replicas", (most,)):
                if replicas <= most:
                    yield {**shape, "replicas": replicas}

    def _shapes(self) -> Iterator[dict[str, int]]:
        """Layouts of an instance, with each way to use the ranks of a stage."""
        model, given = self._base.transformer, self._given
        for tp, pp in itertools.product(self._choose("tp"), self._choose("pp")):
            usual_ep = dict.fromkeys((1, tp)) if model.moe else (1,)
            usual_dp = dict.fromkeys((1, tp)) if model.moe or model.mla else (1,)
            for ep in given.get("ep", usual_ep) if tp * pp <= self._most else ():
                for attention_dp in given.get("attention_dp", usual_dp):
                    yield {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}

    def _splits(self) -> Iterator[dict[str, Any]]:
        """Layouts of both pools with a few numbers of instances each."""
        shapes = [shape for shape in self._shapes() if shape["pp"] == 1]
        count, whole = int(defaults("serving")["splits"]), self._base.hardware.node.accelerators
        first, second = (
            pool_cluster(self._base, self._pool(name, {})) for name in ("prefill", "decode")
        )
        for prefill, decode in itertools.product(shapes, repeat=2):
            each = prefill["tp"]  # accelerators of two kinds share no node
            unit = 1 if first == second else whole // math.gcd(whole, each)
            most = self._limits.room(first, decode["tp"], beside=second) // each // unit
            numbers = {round(1 + (most - 1) * step / max(1, count - 1)) for step in range(count)}
            for x in sorted(number * unit for number in numbers if 1 <= number <= most):
                y = self._limits.room(second, x * each, beside=first) // decode["tp"]
                yield {"prefill": {**prefill, "replicas": x}, "decode": {**decode, "replicas": y}}

    def _scenario(self, values: Mapping[str, Any]) -> Scenario:
        base, serving = self._base, self._base.service
        choice = serving.engine
        overrides = {**choice.overrides, "max_tokens": values["max_tokens"]}
        changed: dict[str, Any] = {"engine": choice.model_copy(update={"overrides": overrides})}
        if "prefill" in values:
            # what belongs to instances of one kind (their number, blocks of cache) is left out
            shared = {name: getattr(serving, name) for name in _SHARED}
            apart: dict[str, Any] = {
                name: self._pool(name, values[name]) for name in ("prefill", "decode")
            }
            apart |= {} if self._apart is None else {"first_token": self._apart.first_token}
            serving = type(serving)(**shared, disaggregated=Disaggregated.model_validate(apart))
        else:
            changed |= {name: values[name] for name in ("attention_dp", "replicas")}
            changed["disaggregated"] = None
        layout = {axis: values[axis] for axis in ("tp", "pp", "ep") if axis in values}
        return base.model_copy(
            update={
                "parallelism": type(base.parallelism)(**layout),
                "serving": serving.model_copy(update=changed),
            }
        )

    def _pool(self, name: str, layout: Mapping[str, Any]) -> PoolChoice:
        """A pool so laid out, with the chips, formats and engine that the file gives it."""
        given = {} if self._apart is None else getattr(self._apart, name).model_dump(include=_POOL)
        engine = {key: own for key, own in given.get("engine", {}).items() if key != "max_tokens"}
        return PoolChoice(**{**given, "engine": engine, **layout})

    def _budgets(self) -> Sequence[int]:
        """Token budgets: the engine's own and usual ones; its own where prompts are not cut."""
        if "max_tokens" in self._given:
            return self._given["max_tokens"]
        preset = engine_of(self._base, self._base.hardware, own={})
        usual = defaults("serving")["max_tokens"] if preset.chunked else ()
        return tuple(dict.fromkeys((preset.max_tokens, *usual)))

    def _choose(self, axis: str) -> Sequence[int]:
        if axis in self._given:
            return self._given[axis]
        base = self._base
        model, most = base.transformer, self._most
        if axis == "pp":
            limit = min(most, model.layers, int(defaults("serving")["pp_at_most"]))
            return tuple(n for n in _powers(limit) if most % n == 0)
        wide = model.moe is not None or model.mla is not None
        limit = most if wide else min(most, base.hardware.domain_size)
        return tuple(n for n in _powers(limit) if model.heads % n == 0 or wide)


def _beside_pools(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of keys that are none of pools."""
    return {key: value for key, value in values.items() if not key.startswith(_APART)}


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


_HOUR = 3600.0
_CHIPS = frozenset({"cluster.preset", "cluster.accelerator"})
_MEGA = 1e6
_ROUNDING = 1e-9
_FIGURES = {
    "goodput": "goodput_per_s",
    "throughput": "output_tokens_per_s_per_accelerator",
    "cost": "cost_per_million_output_tokens",
}
"""Figure of a summary that each objective is."""


@structs.dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A service that may be among the best."""

    layout: ServiceLayout
    # streams where limits have to be kept for long; none where only a run shows the requests
    requests: rate.Streams | Requests | None
    bound: float  # the objective is no better
    least: float
    digest: str
    # of instances, to find the fewest; empty where the layout has its own
    counts: Sequence[int] = ()
    group: int = 0

    @property
    def plan(self) -> ServicePlan:
        """Its plan."""
        return self.layout.plan


@structs.dataclass(eq=False, kw_only=True)
class Services(Space[_Candidate]):
    """Layouts of a service, on every machine that is searched; as `mpsim.search` has them."""

    scenario: Scenario
    over: Mapping[str, Sequence[object]]
    objective: str
    pools: bool
    limits: Limits

    what = "a service of a search"

    def __post_init__(self) -> None:
        service = self.scenario.service
        unlimited = service.slo.ttft is None and service.slo.tpot is None
        usual = "throughput" if unlimited else "goodput"
        if rate.has_stream(service.workload, service.slo):
            usual = "cost" if self._chips_differ() else "gpus"
        self.objective, self._why = self.objective or usual, ""  # why the first layout is none
        known = service_outcome.SERVICE_OBJECTIVES
        if self.objective not in known:
            raise ScenarioError(
                f"got objective {self.objective!r}; {nearest(self.objective, known)}"
            )
        if self.objective == "goodput" and unlimited:
            raise ScenarioError(say("study.no_limits"))
        if self.objective in ("rate", "gpus"):
            rate.require_stream(self.scenario)
        if not self.pools and len(_beside_pools(self.over)) < len(self.over):
            raise ScenarioError(say("study.unsearched_pools"))
        self._rows: dict[_Candidate, service_outcome.FoundService] = {}
        self._entries: dict[_Candidate, Entry] = {}
        # of what the last service could serve at most, that it did
        self._share: float | None = None

    def _chips_differ(self) -> bool:
        """Whether chips are compared, all with a price: one of a dear kind is not fewer."""
        machines = [
            self.scenario.with_values({key: value}, checked=False).hardware.accelerator
            for key in self.over.keys() & _CHIPS
            for value in self.over[key]
        ]
        priced = all(chip.price_per_hour is not None for chip in machines)
        return priced and len({chip.name for chip in machines}) > 1

    @property
    def nothing(self) -> str:
        """Refusal where no layout has room for a cache."""
        return say("study.no_service", name=self.scenario.name, why=self._why)

    @property
    def ranking(self) -> tuple[service_outcome.FoundService, ...]:
        """Rank by limits kept, what is confirmed, fewest accelerators, the fastest."""
        return tuple(sorted(self._rows.values(), key=self._rank))

    def _rank(self, row: service_outcome.FoundService) -> tuple[bool, float, bool, int, float]:
        score = service_outcome.score_of(self.objective, row.objective)
        open_ = row.meets_slo is None
        return row.misses, score, open_, row.accelerators, -row.per_user

    def frames(self) -> Iterator[Waiting]:
        """All layouts of every combination of the keys that are no axes, looked at one by one."""
        split = split_axes(self.over, AXES)
        self._given = split.axes
        layouts: dict[str, tuple[int, ServiceLayout]] = {}
        for place, (values, base) in enumerate(variants(self.scenario, split.others)):
            for pool in base.pools.values() if self.objective == "cost" else ():
                price_each(pool_cluster(base, pool))  # refuses one without, which would be cheapest
            legal = ServiceLayouts(base, split.axes, self.limits, pools=self.pools)
            for layout in legal.layouts():
                # instances of one kind have nothing of the pools: they count once
                own = values if layout.plan.prefill else _beside_pools(values)
                named = structs.replace(layout, values={**own, **layout.values})
                layouts.setdefault(str(named.values), (place, named))
            self.counts += legal.refused
            self._why = self._why or legal.why
        if layouts:
            yield Waiting((), [[layout] for layout in layouts.values()])

    def bounded(
        self, frame: Waiting, part: Sequence[tuple[int, ServiceLayout]]
    ) -> Iterable[_Candidate]:
        """Layouts that can keep the limits, with the best that each can do."""
        for place, layout in part:
            if self._too_large(layout):
                self.counts["memory"] += 1
                continue
            requests = self._stream(place, layout)
            bound = self._bound(layout, requests)
            if bound is None:
                self.counts["slo"] += 1
                continue
            counts: Sequence[int] = ()
            if self.objective in service_outcome.FEWEST and isinstance(requests, rate.Streams):
                counts = self._counts(layout, requests)
                if not counts:
                    self.counts["slow"] += 1
                    continue
                bound = self._cost(layout.plan, requests, counts[0])
            least = service_outcome.score_of(self.objective, bound)
            name = name_of(self.scenario.digest, self.objective, dict(layout.values))
            yield _Candidate(layout, requests, bound, least, name, counts)

    @asked_once(lambda place, _: place)
    def _stream(self, place: int, layout: ServiceLayout) -> rate.Streams | Requests | None:
        """Requests of the layouts of one place."""
        return rate.Streams(layout.plan) if self._lasts(layout.scenario) else _stream(layout)

    def _lasts(self, scenario: Scenario) -> bool:
        """Whether the limits have to last, beyond the stream of the file."""
        service = scenario.service
        return self.objective in ("rate", *service_outcome.FEWEST) and rate.has_stream(
            service.workload, service.slo
        )

    def _counts(self, layout: ServiceLayout, streams: rate.Streams) -> Sequence[int]:
        """Numbers of instances that may serve the rate, fewest first, each as much as alone."""
        plan, most = layout.plan, layout.plan.replicas
        free = "replicas" not in self._given and plan.prefill is None
        least = 1
        if self.prunes:
            least = math.ceil(streams.rate * most / rate.saturation(plan, streams) - _ROUNDING)
        return range(least, most + 1) if free else range(most, most + (least <= most))

    def _bound(
        self, layout: ServiceLayout, requests: rate.Streams | Requests | None
    ) -> float | None:
        """The best that the objective can be; None where too few requests can keep the limits."""
        plan = layout.plan
        anything = -math.inf if self.objective == "cost" else math.inf
        if requests is None:
            return anything
        sample = requests.sample if isinstance(requests, rate.Streams) else requests
        bounds = bound_service(plan, sample)
        share = bounds.share_within(plan.slo.ttft, plan.slo.tpot)
        if self.prunes and share < plan.slo.share:
            return None
        if isinstance(requests, rate.Streams):
            return len(sample) / bounds.busy
        scaled = plan.autoscale is not None and self.objective != "goodput"  # how many run is open
        if plan.workload.warmup or scaled:  # requests that do not count are among those bounded
            return anything
        duration, output = bounds.duration, float(requests.output.sum())
        if self.objective == "goodput":
            return share * len(requests) / duration
        if self.objective == "throughput":
            return output / duration / plan.accelerators
        return (plan.price_per_hour or 0.0) * duration / _HOUR / output * _MEGA

    def _cost(self, plan: ServicePlan, streams: rate.Streams, replicas: int) -> float:
        """Accelerators of so many instances that serve the workload, or USD of a million tokens."""
        sized = structs.replace(plan, replicas=replicas)
        if self.objective == "gpus":
            return float(sized.accelerators)
        tokens = streams.rate * float(streams.sample.output.mean())
        return (sized.price_per_hour or 0.0) / _HOUR / tokens * _MEGA

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

    def outcome(
        self, run: BranchAndBound[_Candidate], *, top: int, remarks: tuple[str, ...]
    ) -> service_outcome.ServiceSearch:
        """The ranking, beside what the file's own layout does."""
        # somebody who stops a search does not wait for that
        ended = run.interrupted or self.clock.spent()
        return service_outcome.ServiceSearch(
            own=service_outcome.Own(None, "") if ended else self._own(),
            scenario=self.scenario.name,
            objective=self.objective,
            top=top,
            rows=self.ranking,
            counts={name: count for name, count in self.counts.items() if count},
            complete=run.complete and not run.interrupted and self.unsettled() is None,
            interrupted=run.interrupted,
            remarks=remarks,
        )

    def _own(self) -> service_outcome.Own:
        """The layout that the scenario has; of what has to last, as short streams judge it."""
        try:
            plan = make_service(self.scenario)
            layout = ServiceLayout({}, self.scenario, plan)
            same = (
                row
                for each, row in self._rows.items()
                if row.accelerators == plan.accelerators
                and structs.replace(each.plan, replicas=plan.replicas) == plan
            )
            if (row := next(same, None)) is not None:
                return service_outcome.Own(row, "")
            lasts = self._lasts(self.scenario)
            requests = rate.Streams(plan) if lasts else _stream(layout)
            most = (
                rate.saturation(plan, requests) if isinstance(requests, rate.Streams) else math.inf
            )
            counts = (plan.replicas,) if lasts and self.objective in service_outcome.FEWEST else ()
            candidate = _Candidate(layout, requests, most, -most, "", counts)
            entry = self._simulated(candidate, math.inf)
            if counts:  # its number of instances is its own: no bound of a price, but the price
                entry["kept"] = entry["kept"] is None
            return service_outcome.Own(self._row(candidate, entry), "")
        except ScenarioError as error:
            return service_outcome.Own(None, str(error).partition("\n")[0])

    def _simulated(self, candidate: _Candidate, worst: float) -> Entry:
        scenario, plan, requests = candidate.layout.scenario, candidate.plan, candidate.requests
        if candidate.counts:
            return self._fewest(candidate, candidate.counts, worst if self.prunes else math.inf)
        if isinstance(requests, rate.Streams):
            at_least = -worst if self.prunes and worst < math.inf else 0.0
            share = {} if self._share is None else {"share": self._share}
            judge = self._judge(candidate, plan.replicas)
            return _of_rate(rate.bounded_rate(judge, candidate.bound, at_least=at_least, **share))
        if requests is None:
            result = run_service(scenario, plan)
        else:
            result = serve_requests(scenario, plan, requests)
        summary = dict(result.summary)
        return {"objective": summary[_FIGURES[self.objective]], "summary": summary}

    def _fewest(self, candidate: _Candidate, counts: Sequence[int], worst: float) -> Entry:
        """The fewest instances that short streams leave, unless dearer than `worst`."""
        streams = candidate.requests
        assert isinstance(streams, rate.Streams)
        judged: dict[int, Mapping[str, object]] = {}

        def misses(replicas: int) -> bool:
            judge = self._judge(candidate, replicas)
            judged[replicas] = judge.judged(streams.rate)
            return judge.fails(judged[replicas])

        cheap = [n for n in counts if self._cost(candidate.plan, streams, n) <= worst]
        chosen = rate.fewest(cheap, misses)
        replicas = chosen or counts[min(len(cheap), len(counts) - 1)]
        return {
            "objective": self._cost(candidate.plan, streams, replicas),
            "replicas": replicas,
            "kept": None if chosen or len(cheap) < len(counts) else False,
            "summary": judged.get(replicas) or judged[max(judged)],
        }

    def unsettled(self) -> _Candidate | None:
        """The best so far, where only short streams have judged it."""
        if not self._rows:
            return None
        best = min(self._rows, key=lambda candidate: self._rank(self._rows[candidate]))
        return best if self._rows[best].meets_slo is None else None

    def settle(self, candidate: _Candidate) -> Entry:
        """Judge a service by long streams: it is confirmed, or its bound is lowered."""
        known, streams = self._entries[candidate], candidate.requests
        assert isinstance(streams, rate.Streams)
        if not candidate.counts:
            judge = self._judge(candidate, candidate.plan.replicas)
            bound = rate.Rate(known["rate"], known["above"], known["summary"], confirmed=False)
            kept = (row.objective for row in self._rows.values() if row.meets_slo)
            return _of_rate(
                rate.confirmed_rate(judge, bound, candidate.bound, max(kept, default=0.0))
            )
        replicas: int = known["replicas"]
        if summary := self._judge(candidate, replicas).confirmed(streams.rate, final=True):
            return {**known, "kept": True, "summary": dict(summary)}
        more = [n for n in candidate.counts if n > replicas]
        return self._fewest(candidate, more, math.inf) if more else {**known, "kept": False}

    @asked_once(lambda candidate, replicas: (candidate.digest, replicas))
    def _judge(self, candidate: _Candidate, replicas: int) -> rate.Judge:
        """A layout with so many instances before streams of its workload."""
        scenario, plan, streams = candidate.layout.scenario, candidate.plan, candidate.requests
        assert isinstance(streams, rate.Streams)
        if replicas != plan.replicas:
            serving = scenario.service.model_copy(update={"replicas": replicas})
            scenario = scenario.model_copy(update={"serving": serving})
            plan = make_service(scenario)
        return rate.Judge(scenario, plan, streams)

    def score(self, candidate: _Candidate, entry: Entry, worst: float) -> float | None:
        """The objective, or its bound until long streams confirm it; infinite for what misses."""
        objective, summary = entry["objective"], entry["summary"]
        if summary is None:
            self.counts["requests"] += 1
            return None
        if "rate" in entry:
            self._share = (entry["rate"] or entry["above"]) / candidate.bound
        row = self._row(candidate, entry)
        self._rows[candidate], self._entries[candidate] = row, entry
        return math.inf if row.misses else service_outcome.score_of(self.objective, objective)

    def _row(self, candidate: _Candidate, entry: Entry) -> service_outcome.FoundService:
        replicas, summary = entry.get("replicas", candidate.plan.replicas), entry["summary"]
        plan = structs.replace(candidate.plan, replicas=replicas)
        whole = plan.prefill is None and "replicas" in entry
        return service_outcome.FoundService(
            values={**candidate.layout.values, **({AXES["replicas"]: replicas} if whole else {})},
            objective=entry["objective"],
            bound=candidate.bound,
            accelerators=plan.accelerators,
            above=entry.get("above"),
            price_per_hour=plan.price_per_hour,
            meets_slo=entry["kept"] if "kept" in entry else bool(summary["slo"]["met"]),
            summary=summary,
        )


def _of_rate(found: rate.Rate) -> Entry:
    """A rate as a journal has it: the objective, or its bound until it is confirmed."""
    kept = bool(found.rate) if found.confirmed else None
    shown = found.rate if found.confirmed else found.above
    known = structs.named(found, "rate", "above")
    return {"objective": shown, "kept": kept, **known, "summary": dict(found.summary)}


def _stream(layout: ServiceLayout) -> Requests | None:
    """Requests of a workload; None where only the run shows how many there are."""
    workload = layout.plan.workload
    if workload.duration is not None and workload.concurrency is not None:
        return None
    return draw_requests(workload, seed=layout.plan.seed, folder=layout.plan.folder)
