"""``mpsim search``: the best layouts of a model on a cluster."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli.options import (
    AllowInclude,
    AsJson,
    Csv,
    Emit,
    Overrides,
    Plot,
    Resume,
    Sets,
    check_over,
    load_scenario,
    quantity,
    share,
)

if TYPE_CHECKING:
    from mpsim.scenario import Scenario
    from mpsim.study import Found, Search

__all__ = ["search"]


class Objective(enum.StrEnum):
    """Figures that layouts are ranked by."""

    TIME = "time"
    COST = "cost"
    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    RATE = "rate"


def search(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Scenario file; its own layout counts for nothing."),
    ],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", metavar="KEY=A,B,C", help="Values of one key instead of all; repeatable."
        ),
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option(
            "--objective",
            help="Training: least time (the default) or cost of a token. Services: most goodput (the default with limits), throughput of an accelerator, or rate within the limits; or least cost.",
        ),
    ] = None,
    pools: Annotated[
        bool,
        typer.Option("--pools", help="Services: also prefill and decode on pools of their own."),
    ] = False,
    top: Annotated[int | None, typer.Option("--top", min=1, help="How many to rank; 10.")] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            parser=quantity("BYTES"),
            help="Of a rank, e.g. '70 GB'.",
        ),
    ] = None,
    max_price: Annotated[
        float | None,
        typer.Option(
            "--max-price",
            metavar="PRICE",
            parser=quantity("PRICE_RATE"),
            help="Of all accelerators, e.g. '2000 USD/h'.",
        ),
    ] = None,
    max_power: Annotated[
        float | None,
        typer.Option(
            "--max-power",
            metavar="POWER",
            parser=quantity("POWER"),
            help="Of all nodes, e.g. '1.2 MW'.",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="SHARE",
            callback=share,
            help="Of the accelerator's memory that stays free; 0.05.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            parser=quantity("TIME"),
            help="Stop after it, e.g. 60s.",
        ),
    ] = None,
    front: Annotated[
        bool, typer.Option("--front/--no-front", help="Time against memory, too.")
    ] = True,
    csv: Csv = None,
    plot: Plot = None,
    resume: Resume = None,
    emit: Emit = None,
    sets: Sets = None,
    overrides: Overrides = None,
    allow_include: AllowInclude = False,
    as_json: AsJson = False,
) -> None:
    """Find the best layouts of a model on a cluster, and say what became of all others."""
    from mpsim.cli.console import INTERRUPTED, note, phases_bar, print_json, wrote
    from mpsim.cli.emit import check_emit, emitted, write_emitted
    from mpsim.cli.sweep import values_of
    from mpsim.study import search as run_search

    scenario = load_scenario(file, sets=sets, overrides=overrides, allow_include=allow_include)
    check_emit(emit or (), 1)
    values = values_of(over or [])
    check_over(scenario, values)
    if scenario.serves:
        _refuse_training_options(objective, emit, margin)
        _search_service(
            scenario,
            values,
            csv=csv,
            plot=plot,
            as_json=as_json,
            objective=None if objective is None else objective.value,
            top=top,
            pools=pools,
            max_memory=max_memory,
            max_price=max_price,
            max_power=max_power,
            budget=budget,
            resume=resume,
        )
        return
    if pools or objective in (Objective.GOODPUT, Objective.THROUGHPUT, Objective.RATE):
        raise typer.BadParameter(
            "is for services, and the scenario trains; leave it out",
            param_hint="--pools" if pools else "--objective",
        )
    with phases_bar(scenario.name) as report:
        outcome = run_search(
            scenario,
            values,
            objective="time" if objective is None else objective.value,
            top=top,
            front=front,
            max_memory=max_memory,
            max_price=max_price,
            max_power=max_power,
            margin=margin,
            budget=budget,
            resume=resume,
            progress=report,
        )
    if csv is not None:
        outcome.to_csv(csv)
        wrote(csv)
    if plot is not None and outcome.rows:
        _draw(outcome, plot)
        wrote(plot)
    elif plot is not None:
        note(f"nothing was simulated, so there is nothing to draw in {plot}")
    files = []
    if emit and outcome.best is not None:
        files = emitted(scenario.with_values(outcome.best.values), emit)
    if as_json:
        told = {"emitted": [item.to_json() for item in files]} if files else {}
        print_json({**outcome.to_json(), **told})
    else:
        _print(outcome, with_front=front)
    write_emitted(files)
    for remark in outcome.remarks:
        note(remark)
    if outcome.interrupted:
        note("mpsim: interrupted; this is what was found until then")
        raise typer.Exit(INTERRUPTED)


def _refuse_training_options(
    objective: Objective | None, emit: list[str] | None, margin: float | None
) -> None:
    """Refuse options that say nothing of a service."""
    if objective is Objective.TIME:
        raise typer.BadParameter(
            "ranks training steps; give goodput, throughput, cost or rate",
            param_hint="--objective",
        )
    if emit or margin is not None:
        raise typer.BadParameter(
            "is for training steps, and the scenario serves; leave it out",
            param_hint="--emit" if emit else "--margin",
        )


def _search_service(scenario: Scenario, values: dict[str, list[object]], **options: Any) -> None:
    from mpsim.cli.console import INTERRUPTED, note
    from mpsim.cli.service_search import search_service

    if search_service(scenario, values, **options):
        note("mpsim: interrupted; this is what was found until then")
        raise typer.Exit(INTERRUPTED)


def _draw(outcome: Search, path: Path) -> None:
    from mpsim.plot import SearchDisplay

    SearchDisplay.from_search(outcome).save(path)


def _print(outcome: Search, *, with_front: bool) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.study.search import REASONS

    priced = any(row.price_per_hour for row in outcome.leaders)
    print_table(
        (_line(rank, row) for rank, row in enumerate(outcome.leaders, start=1)),
        header=(
            *("#", "step (s)", "80 % between", "tokens/s/acc.", "MFU", "memory (GB)", "bubble"),
            "exposed",
            *(("USD/step",) if priced else ()),
            "layout",
        ),
        right=range(8 + priced),
    )
    _print_others(outcome)
    for key, chosen in outcome.best_by_value.items():
        print_table(
            (
                (value, f"{row.step_time_s:.5g}", f"{row.tokens_per_s_per_accelerator:.5g}")
                + ((f"{row.cost_per_step:.4g}",) if priced and row.cost_per_step else ())
                + (row.name,)
                for value, row in chosen.items()
            ),
            header=(key, "step (s)", "tokens/s/acc.", *(("USD/step",) if priced else ()), "layout"),
            title="\nthe best for each value",
            right=range(1, 3 + priced),
        )
    if outcome.ties:
        what = "the other is" if outcome.ties == 1 else f"{outcome.ties} others are"
        print_text(f"tie: {what} not slower beyond the error of such differences (80 % interval)")
    rest = outcome.front
    if with_front and len(rest) > 1:
        print_table(
            (_front_line(row) for row in rest),
            header=("step (s)", "80 % between", "memory (GB)", "80 % between", "layout"),
            title=f"\nno other {'' if outcome.front_complete else 'of those simulated '}is better in step time and memory",
            right=(0, 1, 2, 3),
        )
    print_table(
        ((str(count), REASONS[name]) for name, count in outcome.counts.items()),
        title=f"\n{outcome.legal} legal layouts; {_proof(outcome)}",
        right=(0,),
    )
    if outcome.undivided:
        print_text(
            f"{outcome.undivided:,} layouts: layers do not divide, and the framework needs that"
        )
    if not outcome.rows:
        print_text("nothing was simulated: no layout is within the limits")


_TOLD = 3  # parts of the step by which the second layout differs


def _print_others(outcome: Search) -> None:
    """Why the second loses, and where the scenario's own layout stands."""
    from mpsim.cli.console import print_text
    from mpsim.units import Dimension, format_quantity

    def signed(seconds: float) -> str:
        return ("+" if seconds > 0 else "") + format_quantity(seconds, Dimension.TIME, digits=3)

    if parts := [(name, gap) for name, gap in outcome.runner_up.items() if gap][:_TOLD]:
        gaps = ", ".join(f"{name.replace('_', ' ')} {signed(gap)}" for name, gap in parts)
        print_text(f"second against best: {gaps}")
    best, own = outcome.best, outcome.own_step_time_s
    if outcome.own_reason:
        took = f", in {format_quantity(own, Dimension.TIME)}" if own is not None else ""
        print_text(f"the scenario's own layout: {outcome.own_reason}{took}")
    elif best is not None and own is not None:
        faster = sum(row.step_time_s < own for row in outcome.rows)
        print_text(
            f"the scenario's own layout: {format_quantity(own, Dimension.TIME)}, {own / best.step_time_s - 1:+.1%} against the best; "
            f"{faster} of those simulated are faster"
        )


def _proof(outcome: Search) -> str:
    """How far it is proved that nothing is better than the best."""
    from mpsim.cli.summary import percent

    if outcome.complete:
        return "no other can be among the best"
    if outcome.gap is None:
        return "not all were looked at, so a better one may be among the others"
    if outcome.best is not None and outcome.gap <= 0.0:
        return "not all were simulated, but none can be better than the best"
    return f"not all were simulated, and by its bound one of the others may be up to {percent(outcome.gap)} better"


def _line(rank: int, row: Found) -> tuple[str, ...]:
    from mpsim.cli.summary import percent

    flat = row.flat()
    exposed = sum(
        float(value)
        for key, value in flat.items()
        if key.startswith("exposed_") and isinstance(value, int | float)
    )
    known = row.summary is not None
    price = (f"{row.cost_per_step:.4g}",) if row.cost_per_step else ()
    figures = (
        str(rank),
        f"{row.step_time_s:.5g}",
        _range(row, "step_time_s", 1.0),
        f"{row.tokens_per_s_per_accelerator:.5g}",
        percent(float(str(flat["mfu"]))) if known else "-",
        f"{row.memory_bytes / 1e9:.1f}",
        percent(float(str(flat["bubble_fraction"]))) if known else "-",
        percent(exposed / row.step_time_s) if known else "-",
    )
    return (*figures, *price, row.name)


def _range(row: Found, figure: str, unit: float) -> str:
    """The interval of a figure."""
    ends = (row.interval or {}).get(figure)
    return " - ".join(f"{end / unit:.4g}" for end in ends) if isinstance(ends, list) else "-"


def _front_line(row: Found) -> tuple[str, ...]:
    step, memory = _range(row, "step_time_s", 1.0), _range(row, "memory_bytes", 1e9)
    return (f"{row.step_time_s:.5g}", step, f"{row.memory_bytes / 1e9:.1f}", memory, row.name)
