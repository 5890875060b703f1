"""The bill of a cluster: every part with a price, bought or rented; those without are named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mpsim.hardware import Cluster
from mpsim.hardware.inventory import inventory_of
from mpsim.result.residuals import HALF_WIDTH
from mpsim.scenario.design import DesignChoice
from mpsim.shipped import read_shipped
from mpsim.study.facility import rate_of

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


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """Cost of a cluster."""

    items: Mapping[str, Item] = dataclasses.field(default_factory=dict)  # by part
    life_h: float = 0.0  # hours over which what was bought is paid off; 0 where it is rented
    tariff: float = 0.0  # of electricity [USD/kWh]; 0 where it is in the rent

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
    rents = money.basis == "rent"
    items = _rented(cluster, design) if rents else dict(_bought(cluster, design.prices, known))
    for key, value in chosen.items():
        name, own = f"{key}={value}", key.removeprefix("cluster.")
        counted = own in _COUNTED or (not rents and own.split(".")[0] in _BUILT)
        first = key in design.choices and value == design.choices[key][0]
        if name in design.prices or not (counted or first):
            items[name] = Item(cluster.accelerators, design.prices.get(name))
    if rents:
        return Bill(items)
    life = known["life"]["days"] * 24.0 if money.life is None else money.life / 3600.0
    tariff = known["tariff"]["usd_per_kwh"] if money.tariff is None else money.tariff
    return Bill(items, life, tariff)


def _rented(cluster: Cluster, design: DesignChoice) -> dict[str, Item]:
    rate = rate_of(cluster, offer=design.money.offer or "on-demand", rates=design.prices)
    priced = (None,) if rate is None else (rate.usd_per_hour, rate.doubt)
    return {cluster.accelerator.name: Item(cluster.accelerators, *priced)}


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
