"""Schedules by name: one line here and one module each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mpsim.errors import ScheduleError, nearest
from mpsim.schedule.chimera import chimera
from mpsim.schedule.csv_file import read_csv
from mpsim.schedule.dualpipe import dualpipe
from mpsim.schedule.dualpipe_v import dualpipe_v
from mpsim.schedule.eager_1f1b import eager_1f1b
from mpsim.schedule.forward_only import forward_only
from mpsim.schedule.gpipe import gpipe
from mpsim.schedule.interleaved import interleaved_1f1b
from mpsim.schedule.interleaved_zb import interleaved_zb
from mpsim.schedule.looped_bfs import looped_bfs
from mpsim.schedule.one_f_one_b import one_f_one_b
from mpsim.schedule.orders import Orders
from mpsim.schedule.search.synthesise import auto
from mpsim.schedule.search.v_block import v_half, v_min
from mpsim.schedule.search.zb_auto import zb_1p, zb_2p
from mpsim.schedule.seq_1f1b import seq_1f1b
from mpsim.schedule.zb_h1 import zb_h1
from mpsim.schedule.zb_h2 import zb_h2
from mpsim.schedule.zb_v import zb_v

__all__ = ["make_orders", "schedule_names", "schedule_options"]

_COMMON = ("pp", "microbatches", "virtual_stages")
_SCHEDULES: Mapping[str, Callable[..., Orders]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved-1f1b": interleaved_1f1b,
        "eager-1f1b": eager_1f1b,
        "chimera": chimera,
        "looped-bfs": looped_bfs,
        "zb-h1": zb_h1,
        "interleaved-zb": interleaved_zb,
        "zb-h2": zb_h2,
        "zb-1p": zb_1p,
        "zb-2p": zb_2p,
        "zb-v": zb_v,
        "v-half": v_half,
        "v-min": v_min,
        "seq-1f1b": seq_1f1b,
        "dualpipe": dualpipe,
        "dualpipe-v": dualpipe_v,
        "forward-only": forward_only,
        "auto": auto,
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


def _builder(name: str) -> Callable[..., Orders]:
    try:
        return _SCHEDULES[name]
    except KeyError:
        raise ScheduleError(
            f"got schedule {name!r}; needed a known one or a .csv file; {nearest(name, _SCHEDULES)}"
        ) from None


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
