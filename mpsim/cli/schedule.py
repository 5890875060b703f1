"""``mpsim schedule``: one pipeline schedule with given times, nothing else around it."""

from __future__ import annotations

import enum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mpsim import structs
from mpsim.cli.console import draw, print_json, print_table, print_text, wrote
from mpsim.cli.options import AsJson, Csv, Plot, finite, pairs, refuse, wrong
from mpsim.errors import ScheduleError, nearest
from mpsim.table import plural
from mpsim.units import percent

if TYPE_CHECKING:
    from mpsim.schedule import Orders
    from mpsim.study import SynthesisedSchedule, TimedSchedule, Times

MOST_RANKS = 4096
MOST_CHUNKS = 1024
MOST_ACTIONS = 10_000_000  # forwards of one schedule: what arrays here can hold
LONGEST = 1e15  # of a time: what adds up exactly beside 1
COMPARED = "schedule, chunks, makespan, longest rank, bubble, activations, weights, ".split(", ")


class Overlap(enum.StrEnum):
    """How a fused forward-backward block runs."""

    SERIAL = "serial"
    LATE_SEND = "late-send"
    FUSED = "fused"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of the ranks of a pipeline, and how long each part of it takes.

    --pp: Pipeline ranks.
    --microbatches: Microbatches per step.
    --times F,B,W: Forward, input gradient and weight gradient of one chunk, in any unit of time; a
        full backward costs B + W.
    --virtual: Chunks (virtual stages) per rank.
    --p2p C: Latency of a transfer between stages.
    """

    pp: Annotated[int | None, Option(min=1, max=MOST_RANKS)] = None
    microbatches: Annotated[int | None, Option(min=1)] = None
    times: str = "1,1,1"
    virtual: Annotated[int | None, Option(min=1, max=MOST_CHUNKS)] = None
    p2p: str = "0"

    def exact(self) -> Times:
        """Times as exact numbers, so that 0.1 adds up."""
        from mpsim.study import Times

        each = _numbers(self.times, count=3, name="--times")
        return Times(*each, *_numbers(self.p2p, count=1, name="--p2p"))

    @property
    def is_open(self) -> bool:
        """Whether nothing says how many ranks and microbatches there are."""
        return self.pp is None and self.microbatches is None and self.virtual is None

    @property
    def ranks(self) -> int:
        """Pipeline ranks, which were given."""
        if self.pp is None:
            raise wrong("needed to build a schedule", "--pp")
        return self.pp

    @property
    def count(self) -> int:
        """Microbatches, which were given and are no more than can be held."""
        most = MOST_ACTIONS // (self.ranks * (self.virtual or 1))
        if self.microbatches is None:
            raise wrong("needed to build a schedule", "--microbatches")
        if self.microbatches > most:
            message = f"got {self.microbatches}; needed at most {most} on {self.pp} ranks"
            raise wrong(message, "--microbatches")
        return self.microbatches


def schedule(
    name: Annotated[str, Argument(metavar="NAME")],
    work: Work,
    plot: Plot = None,
    csv: Csv = None,
    memory: Annotated[float | None, Option(callback=finite)] = None,
    overlap: Overlap | None = None,
    options: Annotated[list[str] | None, Option("--option")] = None,
    as_json: AsJson = False,
) -> None:
    """Time one pipeline schedule, or all of them side by side.

    NAME: Schedule (see: mpsim show schedule), a CSV file, or 'all'.
    --memory COUNT: Activations that fit on a rank, for 'all' and 'auto'.
    --overlap: How fused forward-backward blocks run; left out: late-send.
    --option KEY=NUMBER: Option of this schedule alone, such as segments=4 of seq-1f1b; repeatable.
    """
    from mpsim.study import synthesise_schedule, time_schedule

    times = work.exact()
    _check_name(name)
    if name == "all":
        refuse(
            {"--virtual": work.virtual, "--csv": csv, "--overlap": overlap, "--option": options},
            "'all' compares schedules as they are; leave it out, or name one schedule",
        )
        _compare(work, times, memory, plot, as_json=as_json)
        return
    if name.endswith(".csv"):
        mend = "a CSV file holds the orders as they are; leave it out"
        refuse({"--option": options, "--memory": memory}, mend)
    own, synthesis = _own_options(options), None
    if _synthesises(name):
        synthesis = synthesise_schedule(
            pp=work.ranks,
            microbatches=work.count,
            virtual_stages=work.virtual,
            times=times,
            memory=memory,
            **own,
        )
        orders = synthesis.best.orders
    else:
        mend = f"{name} holds what it holds; leave it out, or take 'all' or 'auto'"
        refuse({"--memory": memory}, mend)
        orders = _orders(name, work, times, own)
    if overlap is not None and not orders.fused.any():
        raise wrong(f"{name} has no fused blocks; leave it out", "--overlap")
    timed = time_schedule(orders, times, overlap=(overlap or Overlap.LATE_SEND).value)
    if csv is not None:
        from mpsim.schedule.csv_file import write_csv

        write_csv(timed.orders, csv)
        wrote(csv)
    if plot is not None:
        from mpsim.plot import timeline_chart

        draw(timeline_chart(timed.timeline, tick=1 / timed.scale, unit="unit of --times"), plot)
    if as_json:  # exactly the keys that others read
        quality = synthesis.to_json() if synthesis else {}
        print_json({**timed.to_json(), **quality}, stamped=False)
    else:
        _print(timed, synthesis)


def _numbers(text: str, *, count: int, name: str) -> list[Fraction]:
    try:
        numbers = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if len(numbers) != count or not all(0 <= number <= LONGEST for number in numbers):
        wanted = "three numbers such as 1,1,1" if count == 3 else "one number such as 0.5"
        raise wrong(f"got {text[:60]!r}; needed {wanted}, none negative or above {LONGEST:g}", name)
    return numbers


def _orders(name: str, work: Work, times: Times, own: dict[str, int]) -> Orders:
    from mpsim.schedule.csv_file import read_csv
    from mpsim.study import named_orders

    if name.endswith(".csv") and work.is_open:
        return read_csv(name)
    return named_orders(
        name,
        pp=work.ranks,
        microbatches=work.count,
        virtual_stages=work.virtual,
        times=times,
        **own,
    )


def _check_name(name: str) -> None:
    """There is such a schedule, said before what else it would need."""
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


def _own_options(given: list[str] | None) -> dict[str, int]:
    """Whole numbers by name."""
    needed = "NAME=NUMBER such as segments=4"
    texts = pairs(given, option="--option", needed=needed)
    try:
        return {key: int(text) for key, text in texts.items()}
    except ValueError:
        raise wrong(f"got {given}; needed {needed}", "--option") from None


def _compare(
    work: Work, times: Times, memory: float | None, plot: Path | None, *, as_json: bool
) -> None:
    from mpsim.study import compare_schedules

    ranks, count = work.ranks, work.count
    comparison = compare_schedules(pp=ranks, microbatches=count, times=times, memory=memory)
    if plot is not None:
        from mpsim.plot import schedules_chart

        title = f"schedules of {ranks} ranks and {count} microbatches: bubble against memory"
        draw(schedules_chart(comparison, memory=memory).titled(title), plot)
    if as_json:
        each = [candidate.to_json() for candidate in comparison]
        print_json({"pp": ranks, "microbatches": count, "schedules": each})
        return
    rows = [
        (candidate.name, *[""] * 6, candidate.reason)
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
    print_table(rows, header=COMPARED, right=range(1, 7))


def _print(timed: TimedSchedule, synthesis: SynthesisedSchedule | None) -> None:
    orders = timed.orders
    print_text(
        f"{orders.schedule}: pp {orders.pp},"
        f" {plural(orders.microbatches, 'microbatch', 'microbatches')},"
        f" {plural(orders.virtual_stages, 'virtual stage')}\nmakespan {timed.makespan:g}, longest"
        f" rank {timed.max_rank_span:g} (unit of --times)\nbubble {percent(timed.bubble_fraction)}"
        f" of the makespan, {percent(timed.bubble_over_ideal)} over ideal"
    )
    if synthesis is not None:
        print_text("\n".join(synthesis.verdict()))
    held, until = orders.peak_inflight(), orders.peak_until_input_grad()
    rows = [
        (str(rank), str(held[rank]), str(until[rank]), " ".join(order))
        for rank, order in enumerate(orders.tokens())
    ]
    print_table(rows, header=("rank", "peak (chunks)", "peak until I", "order"), right=(0, 1, 2))
