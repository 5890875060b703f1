"""``mpsim search``: the best layouts of a model on a cluster."""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from mpsim import structs
from mpsim.cli import console, options
from mpsim.cli.console import phases_bar
from mpsim.cli.emit import refuse_unwritable, targets
from mpsim.errors import ScenarioError

if TYPE_CHECKING:
    from mpsim.scenario import Scenario
    from mpsim.study.search import Search, ServiceSearch
    from mpsim.study.search.shortlist import Shortlist

Objective = enum.StrEnum("Objective", ["TIME", "COST", "GPUS", "GOODPUT", "THROUGHPUT", "RATE"])
"""Metrics that layouts are ranked by."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options of a search: what is ranked, within which limits, and what is written of it.

    --over KEY=A,B,C: Search only these values of a key; repeatable.
    --also WORDS: Also search these settings: order, recompute-modules, offload, schedules,
        placement, expert-overlap, or all.
    --objective: Metric to rank by. Training: time (the default) or cost per token. Services: gpus
        (fewest for a rate within limits, the default), goodput, throughput per accelerator, rate
        within the limits, or cost.
    --pools: Also search separate pools for prefill and decode (services).
    --top: Layouts to rank; left out: 10.
    --max-memory SIZE: Memory limit per GPU, e.g. '70 GB'.
    --max-price PRICE: Price limit of all accelerators together, e.g. '2000 USD/h'.
    --max-power POWER: Power limit of all nodes together, e.g. '1.2 MW'.
    --odds SHARE: Odds of fitting that a layout needs, e.g. 0.9; left out: its predicted peak fits.
    --budget TIME: Stop after this time, e.g. 60s.
    --front/--no-front: Also show the Pareto front of time against memory.
    --long: Print the whole ranking and the whole front.
    --explain: Show the decisions that matter most, and what each is worth.
    --shortlist: Write this many diverse layouts as short runs to launch, into the folder of
        --output (training).
    --output -o: Folder for --shortlist.
    --with-runs DIR: Folder of --shortlist with the logs of its runs: rank its layouts again,
        without a search.
    """

    over: Annotated[list[str] | None, Option(autocompletion=options.keys)] = None
    also: str | None = None
    objective: Objective | None = None
    pools: bool = False
    top: Annotated[int | None, Option(min=1)] = None
    max_memory: Annotated[float | None, Option(parser=options.quantity("BYTES"))] = None
    max_price: Annotated[float | None, Option(parser=options.quantity("PRICE_RATE"))] = None
    max_power: Annotated[float | None, Option(parser=options.quantity("POWER"))] = None
    odds: Annotated[float | None, Option(callback=options.share)] = None
    budget: Annotated[float | None, Option(parser=options.quantity("TIME"))] = None
    front: bool = True
    long: bool = False
    explain: bool = False
    shortlist: Annotated[int | None, Option(min=1)] = None
    output: Annotated[Path | None, Option(callback=options.check_folder)] = None
    with_runs: Path | None = None
    csv: options.Csv = None
    plot: options.Plot = None
    resume: options.Resume = None
    emit: options.Emit = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of `mpsim.study.search`."""
        return {
            **structs.named(self, "top", "front", "explain", "pools", "max_memory", "max_price"),
            **structs.named(self, "max_power", "odds", "budget", "resume"),
            "also": [word.strip() for word in (self.also or "").split(",") if word.strip()],
            "objective": None if self.objective is None else self.objective.value,
        }


def search(
    file: Path, *, wanted: Wanted, reading: options.Reading, as_json: options.AsJson = False
) -> None:
    """Find the best layouts of a model on a cluster, and say why the others lose.

    FILE: Scenario file; its own layout may be illegal.
    """
    from mpsim.study import search as run_search

    scenario, objective = _load(reading, file), wanted.objective
    (emitting,) = targets(wanted.emit, [scenario])
    refuse_unwritable(emitting, scenario)
    values = options.values_over(scenario, wanted.over)
    reading.refuse_varied(values)
    if (wanted.shortlist is None) != (wanted.output is None):
        raise options.wrong(
            "--shortlist N needs -o DIR, and -o DIR needs --shortlist N", "--shortlist"
        )
    if wanted.with_runs is not None:
        why = "does nothing beside --with-runs, which searches no further; leave it out"
        options.refuse_of(wanted, options.given(wanted).keys() - {"with_runs"}, why)
        from mpsim.study.search.shortlist import read_runs

        console.print_answer(read_runs(scenario, wanted.with_runs), as_json=as_json)
        return
    if scenario.serves:
        why = "ranks training steps; give goodput, throughput, cost or rate"
        options.refuse({"--objective": objective is Objective.TIME}, why)
        why = "is the line of one server; leave out --pools"
        options.refuse({"--emit": wanted.emit if wanted.pools else None}, why)
        why = "is for training steps, and the scenario serves; leave it out"
        options.refuse_of(wanted, ("also", "odds", "explain", "shortlist"), why)
    else:
        of_services = objective not in (None, Objective.TIME, Objective.COST)
        refused = {"--pools": wanted.pools, "--objective": of_services}
        options.refuse(refused, "is for services, and the scenario trains; leave it out")
    with phases_bar(scenario.name) as report:
        outcome = run_search(scenario, values, progress=report, **wanted.arguments())
    if wanted.csv is not None:
        console.write_table(outcome, wanted.csv)
    whole, plot = not outcome.interrupted, wanted.plot
    if plot is not None and whole and outcome.rows:
        _draw(outcome, plot)
    elif plot is not None and whole:
        console.note(f"nothing was simulated, so there is nothing to draw in {plot}")
    files = []
    if outcome.best is not None and emitting and whole:
        best = scenario.with_values(outcome.best.values)
        files = [item.of(best) for item in emitting]
    chosen = _shortlist(scenario, outcome, wanted.shortlist, wanted.output) if whole else None
    if as_json:
        told: dict[str, object] = {"emitted": [item.to_json() for item in files]} if files else {}
        told |= {"shortlist": chosen.to_json()["candidates"]} if chosen is not None else {}
        console.print_json({**outcome.to_json(), **told})
    else:
        console.print_sheet(
            chosen.sheet() if chosen else outcome.sheet(front=wanted.front, long=wanted.long)
        )
    for item in files:
        item.write(as_json=as_json)
    for remark in outcome.remarks:
        console.note(remark)
    console.end_early(outcome.interrupted)


def _load(reading: options.Reading, file: Path) -> Scenario:
    """The scenario of a file whose own layout may be illegal; all mistakes if it has any other."""
    from mpsim.study.search.layouts import refuse_every_layout

    try:
        return reading.load(file)
    except ScenarioError:
        with contextlib.suppress(ScenarioError):
            scenario = reading.load(file, checked=False)
            refuse_every_layout(scenario)
            if not scenario.serves:
                return scenario
        raise


def _shortlist(
    scenario: Scenario, outcome: Search | ServiceSearch, count: int | None, folder: Path | None
) -> Shortlist | None:
    """The shortlist, written; None where nobody asked for one."""
    from mpsim.study.search import Search
    from mpsim.study.search.shortlist import shortlist

    if count is None or folder is None or not isinstance(outcome, Search):
        return None
    chosen = shortlist(scenario, outcome, count)
    chosen.write(folder)
    console.wrote(folder)
    return chosen


def _draw(outcome: Search | ServiceSearch, path: Path) -> None:
    from mpsim.plot import search_chart, service_front_chart
    from mpsim.study.search import Search

    if isinstance(outcome, Search):
        title = f"{outcome.scenario}: step time against memory of {len(outcome.rows):,} layouts"
        console.draw(search_chart(outcome).titled(title), path)
        return
    title = f"{outcome.scenario}: tokens/s of a user against tokens/s of an accelerator"
    console.draw(service_front_chart(outcome).titled(title), path)
