"""``mpsim schedule``: one pipeline schedule with given times, nothing else around it."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson

if TYPE_CHECKING:
    from mpsim.engine import Timeline
    from mpsim.schedule import Orders

__all__ = ["schedule"]


def schedule(
    name: Annotated[
        str, typer.Argument(help="Schedule (see: mpsim show schedule), or a CSV file.")
    ],
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Ranks.")] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", min=1, help="Microbatches a step.")
    ] = None,
    times: Annotated[
        str,
        typer.Option(
            "--times",
            metavar="F,B,W",
            help="Forward, input gradient and weight gradient of one chunk, in any unit of time; "
            "a full backward costs B + W.",
        ),
    ] = "1,1,1",
    virtual: Annotated[
        int | None, typer.Option("--virtual", min=1, help="Chunks (virtual stages) a rank.")
    ] = None,
    p2p: Annotated[
        str, typer.Option("--p2p", metavar="C", help="Latency of a transfer between stages.")
    ] = "0",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the timeline (.png, .svg, .pdf)."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the orders, one row a rank.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time one pipeline schedule: orders, makespan, bubbles and activations in flight."""
    from mpsim.cli.console import print_json, wrote
    from mpsim.schedule import write_csv

    chunk, transfer = (
        _numbers(times, count=3, option="--times"),
        _numbers(p2p, count=1, option="--p2p"),
    )
    orders = _orders(name, pp=pp, microbatches=microbatches, virtual=virtual)
    report, timeline, scale = _measure(orders, chunk, transfer[0])
    if csv is not None:
        write_csv(orders, csv)
        wrote(csv)
    if plot is not None:
        _draw(timeline, plot, scale)
        wrote(plot)
    if as_json:
        print_json(report)
    else:
        _print(report)


def _numbers(text: str, *, count: int, option: str) -> list[Fraction]:
    """Exact numbers, so that 0.1 adds up."""
    try:
        numbers = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if len(numbers) != count or any(number < 0 for number in numbers):
        wanted = "three numbers such as 1,1,1" if count == 3 else "one number such as 0.5"
        raise typer.BadParameter(f"got {text!r}; needed {wanted}, none negative", param_hint=option)
    return numbers


def _orders(name: str, *, pp: int | None, microbatches: int | None, virtual: int | None) -> Orders:
    from mpsim.schedule import make_orders, read_csv

    if name.endswith(".csv") and pp is None and microbatches is None and virtual is None:
        return read_csv(name)
    if pp is None or microbatches is None:
        missing = "--pp" if pp is None else "--microbatches"
        raise typer.BadParameter("needed to build a schedule", param_hint=missing)
    if virtual is None:
        return make_orders(name, pp=pp, microbatches=microbatches)
    return make_orders(name, pp=pp, microbatches=microbatches, virtual_stages=virtual)


def _measure(
    orders: Orders, chunk: list[Fraction], transfer: Fraction
) -> tuple[dict[str, object], Timeline, int]:
    """Time `orders` in whole ticks of the finest unit that holds every given number exactly."""
    from mpsim.engine import run
    from mpsim.program import from_orders
    from mpsim.schedule import Action

    scale = math.lcm(*(number.denominator for number in [*chunk, transfer]))
    forward, backward, weight, send = (float(number * scale) for number in [*chunk, transfer])
    program = from_orders(orders, forward=forward, backward=backward, weight=weight, send=send)
    timeline = run(program, engine="replay")
    makespan = timeline.makespan
    forwards = int((orders.kind == Action.F).sum()) // orders.pp
    backwards = int(((orders.kind == Action.B) | (orders.kind == Action.I)).sum()) // orders.pp
    weights = int(((orders.kind == Action.B) | (orders.kind == Action.W)).sum()) // orders.pp
    ideal = forwards * forward + backwards * backward + weights * weight
    report: dict[str, object] = {
        "schedule": orders.schedule,
        "pp": orders.pp,
        "microbatches": orders.microbatches,
        "virtual_stages": orders.virtual_stages,
        "orders": orders.tokens(),
        "makespan": makespan / scale,
        "max_rank_span": _max_rank_span(timeline) / scale,
        "bubble_fraction": 1 - ideal / makespan if makespan else 0.0,
        "bubble_over_ideal": (makespan - ideal) / ideal if ideal else 0.0,
        "peak_inflight_activations": orders.peak_inflight(),
        "peak_until_input_grad": orders.peak_until_input_grad(),
    }
    return report, timeline, scale


def _max_rank_span(timeline: Timeline) -> float:
    """Longest time from a rank's own first start to its own last end, in ticks."""
    spans = []
    for rank in range(timeline.program.ranks):
        rows = timeline.rows(rank)
        spans.append(float(timeline.end[rows].max() - timeline.start[rows].min()))
    return max(spans)


def _draw(timeline: Timeline, path: Path, scale: int) -> None:
    from mpsim.plot import TimelineDisplay

    unit = "unit of --times"
    TimelineDisplay.from_timeline(timeline, tick=1 / scale, unit=unit).save(path)


def _print(report: dict[str, object]) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.cli.summary import percent

    orders, held, until = (
        report[key] for key in ("orders", "peak_inflight_activations", "peak_until_input_grad")
    )
    assert isinstance(orders, list)
    assert isinstance(held, list)
    assert isinstance(until, list)
    fraction, over_ideal = report["bubble_fraction"], report["bubble_over_ideal"]
    assert isinstance(fraction, float)
    assert isinstance(over_ideal, float)
    print_text(
        f"{report['schedule']}: pp {report['pp']}, {report['microbatches']} microbatches, "
        f"{report['virtual_stages']} virtual stages\n"
        f"makespan {report['makespan']:g}, longest rank {report['max_rank_span']:g} (unit of --times)\n"
        f"bubble {percent(fraction)} of the makespan, {percent(over_ideal)} over ideal"
    )
    print_table(
        [
            (str(rank), str(held[rank]), str(until[rank]), " ".join(order))
            for rank, order in enumerate(orders)
        ],
        header=("rank", "peak (chunks)", "peak until I", "order"),
        right=(0, 1, 2),
    )
