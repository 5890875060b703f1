"""The outcome of a design: clusters with what jobs do and cost, front, choice and odds."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

from mpsim import structs
from mpsim.accessors import Drawable, chart
from mpsim.frame import Tabular, aligned
from mpsim.result.residuals import HALF_WIDTH, Interval
from mpsim.scenario.design import DesignChoice
from mpsim.study.design.option import Option, beats
from mpsim.study.journal import Entry
from mpsim.study.search.outcome import shown
from mpsim.study.ties import front_of
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.units import Dimension, format_quantity, percent

_MOST = 10  # lines of the front
_TOLD = 3  # flips and constants
_DAY = 86400.0  # [s]
_PLACES = 200  # of the integral over the error of the chosen one


class Upgrade(NamedTuple):
    """One change to the chosen cluster: how much faster and dearer; None where nobody says."""

    name: str
    faster: float
    dearer: float | None
    worth_usd: float
    """Price of an accelerator's part up to which a token gets no dearer [USD, USD/h of rent]."""


class Flip(NamedTuple):
    """Change that makes another cluster as good as the chosen: a price or time, so many times."""

    name: str
    times: float
    instead: str


@structs.dataclass(frozen=True, repr=False, kw_only=True)  # no slots: the front is kept
class Design(Shown, Tabular):
    """Answer of a design study."""

    scenario: str
    spec: DesignChoice
    options: tuple[Option, ...]  # every cluster that was looked at, in the order of the choices
    # clusters no search looked at, beaten even at the best rate of their accelerators
    ruled_out: int = 0
    # upgrades, flips: of the chosen one
    upgrades: tuple[Upgrade, ...] = ()
    flips: tuple[Flip, ...] = ()
    # constants that nobody measured on its hardware, the heaviest first
    rests: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    caveat: str = ""  # what the choice itself hangs on
    interrupted: bool = False

    @functools.cached_property
    def possible(self) -> tuple[Option, ...]:
        """Options that can run and keep every bound."""
        return tuple(row for row in self.options if row.possible)

    @functools.cached_property
    def front(self) -> tuple[Option, ...]:
        """Options that no other beats in cost and days (or requests/s) at once, cheapest first."""
        return front_of(self.possible, lambda row: (row.cost, row.slowness))

    @property
    def by(self) -> str:
        """Figure of which the chosen one has least: ``days`` (or seconds a request) where money,
        power or racks are bounded and no job says what is enough, else ``cost``.
        """
        limits = self.spec.bounds.model_dump(exclude_none=True).keys() - {"rack_power"}
        asked = any(job.deadline or job.rate for job in self.spec.jobs.values())
        return "days" if limits and not asked else "cost"

    @functools.cached_property
    def ranking(self) -> list[Option]:
        """Possible options, the best first."""
        return sorted(self.possible, key=self.score)

    @functools.cached_property
    def rivals(self) -> list[Option]:
        """Possible options that are not hopeless, best first: others depend on the looks."""
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
        and, where cost decides, of prices, with the layouts that were found; None where nothing is
        known.
        """
        ratio = beats(over, option)
        if ratio is None:
            return None
        time = math.log(ratio.high / ratio.low) / (2.0 * HALF_WIDTH)
        sigma = math.hypot(time, option.doubt(over) if self.by == "cost" else 0.0)
        lead = math.log(self.score(over) / self.score(option))
        return NormalDist().cdf(lead / sigma) if sigma else None

    @property
    def odds(self) -> float | None:
        """Odds that the chosen one is the best of its rivals, or None.

        Notes
        -----
        Errors of differences to the chosen one share its own error, half of their variance: P = E
        over z of prod_j Phi((d_j - z) sqrt 2), where d_j is the lead over j in halves of its sigma;
        the mean is over equally likely z.
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
            plain = {key: own for key, own in row.to_json().items() if not isinstance(own, dict)}
            layouts = {f"{job}.layout": entry.get("name") for job, entry in row.entries.items()}
            marks = {"front": row in self.front, "chosen": row is self.best}
            rows.append({**row.values, **plain, **layouts, **marks})
        return aligned(rows)

    def display(self) -> Drawable:
        """Front, flips and upgrades."""
        return chart("design", self)

    def sheet(self) -> Sheet:
        """The chosen one, the front, and what would change it, as ``mpsim design`` prints them."""
        sections = [Section(lines=tuple(_answer(self)))]
        if self.front:
            sections.append(_front(self))
        if self.upgrades:
            sections.append(_upgrades(self))
        return Sheet("", (*sections, Section(lines=tuple(_below(self)))))

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
            "remarks": [*filter(None, [self.caveat]), *self.remarks],
            "rows": [row.to_json() for row in self.options],
        }


def _answer(design: Design) -> Iterator[str]:
    best = design.best
    if best is None:
        runs = any(not row.reason for row in design.options)
        yield "no cluster keeps every bound" if runs else "no layout was found on any cluster"
        if near := design.nearest:
            yield f"  the nearest, {near.name}, misses {near.misses}"
        yield from (f"  {row.name}: {row.reason}" for row in design.options[:_TOLD] if row.reason)
        return
    least = "cheapest" if design.by == "cost" else "fastest"
    odds = "" if design.odds is None else f"; the best with odds of {percent(design.odds)}"
    if odds and not all(row.proved for row in design.rivals):
        odds += ", by the layouts found"
    yield f"{least} that keeps every bound: {best.name}{odds}"
    if design.caveat:
        yield f"  {design.caveat}"
    yield f"  {_figures(best)}"
    yield f"  {_taken(best)}"
    for job, entry in best.entries.items():
        yield f"  {job}: {entry['name']}{_in_time(entry, design.spec.jobs[job].deadline)}"


def _in_time(entry: Entry, deadline: float | None) -> str:
    """The odds that a training keeps its deadline, in words; none without one."""
    if deadline is None:
        return ""
    low, high = (end * float(entry["days"]) * _DAY for end in entry["spread"])
    return f"; within its deadline with odds of {percent(Interval(low, high).odds(deadline))}"


def _figures(row: Option) -> str:
    """Days or requests/s, and dollars, with their intervals."""
    hour = f"{row.hourly:,.4g} USD/h"
    served = "" if row.rate is None else f"{row.rate:.4g} requests/s, "
    if row.days is None:
        return served + hour
    (early, late), (low, high) = (
        [each * end for end in row.spread] for each in (row.days, row.cost)
    )
    days = f"{row.days:.3g} days (80 %: {early:.3g} to {late:.3g})"
    return f"{days}, {served}{row.cost:,.0f} USD ({low:,.0f} to {high:,.0f}), {hour}"


def _taken(row: Option) -> str:
    capital = row.bill.capital
    words = [plural(row.accelerators, "accelerator")]
    words += [] if capital is None else [f"{capital:,.0f} USD of capital"]
    words += [f"{format_quantity(row.power_w, Dimension.POWER)} at the meter"]
    words += [] if row.days is None else ["nodes that stand by in no price"]
    return ", ".join(words + ([] if row.racks is None else [plural(row.racks, "rack")]))


def _front(design: Design) -> Section:
    front, best = design.front, design.best
    points = front if len(front) <= _MOST else shown(front, lambda row: row.slowness)
    unit = "USD" if any(row.days is not None for row in front) else "USD/h"
    rows = tuple(
        (
            f"{row.cost:,.0f}",
            f"{row.slowness:.3g}" if row.days is not None else f"{row.rate or 0.0:.4g}",
            "-" if row.days is None else " - ".join(f"{row.days * end:.3g}" for end in row.spread),
            "-" if row.bill.capital is None else f"{row.bill.capital / 1e6:,.2f}",
            f"{row.power_w / 1e3:,.0f}",
            _verdict(design, row),
            row.name,
        )
        for row in points
    )
    speed = "days" if unit == "USD" else "requests/s"
    header = (unit, speed, "80 % between", "capital (MUSD)", "kW", "against the chosen", "cluster")
    some = "" if len(points) == len(front) else f"; {len(points)} of {len(front)}"
    title = f"Pareto front: no other is cheaper and faster{some}"
    note = _left(design)
    return Section(rows, header, tuple(range(5)), title, (note,) if note and best else ())


def _verdict(design: Design, row: Option) -> str:
    best = design.best
    if best is None or row is best:
        return "chosen"
    ratio, lead = beats(best, row), design.lead(best, row)
    if ratio is None or lead is None:
        return "-"
    tie = "tie in speed, " if ratio.tie else ""
    return f"{tie}worse with odds of {percent(lead)}"


def _left(design: Design) -> str:
    """Count of what is not on the front."""
    looked = len(design.options)
    wrong = sum(bool(row.reason) for row in design.options)
    over = sum(bool(row.over) for row in design.options)
    words = [f"{plural(looked, 'cluster')}: {len(design.possible)} possible"]
    words += [f"{over} over a bound"] * bool(over)
    words += [f"{wrong} without a layout"] * bool(wrong)
    if design.ruled_out:
        words.append(f"{design.ruled_out} ruled out at the best rate of their accelerators")
    return ", ".join(words)


def _upgrades(design: Design) -> Section:
    rent = design.spec.money.basis == "rent"
    rows = tuple(
        (
            upgrade.name,
            percent(upgrade.faster, signed=True),
            "no price" if upgrade.dearer is None else percent(upgrade.dearer, signed=True),
            f"{upgrade.worth_usd:,.3g}" if rent else f"{upgrade.worth_usd:,.0f}",
        )
        for upgrade in design.upgrades
    )
    unit = "USD/h" if rent else "USD"
    header = ("upgrade of the chosen one", "throughput", "cost", f"may cost more ({unit} an acc.)")
    return Section(rows, header, (1, 2, 3), "each with its own best layout")


def _below(design: Design) -> Iterator[str]:
    reasons = {row.reason.split("\n")[0]: row.name for row in reversed(design.options)}
    if design.best is not None:
        told = [f"without a layout: {name}: {why}" for why, name in reasons.items() if why]
        yield from told[::-1][:_TOLD]
    for flip in design.flips[:_TOLD]:
        yield f"with {flip.name} x {flip.times:.3g} as good: {flip.instead}"
    if design.rests:
        yield f"rests on what nobody measured on this hardware: {'; '.join(design.rests[:_TOLD])}"
    yield from design.remarks
