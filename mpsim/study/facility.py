"""From accelerators to the meter and the bill: prices of an hour, PUE, carbon of the grid."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from mpsim import structs
from mpsim.document import read_document
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.hardware import GIVEN, Accelerator, Cluster, accelerator_names, source_of
from mpsim.result import Result
from mpsim.result.figures import mean_over_accelerators, meter_constants
from mpsim.result.words import Figures
from mpsim.scenario.fields import PriceRate
from mpsim.shipped import read_shipped, say
from mpsim.table import plural
from mpsim.units import Dimension, parse_quantity

OFFERS = ("on-demand", "spot", "reserved-1y", "reserved-3y", "block")
"""Kinds of offers: by the hour, withdrawn at any time, for one or three years, by days."""
_PACKAGE = "mpsim.study.data"
_MOST = 1e9  # kg of carbon a kWh, or PUE: more is a slip


@structs.dataclass(frozen=True, slots=True)
class Rate:
    """Price of one accelerator for an hour."""

    usd_per_hour: float  # level of the chip on demand, median of other offers
    low: float  # low, high: range of the offers
    high: float
    offer: str  # one of `OFFERS`, or ``scenario`` or ``file`` where a user says it
    source: str  # providers and dates, or the file
    # words on what was asked for or stated and does not count; empty where nothing was
    beside: str = ""

    @property
    def told(self) -> tuple[str, ...]:
        """Words on what was asked of it and does not count, in the keys of a design."""
        spot = (say("study.spot"),) if self.offer == "spot" else ()
        words = self.beside.replace("--offer", "design.money.offer")
        return (*spot, *((words.replace("--prices", "design.prices"),) if words else ()))

    @property
    def doubt(self) -> float:
        """Standard deviation of ln(price) of an offer; 0 where a user says it."""
        own = self.offer in ("scenario", "file")
        return 0.0 if own else float(read_shipped(_PACKAGE, "prices.yaml")["spread"])


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """The room around the accelerators."""

    pue: float  # PUE of the site: energy of the facility over that of its computers, a yearly mean
    carbon: float  # of the grid, its location-based mean [kgCO2e/kWh]
    words: str  # which of them were assumed

    @classmethod
    def of(cls, *, pue: str | None = None, region: str | None = None) -> Facility:
        """The facility of an operator and a region.

        `pue`: a number of at least 1, or an operator of ``meter.yaml``. `region`: a region or a
        country of ``facility.yaml``, or a number [kgCO2e/kWh]. ScenarioError for an unknown name or
        a number out of range.
        """
        effectiveness, operator = _choice("pue", pue, meter_constants()["pue"], least=1.0)
        carbon, place = _choice(
            "region", region, read_shipped(_PACKAGE, "facility.yaml")["grid"], least=0.0
        )
        return cls(
            pue=effectiveness,
            carbon=carbon,
            words=f"PUE {effectiveness:g} ({operator}), grid {carbon:g} kgCO2e/kWh ({place})",
        )

    def energy(self, parts: Mapping[str, float]) -> float:
        """Energy at the meter [J] of ``meter_parts_j`` of a summary, with this facility's PUE."""
        inside = math.fsum(energy for name, energy in parts.items() if name != "facility")
        return inside * self.pue

    def emitted(self, meter_j: float) -> float:
        """Carbon of energy at the meter, embodied carbon left out [kgCO2e]."""
        return meter_j / 3.6e6 * self.carbon


def _choice(key: str, given: str | None, known: Figures, *, least: float) -> tuple[float, str]:
    """A number as given, or that of a name of the data file, and what to call it."""
    values: Mapping[str, float] = known["values"]
    name = str(known["default"]) if given is None else given.strip().lower()
    if name in values:
        return float(values[name]), f"{name}{', assumed' if given is None else ''}"
    try:
        number = float(name)
    except ValueError:
        near = nearest(name, tuple(values))
        raise ScenarioError(f"{key}: got {given!r}; {near}, or a number") from None
    if not least <= number <= _MOST:
        raise ScenarioError(f"{key}: got {given}; needed a number from {least:g} to {_MOST:g}")
    return number, "given"


def rate_of(
    cluster: Cluster, *, offer: str = "on-demand", rates: Mapping[str, float] | None = None
) -> Rate | None:
    """Price of an accelerator of a cluster. `offer`: one of `OFFERS`. `rates`: a user's own, by
    accelerator [USD/h]; they win. ScenarioError for an unknown kind of offer.

    Returns: None where nobody publishes one.
    """
    if offer not in OFFERS:
        raise ScenarioError(f"offer: got {offer!r}; {nearest(offer, OFFERS)}")
    chip, own = cluster.accelerator, cluster.accelerator.price_per_hour
    stated = own if source_of(chip, "price_per_hour") == GIVEN else None
    if rates and chip.name in rates:
        value = rates[chip.name]
        beside = _passed_over("--prices", stated)
        if offer != "on-demand" and not beside:
            beside = f"--prices counts, not --offer {offer}; leave one of them out"
        return Rate(value, value, value, "file", "your prices", beside)
    known = read_shipped(_PACKAGE, "prices.yaml")["offers"].get(chip.kind, ())
    asked = [entry for entry in known if entry["offer"] == offer]
    offers = asked or [entry for entry in known if own and entry["offer"] == "on-demand"]
    listed = sorted(parse_quantity(str(entry["rate"]), Dimension.PRICE_RATE) for entry in offers)
    if own is not None and (not asked or offer == "on-demand"):
        lacks = f"no {offer} offer of {chip.kind} is known: " if offer != "on-demand" else ""
        if stated is not None:
            beside = f"{lacks}cluster.price_per_hour counts" if lacks else ""
            return Rate(own, own, own, "scenario", "cluster.price_per_hour", beside)
        # the catalog's own figure is on demand: a level over providers, or a system's own price
        source, beside = _told(offers) or "the catalog", lacks and f"{lacks}on-demand counts"
        return Rate(own, min([own, *listed]), max([own, *listed]), "on-demand", source, beside)
    if not listed:
        return None
    beside = _passed_over(f"--offer {offer}", stated)
    return Rate(statistics.median(listed), listed[0], listed[-1], offer, _told(offers), beside)


def mean_rate(result: Result, *, offer: str, rates: Mapping[str, float] | None) -> Rate | None:
    """Price of an accelerator of a step, on average where stages or replicas have their own; None
    where one of them has none.
    """
    each: dict[Accelerator, Rate] = {}  # of one name too, whose prices may differ
    for cluster in result.class_clusters:
        rate = rate_of(cluster, offer=offer, rates=rates)
        if rate is None:
            return None
        each[cluster.accelerator] = rate
    sources, beside = (
        "; ".join(dict.fromkeys(text for text in texts if text))
        for texts in zip(*((rate.source, rate.beside) for rate in each.values()), strict=True)
    )
    return Rate(
        mean_over_accelerators(result, lambda chip: each[chip].usd_per_hour),
        mean_over_accelerators(result, lambda chip: each[chip].low),
        mean_over_accelerators(result, lambda chip: each[chip].high),
        next(iter(each.values())).offer,
        sources,
        beside,
    )


def _passed_over(winner: str, stated: float | None) -> str:
    """Words on a price of the scenario that something of the command line takes the place of."""
    if stated is None:
        return ""
    return f"{winner} counts, not cluster.price_per_hour of {stated:g} USD/h; leave one of them out"


def check_rates(rates: Mapping[str, float], used: Iterable[str]) -> None:
    """Refuse prices of no accelerators, or of none that is `used`. ScenarioError names all."""
    chips = dict.fromkeys(used)
    known = [*chips, *accelerator_names()]
    problems = [
        Problem(f"no accelerator {name[:60]!r}; {nearest(name, known)}", file="--prices")
        for name in rates
        if name not in known
    ]
    if rates and not problems and not chips.keys() & rates.keys():
        message = f"has no price of {', '.join(chips)}; it has {', '.join(rates)}"
        problems.append(Problem(message, file="--prices"))
    if problems:
        raise ScenarioError(problems)


def _told(offers: list[dict[str, Any]]) -> str:
    dates = sorted(str(entry["as_of"]) for entry in offers)
    if not dates:
        return ""
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    providers = sorted({str(entry["provider"]).partition(" (")[0] for entry in offers})
    return f"{plural(len(offers), 'offer')} of {span}: {', '.join(providers)}"


def read_rates(path: str | Path) -> dict[str, float]:
    """Read prices: a YAML mapping of accelerator to USD/h. ScenarioError with every wrong line."""
    document = read_document(Path(path))
    problems, rates = list(document.problems), {}
    for name, value in document.data.items():
        try:
            rates[str(name)] = get_args(PriceRate)[1].parse(value)
        except ValueError as error:
            problems.append(document.locate(Problem(str(error), key=str(name))))
    if problems:
        raise ScenarioError(problems)
    return rates
