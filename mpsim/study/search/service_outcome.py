"""The outcome of a search of services: what was simulated, ranked, and what became of the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from mpsim import structs
from mpsim.result.words import Figures
from mpsim.shipped import say
from mpsim.study.rows import column_of, figure_of, warned
from mpsim.study.search.outcome import WORDS, Outcome, shown
from mpsim.study.ties import front_of
from mpsim.table import Section, Sheet, plural
from mpsim.units import percent

FEWEST = ("gpus", "cost")
"""Objectives of which less is better: the fewest instances within the limits are found."""

SERVICE_OBJECTIVES = WORDS["service_objectives"]
"""What the best service has most of, or least where it is a cost."""

SERVICE_REASONS = WORDS["service_reasons"]
"""What can become of a layout, in words."""


_UNITS = WORDS["service_units"]
_NEAR = 0.04
"""Difference that streams of this length do not tell apart: the interval of a confirmed rate."""


@structs.dataclass(frozen=True, slots=True, repr=False)
class FoundService:
    """One simulated service."""

    values: Mapping[str, object]  # by dotted key
    objective: float  # as simulated, in the unit of the objective
    bound: float  # what was known before: it is no better than this
    accelerators: int
    price_per_hour: float | None  # of these accelerators [USD/h]
    # None where only short streams have judged it: `objective` is then a bound, not surely kept
    meets_slo: bool | None
    summary: Figures  # in the shape of ``mpsim run --json``; of the objective ``rate`` at that rate
    # of the objective ``rate``: the smallest tried one that does not keep the limits for long [1/s]
    above: float | None = None

    @property
    def name(self) -> str:
        """The layout in a few words."""
        return ", ".join(_words(self.values))

    @property
    def kind(self) -> str:
        """Way to divide an instance: ``pools``, ``attention DP``, ``EP``, ``PP`` or ``TP``."""
        if any(key.startswith("serving.disaggregated") for key in self.values):
            return "pools"
        kinds = {"serving.attention_dp": "attention DP", "parallelism.ep": "EP"} | {
            "parallelism.pp": "PP"
        }
        return next((kind for key, kind in kinds.items() if self.values.get(key, 1) != 1), "TP")

    @property
    def steady(self) -> bool:
        """Whether its figures hold for a longer stream, too."""
        return bool(self.summary["steady_state"]["reached"])

    @property
    def misses(self) -> bool:
        """Whether it is known to miss the limits."""
        return self.meets_slo is False

    @property
    def verdict(self) -> str:
        """Whether the limits are kept, and in a steady state."""
        if self.meets_slo is None:
            return "not confirmed"
        return ("kept" if self.meets_slo else "MISSED") + ("" if self.steady else ", not steady")

    @property
    def per_user(self) -> float:
        """Output tokens/s of a user; 0 where no request has two tokens."""
        return float(self.summary["output_tokens_per_s_per_user"] or 0.0)

    @property
    def per_accelerator(self) -> float:
        """Output tokens/s of an accelerator."""
        return float(self.summary["output_tokens_per_s_per_accelerator"])

    @property
    def figures(self) -> tuple[str, str]:
        """Its speed for a user and on an accelerator, as tables have them."""
        return f"{self.per_user:.4g}", f"{self.per_accelerator:.4g}"

    def __repr__(self) -> str:
        limits = "keeps" if self.meets_slo else "misses"
        rates = f"{self.per_user:.4g} tokens/s a user, {self.per_accelerator:.4g} an accelerator"
        return f"<FoundService {self.name}: {rates}, {limits} the limits>"

    def flat(self) -> dict[str, object]:
        """Values and figures in one mapping, units in the names."""
        known = [f"{name}_s.{which}" for name in ("ttft", "tpot") for which in ("mean", "p99")]
        latencies = {column_of(name): figure_of(self.summary, name) for name in known}
        names = (
            *("output_tokens_per_s", "output_tokens_per_s_per_accelerator"),
            *("output_tokens_per_s_per_user", "goodput_per_s", "requests_within_slo"),
            *("cost_per_million_output_tokens", "energy_j_per_output_token"),
        )
        return {
            "layout": self.name,
            "objective": self.objective,
            "bound": self.bound if math.isfinite(self.bound) else None,
            **structs.named(self, "accelerators", "price_per_hour", "meets_slo", "steady", "above"),
            **latencies,
            **{name: self.summary[name] for name in names},
        }


@structs.dataclass(frozen=True, slots=True)
class Own:
    """Result of the file's own layout, or why it cannot be used."""

    row: FoundService | None
    reason: str


@structs.dataclass(frozen=True, slots=True, repr=False)
class ServiceSearch(Outcome[FoundService]):
    """Outcome of a search of services, those that keep the limits first; `own`: the file's."""

    reasons = SERVICE_REASONS
    own: Own = structs.field(default_factory=lambda: Own(None, ""))

    def sheet(self, *, front: bool = True, long: bool = False) -> Sheet:
        """The best in ten lines and a `front`, or with `long` the ranking, of ``search``."""
        points = self.front if long else shown(self.front, lambda row: row.per_user)
        leading = (self._front_section(points),) if front and len(points) > 1 else ()
        if not long:
            if self.objective in FEWEST:
                best = {row.kind: row for row in reversed(self.rows)}
                kinds = dict(sorted(best.items(), key=lambda item: self.rows.index(item[1])))
                leading = (_table(kinds, self.objective),)
            return Sheet("", (Section(lines=tuple(_answer(self))), *leading))
        numbered = {str(n): row for n, row in enumerate(self.leaders, start=1)}
        ranking = _table(numbered, self.objective)
        title = plural(self.looked_at, "layout")
        title += "" if self.complete else "; not all were looked at"
        why = () if self.leaders else (self.why_nothing,)
        others = Section(self.tally, right=(0,), title=title, lines=why)
        return Sheet(
            f"{self.scenario}: {SERVICE_OBJECTIVES[self.objective]}", (ranking, *leading, others)
        )

    def _front_section(self, points: Sequence[FoundService]) -> Section:
        some = "" if len(points) == len(self.front) else f"; {len(points)} of {len(self.front)}"
        return Section(
            tuple((str(n), *row.figures, row.name) for n, row in enumerate(points, start=1)),
            ("#", "tokens/s/user", "tokens/s/acc.", "layout"),
            (0, 1, 2),
            title=say("study.service_front", some=some),
        )

    @property
    def best(self) -> FoundService | None:
        """The best service; None if none keeps the limits."""
        return next((row for row in self.rows if not row.misses), None)

    @property
    def front(self) -> tuple[FoundService, ...]:
        """Simulated services that no other beats in tokens/s of a user and of an accelerator at
        once, the fastest for users first.

        A rate at which a service misses its limits is no point of it.
        """
        points = [row for row in self.rows if row.summary["slo"]["met"] or row.above is None]
        return front_of(points, lambda row: (-row.per_user, -row.per_accelerator))

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "scenario": self.scenario,
            "job": "serving",
            **structs.named(self, "objective", "top", "complete", "interrupted"),
            "layouts": self.looked_at,
            "counts": dict(self.counts),
            "rows": [
                {**structs.asdict(row), "bound": row.flat()["bound"], "name": row.name}
                for row in self.leaders
            ],
            "front": [row.flat() for row in self.front],
            "own": {"reason": self.own.reason, "row": self.own.row and self.own.row.flat()},
        }


def _answer(search: ServiceSearch) -> Iterator[str]:
    """First lines of a search: the best, how it compares, and what was looked at."""
    if best := search.best:
        yield f"best: {best.name}"
        yield from _said(search.objective, best)
        yield from _beside(search, best)
    elif search.rows:
        yield f"none keeps the limits; nearest: {search.rows[0].name}"
    looked = plural(search.looked_at, "layout")
    proof = "no other can be better" if search.complete else "not all were looked at"
    yield f"{looked}: {search.counted}; {proof}"
    yield from warned({"": best.summary["warnings"]} if best else {})


def _said(objective: str, row: FoundService) -> Iterator[str]:
    """Figures of a service in two lines."""
    flat = row.flat()
    cost = flat["cost_per_million_output_tokens"]
    priced = isinstance(cost, float) and objective != "cost"
    figure = f"{_figure(row)} {_UNITS[objective]} on " if objective != "gpus" else ""
    yield (
        f"  {figure}{plural(row.accelerators, 'accelerator')}"
        f"{f', {cost:.4g} USD/Mtoken' if priced else ''}; limits {row.verdict}"
    )
    ttft, tpot = (_milli(flat[f"{name}_p99_s"]) for name in ("ttft", "tpot"))
    user, each = row.figures
    yield f"  TTFT p99 {ttft} ms, TPOT p99 {tpot} ms; {user} tokens/s a user, {each} an accelerator"


def _beside(search: ServiceSearch, best: FoundService) -> Iterator[str]:
    """Gain of the best over the file's own layout, why the second loses, and who is as good."""
    if (own := search.own.row) is not None:
        limits = ", which misses the limits" if own.misses else ""
        against = percent(own.objective / best.objective - 1, signed=True)
        mine, other = (score_of(search.objective, row.objective) for row in (own, best))
        of = " of what was searched" if mine < other else ""
        yield (
            f"the file's own layout: {_figure(own)} {_UNITS[search.objective]}{limits}, {against}"
            f" against the best{of}"
        )
    elif search.own.reason:
        yield f"the file's own layout: {search.own.reason}"
    others = [row for row in search.rows if row is not best]
    if others:
        second = others[0]
        gaps = [f"{_UNITS[search.objective]} {_gap(second.objective, best.objective)}"]
        for name in ("ttft_p99_s", "tpot_p99_s"):
            took, least = second.flat()[name], best.flat()[name]
            if isinstance(took, float) and isinstance(least, float):
                gaps.append(f"{name[:4].upper()} p99 {_gap(took, least)}")
        yield f"second against best: {', '.join(gaps)} ({second.name}; limits {second.verdict})"
    reach = _NEAR * abs(best.objective)
    near = [
        row for row in others if not row.misses and abs(row.objective - best.objective) <= reach
    ]
    if near and reach:
        fewest = min(near, key=lambda row: row.accelerators)
        lean = f"; {fewest.name} on {fewest.accelerators}"
        lean *= fewest.accelerators < best.accelerators
        number = f"{len(near)} of {len(search.rows)} simulated {'are' if near[1:] else 'is'}"
        yield f"no clear winner: {number} within {percent(_NEAR)} of the best{lean}"


def _gap(value: float, reference: float) -> str:
    return percent(value / reference - 1, signed=True) if reference else "-"


def score_of(objective: str, figure: float) -> float:
    """A figure of an objective such that less is better."""
    return figure if objective in FEWEST else -figure


def _words(values: Mapping[str, object]) -> Iterator[str]:
    """Short names and values, what is 1 left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            shape = " ".join(_words({k: v for k, v in value.items() if k != "replicas"})) or "tp 1"
            yield f"{value['replicas']} {key.rpartition('.')[2]} x ({shape})"
            continue
        short = _SHORT.get(key.rpartition(".")[2], key.rpartition(".")[2])
        if value != 1 or short == "tp":
            yield f"{short} {value}"


_SHORT = {"attention_dp": "dp", "max_tokens": "budget"}


def _table(rows: Mapping[str, FoundService], objective: str) -> Section:
    """Services by a number or a kind."""
    headings = (
        *("#", objective, "TTFT p99 (ms)", "TPOT p99 (ms)", "tokens/s/user"),
        *("tokens/s/acc.", "USD/Mtoken", "acc.", "limits", "layout"),
    )
    lines = tuple((name, *_line(row)) for name, row in rows.items())
    return Section(lines, headings, tuple(range(8)))


def _line(row: FoundService) -> tuple[str, ...]:
    flat = row.flat()
    cost = flat["cost_per_million_output_tokens"]
    return (
        _figure(row),
        _milli(flat["ttft_p99_s"]),
        _milli(flat["tpot_p99_s"]),
        *row.figures,
        f"{cost:.4g}" if isinstance(cost, float) else "-",
        str(row.accelerators),
        row.verdict,
        row.name,
    )


def _figure(row: FoundService) -> str:
    """The objective, with the interval that holds it; of what is not confirmed its bound."""
    if row.above is None:
        return f"{row.objective:.5g}" if row.meets_slo is not None else f">= {row.objective:.5g}"
    if row.meets_slo is None:
        return f"< {row.above:.5g}"
    return f"{row.objective:.5g} to {row.above:.5g}"


def _milli(seconds: object) -> str:
    return f"{seconds * 1e3:.4g}" if isinstance(seconds, float) else "-"
