"""``mpsim plan``: days, accelerator-hours, dollars, energy and carbon of a whole training."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from mpsim import structs
from mpsim.cli.console import draw, end_early, note, print_answer, progress_bar
from mpsim.cli.options import AsJson, Checkpoints, Plot, Reading, count, keys, quantity, values_over

_DAY = 86400.0


class Offer(enum.StrEnum):
    """Kinds of prices."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED_1Y = "reserved-1y"
    RESERVED_3Y = "reserved-3y"
    BLOCK = "block"


def plan(
    file: Path,
    tokens: Annotated[float, Option(parser=count)],
    over: Annotated[list[str] | None, Option(autocompletion=keys)] = None,
    deadline: Annotated[float | None, Option(parser=quantity("TIME"))] = None,
    budget_usd: Annotated[float | None, Option(parser=count)] = None,
    search: Annotated[float | None, Option(parser=quantity("TIME"))] = None,
    offer: Offer = Offer.ON_DEMAND,
    prices: Path | None = None,
    region: str | None = None,
    pue: str | None = None,
    plot: Plot = None,
    *,
    checkpoints: Checkpoints,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Estimate days, accelerator-hours, dollars, MWh and tonnes of CO2 of a whole training.

    FILE: Scenario file.
    --tokens COUNT: Tokens to train on, e.g. 15.6T.
    --over KEY=A,B,C: Plan every value of a key, e.g. cluster.nodes=64,128,256; repeatable.
    --deadline TIME: Choose the fewest accelerators that finish in this time, e.g. '60 d'.
    --budget-usd USD: Highest cost, e.g. 5M.
    --search TIME: Search this long for the best layout of each, instead of taking the scenario's
        own.
    --offer: Kind of price.
    --prices: File of your own prices, one line each, such as h100-sxm: 2.10 USD/h.
    --region NAME: Electricity grid, e.g. us-central1 or fra; or its kgCO2/kWh.
    --pue NUMBER: Power usage effectiveness (PUE) of the site; or aws, google, industry.
    """
    from mpsim.study.facility import Facility, read_rates
    from mpsim.study.plan import Assumptions, changed
    from mpsim.study.plan import plan as make_plan

    checkpoints.refuse_idle()
    scenario = reading.load(file, checked=False)
    values = values_over(scenario, over)
    reading.refuse_varied(values)
    assumed = Assumptions(
        facility=Facility.of(pue=pue, region=region),
        offer=offer.value,
        rates=read_rates(prices) if prices else {},
        **structs.asdict(checkpoints),
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
    if plot is not None and not plans.interrupted:
        draw(plans.display(), plot)
    if plans.rows or as_json:
        print_answer(plans, as_json=as_json)
    if plans.best is None and not as_json:
        note("mpsim plan: no plan fits into memory, the deadline and the budget")
    for failed, why in plans.failed if not as_json else ():
        note(f"not planned: {changed(failed)}: {why}")
    end_early(plans.interrupted)
    if plans.best is None:
        raise typer.Exit(1)
