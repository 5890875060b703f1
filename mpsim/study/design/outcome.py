"""The outcome of a design: every cluster with what its jobs do and cost, the Pareto front, and the chosen one with its odds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from mpsim.accessors import Drawable, chart
from mpsim.frame import Tabular, aligned, named
from mpsim.result.residuals import HALF_WIDTH
from mpsim.scenario.design import DesignChoice
from mpsim.sheet import Sheet, Shown
from mpsim.study.design.bill import Bill
from mpsim.study.design.explore import Values
from mpsim.study.journal import Entry
from mpsim.study.plan import changed
from mpsim.study.ties import Ratio, front_of, ratio_of
from mpsim.units import percent

_DAY_HOURS = 24.0
_PLACES = 200  # of the integral over the error of the chosen one


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One cluster."""

    values: Values  # of the choices, by dotted key
    # what the best layout of each job does; empty where it was ruled out before any search
    entries: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    bill: Bill = dataclasses.field(default_factory=Bill)
    accelerators: int = 0
    racks: int | None = None  # None where nobody says how many nodes a rack holds
    # bounds that it misses, and how many times over
    over: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""  # why it is no design; empty where it is one
    # what its trainings take at least, known before any search; 0 where nothing is
    least_days: float = 0.0

    @property
    def least_cost(self) -> float:
        """Cost of its trainings at least, power not counted [USD]; of services alone an hour of it [USD/h]."""
        bought = math.fsum(self.bill.hourly(0.0).values())
        return bought * (self.least_days * _DAY_HOURS if self.least_days else 1.0)

    def is_hopeless(self, front: Sequence[Option]) -> bool:
        """Whether one of a front is as fast and as cheap as this can be at best."""
        days, cost = self.least_days, self.least_cost
        return days > 0 and any(row.slowness <= days and row.cost <= cost for row in front)

    @property
    def name(self) -> str:
        """Its values in a few words."""
        return changed(self.values)

    @property
    def misses(self) -> str:
        """Bounds that it misses, and by how much."""
        return ", ".join(f"{name} by {percent(times - 1)}" for name, times in self.over.items())

    @property
    def possible(self) -> bool:
        """Whether it can run and keeps every bound, as far as anybody looked."""
        return bool(self.entries) and not self.reason and not self.over

    @property
    def trained(self) -> list[Entry]:
        """Entries of its trainings."""
        return [entry for entry in self.entries.values() if "days" in entry]

    @property
    def proved(self) -> bool:
        """Whether no layout of its jobs is better, which a search that was cut short cannot say."""
        return all(entry.get("proved", True) for entry in self.entries.values())

    @property
    def days(self) -> float | None:
        """Days until the last training ends; None without one."""
        return max((float(entry["days"]) for entry in self.trained), default=None)

    @property
    def rate(self) -> float | None:
        """Requests/s of all services within their limits; None without one."""
        rates = [float(entry["rate"]) for entry in self.entries.values() if "rate" in entry]
        return math.fsum(rates) if rates else None

    @property
    def power_w(self) -> float:
        """Power at the meter while the jobs run [W]."""
        return math.fsum(float(entry["power_w"]) for entry in self.entries.values())

    @property
    def parts(self) -> dict[str, float]:
        """Cost by part: of the trainings until the last ends [USD], of services alone an hour of them [USD/h]."""
        hours = 1.0 if self.days is None else self.days * _DAY_HOURS
        return {name: each * hours for name, each in self.bill.hourly(self.power_w).items()}

    @property
    def cost(self) -> float:
        """Sum of `parts`."""
        return math.fsum(self.parts.values())

    def doubt(self, other: Option) -> float:
        """Standard deviation of ln(cost over the other's) by prices: a part errs in both alike."""
        mine, theirs = self.parts, other.parts
        sizes = {**self.bill.doubts, **other.bill.doubts}
        shares = {
            name: mine.get(name, 0.0) / self.cost - theirs.get(name, 0.0) / other.cost
            for name in sizes
        }
        return math.hypot(*(shares[name] * size for name, size in sizes.items()))

    @property
    def hourly(self) -> float:
        """Cost of an hour [USD/h]."""
        return math.fsum(self.bill.hourly(self.power_w).values())

    @property
    def slowness(self) -> float:
        """Days, or seconds a request of services alone: what a faster one has less of."""
        return self.days if self.days is not None else 1.0 / max(self.rate or 0.0, 1e-300)

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high days over the predicted ones, of the training that ends last."""
        last = max(self.trained, key=lambda entry: float(entry["days"]), default=None)
        return (1.0, 1.0) if last is None else (last["spread"][0], last["spread"][1])

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        names = ("accelerators", "racks", "days", "power_w", "reason")
        ends = None if self.days is None else [self.days * end for end in self.spread]
        return {
            "values": dict(self.values),
            **named(self, *names),
            "cost_usd" if self.trained else "cost_usd_per_h": self.cost,
            "capital_usd": self.bill.capital,
            "usd_per_h": self.hourly,
            "requests_per_s": self.rate,
            "interval": {"days": ends, "level": 0.8},
            "parts_usd": self.parts,
            "over": dict(self.over),
            **named(self, "misses", "possible"),
            "jobs": dict(self.entries),
        }


def beats(a: Option, b: Option) -> Ratio | None:
    """How many times faster b is than a, with its interval; None where nothing is known of their errors."""
    if not (a.trained and b.trained):
        return None
    # errors that both share cancel in the time of their own steps; sizes and goodput are as planned
    ratio = ratio_of(a.trained[0], b.trained[0], "tokens_per_s_per_accelerator")
    if ratio is None:
        return None
    value, low, high = a.slowness / b.slowness, ratio.low / ratio.value, ratio.high / ratio.value
    return Ratio(value, value * low, value * high)


class Upgrade(NamedTuple):
    """One change to the chosen cluster: what it makes faster, and what it costs more, each as a share; None where nobody says what it costs."""

    name: str
    faster: float
    dearer: float | None
    worth_usd: float
    """Price of an accelerator's part of it up to which a token gets no dearer [USD, or USD/h of rent]."""


class Flip(NamedTuple):
    """Change that would make another cluster as good as the chosen one: a price or a time, times so much."""

    name: str
    times: float
    instead: str


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)  # no slots: the front is kept
class Design(Shown, Tabular):
    """Answer of a design study."""

    scenario: str
    spec: DesignChoice
    options: tuple[Option, ...]  # every cluster that was looked at, in the order of the choices
    # clusters that no search looked at: even at the best rate of their accelerators another one is
    # faster and cheaper
    ruled_out: int = 0
    # upgrades, flips: of the chosen one
    upgrades: tuple[Upgrade, ...] = ()
    flips: tuple[Flip, ...] = ()
    # constants that nobody measured on its hardware, the heaviest first
    rests: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    interrupted: bool = False

    @functools.cached_property
    def possible(self) -> tuple[Option, ...]:
        """Options that can run and keep every bound."""
        return tuple(row for row in self.options if row.possible)

    @functools.cached_property
    def front(self) -> tuple[Option, ...]:
        """Options that no other beats in cost and in days, or in requests/s, at once; the cheapest first."""
        return front_of(self.possible, lambda row: (row.cost, row.slowness))

    @property
    def by(self) -> str:
        """Figure of which the chosen one has least: ``days`` (or seconds a request) where money, power or racks are bounded and no job says what is enough, else ``cost``."""
        limits = self.spec.bounds.model_dump(exclude_none=True).keys() - {"rack_power"}
        asked = any(job.deadline or job.rate for job in self.spec.jobs.values())
        return "days" if limits and not asked else "cost"

    @functools.cached_property
    def ranking(self) -> list[Option]:
        """Possible options, the best first."""
        return sorted(self.possible, key=self.score)

    @functools.cached_property
    def rivals(self) -> list[Option]:
        """Possible options that are not hopeless, the best first: those that are not depend on what was looked at."""
        ranking, front = self.ranking, self.front
        return [*ranking[:1], *(row for row in ranking[1:] if not row.is_hopeless(front))]

    def score(self, option: Option) -> float:
        """Figure of which the best has least."""
        return option.cost if self.by == "cost" else option.slowness

    @property
    def best(self) -> Option | None:
        """The chosen one; None where nothing is possible."""
        return next(iter(self.ranking), None)

    @property
    def nearest(self) -> Option | None:
        """The one that misses its bounds by least, where nothing keeps them."""
        near = [row for row in self.options if row.over and not row.reason]
        return min(near, key=lambda row: max(row.over.values()), default=None)

    def lead(self, option: Option, over: Option) -> float | None:
        """Odds that an option is better than another, by the intervals of their difference in time
        and, where cost decides, of prices; None where nothing is known, or the other's search was
        cut short.
        """
        ratio = beats(over, option)
        if ratio is None or not over.proved:
            return None
        time = math.log(ratio.high / ratio.low) / (2.0 * HALF_WIDTH)
        sigma = math.hypot(time, option.doubt(over) if self.by == "cost" else 0.0)
        lead = math.log(self.score(over) / self.score(option))
        return NormalDist().cdf(lead / sigma) if sigma else None

    @property
    def odds(self) -> float | None:
        """Odds that the chosen one is the best of its rivals; None where those over another are not known.

        Notes
        -----
        Errors of differences to the chosen one share its own error, half of their variance: P = E over z of prod_j Phi((d_j - z) sqrt 2), where d_j
        is the lead over j in halves of its sigma; the mean is over equally likely z.
        """
        ranking, normal, half = self.rivals, NormalDist(), math.sqrt(0.5)
        known = [lead for row in ranking[1:] if (lead := self.lead(ranking[0], row)) is not None]
        if not known or len(known) < len(ranking) - 1:
            return None
        tops = [normal.inv_cdf(min(max(lead, 1e-12), 1 - 1e-12)) for lead in known]
        places = [half * normal.inv_cdf((n + 0.5) / _PLACES) for n in range(_PLACES)]
        chances = [math.prod(normal.cdf((top - z) / half) for top in tops) for z in places]
        return math.fsum(chances) / _PLACES

    def table(self) -> list[dict[str, object]]:
        """One mapping an option: values, figures, layouts, whether it is on the front."""
        rows: list[dict[str, object]] = []
        for row in self.options:
            plain = {
                key: value for key, value in row.to_json().items() if not isinstance(value, dict)
            }
            layouts = {f"{job}.layout": entry.get("name") for job, entry in row.entries.items()}
            marks = {"front": row in self.front, "chosen": row is self.best}
            rows.append({**row.values, **plain, **layouts, **marks})
        return aligned(rows)

    def display(self) -> Drawable:
        """Front, flips and upgrades."""
        return chart("design", self)

    def sheet(self) -> Sheet:
        """The chosen one, the front, and what would change it, as ``mpsim design`` prints them."""
        from mpsim.study.design.words import sheet_of

        return sheet_of(self)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        best = self.best
        leads = [None if best in (None, row) else self.lead(best, row) for row in self.front]
        front = zip(self.front, leads, strict=True)
        return {
            "scenario": self.scenario,
            "chosen": None if best is None else best.to_json(),
            "by": self.by,
            "p_best": self.odds,
            "front": [{**row.to_json(), "p_chosen_is_better": lead} for row, lead in front],
            "upgrades": [upgrade._asdict() for upgrade in self.upgrades],
            "flips": [flip._asdict() for flip in self.flips],
            "rests_on": list(self.rests),
            "ruled_out": self.ruled_out,
            "interrupted": self.interrupted,
            "remarks": list(self.remarks),
            "rows": [row.to_json() for row in self.options],
        }
