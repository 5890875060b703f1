"""``mpsim schedule``: one pipeline schedule with given times, nothing else around it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson, Csv, Plot, finite, pairs

if TYPE_CHECKING:
    from mpsim.schedule import Orders
    from mpsim.study import SynthesisedSchedule, TimedSchedule, Times

__all__ = ["schedule"]

MOST_RANKS = 4096
MOST_CHUNKS = 1024
MOST_ACTIONS = 10_000_000  # forwards of one schedule: what arrays here can hold
LONGEST = 1e15  # of a time: what adds up exactly beside 1


class Overlap(enum.StrEnum):
    """How a fused forward-backward block runs."""

    SERIAL = "serial"
    LATE_SEND = "late-send"
    FUSED = "fused"


def schedule(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Schedule (see: mpsim show schedule), a CSV file, or 'all'."
        ),
    ],
    pp: Annotated[
        int | None, typer.Option("--pp", min=1, max=MOST_RANKS, help="Pipeline ranks.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", min=1, help="Microbatches per step.")
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
        int | None,
        typer.Option("--virtual", min=1, max=MOST_CHUNKS, help="Chunks (virtual stages) per rank."),
    ] = None,
    p2p: Annotated[
        str, typer.Option("--p2p", metavar="C", help="Latency of a transfer between stages.")
    ] = "0",
    plot: Plot = None,
    csv: Csv = None,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            metavar="COUNT",
            callback=finite,
            help="Activations that fit on a rank, for 'all' and 'auto'.",
        ),
    ] = None,
    overlap: Annotated[
        Overlap | None,
        typer.Option(
            "--overlap",
            help="How fused forward-backward blocks run; left out: late-send.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=NUMBER",
            help="Option of this schedule alone, such as segments=4 of seq-1f1b; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time one pipeline schedule, or all of them side by side."""
    from mpsim.study import Times, synthesise_schedule, time_schedule

    chunk, transfer = (
        _numbers(times, count=3, option="--times"),
        _numbers(p2p, count=1, option="--p2p"),
    )
    given = Times(*chunk, *transfer)
    _check_name(name)
    _refuse_unused(
        name,
        {
            "--virtual": virtual,
            "--plot": plot,
            "--csv": csv,
            "--overlap": overlap,
            "--option": option,
            "--memory": memory,
        },
    )
    if name == "all":
        _compare(
            pp=pp,
            microbatches=microbatches,
            times=given,
            memory=memory,
            plot=plot,
            as_json=as_json,
        )
        return
    options, synthesis = _options(option or []), None
    if _synthesises(name):
        ranks, count = _required(pp, microbatches, virtual)
        synthesis = synthesise_schedule(
            pp=ranks,
            microbatches=count,
            virtual_stages=virtual,
            times=given,
            memory=memory,
            **options,
        )
        orders = synthesis.best.orders
    else:
        orders = _orders(name, pp, microbatches, virtual, given, options)
    timed = time_schedule(orders, given, overlap=(overlap or Overlap.LATE_SEND).value)
    _write(timed, csv=csv, plot=plot)
    if as_json:
        from mpsim.cli.console import print_json

        # exactly the keys that others read
        quality = synthesis.to_json() if synthesis else {}
        print_json({**timed.to_json(), **quality}, stamped=False)
    else:
        _print(timed, synthesis)


def _write(timed: TimedSchedule, *, csv: Path | None, plot: Path | None) -> None:
    from mpsim.cli.console import wrote

    if csv is not None:
        from mpsim.schedule import write_csv

        write_csv(timed.orders, csv)
        wrote(csv)
    if plot is not None:
        from mpsim.plot import timeline_chart

        tick = 1 / timed.scale
        timeline_chart(timed.timeline, tick=tick, unit="unit of --times").save(plot)
        wrote(plot)


def _numbers(text: str, *, count: int, option: str) -> list[Fraction]:
    """Exact numbers, so that 0.1 adds up."""
    try:
        numbers = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if len(numbers) != count or not all(0 <= number <= LONGEST for number in numbers):
        wanted = "three numbers such as 1,1,1" if count == 3 else "one number such as 0.5"
        raise typer.BadParameter(
            f"got {text[:60]!r}; needed {wanted}, none negative or above {LONGEST:g}",
            param_hint=option,
        )
    return numbers


def _orders(
    name: str,
    pp: int | None,
    microbatches: int | None,
    virtual: int | None,
    times: Times,
    options: dict[str, int],
) -> Orders:
    from mpsim.schedule import read_csv
    from mpsim.study import named_orders

    if name.endswith(".csv") and pp is None and microbatches is None and virtual is None:
        return read_csv(name)
    ranks, count = _required(pp, microbatches, virtual)
    return named_orders(
        name,
        pp=ranks,
        microbatches=count,
        virtual_stages=virtual,
        times=times,
        **options,
    )


def _check_name(name: str) -> None:
    """There is such a schedule, said before what else it would need."""
    from mpsim.errors import ScheduleError, nearest
    from mpsim.schedule import schedule_names

    known = (*schedule_names(), "all")
    if name not in known and not name.endswith(".csv"):
        raise ScheduleError(
            f"got schedule {name[:60]!r}; needed a known one or a .csv file; {nearest(name, known)}"
        )


def _synthesises(name: str) -> bool:
    """Whether the schedule takes a limit of memory and says how good its order is."""
    from mpsim.schedule import schedule

    return not name.endswith(".csv") and schedule(name).synthesises


def _refuse_unused(name: str, given: Mapping[str, object]) -> None:
    """Refuse options that schedule `name` would not heed."""
    if name == "all":
        unused = {*given} - {"--memory", "--plot"}
        mend = "'all' compares schedules as they are; leave it out, or name one schedule"
    elif name.endswith(".csv"):
        unused = {"--option", "--memory"}
        mend = "a CSV file holds the orders as they are; leave it out"
    elif not _synthesises(name):
        unused = {"--memory"}
        mend = f"{name} holds what it holds; leave it out, or take 'all' or 'auto'"
    else:
        return
    for option, value in given.items():
        if option in unused and value not in (None, []):
            raise typer.BadParameter(mend, param_hint=option)


def _options(given: list[str]) -> dict[str, int]:
    """Whole numbers by name."""
    needed = "NAME=NUMBER such as segments=4"
    texts = pairs(given, option="--option", needed=needed)
    try:
        return {key: int(text) for key, text in texts.items()}
    except ValueError:
        raise typer.BadParameter(f"got {given}; needed {needed}", param_hint="--option") from None


def _required(
    pp: int | None, microbatches: int | None, virtual: int | None = None
) -> tuple[int, int]:
    """Both, if they are there and no more than can be held."""
    if pp is None or microbatches is None:
        missing = "--pp" if pp is None else "--microbatches"
        raise typer.BadParameter("needed to build a schedule", param_hint=missing)
    most = MOST_ACTIONS // (pp * (virtual or 1))
    if microbatches > most:
        raise typer.BadParameter(
            f"got {microbatches}; needed at most {most} on {pp} ranks", param_hint="--microbatches"
        )
    return pp, microbatches


def _compare(
    *,
    pp: int | None,
    microbatches: int | None,
    times: Times,
    memory: float | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    from mpsim.cli.console import print_json, print_table, wrote
    from mpsim.study import compare_schedules
    from mpsim.units import percent

    ranks, count = _required(pp, microbatches)
    comparison = compare_schedules(pp=ranks, microbatches=count, times=times, memory=memory)
    if plot is not None:
        from mpsim.plot import schedules_chart

        title = f"schedules of {ranks} ranks and {count} microbatches: bubble against memory"
        schedules_chart(comparison, memory=memory).titled(title).save(plot)
        wrote(plot)
    if as_json:
        print_json(
            {
                "pp": ranks,
                "microbatches": count,
                "schedules": [candidate.to_json() for candidate in comparison],
            }
        )
        return
    header = (
        "schedule",
        "chunks",
        "makespan",
        "longest rank",
        "bubble",
        "activations",
        "weights",
        "",
    )
    rows = [
        (candidate.name, "", "", "", "", "", "", candidate.reason)
        if candidate.timed is None
        else (
            candidate.name,
            str(candidate.timed.orders.virtual_stages),
            f"{candidate.timed.makespan:g}",
            f"{candidate.timed.max_rank_span:g}",
            percent(candidate.timed.bubble_fraction),
            f"{candidate.activations:g}",
            f"x{candidate.weight_copies}",
            f"needs over {memory:g}" if candidate.reason else "",
        )
        for candidate in comparison
    ]
    print_table(rows, header=header, right=(1, 2, 3, 4, 5, 6))


def _print(timed: TimedSchedule, synthesis: SynthesisedSchedule | None) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.table import plural
    from mpsim.units import percent

    orders = timed.orders
    print_text(
        f"{orders.schedule}: pp {orders.pp}, {plural(orders.microbatches, 'microbatch', 'microbatches')}, "
        f"{plural(orders.virtual_stages, 'virtual stage')}\n"
        f"makespan {timed.makespan:g}, longest rank {timed.max_rank_span:g} (unit of --times)\n"
        f"bubble {percent(timed.bubble_fraction)} of the makespan, {percent(timed.bubble_over_ideal)} over ideal"
    )
    if synthesis is not None:
        print_text("\n".join(synthesis.verdict()))
    peaks = zip(
        orders.peak_inflight(), orders.peak_until_input_grad(), orders.tokens(), strict=True
    )
    print_table(
        [
            (str(rank), str(held), str(until), " ".join(order))
            for rank, (held, until, order) in enumerate(peaks)
        ],
        header=("rank", "peak (chunks)", "peak until I", "order"),
        right=(0, 1, 2),
    )
