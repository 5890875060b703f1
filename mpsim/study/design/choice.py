"""Changes of a design's choice: upgrades, what makes another as good, constants it rests on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from mpsim.errors import MpsimError
from mpsim.hardware import Cluster
from mpsim.simulate import simulate_step
from mpsim.study.design.bill import bill_of
from mpsim.study.design.explore import Explorer
from mpsim.study.design.option import Option
from mpsim.study.design.outcome import Design, Flip, Upgrade
from mpsim.study.sensitivity import measure_sensitivity
from mpsim.units import Dimension, format_exact

CHANGES = 7  # most changes to a cluster that `upgrades_of` looks at
_MOST = 8.0  # times a price: further than that nobody is wrong
_LEAST = 0.02  # elasticity below which a constant moves nothing


class _Change(NamedTuple):
    """A change to a machine."""

    name: str
    key: str  # of the scenario
    value: object


def _changes(machine: Cluster) -> Iterator[_Change]:
    """Changes to a machine that it allows."""
    node, chip = machine.node, machine.accelerator
    if node.nics and machine.domains > 1:
        rate = format_exact(2 * node.nic.bandwidth, Dimension.BANDWIDTH)
        yield _Change("twice the NICs", "cluster.nics_per_node", 2 * node.nics)
        yield _Change("NICs twice as fast", "cluster.nic.bandwidth", rate)
        if machine.fabric.oversubscription > 1:
            yield _Change("full bisection", "cluster.fabric.oversubscription", 1)
    if 2 * node.domain <= min(node.scale_up.max_domain or math.inf, machine.accelerators):
        yield _Change("twice the scale-up domain", "cluster.domain", 2 * node.domain)
    memory = format_exact(1.1 * chip.memory_bytes, Dimension.BYTES)
    yield _Change("10 % more memory", "cluster.accelerator.memory", memory)
    rate = format_exact(1.1 * chip.memory_bandwidth, Dimension.BANDWIDTH)
    yield _Change("10 % more memory bandwidth", "cluster.accelerator.memory_bandwidth", rate)
    cap = format_exact(0.8 * chip.tdp_w, Dimension.POWER)
    yield _Change("power cap at 80 %", "cluster.accelerator.tdp", cap)


def upgrades_of(explorer: Explorer, best: Option) -> tuple[Upgrade, ...]:
    """Changes to the chosen cluster, best layouts of their own, most throughput a dollar first.

    Notes
    -----
    Faster is s = t / t' - 1 in days or seconds a request, dearer d = c / c' - 1 in the hourly cost.
    Where a part has no price, d is of the parts that have one, and what the rest may cost is (1 +
    s) c - c' over the accelerators.
    """
    known = []
    for name, key, value in _changes(explorer.machine(best.values)):
        values = {**best.values, key: value}
        with contextlib.suppress(MpsimError):  # where no such cluster can be built
            bill = bill_of(explorer.machine(values), values, explorer.spec)
            known.append((name, dataclasses.replace(best, values=values, bill=bill)))
    entries = explorer.entries([after.values for _, after in known])
    upgrades = [
        _bought(name, best, dataclasses.replace(after, entries=entry))
        for (name, after), entry in zip(known, entries, strict=True)
        if not any("error" in each for each in entry.values())
    ]
    return tuple(sorted(upgrades, key=lambda upgrade: (upgrade.dearer or 0.0) - upgrade.faster))


def _bought(name: str, before: Option, after: Option) -> Upgrade:
    faster = before.slowness / after.slowness - 1.0
    dearer = after.hourly / before.hourly - 1.0
    room = ((1.0 + faster) * before.hourly - after.hourly) * (after.bill.life_h or 1.0)
    return Upgrade(name, faster, None if after.bill.missing else dearer, room / after.accelerators)


def flips_of(answer: Design) -> tuple[Flip, ...]:
    """Changes that make another one as good as the chosen one: one price, or the chosen one's time,
    times so much; of each the nearest.

    Notes
    -----
    Costs are linear in each price: with the parts c_i of the chosen one and r_i of another, sum c +
    (f - 1) c_i = sum r + (f - 1) r_i.
    """
    flips: dict[str, Flip] = {}
    for best, other in itertools.product(answer.rivals[:1], answer.rivals[1:]):
        own = Flip("time of the chosen", answer.score(other) / answer.score(best), other.name)
        for flip in (own, *(_prices(best, other) if answer.by == "cost" else ())):
            flips[flip.name] = min(flips.get(flip.name, flip), flip, key=_far)
    return tuple(sorted(flips.values(), key=_far))


def _far(flip: Flip) -> float:
    return abs(math.log(flip.times))


def _prices(best: Option, other: Option) -> Iterator[Flip]:
    mine, theirs = best.parts, other.parts
    for name in dict.fromkeys((*mine, *theirs)):
        apart = mine.get(name, 0.0) - theirs.get(name, 0.0)
        times = 1.0 + (other.cost - best.cost) / apart if apart else 0.0
        if 1.0 / _MOST < times < _MOST:
            yield Flip(f"price of {name}", times, other.name)


def rests_on(explorer: Explorer, best: Option) -> tuple[str, ...]:
    """Constants of the chosen hardware that nobody measured there, and how much each moves."""
    name, entry = next(((n, e) for n, e in best.entries.items() if "days" in e), ("", {}))
    if not entry:
        return ()
    machine = explorer.machine(best.values)
    result = simulate_step(explorer.on(name, best.values, machine).with_values(entry["layout"]))
    sizes = {row.name: row.elasticity for row in measure_sensitivity(result).rows}
    told = []
    for constant in result.summary["calibration"]["constants"]:
        name, status = constant["name"], constant["status"].replace("_", " ")
        moved = next((sizes[key] for key in sizes if key.split(".")[-1] in name.split(".")), 0.0)
        if status != "calibrated" and abs(moved) >= _LEAST:
            told.append((abs(moved), f"{name} ({status}): {moved:+.2f} % of the step for 1 % more"))
    return tuple(text for _, text in sorted(told, reverse=True))
