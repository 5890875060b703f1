"""Schedules by name: one line here and one module each, imported when it is asked for."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mpsim.errors import ScheduleError, nearest
from mpsim.schedule.csv_file import read_csv
from mpsim.schedule.orders import Orders

__all__ = ["make_orders", "schedule_names", "schedule_options"]

_COMMON = ("pp", "microbatches", "virtual_stages")
_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "gpipe": "gpipe.gpipe",
        "1f1b": "one_f_one_b.one_f_one_b",
        "interleaved-1f1b": "interleaved.interleaved_1f1b",
        "eager-1f1b": "eager_1f1b.eager_1f1b",
        "chimera": "chimera.chimera",
        "looped-bfs": "looped_bfs.looped_bfs",
        "zb-h1": "zb_h1.zb_h1",
        "interleaved-zb": "interleaved_zb.interleaved_zb",
        "zb-h2": "zb_h2.zb_h2",
        "zb-1p": "search.zb_auto.zb_1p",
        "zb-2p": "search.zb_auto.zb_2p",
        "zb-v": "zb_v.zb_v",
        "v-half": "search.v_block.v_half",
        "v-min": "search.v_block.v_min",
        "seq-1f1b": "seq_1f1b.seq_1f1b",
        "dualpipe": "dualpipe.dualpipe",
        "dualpipe-v": "dualpipe_v.dualpipe_v",
        "forward-only": "forward_only.forward_only",
        "auto": "search.synthesise.auto",
    }
)


def schedule_names() -> tuple[str, ...]:
    """Every schedule that `make_orders` knows, in the order they were invented."""
    return tuple(_SCHEDULES)


def schedule_options(name: str) -> tuple[str, ...]:
    """Options of a schedule beyond its ranks, microbatches and virtual stages, such as ``times`` of a searched one.

    Raises
    ------
    ScheduleError
        If the name is unknown.
    """
    parameters = inspect.signature(_builder(name)).parameters
    return tuple(option for option in parameters if option not in _COMMON)


def make_orders(
    name: str,
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int | None = None,
    **options: float | Sequence[float] | None,
) -> Orders:
    """Orders of a schedule.

    Parameters
    ----------
    name : str
        One of `schedule_names`, or the path of a ``.csv`` file (`read_csv`), which must agree with the
        numbers given here.
    pp : int
        Ranks, at least 1.
    microbatches : int
        Per optimizer step, at least 1.
    virtual_stages : int, optional
        Chunks a rank; what the schedule takes by default: 2 on a V, else 1.
    **options : numbers, optional
        Of that schedule alone (`schedule_options`), such as ``group_size`` of interleaved-1f1b or ``times`` of zb-2p.

    Returns
    -------
    Orders

    Raises
    ------
    ScheduleError
        If the name is unknown, or the schedule cannot be built with these numbers.

    Examples
    --------
    >>> make_orders("gpipe", pp=1, microbatches=2).tokens()
    [['0F0', '0F1', '0B0', '0B1']]
    """
    if name.endswith(".csv"):
        _check_options(name, (), options)
        return _from_file(
            name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages or 1
        )
    build = _builder(name)
    _check_options(name, schedule_options(name), options)
    if virtual_stages is None:
        return build(pp=pp, microbatches=microbatches, **options)
    return build(pp=pp, microbatches=microbatches, virtual_stages=virtual_stages, **options)


@functools.cache
def _builder(name: str) -> Callable[..., Orders]:
    if name not in _SCHEDULES:
        raise ScheduleError(
            f"got schedule {name!r}; needed a known one or a .csv file; {nearest(name, _SCHEDULES)}"
        )
    module, _, function = _SCHEDULES[name].rpartition(".")
    build: Callable[..., Orders] = getattr(
        importlib.import_module(f"mpsim.schedule.{module}"), function
    )
    return build


def _check_options(name: str, known: tuple[str, ...], options: Mapping[str, object]) -> None:
    unknown = [option for option in options if option not in known]
    if unknown:
        accepted = f"accepts {', '.join(known)}" if known else "has no option"
        raise ScheduleError(
            f"got option {unknown[0]!r} for {name!r}, which {accepted}; remove the option"
        )


def _from_file(path: str, *, pp: int, microbatches: int, virtual_stages: int) -> Orders:
    orders = read_csv(path)
    needed = {"pp": pp, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for key, value in needed.items():
        got = getattr(orders, key)
        if got != value:
            raise ScheduleError(
                f"{path}: got orders for {key} = {got}; needed {key} = {value}; set {key} to {got}, or "
                "write a file for it"
            )
    return orders
