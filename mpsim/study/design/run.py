"""A design study: hopeless clusters are ruled out, the others get best layouts of each job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from mpsim.errors import MpsimError, Problem, ScenarioError
from mpsim.hardware import Cluster
from mpsim.scenario import Scenario
from mpsim.scenario.design import Bounds, DesignChoice
from mpsim.study.design.bill import bill_of
from mpsim.study.design.choice import CHANGES, flips_of, rests_on, upgrades_of
from mpsim.study.design.explore import Explorer, Values, jobs_of
from mpsim.study.design.option import Option
from mpsim.study.design.outcome import Design
from mpsim.study.executors import executor_for
from mpsim.study.grid import combinations
from mpsim.study.journal import Entry, Journal
from mpsim.study.rows import reason_of

_WAVE = 64  # searches at most between two looks at what is ruled out; fewer at first
_DAY = 86400.0


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
        Called with (clusters done, clusters in all).

    Returns
    -------
    Design
        Also after a KeyboardInterrupt: `interrupted` says so.

    Raises
    ------
    ScenarioError
        With every mistake: jobs that lack something, parts without a price, impossible bounds.
    KeyboardInterrupt
        If nothing was looked at until then.
    """
    spec = scenario.design
    if spec is None:
        message = (
            "missing; needed jobs and choices, such as 'design: {jobs: {train: {tokens: 1T}},"
            " choices: {cluster.nodes: [8, 16]}}'"
        )
        raise ScenarioError(scenario.locate([Problem(message, key="design")]))
    journal = Journal(resume, what="a cluster of a design")
    points = list(combinations(spec.choices))
    total, done = len(points) + CHANGES * upgrades, 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(min(done, total), total)

    explorer = Explorer(
        scenario=scenario, spec=spec, jobs=jobs_of(scenario, spec), journal=journal, budget=search
    )
    options = list(_unlooked(explorer, points))
    _refuse(scenario, spec, options)
    answer = Design(scenario=scenario.name, spec=spec, options=tuple(options))
    try:
        with (
            journal.writing(),
            executor_for(jobs, total, executor=executor, cluster=cluster) as pool,
        ):
            explorer.pool, explorer.report = pool, report
            report(0)
            waves = _looked(explorer, answer, prune=prune)
            while (looked := next(waves, None)) is not None:
                answer = looked  # an interrupt leaves the waves before it
            if upgrades and (best := answer.best) is not None:
                found = upgrades_of(explorer, best)
                rests = rests_on(explorer, best)
                answer = dataclasses.replace(answer, upgrades=found, rests=rests)
    except KeyboardInterrupt:
        if not answer.possible:
            raise
        answer = dataclasses.replace(answer, interrupted=True)
    cut = sum(not row.proved for row in answer.possible)
    remarks = journal.remarks
    if cut:
        told = (
            f"the search was cut short on {cut} of {len(answer.possible)} clusters, whose best"
            " layouts may be faster than these: give --search a longer time, or leave it out"
        )
        remarks = (*remarks, told)
    return dataclasses.replace(answer, flips=flips_of(answer), remarks=remarks)


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
                racks=_racks(machine, spec.bounds),
                least_days=explorer.least_days(built),
            )
            late = _late(option.least_days, spec)
            yield dataclasses.replace(option, over=_over(option, spec) | late)
        except MpsimError as error:
            yield dataclasses.replace(option, reason=reason_of(error))


def _racks(machine: Cluster, bounds: Bounds) -> int | None:
    together = machine.node.domain // machine.node.accelerators
    if together > 1:
        return math.ceil(machine.nodes / together)
    power = machine.node.power_w
    if bounds.rack_power is None or power is None:
        return None
    return math.ceil(machine.nodes / max(1, int(bounds.rack_power // power)))


def _over(option: Option, spec: DesignChoice) -> dict[str, float]:
    """Bounds that an option misses, and how many times over; before a search as far as is known."""
    bounds = spec.bounds
    takes = {
        "capital": (option.bill.capital, bounds.capital),
        "hourly": (option.hourly, bounds.hourly),
        "power": (option.power_w, bounds.power),
        "racks": (option.racks, bounds.racks),
    }
    over = {
        name: taken / most
        for name, (taken, most) in takes.items()
        if taken is not None and most is not None and most > 0 and taken > most
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
    if spec.bounds.racks is not None and any(row.racks is None for row in built):
        wrong["design.bounds.rack_power"] = (
            "missing, so racks cannot be counted; needed the power of one, such as '40 kW', and"
            " cluster.node_power"
        )
    if not built:
        wrong["design.choices"] = f"no cluster can be built; {options[0].name}: {options[0].reason}"
    elif all(row.over for row in built):
        near = min(built, key=lambda row: max(row.over.values()))
        wrong["design.bounds"] = (
            f"no cluster keeps them; the nearest, {near.name}, misses {near.misses}: raise them, or"
            " add smaller choices"
        )
    if wrong:
        problems = [Problem(text, key=key) for key, text in wrong.items()]
        raise ScenarioError(scenario.locate(problems))


def _looked(explorer: Explorer, answer: Design, *, prune: bool) -> Iterator[Design]:
    """The answer after each wave of clusters, in the order of what they cost at least."""
    options = list(answer.options)
    waiting = [place for place, row in enumerate(options) if not row.reason and not row.over]
    waiting.sort(key=lambda place: (options[place].least_cost, place))
    explorer.report(len(options) - len(waiting))
    ruled_out, size = 0, 1
    while waiting:
        front = answer.front if prune else ()
        hopeless = {place for place in waiting if options[place].is_hopeless(front)}
        ruled_out += len(hopeless)
        explorer.report(len(hopeless))
        waiting = [place for place in waiting if place not in hopeless]
        groups: dict[tuple[object, ...], list[int]] = {}
        for place in waiting:
            groups.setdefault(explorer.group(options[place].values), []).append(place)
        chosen = [place for group in list(groups.values())[:size] for place in group]
        taken, size = set(chosen), min(2 * size, _WAVE)
        entries = explorer.entries([options[place].values for place in chosen])
        for place, entry in zip(chosen, entries, strict=True):
            options[place] = _with(options[place], entry, explorer.spec)
        waiting = [place for place in waiting if place not in taken]
        answer = dataclasses.replace(answer, options=tuple(options), ruled_out=ruled_out)
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
        return dataclasses.replace(option, reason="; ".join(wrong))
    full = dataclasses.replace(option, entries=entries)
    return dataclasses.replace(full, over=_over(full, spec))
