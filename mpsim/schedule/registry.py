"""Schedules by name: one line here each, and a module that is imported when it is asked for.

A module is named, not imported here: a command pays for the schedules it asks for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mpsim.errors import ScheduleError, nearest
from mpsim.memo import remembered
from mpsim.schedule.facts import Schedule
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
