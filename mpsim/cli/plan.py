"""``mpsim plan``: days, accelerator-hours, dollars, energy and carbon of a whole training."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from mpsim.cli.complete import keys
from mpsim.cli.options import (
    AsJson,
    Background,
    Failures,
    Interval,
    Plot,
    Reading,
    Restart,
    Storage,
    count,
    quantity,
    values_over,
)

__all__ = ["plan"]

_DAY = 86400.0


class Offer(enum.StrEnum):
    """Kinds of prices."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED_1Y = "reserved-1y"
    RESERVED_3Y = "reserved-3y"
    BLOCK = "block"


def plan(
    file: Annotated[Path, typer.Argument(help="Scenario file.")],
    tokens: Annotated[
        float,
        typer.Option(
            "--tokens", metavar="COUNT", parser=count, help="Tokens to train on, e.g. 15.6T."
        ),
    ],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            autocompletion=keys,
            metavar="KEY=A,B,C",
            help="Plan every value of a key, e.g. cluster.nodes=64,128,256; repeatable.",
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="TIME",
            parser=quantity("TIME"),
            help="Choose the fewest accelerators that finish in this time, e.g. '60 d'.",
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option("--budget-usd", metavar="USD", parser=count, help="Highest cost, e.g. 5M."),
    ] = None,
    search: Annotated[
        float | None,
        typer.Option(
            "--search",
            metavar="TIME",
            parser=quantity("TIME"),
            help="Search this long for the best layout of each, instead of taking the scenario's own.",
        ),
    ] = None,
    offer: Annotated[Offer, typer.Option("--offer", help="Kind of price.")] = Offer.ON_DEMAND,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            help="File of your own prices, one line each, such as h100-sxm: 2.10 USD/h.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            metavar="NAME",
            help="Electricity grid, e.g. us-central1 or fra; or its kgCO2/kWh.",
        ),
    ] = None,
    pue: Annotated[
        str | None,
        typer.Option(
            "--pue",
            metavar="NUMBER",
            help="Power usage effectiveness (PUE) of the site; or aws, google, industry.",
        ),
    ] = None,
    failures: Failures = 1.0,
    restart: Restart = None,
    storage: Storage = None,
    background: Background = True,
    interval: Interval = None,
    plot: Plot = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Estimate days, accelerator-hours, dollars, MWh and tonnes of CO2 of a whole training."""
    from mpsim.cli.console import end_early, note, print_json, print_sheet, wrote
    from mpsim.cli.progress import progress_bar
    from mpsim.study.facility import Facility, read_rates
    from mpsim.study.plan import Assumptions, changed
    from mpsim.study.plan import plan as make_plan

    scenario = reading.load(file)
    values = values_over(scenario, over)
    assumed = Assumptions(
        facility=Facility.of(pue=pue, region=region),
        offer=offer.value,
        rates=read_rates(prices) if prices else {},
        failures=failures,
        restart=restart,
        storage=storage,
        background=background,
        interval=interval,
    )
    with progress_bar(scenario.name) as report:
        plans = make_plan(
            scenario,
            tokens,
            values,
            assumed=assumed,
            deadline=None if deadline is None else deadline / _DAY,
            budget=budget_usd,
            search=search,
            progress=report,
        )
    if plot is not None:
        plans.display().save(plot)
        wrote(plot)
    if as_json:
        print_json(plans.to_json())
        end_early(plans.interrupted)
        return
    if plans.rows:
        print_sheet(plans.sheet())
    if plans.best is None:
        note("mpsim plan: no plan fits into memory, the deadline and the budget")
    for failed, why in plans.failed:
        note(f"not planned: {changed(failed)}: {why}")
    end_early(plans.interrupted)
