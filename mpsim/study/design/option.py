"""One cluster of a design: what its jobs do there, its bill, and which bounds it misses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsim import structs
from mpsim.hardware import Cluster
from mpsim.hardware.inventory import inventory_of
from mpsim.result.residuals import HALF_WIDTH
from mpsim.scenario.design import DesignChoice
from mpsim.shipped import read_shipped
from mpsim.study.design.explore import Values
from mpsim.study.facility import rate_of
from mpsim.study.journal import Entry
from mpsim.study.plan import changed
from mpsim.study.ties import Ratio, ratio_of
from mpsim.units import percent

_COUNTED = (
    *("preset", "accelerator", "accelerator.preset", "nodes", "accelerators_per_node"),
    *("placement", "library", "name", "price_per_hour", "node_power"),
    *("accelerator.tdp", "accelerator.clock", "accelerator.idle"),
    *("fabric.switch_price", "fabric.cable_price", "fabric.switch_power", "fabric.routing"),
)
"""Keys of the cluster without a price of their own: what they make is counted, or free."""
_BUILT = ("nics_per_node", "nic", "fabric")
"""Keys whose parts count in a purchase; what is rented contains them as built."""


class Item(NamedTuple):
    """Parts of one kind."""

    number: float
    each: float | None  # price of one [USD, or USD/h of rent]; None where nobody says
    doubt: float = 0.0  # standard deviation of ln(price); 0 where the user says it


@structs.dataclass(frozen=True, slots=True)
class Bill:
    """Cost of a cluster."""

    items: Mapping[str, Item] = structs.field(default_factory=dict)  # by part
    life_h: float = 0.0  # hours over which what was bought is paid off; 0 where it is rented
    tariff: float = 0.0  # of electricity [USD/kWh]; 0 where it is in the rent
    beside: tuple[str, ...] = ()  # what was asked of the rent and does not count, in words

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts without a price."""
        return tuple(name for name, item in self.items.items() if item.each is None)

    @property
    def capital(self) -> float | None:
        """Price of everything that is bought [USD]; None where it is rented."""
        total = math.fsum(item.number * (item.each or 0.0) for item in self.items.values())
        return total if self.life_h else None

    def hourly(self, power_w: float) -> dict[str, float]:
        """Cost of an hour by part, electricity for the power at the meter too [USD/h]."""
        life = self.life_h or 1.0
        parts = {n: item.number * (item.each or 0.0) / life for n, item in self.items.items()}
        return parts | ({"electricity": power_w / 1e3 * self.tariff} if self.life_h else {})


def bill_of(cluster: Cluster, chosen: Mapping[str, object], design: DesignChoice) -> Bill:
    """The bill of a cluster that values of the choices made.

    Notes
    -----
    Switches and cables are those of the built fabric (`mpsim.hardware.inventory`). The first value
    of a choice is what the price of an accelerator contains; another one, where no part of the bill
    says what it costs, needs a price ``key=value``.
    """
    money, known = design.money, read_shipped("mpsim.study.data", "purchase.yaml")
    rents, rate = money.basis == "rent", None
    if rents:
        rate = rate_of(cluster, offer=money.offer or "on-demand", rates=design.prices)
        priced = (None,) if rate is None else (rate.usd_per_hour, rate.doubt)
        items = {cluster.accelerator.name: Item(cluster.accelerators, *priced)}
    else:
        items = dict(_bought(cluster, design.prices, known))
    for key, value in chosen.items():
        name, own = f"{key}={value}", key.removeprefix("cluster.")
        counted = own in _COUNTED or (not rents and own.split(".")[0] in _BUILT)
        first = key in design.choices and value == design.choices[key][0]
        if name in design.prices or not (counted or first):
            items[name] = Item(cluster.accelerators, design.prices.get(name))
    if rents:
        return Bill(items, beside=() if rate is None else rate.told)
    life = known["life"]["days"] * 24.0 if money.life is None else money.life / 3600.0
    tariff = known["tariff"]["usd_per_kwh"] if money.tariff is None else money.tariff
    return Bill(items, life, tariff)


def _bought(
    cluster: Cluster,
    own: Mapping[str, float],
    known: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> Iterator[tuple[str, Item]]:
    node, fabric, built = cluster.node, cluster.fabric, inventory_of(cluster)
    chip, rate = cluster.accelerator.name, f"{node.nic.bandwidth * 8 / 1e9:.0f}"
    contained = chip in known["contains_host"] and "host" not in own
    ports = f"{fabric.radix}x{rate}" if fabric.radix else "any"
    for name, number, stated in (
        (chip, cluster.accelerators, None),
        ("host", 0 if contained else cluster.nodes, None),
        (f"nic-{rate}", cluster.nodes * node.nics, None),
        (f"switch-{ports}", built.switches, fabric.switch_price),
        (f"cable-{rate}", built.cables, fabric.cable_price),
    ):
        price, listed = own.get(name, stated), known["parts"].get(name)
        if number and price is None and listed is not None:
            doubt = math.log(listed["high"] / listed["low"]) / (2.0 * HALF_WIDTH)
            yield name, Item(number, listed["price"], doubt)
        elif number:
            yield name, Item(number, price)


_DAY_HOURS = 24.0


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One cluster."""

    values: Values  # of the choices, by dotted key
    # what the best layout of each job does; empty where it was ruled out before any search
    entries: Mapping[str, Entry] = structs.field(default_factory=dict)
    bill: Bill = structs.field(default_factory=Bill)
    accelerators: int = 0
    racks: int | None = None  # None where nobody says how many nodes a rack holds
    rack_power: float | None = None  # of the least that a rack holds [W]; None where nobody says
    # bounds that it misses, and how many times over
    over: Mapping[str, float] = structs.field(default_factory=dict)
    reason: str = ""  # why it is no design; empty where it is one
    # what its trainings take at least, known before any search; 0 where nothing is
    least_days: float = 0.0

    @property
    def least_cost(self) -> float:
        """Least cost of its trainings [USD], or an hour of services [USD/h]; without power."""
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
        """Cost by part: until the last training ends [USD], or an hour of services [USD/h]."""
        hours = 1.0 if self.days is None else self.days * _DAY_HOURS
        return {name: each * hours for name, each in self.bill.hourly(self.power_w).items()}

    @property
    def cost(self) -> float:
        """Sum of `parts`."""
        return math.fsum(self.parts.values())

    def doubt(self, other: Option) -> float:
        """Standard deviation of ln(cost over the other's) by prices: a part errs in both alike."""
        mine, theirs, items = self.parts, other.parts, {**self.bill.items, **other.bill.items}
        return math.hypot(
            *(
                item.doubt * (mine.get(n, 0.0) / self.cost - theirs.get(n, 0.0) / other.cost)
                for n, item in items.items()
            )
        )

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
            **structs.named(self, *names),
            "cost_usd" if self.trained else "cost_usd_per_h": self.cost,
            "capital_usd": self.bill.capital,
            "usd_per_h": self.hourly,
            "requests_per_s": self.rate,
            "interval": {"days": ends, "level": 0.8},
            "parts_usd": self.parts,
            "over": dict(self.over),
            **structs.named(self, "misses", "possible"),
            "jobs": dict(self.entries),
        }


def beats(a: Option, b: Option) -> Ratio | None:
    """How many times faster b is than a, with its interval; None where no errors are known."""
    if not (a.trained and b.trained):
        return None
    # errors that both share cancel in the time of their own steps; sizes and goodput are as planned
    ratio = ratio_of(a.trained[0], b.trained[0], "tokens_per_s_per_accelerator")
    if ratio is None:
        return None
    value, low, high = a.slowness / b.slowness, ratio.low / ratio.value, ratio.high / ratio.value
    return Ratio(value, value * low, value * high)
