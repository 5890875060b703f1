"""Plans of whole trainings: days, accelerator-hours, dollars, energy, carbon, with failures."""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mpsim import structs
from mpsim.accessors import Drawable, chart
from mpsim.errors import MpsimError, ScenarioError
from mpsim.frame import Tabular
from mpsim.memo import remembered
from mpsim.result import Result
from mpsim.result.residuals import Interval, Setting
from mpsim.result.words import odds_words
from mpsim.scenario import Scenario
from mpsim.shipped import read_shipped, say
from mpsim.simulate import simulate_step
from mpsim.study.facility import Facility, Rate, check_rates, mean_rate
from mpsim.study.reliability import (
    Checkpoint,
    Reliability,
    constants,
    daly_interval,
    expected_share,
    usual_interval,
)
from mpsim.study.ties import front_of
from mpsim.study.usual import GUESSED, Values, usual
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.training.intervals import residuals_of, told
from mpsim.units import percent

_DAY, _HOUR, _MWH, _TONNE = 86400.0, 3600.0, 3.6e9, 1000.0
_MINUTE = 60.0  # [s]
_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6))
_WHOLE = 1000.0  # above it nobody writes decimals
_LEAST_SHARE = 0.1  # of the time, below which a training is not carried on
# failures of one cluster over those of another: once in 14 (OPT-175B) and in 50 thousand
# accelerator-hours (Llama 3), rounded
_APART = 3.0


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Figures of a plan beside its scenario."""

    facility: Facility
    offer: str = "on-demand"  # kind of price, one of `mpsim.study.facility.OFFERS`
    # a user's own prices by accelerator [USD/h]
    rates: Mapping[str, float] = structs.field(default_factory=dict)
    failures: float = 1.0  # multiplier on the published failure rates of components
    # from an interruption to the first step [s]; assumed when left out
    restart: float | None = None
    storage: float | None = None  # bandwidth for all checkpoints [B/s]; assumed when left out
    background: bool = True  # whether checkpoints are written beside training
    interval: float | None = None  # work between checkpoints [s]; what is practice when left out


@structs.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Training(Shown):
    """One whole training."""

    scenario: str
    values: Mapping[str, object]  # what differs from the scenario, by dotted key
    tokens: float  # trained on, repeats included
    steps: int
    step_time_s: float
    accelerators: int
    goodput: float
    """Share of the days that is progress: no failures, restarts, lost work, checkpoints or
    evaluation."""
    # checkpoint_interval_s, daly_interval_s: Work between checkpoints as planned, and as Daly's
    # formula finds it best; infinity where nothing fails.
    checkpoint_interval_s: float
    daly_interval_s: float
    interruptions: float  # expected in all
    computing_hours: float  # accelerator-hours of the steps alone
    days: float  # computing and everything that goodput leaves
    rate: Rate | None  # price; None where there is none
    energy_j: float  # at the meter: accelerators, hosts, network, cooling [J]
    carbon_kg: float  # of the grid for that energy; embodied carbon is left out [kgCO2e]
    fits: bool  # whether the layout fits into memory
    fits_probability: float | None  # odds that it does, of published runs
    spread: tuple[float, float]  # low and high days over the predicted ones
    basis: str  # where the spread comes from
    computing_spread: tuple[float, float]  # low and high hours of the steps over the predicted ones
    warnings: tuple[str, ...] = ()

    @property
    def hours(self) -> float:
        """Accelerator-hours of the allocation, spares not counted."""
        return self.accelerators * self.days * _DAY / _HOUR

    @property
    def cost(self) -> float | None:
        """Price of the hours [USD]."""
        return None if self.rate is None else self.hours * self.rate.usd_per_hour

    @property
    def figures(self) -> dict[str, float | None]:
        """Figures that are as uncertain as the days; None where there is no price."""
        return {
            "days": self.days,
            "gpu_hours": self.hours,
            "usd": self.cost,
            "mwh": self.energy_j / _MWH,
            "tco2": self.carbon_kg / _TONNE,
        }

    def sheet(
        self, *, facility: str = "", whose: str = "", odds: Mapping[str, float] | None = None
    ) -> Sheet:
        """The plan in full; in words `facility`: assumptions, `whose`: what warnings are of."""
        values = changed(self.values)
        title = f"{self.scenario}, {values}" if values else self.scenario
        warnings = tuple(f"warning{whose}: {warning}" for warning in self.warnings)
        kept = ((name, f"kept with odds of {percent(own)}") for name, own in (odds or {}).items())
        return Sheet(title, (Section((*_lines(self, facility), *kept), lines=warnings),))

    def to_json(self) -> dict[str, object]:
        """Plain data: the figures of ``mpsim plan --json``."""
        figures, (low, high), daly = self.figures, self.spread, self.daly_interval_s
        return {
            "scenario": self.scenario,
            "values": dict(self.values),
            **structs.named(self, "tokens", "steps", "step_time_s", "accelerators"),
            **figures,
            "computing_gpu_hours": self.computing_hours,
            **structs.named(self, "goodput", "checkpoint_interval_s"),
            "daly_interval_s": daly if math.isfinite(daly) else None,
            "interruptions": self.interruptions,
            "usd_per_gpu_hour": None if self.rate is None else structs.asdict(self.rate),
            "fits_memory": self.fits,
            "fits_probability": self.fits_probability,
            "interval": {
                **{
                    name: None if value is None else [value * low, value * high]
                    for name, value in figures.items()
                },
                "level": 0.8,
                "basis": self.basis,
            },
            "warnings": list(self.warnings),
        }


def plan_training(
    result: Result,
    tokens: float,
    assumed: Assumptions,
    *,
    setting: Setting | None = None,
    without: str = "",
) -> Training:
    """Plan a training that repeats one simulated step.

    `setting`: what the interval of the step depends on, where less is known of it than a scenario
    says; the scenario's own when left out. `without`: developer whose trainings the interval does
    not know. ScenarioError if `tokens` is no number above 0.

    Notes
    -----
    ``days = ceil(tokens / tokens a step) x step time / goodput``; goodput is Daly's expectation at
    the interval between checkpoints that is practice, less the share of evaluation. Energy is that
    of the steps and, at the same power, of the rest of the days: a node that waits draws less, so
    it is an upper bound for lost time. The interval joins that of the step time with that of
    goodput under a third and three times the failures, as independent.
    """
    if not (math.isfinite(tokens) and tokens > 0):
        raise ScenarioError(f"tokens is {tokens!r}; needed a number above 0")
    summary, cluster = result.summary, result.plan.layout.cluster
    step = float(summary["step_time_s"])
    steps = math.ceil(tokens / (float(summary["tokens_per_s"]) * step) - 1e-9)
    reliability = Reliability.of(cluster, scale=assumed.failures, restart=assumed.restart)
    checkpoint = Checkpoint.of(
        result.plan.checkpoint_bytes,
        cluster.accelerators,
        storage=assumed.storage,
        in_background=assumed.background,
    )
    between = reliability.mean_time_between
    usual = usual_interval(checkpoint, between) if assumed.interval is None else assumed.interval
    interval = min(max(usual, checkpoint.lag), steps * step)
    evaluation = constants()["evaluation"]
    goodput = expected_share(reliability, checkpoint, interval) / (1 + evaluation)
    shares = [
        expected_share(reliability.failing(times), checkpoint, interval) / (1 + evaluation)
        for times in (1.0 / _APART, _APART)
    ]
    if goodput <= 0:
        raise ScenarioError(say("study.never_ends", name=result.scenario.name))
    days = steps * step / goodput / _DAY
    energy = assumed.facility.energy(summary["meter_parts_j"]) * steps / goodput
    rate = mean_rate(result, offer=assumed.offer, rates=assumed.rates)
    of = told(summary) if setting is None else setting
    known = residuals_of(of).interval(step, of)
    steady = (known.low / step, known.high / step)
    spread = _joined(steady, (goodput / shares[0], goodput / max(shares[1], _LEAST_SHARE)))
    others = known_trainings("allocation", without=without)
    return Training(
        scenario=result.scenario.name,
        values={},
        tokens=tokens,
        steps=steps,
        step_time_s=step,
        accelerators=int(summary["accelerators"]),
        goodput=goodput,
        checkpoint_interval_s=interval,
        daly_interval_s=daly_interval(checkpoint.blocking, between),
        interruptions=days * _DAY / between,
        computing_hours=steps * step * int(summary["accelerators"]) / _HOUR,
        days=days,
        rate=rate,
        energy_j=energy,
        carbon_kg=assumed.facility.emitted(energy),
        fits=bool(summary["fits_memory"]),
        fits_probability=summary.get("fits_probability"),
        spread=others.ends(spread),
        basis=say("study.plan_interval", basis=known.basis, trainings=others.trainings),
        computing_spread=known_trainings("computing", without=without).ends(steady),
        warnings=(*summary["warnings"], *([rate.beside] if rate and rate.beside else [])),
    )


def _joined(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Low and high factor of a product of two that are independent."""
    low, high = (math.hypot(math.log(x), math.log(y)) for x, y in zip(a, b, strict=True))
    return math.exp(-low), math.exp(high)


@structs.dataclass(frozen=True, slots=True, repr=False)
class Plans(Shown, Tabular):
    """Plans of the same training on different hardware or layouts."""

    rows: tuple[Training, ...]
    """In the order they were asked for."""
    failed: tuple[tuple[Mapping[str, object], str], ...] = ()
    """Combinations without a plan, and why."""
    deadline: float | None = None
    """Days that a plan may take."""
    budget: float | None = None
    """Dollars that it may cost."""
    interrupted: bool = False
    """Whether a KeyboardInterrupt left combinations out."""
    facility: str = ""
    """Assumed of the building and the grid, in words."""

    def meets(self, row: Training) -> bool:
        """Whether a plan fits into memory, the days and the dollars."""
        late = self.deadline is not None and row.days > self.deadline
        dear = self.budget is not None and (row.cost is None or row.cost > self.budget)
        return row.fits and not late and not dear

    def odds(self, row: Training) -> dict[str, float]:
        """Odds that a plan keeps the deadline and the budget, of those that are given."""
        limits = {"deadline": (self.deadline, row.days), "budget": (self.budget, row.cost)}
        low, high = row.spread
        return {
            name: Interval(low * value, high * value).odds(limit)
            for name, (limit, value) in limits.items()
            if limit is not None and value and low < high
        }

    @property
    def best(self) -> Training | None:
        """Fewest accelerators within the deadline, else the fastest; within the budget."""
        possible = [row for row in self.rows if self.meets(row)]
        if self.deadline is not None:
            return min(possible, key=lambda row: (row.accelerators, row.days), default=None)
        return min(possible, key=lambda row: row.days, default=None)

    @property
    def front(self) -> tuple[Training, ...]:
        """Plans that no other beats in days and dollars at once, the fastest first."""
        priced = [row for row in self.rows if row.fits and row.cost is not None]
        return front_of(priced, lambda row: (row.days, row.cost or 0.0))

    def table(self) -> list[dict[str, object]]:
        """One mapping a plan: its values, figures, and whether it is possible."""
        names = ("steps", "step_time_s", "accelerators", "days", "gpu_hours", "usd", "mwh", "tco2")
        return [
            {
                **row.values,
                **{name: figures[name] for name in (*names, "goodput", "fits_memory")},
                "possible": self.meets(row),
            }
            for row, figures in ((row, row.to_json()) for row in self.rows)
        ]

    def sheet(self) -> Sheet:
        """Plans side by side and the best in full, as ``mpsim plan`` prints them."""
        several = len(self.rows) > 1
        lead = self.best if several else next(iter(self.rows), None)
        whose = " of the best row" if several else ""
        words = {"facility": self.facility, "whose": whose}
        full = lead.sheet(**words, odds=self.odds(lead)) if lead else Sheet("", ())
        if not several:
            return full
        below = (structs.replace(part, title=full.title) for part in full.sections)
        return Sheet("", (self._side_by_side(), *below))

    def _side_by_side(self) -> Section:
        rows = tuple(
            (
                f"{row.accelerators:,}",
                f"{row.days:.1f}",
                f"{row.hours:,.0f}",
                "-" if row.cost is None else f"{row.cost / 1e6:,.2f}",
                f"{row.energy_j / _MWH:,.0f}",
                percent(row.goodput),
                ", ".join(
                    [
                        "yes" if self.meets(row) else "no",
                        *(f"{name} {percent(own)}" for name, own in self.odds(row).items()),
                    ]
                ),
                changed(row.values),
            )
            for row in self.rows
        )
        header = (
            *("accelerators", "days", "GPU-hours", "million USD", "MWh", "goodput", "possible"),
            "values",
        )
        return Section(rows, header, tuple(range(6)))

    def display(self) -> Drawable:
        """Days against dollars."""
        return chart("plan", self)

    def to_json(self) -> dict[str, object]:
        """Plain data: figures of the best plan, or the first if none is possible, and others."""
        lead = self.best or (self.rows[0] if self.rows else None)
        return {
            **(lead.to_json() if lead else {}),
            "possible": self.best is not None,
            "interrupted": self.interrupted,
            "rows": [
                {**row.to_json(), "possible": self.meets(row), "odds": self.odds(row)}
                for row in self.rows
            ],
            "failed": [{"values": dict(values), "error": why} for values, why in self.failed],
        }


def plan(
    scenario: Scenario,
    tokens: float,
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    assumed: Assumptions | None = None,
    deadline: float | None = None,
    budget: float | None = None,
    search: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plans:
    """Plan a training on one cluster or several.

    Parameters
    ----------
    over : mapping of str to sequence, optional
        Values by dotted key; every combination is planned.
    deadline : float, optional
        Days.
    budget : float, optional
        Dollars.
    search : float, optional
        Seconds of search for the best layout of every combination; when left out the scenario's own
        layout, what it does not write as `mpsim.study.usual` has it.
    progress : callable, optional
        Called with how many combinations are done, and how many there are.

    Raises ScenarioError: if an argument is out of range, or no combination can be planned. Raises
    KeyboardInterrupt: if nothing was planned until then; else what was is returned.
    """
    for name, value in (("deadline", deadline), ("budget", budget)):
        if value is not None and not value > 0:
            raise ScenarioError(f"{name} is {value!r}; needed a number above 0")
    assumed = assumed or Assumptions(facility=Facility.of())
    keys = dict(over or {})
    combinations = list(itertools.product(*keys.values()))
    if assumed.rates:
        sets = (dict(zip(keys, chosen, strict=True)) for chosen in combinations)
        check_rates(assumed.rates, _chips(scenario, sets))
    rows: list[Training] = []
    failed: list[tuple[Mapping[str, object], str]] = []
    try:
        for chosen in combinations:
            values = dict(zip(keys, chosen, strict=True))
            try:
                base = _base(scenario, values)
                laid, cut = _settled(base, keys) if search is None else _searched(base, search)
                result = simulate_step(base.with_values(laid))
                of = structs.replace(told(result.headline), guessed=len(laid.keys() & {*GUESSED}))
                row = plan_training(result, tokens, assumed, setting=of if search is None else None)
            except MpsimError as error:
                if len(combinations) == 1:
                    raise
                failed.append((values, str(error).partition("\n")[0]))
            else:
                said = (*cut, *row.warnings)
                rows.append(structs.replace(row, values={**values, **laid}, warnings=said))
            if progress:
                progress(len(rows) + len(failed), len(combinations))
    except KeyboardInterrupt:
        if not rows:
            raise
    interrupted = len(rows) + len(failed) < len(combinations)
    if not rows:
        raise ScenarioError(
            say("study.no_plan", name=scenario.name, count=len(failed), first=failed[0][1])
        )
    return Plans(tuple(rows), tuple(failed), deadline, budget, interrupted, assumed.facility.words)


def _base(scenario: Scenario, values: Mapping[str, object]) -> Scenario:
    """A combination, unchecked; another cluster has room for other replicas."""
    free = any(key.startswith("cluster.") for key in values) and "parallelism.dp" not in values
    laid = {"parallelism.dp": None, **values} if free else values
    return scenario.with_values(laid, checked=False) if values else scenario


def _chips(scenario: Scenario, combinations: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """The accelerator of each combination that has one; planning tells why others have none."""
    for values in combinations:
        with contextlib.suppress(MpsimError):
            yield _base(scenario, values).hardware.accelerator.name


def _settled(base: Scenario, over: Mapping[str, object]) -> tuple[Values, tuple[str, ...]]:
    """Values that the file leaves open, and a warning where rows that may differ are compared."""
    laid = usual(base)
    return laid, (say("study.settled", values=changed(laid)),) if laid and over else ()


def _searched(base: Scenario, seconds: float) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """The best layout of a search of so many seconds, and a warning if it was cut short."""
    from mpsim.study.search import search

    outcome = search(base, top=1, front=False, budget=seconds)
    values = outcome.chosen().values
    if outcome.complete:
        return values, ()
    cut = f"the search for a layout ended after {seconds:g} s; a longer one may find a better"
    return values, (cut,)


def changed(values: Mapping[str, object]) -> str:
    """Values by the last part of their keys, those that switch nothing on left out."""
    pairs = ((key.rpartition(".")[2], value) for key, value in values.items())
    return ", ".join(f"{name} {value}" for name, value in pairs if value not in (None, False))


def _lines(row: Training, facility: str) -> Iterator[tuple[str, str]]:
    accelerators = plural(row.accelerators, "accelerator")
    yield (
        "tokens",
        f"{_count(row.tokens)} in {plural(row.steps, 'step')} of {row.step_time_s:.4g} s",
    )
    yield "days", f"{_span(row, 'days')} on {accelerators}"
    computing = f"{row.computing_hours:,.0f} of them computing"
    yield "GPU-hours", f"{_span(row, 'gpu_hours')} of the allocation, {computing}"
    every = f"a checkpoint every {row.checkpoint_interval_s / _MINUTE:.3g} min"
    if row.interruptions:
        every += f" (Daly's optimum is {row.daly_interval_s / _MINUTE:.3g} min)"
    failures = f"{_number(row.interruptions)} interruptions"
    evaluation = f"evaluation {percent(constants()['evaluation'])} of computing"
    yield "goodput", f"{percent(row.goodput)}, {evaluation}, {failures}, {every}"
    yield "price", _price(row)
    if row.rate is not None and row.rate.offer == "spot":
        yield "", say("study.spot")
    if row.rate is not None:
        yield "", say("study.spares", share=constants()["spare_share"])
    yield "energy", f"{_span(row, 'mwh')} MWh at the meter"
    yield "CO2", f"{_span(row, 'tco2')} t, embodied carbon left out"
    if facility:
        yield "assumed", facility
    yield "interval", row.basis
    yield "trust", _trust(known_trainings("allocation"))
    odds = odds_words({"fits_probability": row.fits_probability})
    if not row.fits:
        yield "memory", f"does not fit: this plan cannot run{odds}"
    elif odds:
        yield "memory", f"fits{odds}"


def _trust(known: Known) -> str:
    whose = f"{known.trainings} published trainings of {known.developers} developers"
    side = "low" if known.bias < 0 else "high"
    errors = f"off by {percent(known.error)} on average, {percent(abs(known.bias))} too {side}"
    return f"GPU-hours of {whose}, planned from what they state, are {errors}"


def _price(row: Training) -> str:
    rate = row.rate
    if rate is None:
        return "no public price; give --prices FILE"
    each = f"{rate.usd_per_hour:.3g} USD an accelerator-hour, {rate.offer}"
    public = f"({rate.low:.3g} to {rate.high:.3g}; {rate.source})"
    return f"{_span(row, 'usd')} USD at {each} {public}"


def _span(row: Training, name: str) -> str:
    """A figure with its interval; the figure alone where none is known."""
    value = row.figures[name] or 0.0
    low, high = (value * factor for factor in row.spread)
    if low == high:
        return _number(value)
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.3g}"


def _count(value: float) -> str:
    """A count of tokens as people write it, such as 15.6T."""
    for unit, scale in _COUNTS:
        if value >= scale:
            return f"{value / scale:.4g}{unit}"
    return f"{value:,.0f}"


Hours = str
"""What the hours of a training contain: ``computing`` (its steps alone) or ``allocation``
(failures, restarts and lost work as well)."""

_LEVEL: Final = 0.8  # of the interval
_MEDIAN: Final = 0.5 - 1e-9  # share of the weight


class Known(NamedTuple):
    """Trainings whose hours were published, against their plans."""

    trainings: int
    developers: int
    # low, high: ends of the 80 % interval of ln(measured over planned hours), over the half-width
    # of what a plan knows of its steps and of what stops them
    low: float
    high: float
    error: float  # error, bias: mean absolute and mean error of the plans
    bias: float

    def ends(self, known: tuple[float, float]) -> tuple[float, float]:
        """Factors on hours between two ends: as much farther off as trainings were."""
        half = math.log(known[1] / known[0]) / 2
        return math.exp(self.low * half), math.exp(self.high * half)


@remembered(64)
def known_trainings(hours: Hours, *, without: str = "") -> Known:
    """Errors of plans of trainings that count such hours, those of one developer left out.

    Notes
    -----
    Logarithms of measured over planned hours have heavy tails; over the half-width of what each
    plan knew they are taken to follow a Laplace distribution about their median, whose scale is the
    mean absolute deviation. Every developer weighs the same, however many trainings it has
    published.
    """
    rows = [
        (str(row["developer"]), math.log(float(row["measured_over_planned"])), float(row["half"]))
        for row in read_shipped("mpsim.study.data", "trainings.yaml")["trainings"]
        if row["hours"] == hours and row["developer"] != without
    ]
    of = collections.Counter(developer for developer, *_ in rows)
    weighed = sorted((ln / known, 1.0 / of[name] / len(of)) for name, ln, known in rows)
    below = itertools.accumulate(weight for _, weight in weighed)
    centre = next(row[0] for row, share in zip(weighed, below, strict=True) if share >= _MEDIAN)
    scale = math.fsum(weight * abs(value - centre) for value, weight in weighed)
    half = -math.log(1.0 - _LEVEL) * scale
    errors = [math.expm1(-ln) for _, ln, _ in rows]
    return Known(
        trainings=len(rows),
        developers=len(of),
        low=centre - half,
        high=centre + half,
        error=math.fsum(map(abs, errors)) / len(errors),
        bias=math.fsum(errors) / len(errors),
    )
