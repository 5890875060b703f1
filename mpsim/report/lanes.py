"""Lanes: the bars of a timeline, packed for a page that zooms into them.

Each lane is what one stream of a rank does, in order of time. Columns are packed as differences of whole numbers, compressed and spelled in base 64: a
hundred thousand bars take a few hundred kilobytes.

Shapes: N bars.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.palette import EVENTS
from mpsim.plot.timeline import TimelineDisplay
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.units import Dimension, format_quantity

__all__ = ["Lanes", "lanes_of", "packed"]

MOST = 150_000
"""Bars on one page; of more, the lanes of some ranks are left out."""

_EVENTS = tuple(EVENTS)
_FINEST, _WIDEST = 1e-9, 2**31 - 1  # of the unit of times [s], and of the numbers that hold them


@dataclasses.dataclass(frozen=True, slots=True)
class Lanes:
    """Bars by lane.

    Parameters
    ----------
    title, alt : str
    names : sequence of str
        Of the lanes, from top to bottom.
    events : sequence of str
        Kinds of bars, which the column of that name counts.
    unit_s : float
        Of the times [s].
    end_s : float
        Length of the whole [s].
    count : int
        Bars.
    columns : mapping of str to str
        ``lane``, ``start``, ``length``, ``event``, ``microbatch`` and ``chunk``, each packed.
    left_out : str
        What is not shown; empty if all is.
    """

    block: ClassVar[str] = "timeline"
    title: str
    alt: str
    names: Sequence[str]
    events: Sequence[str]
    unit_s: float
    end_s: float
    count: int
    columns: dict[str, str]
    left_out: str


def packed(column: NDArray[Any]) -> str:
    """Differences of whole numbers as little-endian int32, compressed, in base 64; equal columns give equal text."""
    whole = np.asarray(column, dtype=np.int64)
    steps = np.diff(whole, prepend=0).astype("<i4")
    # bytes of one place next to each other compress better
    planes = steps.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(gzip.compress(planes, compresslevel=6, mtime=0)).decode()


def lanes_of(result: Result, *, most: int = MOST) -> Lanes:
    """The lanes of a result: what each rank computes, and under it what it sends and reduces, by axis.

    Parameters
    ----------
    result : Result
    most : int
        Bars; of more, ranks are left out evenly, the first and the last never.
    """
    display = TimelineDisplay.from_timeline(result.timeline, tick=TICK, unit="s")
    bars = [display.compute, display.communication]
    ranks, left_out = _chosen(len(display.rank_names), sum(map(len, bars)), most)
    column = {
        name: np.concatenate([getattr(each, name) for each in bars])
        for name in ("rank", "start", "end", "event", "chunk", "microbatch")
    }
    # a lane is a rank's kernels (-1) or its communication of one kind
    kind = np.concatenate([np.full(len(bars[0]), -1), bars[1].event])
    shown = np.isin(column["rank"], ranks)
    column, kind = {name: values[shown] for name, values in column.items()}, kind[shown]
    lanes, lane = np.unique(np.stack([column["rank"], kind], axis=1), axis=0, return_inverse=True)
    order = np.lexsort((column["start"], lane.ravel()))
    end_s = result.timeline.step_time_s
    unit = _FINEST * 10.0 ** max(0, int(np.ceil(np.log10(max(end_s, _FINEST) / _FINEST / _WIDEST))))
    start = np.rint(column["start"] / unit)
    columns = {
        "lane": lane.ravel(),
        "start": start,
        "length": np.rint(column["end"] / unit) - start,
        "event": column["event"],
        "microbatch": column["microbatch"],
        "chunk": column["chunk"],
    }
    names = [
        display.rank_names[rank] + ("" if event < 0 else f" {_EVENTS[event]}")
        for rank, event in lanes.tolist()
    ]
    return Lanes(
        title="Ranks by time",
        alt=f"{len(order):,} actions and transfers of {len(ranks)} ranks over {format_quantity(end_s, Dimension.TIME)}.",
        names=names,
        events=_EVENTS,
        unit_s=unit,
        end_s=end_s,
        count=len(order),
        columns={name: packed(values[order]) for name, values in columns.items()},
        left_out=left_out,
    )


def _chosen(ranks: int, bars: int, most: int) -> tuple[NDArray[np.int64], str]:
    """Ranks that are shown, and what is said of the others."""
    everyone = np.arange(ranks)
    if bars <= most or ranks <= 1:
        return everyone, ""
    count = max(2, int(ranks * most / bars))
    chosen = np.unique(np.linspace(0, ranks - 1, count).round().astype(np.int64))
    return (
        chosen,
        f"{len(chosen)} of {ranks} ranks are shown, evenly chosen; all have {bars:,} bars",
    )
