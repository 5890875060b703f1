"""Schedules by name: how their orders are built, and the facts others need before any order is.

A scenario is checked, a search enumerates layouts and a table of measured runs is read without
building orders; what they must know of a schedule stands beside its builder, and in no table
elsewhere. Sizes that several builders refuse are refused here too. One line a schedule names its
module, which is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from types import MappingProxyType
from typing import TYPE_CHECKING

from mpsim import structs
from mpsim.errors import ScheduleError, nearest
from mpsim.memo import remembered
from mpsim.nouns import Description, Figure
from mpsim.schedule.orders import Orders

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "gpipe": "one_chunk.GPIPE",
        "1f1b": "one_chunk.ONE_F_ONE_B",
        "interleaved-1f1b": "interleaved.INTERLEAVED_1F1B",
        "eager-1f1b": "one_chunk.EAGER_1F1B",
        "chimera": "chimera.CHIMERA",
        "looped-bfs": "interleaved.LOOPED_BFS",
        "zb-h1": "one_chunk.ZB_H1",
        "interleaved-zb": "interleaved.INTERLEAVED_ZB",
        "zb-h2": "one_chunk.ZB_H2",
        "zb-1p": "search.zb_auto.ZB_1P",
        "zb-2p": "search.zb_auto.ZB_2P",
        "zb-v": "zb_v.ZB_V",
        "v-half": "search.v_block.V_HALF",
        "v-min": "search.v_block.V_MIN",
        "seq-1f1b": "one_chunk.SEQ_1F1B",
        "dualpipe": "dualpipe.DUALPIPE",
        "dualpipe-v": "dualpipe.DUALPIPE_V",
        "forward-only": "forward_only.FORWARD_ONLY",
        "auto": "search.synthesise.AUTO",
    }
)


@remembered(1)
def _offered() -> Mapping[str, EntryPoint]:
    """Schedules of installed packages: entry points of ``mpsim.schedules``, each a `Schedule`."""
    from importlib.metadata import entry_points

    entries = entry_points(group="mpsim.schedules")
    return {entry.name: entry for entry in entries if entry.name not in _SCHEDULES}


def schedule_names() -> tuple[str, ...]:
    """Schedules that `make_orders` knows, as they were invented, then installed packages'."""
    return (*_SCHEDULES, *_offered())


def is_schedule(name: str) -> bool:
    """Whether a schedule has this name; packages are looked through for one of theirs alone."""
    return name in _SCHEDULES or name in _offered()


@remembered(64)
def schedule(name: str) -> Schedule:
    """The schedule of a name, with its facts.

    Raises
    ------
    ScheduleError
        If the name is unknown.

    Examples
    --------
    >>> schedule("dualpipe").directions
    2
    """
    if not is_schedule(name):
        near = nearest(name, schedule_names())
        raise ScheduleError(f"got schedule {name!r}; needed a known one or a .csv file; {near}")
    if name not in _SCHEDULES:
        offered: Schedule = _offered()[name].load()
        return offered
    module, _, constant = _SCHEDULES[name].rpartition(".")
    known: Schedule = getattr(importlib.import_module(f"mpsim.schedule.{module}"), constant)
    return known


def schedules() -> Iterator[Schedule]:
    """Every schedule, in the order they were invented; imports all of their modules."""
    return map(schedule, schedule_names())


def make_orders(
    name: str,
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int | None = None,
    flushes: int = 1,
    **options: float | Sequence[float] | None,
) -> Orders:
    """Orders of a schedule.

    `name`: one of `schedule_names`, or the path of a ``.csv`` file (`read_csv`), which must agree
    with the numbers given here. `virtual_stages`: chunks a rank; what the schedule takes by
    default: 2 on a V, else 1. `flushes`: schedules one after another, which share the microbatches.
    `**options`: of that schedule alone (`Schedule.options`), such as
    ``group_size`` of interleaved-1f1b or ``times`` of zb-2p. ScheduleError if the name is unknown,
    or the schedule cannot be built with these numbers.

    Examples
    --------
    >>> make_orders("gpipe", pp=1, microbatches=2).tokens()
    [['0F0', '0F1', '0B0', '0B1']]
    """
    each, left = divmod(microbatches, flushes)
    if left:
        raise ScheduleError(
            f"got {flushes} flushes of {microbatches} microbatches; needed a number that divides"
            " them"
        )
    if name.endswith(".csv"):
        _check_options(name, (), options)
        orders = _from_file(name, pp=pp, microbatches=each, virtual_stages=virtual_stages or 1)
        return orders.repeated(flushes)
    chosen = schedule(name)
    _check_options(name, chosen.options, options)
    if virtual_stages is None:
        return chosen.build(pp=pp, microbatches=each, **options).repeated(flushes)
    return chosen.build(
        pp=pp, microbatches=each, virtual_stages=virtual_stages, **options
    ).repeated(flushes)


def _check_options(name: str, known: tuple[str, ...], options: Mapping[str, object]) -> None:
    unknown = [option for option in options if option not in known]
    if unknown:
        accepted = f"accepts {', '.join(known)}" if known else "has no option"
        raise ScheduleError(
            f"got option {unknown[0]!r} for {name!r}, which {accepted}; remove the option"
        )


def _from_file(path: str, *, pp: int, microbatches: int, virtual_stages: int) -> Orders:
    from mpsim.schedule.csv_file import read_csv

    orders = read_csv(path)
    needed = {"pp": pp, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for key, value in needed.items():
        got = getattr(orders, key)
        if got != value:
            raise ScheduleError(
                f"{path}: got orders for {key} = {got}; needed {key} = {value}; set {key} to {got},"
                " or write a file for it"
            )
    return orders


_COMMON = ("pp", "microbatches", "virtual_stages")


@structs.dataclass(frozen=True, slots=True)
class Schedule:
    """The facts of one schedule.

    Examples
    --------
    >>> from mpsim.schedule import schedule
    >>> schedule("zb-v").chunks, schedule("interleaved-1f1b").chunks
    (2, None)
    """

    name: str  # as people write it, in the registry too
    # makes the `Orders`, from ``pp`` ranks, ``microbatches`` of an optimizer step,
    # ``virtual_stages`` and options of its own, all by keyword; a `ScheduleError` where a number
    # does not fit
    build: Callable[..., Orders]
    _: KW_ONLY
    # virtual stages of a rank where a scenario leaves them out; None where it has to say how many
    chunks: int | None = 1
    interleaves: bool = False  # whether a scenario may choose another number of virtual stages
    groups: bool = False  # whether microbatches pass a chunk in groups of one size
    interleaved: str | None = None  # schedule that is this one over several virtual stages
    directions: int = 1  # pipelines through the same ranks, each with a copy of the weights
    # whether the forward of one microbatch can run beside the backward of another, as one block
    fuses: bool = False
    # whether it can on a single pipeline rank, where no block waits for the block that it feeds
    fuses_alone: bool = False
    # whether every backward is an input gradient and a weight gradient of their own
    splits: bool = False
    trains: bool = True  # whether it has backwards at all
    # rounds of as many microbatches as there are ranks after which ranks have held everything that
    # they ever hold; None where nothing repeats
    rounds: int | None = None
    # whether it starts from all the others, within a limit of memory if there is one
    synthesises: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Options beyond ranks, microbatches and virtual stages, such as ``times`` of a search."""
        return _options(self.build)

    @property
    def is_timed(self) -> bool:
        """Whether its orders are searched for the times of the actions."""
        return "times" in self.options

    def describe(self) -> Description:
        """The orders of every rank at a small size, for those who know a schedule's picture."""
        for virtual in (1, 2):
            try:
                orders = self.build(pp=4, microbatches=8, virtual_stages=virtual)
            except ScheduleError:
                continue
            rows = {f"rank {rank}": " ".join(order) for rank, order in enumerate(orders.tokens())}
            size = f"pp 4, 8 microbatches, {virtual} virtual stages"
            break
        else:
            size, rows = "none at pp 4, 8 microbatches and up to 2 virtual stages", {}
        figures = {"example": size, **rows}
        return Description(tuple(Figure(name, text, text) for name, text in figures.items()))

    def fuses_on(self, pp: int) -> bool:
        """Whether a forward can run beside a backward on `pp` pipeline ranks."""
        return self.fuses or (self.fuses_alone and pp == 1)


def check_counts(schedule: str, *, pp: int, microbatches: int, virtual_stages: int) -> None:
    """Refuse a pipeline of less than one rank, microbatch or virtual stage."""
    given = {"pp": pp, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for name, value in given.items():
        if value < 1:
            raise ScheduleError(
                f"{schedule}: got {name} = {value}; needed at least 1; set {name} to 1 or more"
            )


def check_one_chunk(schedule: str, virtual_stages: int, *, instead: str) -> None:
    """Refuse virtual stages where a schedule has one chunk a rank."""
    if virtual_stages != 1:
        raise ScheduleError(
            f"{schedule}: got virtual_stages = {virtual_stages}; needed 1; set virtual_stages to 1,"
            f" or use {instead}"
        )


def check_two_chunks(schedule: str, virtual_stages: int) -> None:
    """Refuse other than two chunks a rank, which a V has: one down, one up."""
    if virtual_stages != 2:
        raise ScheduleError(
            f"{schedule}: got virtual_stages = {virtual_stages}; needed 2, since each rank holds a"
            " stage on the way down and one on the way up; set virtual_stages to 2"
        )


def check_even(schedule: str, name: str, value: int, *, why: str) -> None:
    """Refuse an odd number."""
    if value % 2:
        raise ScheduleError(
            f"{schedule}: got {name} = {value}; needed an even number, since {why}; set {name} to "
            f"{value + 1}"
        )


@remembered(64)
def _options(build: Callable[..., Orders]) -> tuple[str, ...]:
    parameters = inspect.signature(build).parameters
    return tuple(option for option in parameters if option not in _COMMON)
