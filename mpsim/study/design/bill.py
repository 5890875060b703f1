"""The bill of a cluster: every part that has a price, counted from the built cluster, bought or
rented; parts without one are named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from mpsim.hardware import GIVEN, Cluster, source_of
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
Item = tuple[float, float | None]
"""How many parts, and what one costs [USD, or USD/h of rent]; None where nobody says."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """Cost of a cluster."""

    items: Mapping[str, Item] = dataclasses.field(default_factory=dict)  # by part
    life_h: float = 0.0  # hours over which what was bought is paid off; 0 where it is rented
    tariff: float = 0.0  # of electricity [USD/kWh]; 0 where it is in the rent
    # standard deviation of ln(price) of parts whose price nobody asked for a quote of
    doubts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts without a price."""
        return tuple(name for name, (_, each) in self.items.items() if each is None)

    @property
    def capital(self) -> float | None:
        """Price of everything that is bought [USD]; None where it is rented."""
        total = math.fsum(number * (each or 0.0) for number, each in self.items.values())
        return total if self.life_h else None

    def hourly(self, power_w: float) -> dict[str, float]:
        """Cost of an hour by part, electricity for the power at the meter too [USD/h]."""
        life, items = self.life_h or 1.0, self.items.items()
        parts = {name: number * (each or 0.0) / life for name, (number, each) in items}
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
            items[name] = cluster.accelerators, design.prices.get(name)
    doubts = dict(_doubts(items, cluster, design, known["parts"]))
    if rents:
        return Bill(items, doubts=doubts)
    life = known["life"]["days"] * 24.0 if money.life is None else money.life / 3600.0
    tariff = known["tariff"]["usd_per_kwh"] if money.tariff is None else money.tariff
    return Bill(items, life, tariff, doubts)


def _doubts(
    items: Mapping[str, Item],
    cluster: Cluster,
    design: DesignChoice,
    known: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, float]]:
    """How far each price may be from a quote, as ln: one that the user states is certain."""
    chip = cluster.accelerator
    rent = 0.0
    if source_of(chip, "price_per_hour") != GIVEN:
        rent = read_shipped("mpsim.study.data", "prices.yaml")["spread"]
    for name, (_, price) in items.items():
        listed = known.get(name, {})
        if name in design.prices:
            continue
        if design.money.basis == "rent" and name == chip.name:
            yield name, rent
        elif listed and listed["price"] == price:
            yield name, math.log(listed["high"] / listed["low"]) / (2.0 * HALF_WIDTH)


def _rented(cluster: Cluster, design: DesignChoice) -> dict[str, Item]:
    rate = rate_of(cluster, offer=design.money.offer or "on-demand", rates=design.prices)
    each = None if rate is None else rate.usd_per_hour
    return {cluster.accelerator.name: (cluster.accelerators, each)}


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
        listed = known["parts"].get(name, {}).get("price") if stated is None else stated
        if number:
            yield name, (number, own.get(name, listed))
