"""A schedule by name: how its orders are built, and the facts others need before any order is.

A scenario is checked, a search enumerates layouts and a table of measured runs is read without
building orders; what they must know of a schedule stands here, beside its builder, and in no table
elsewhere. Sizes that several builders refuse are refused here too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY

from mpsim import structs
from mpsim.errors import ScheduleError
from mpsim.memo import remembered
from mpsim.nouns import Description, Figure
from mpsim.schedule.orders import Orders

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
