"""A design study: hopeless clusters are ruled out, the others get best layouts of each job; then
what would change the choice: upgrades, what makes another as good, constants it rests on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from mpsim import structs
from mpsim.errors import MpsimError, Problem, ScenarioError
from mpsim.hardware import Cluster, LinkShape
from mpsim.scenario import Scenario
from mpsim.scenario.design import Bounds, DesignChoice
from mpsim.shipped import say
from mpsim.simulate import simulate_step
from mpsim.study.design.explore import Explorer, Values, jobs_of
from mpsim.study.design.option import Option, bill_of
from mpsim.study.design.outcome import Design, Flip, Upgrade
from mpsim.study.executors import executor_for
from mpsim.study.grid import combinations
from mpsim.study.journal import Entry, Journal
from mpsim.study.rows import reason_of, warned
from mpsim.study.sensitivity import measure_sensitivity
from mpsim.units import Dimension, format_exact

_WAVE = 64  # searches at most between two looks at what is ruled out; fewer at first
_DAY = 86400.0
_RACKS = ("racks", "rack_power")  # bounds of racks, and what an option has of each


def design(
    scenario: Scenario,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    cluster: str | None = None,
    resume: str | Path | None = None,
    search: float | None = None,
    upgrades: bool = True,
    prune: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Design:
    """Choose a cluster for the work of the scenario's ``design:`` section.

    Parameters
    ----------
    jobs, executor, cluster, resume
        As `mpsim.sweep` has them.
    search : float, optional
        Seconds of the search for a layout on one kind of cluster; left out, as it takes.
    upgrades : bool
        Whether to look at changes to the chosen cluster.
    prune : bool
        Whether clusters beaten by what they cost and take at least are ruled out; same answer else.
    progress : callable, optional
        Called with (searches done, searches in all), which are fewer once clusters are ruled out.

    Returns Design: also after a KeyboardInterrupt, as `interrupted` says, unless nothing was looked
    at. Raises ScenarioError: if jobs lack something, parts a price, or bounds are impossible.
    """
    spec = scenario.design
    if spec is None:
        raise ScenarioError(scenario.locate([Problem(say("study.no_design"), key="design")]))
    # what every job gets at its own rate is no faster on better parts, only less full
    upgrades = upgrades and any(job.rate is None for job in spec.jobs.values())
    journal = Journal(resume, what="a cluster of a design")
    points = list(combinations(spec.choices))
    explorer = Explorer(
        scenario=scenario, spec=spec, jobs=jobs_of(scenario, spec), journal=journal, budget=search
    )
    options = list(_unlooked(explorer, points))
    _refuse(scenario, spec, options)
    answer = Design(scenario=scenario.name, spec=spec, options=tuple(options))
    try:
        with (
            journal.writing(),
            executor_for(jobs, len(points) + upgrades, executor=executor, cluster=cluster) as pool,
        ):
            explorer.pool, explorer.progress = pool, progress or explorer.progress
            waves = _looked(explorer, answer, prune=prune, upgrades=upgrades)
            while (looked := next(waves, None)) is not None:
                answer = looked  # an interrupt leaves the waves before it
            if upgrades and (best := answer.best) is not None:
                found = upgrades_of(explorer, best)
                rests = rests_on(explorer, best)
                answer = structs.replace(answer, upgrades=found, rests=rests)
    except KeyboardInterrupt:
        if not answer.possible:
            raise
        answer = structs.replace(answer, interrupted=True)
    entries = {} if answer.best is None else answer.best.entries
    told = {job: [*entry.get("warnings", ())] for job, entry in entries.items()}
    caveat, thin = "", say("training.thin_links")
    varied = any(key.startswith("cluster.fabric") for key in spec.choices)
    if varied and any(thin in texts for texts in told.values()):
        caveat = say("study.thin_choice")
        told = {job: [text for text in texts if text != thin] for job, texts in told.items()}
    rents = {row.name: row.bill.beside for row in answer.possible}
    remarks = [*journal.remarks, *warned(told), *warned(rents)]
    if cut := sum(not row.proved for row in answer.possible):
        remarks.append(say("study.cut_short", cut=cut, count=len(answer.possible)))
    return structs.replace(answer, flips=flips_of(answer), remarks=tuple(remarks), caveat=caveat)


def _unlooked(explorer: Explorer, points: Sequence[Values]) -> Iterator[Option]:
    """Every point with what is known before a search."""
    spec = explorer.spec
    for values in points:
        option = Option(values=values)
        try:
            machine = explorer.machine(values)
            built = {job: explorer.on(job, values, machine) for job in explorer.jobs}
            option = Option(
                values=values,
                bill=bill_of(machine, values, spec),
                accelerators=sum(scenario.world_size for scenario in built.values()),
                **_racks(machine, spec.bounds),
                least_days=explorer.least_days(built),
            )
            late = _late(option.least_days, spec)
            yield structs.replace(option, over=_over(option, spec) | late)
        except MpsimError as error:
            yield structs.replace(option, reason=reason_of(error))


def _racks(machine: Cluster, bounds: Bounds) -> Entry:
    """Racks of a machine, and the power of the least that one holds: a domain that a switch joins,
    or a node, of which it then holds what its power allows. Those alone that somebody says.
    """
    node, power = machine.node, machine.node.power_w
    is_switched = node.scale_up.shape is LinkShape.SWITCH
    together = node.domain // node.accelerators if is_switched else 1
    known = {} if power is None else {"rack_power": min(together, machine.nodes) * power}
    if together > 1:
        known["racks"] = math.ceil(machine.nodes / together)
    elif bounds.rack_power is not None and power is not None:
        known["racks"] = math.ceil(machine.nodes / max(1, int(bounds.rack_power // power)))
    return known


def _over(option: Option, spec: DesignChoice) -> dict[str, float]:
    """Bounds that an option misses, and how many times over; before a search as far as is known."""
    bounds = spec.bounds
    takes = {
        "capital": (option.bill.capital, bounds.capital),
        "hourly": (option.hourly, bounds.hourly),
        "power": (option.power_w, bounds.power),
        **{name: (getattr(option, name), getattr(bounds, name)) for name in _RACKS},
    }
    over = {
        name: taken / most
        for name, (taken, most) in takes.items()
        if taken is not None and most is not None and taken > most
    }
    for name, job in spec.jobs.items():
        entry = option.entries.get(name, {})
        if job.deadline is not None and "days" in entry:
            late = float(entry["days"]) * _DAY / job.deadline
            over |= {f"deadline of {name}": late} if late > 1.0 else {}
    return over


def _refuse(scenario: Scenario, spec: DesignChoice, options: Sequence[Option]) -> None:
    """Refuse parts without a price, by the key that mends it, and bounds that no cluster keeps."""
    built = [row for row in options if not row.reason]
    unit = "USD/h" if spec.money.basis == "rent" else "USD"
    wrong = {
        f"design.prices.{name}": f"{name} has no price; give it here [{unit} each]"
        for row in built
        for name in row.bill.missing
    }
    bound = [name for name in _RACKS if getattr(spec.bounds, name) is not None]
    if any(getattr(row, name) is None for name in bound for row in built):
        wrong["design.bounds.rack_power"] = say("study.no_racks")
    if not built:
        wrong["design.choices"] = f"no cluster can be built; {options[0].name}: {options[0].reason}"
    elif all(row.over for row in built):
        near = min(built, key=lambda row: max(row.over.values()))
        wrong["design.bounds"] = say("study.none_keeps", near=near)
    if wrong:
        problems = [Problem(text, key=key) for key, text in wrong.items()]
        raise ScenarioError(scenario.locate(problems))


def _looked(explorer: Explorer, answer: Design, *, prune: bool, upgrades: bool) -> Iterator[Design]:
    """The answer after each wave of clusters, in the order of what they cost at least."""
    options = list(answer.options)
    waiting = [place for place, row in enumerate(options) if not row.reason and not row.over]
    waiting.sort(key=lambda place: (options[place].least_cost, place))
    ruled_out, size = 0, 1
    while waiting:
        front = answer.front if prune else ()
        hopeless = {place for place in waiting if options[place].is_hopeless(front)}
        ruled_out += len(hopeless)
        waiting = [place for place in waiting if place not in hopeless]
        groups: dict[tuple[object, ...], list[int]] = {}
        for place in waiting:
            groups.setdefault(explorer.group(options[place].values), []).append(place)
        chosen = [place for group in list(groups.values())[:size] for place in group]
        taken, size = set(chosen), min(2 * size, _WAVE)
        explorer.later = explorer.searches(
            [options[place].values for place in waiting if place not in taken]
        )
        if upgrades and chosen:  # of the chosen one as many as of the best until now
            likely = answer.best or options[chosen[0]]
            explorer.later += explorer.searches([*_changed(explorer, likely).values()])
        entries = explorer.entries([options[place].values for place in chosen])
        for place, entry in zip(chosen, entries, strict=True):
            options[place] = _with(options[place], entry, explorer.spec)
        waiting = [place for place in waiting if place not in taken]
        answer = structs.replace(answer, options=tuple(options), ruled_out=ruled_out)
        yield answer


def _late(days: float, spec: DesignChoice) -> dict[str, float]:
    """The deadline that a training of at least so many days misses, and how many times over."""
    (name, job), *others = spec.jobs.items()
    late = days * _DAY / job.deadline if job.deadline is not None and not others else 0.0
    return {f"deadline of {name}": late} if late > 1.0 else {}


def _with(option: Option, entries: Mapping[str, Entry], spec: DesignChoice) -> Option:
    """An option with what its jobs do."""
    wrong = [f"{job}: {entry['error']}" for job, entry in entries.items() if "error" in entry]
    if wrong:
        return structs.replace(option, reason="; ".join(wrong))
    full = structs.replace(option, entries=entries)
    return structs.replace(full, over=_over(full, spec))


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


def _changed(explorer: Explorer, option: Option) -> dict[str, Values]:
    """Values of each change to a cluster, by its name."""
    changes = _changes(explorer.machine(option.values))
    return {name: {**option.values, key: value} for name, key, value in changes}


def upgrades_of(explorer: Explorer, best: Option) -> tuple[Upgrade, ...]:
    """Changes to the chosen cluster, best layouts of their own, most throughput a dollar first.

    Notes
    -----
    Faster is s = t / t' - 1 in days or seconds a request, dearer d = c / c' - 1 in the hourly cost.
    Where a part has no price, d is of the parts that have one, and what the rest may cost is (1 +
    s) c - c' over the accelerators.
    """
    known = []
    for name, values in _changed(explorer, best).items():
        with contextlib.suppress(MpsimError):  # where no such cluster can be built
            bill = bill_of(explorer.machine(values), values, explorer.spec)
            known.append((name, structs.replace(best, values=values, bill=bill)))
    explorer.later = 0
    entries = explorer.entries([after.values for _, after in known])
    upgrades = [
        _bought(name, best, structs.replace(after, entries=entry))
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
