"""Lanes: the bars of a timeline, packed for a page that zooms into them.

Each lane is what one rank computes, or communicates over one axis, in order of time: actions of the
schedule, and under them the transfers inside and between actions, exposed ones apart. Columns are
packed as differences of whole numbers, compressed and spelled in base 64: a hundred thousand bars
take a few hundred kilobytes.

Shapes: N bars.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.parallel import AXIS_NAMES
from mpsim.plot.palette import EVENTS
from mpsim.plot.service import lives_chart
from mpsim.plot.timeline import Actions, timeline_chart
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.serving import ServiceResult
from mpsim.units import Dimension, format_quantity

MOST = 200_000  # bars on one page; of more, the lanes of some ranks are left out

_EVENTS = (*EVENTS, *(f"exposed {axis}" for axis in AXIS_NAMES))
_FINEST, _WIDEST = 1e-9, 2**31 - 1  # of the unit of times [s], and of the numbers that hold them
_COMPUTES = -1  # lane of a rank's actions; its others are numbered by axis

_COLUMNS = ("lane", "start", "length", "event", "microbatch", "chunk", "layer", "word")

Columns = dict[str, NDArray[np.generic]]


@structs.dataclass(frozen=True, slots=True)
class Lanes:
    """Bars by lane."""

    block: ClassVar[str] = "timeline"
    title: str
    alt: str
    names: Sequence[str]  # of the lanes, from top to bottom
    # kinds of bars, which the column of that name counts; communication is ``exposed tp`` where its
    # rank waits for it, else ``tp``
    events: Sequence[str]
    words: Sequence[str]  # names of transfers, which the column ``word`` counts
    unit_s: float  # of the times [s]
    end_s: float  # length of the whole [s]
    count: int
    # ``lane``, ``start``, ``length``, ``event``, ``microbatch``, ``chunk``, ``layer`` and ``word``,
    # each packed; -1 where a bar has none
    columns: dict[str, str]
    left_out: str  # what is not shown; empty if all is
    # what events are called where the palette's words are not theirs
    labels: Mapping[str, str] = structs.field(default_factory=dict)


def packed(column: NDArray[np.generic]) -> str:
    """Differences of whole numbers as little-endian int32, compressed, in base 64."""
    whole = np.asarray(column, dtype=np.int64)
    steps = np.diff(whole, prepend=0).astype("<i4")
    # bytes of one place next to each other compress better
    planes = steps.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(gzip.compress(planes, compresslevel=6, mtime=0)).decode()


def unpacked(text: str) -> Ints:
    """The whole numbers that `packed` made a text of.

    Examples
    --------
    >>> unpacked(packed(np.array([3, 1, 4])))
    array([3, 1, 4])
    """
    planes = np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype=np.uint8)
    steps = planes.reshape(4, -1).T.copy().view("<i4").ravel()
    return np.cumsum(steps, dtype=np.int64)


def lanes_of(result: Result, *, most: int = MOST) -> Lanes:
    """The lanes of a result in `most` bars: communication goes first, then ranks, evenly."""
    chart = timeline_chart(result, communication=False, unit="s")
    names, actions = chart.names, chart.actions
    ranks = _spread(len(names), max(2, len(names) * most // max(1, len(actions))))
    computing = _computing(actions.where(np.isin(actions.rank, ranks)))
    within, words = _transfers(result, ranks, most - len(computing["rank"]))
    column = {name: np.concatenate([computing[name], within[name]]) for name in within}
    pairs = np.stack([column["rank"], column["of"]], axis=1)
    lanes, lane = np.unique(pairs, axis=0, return_inverse=True)
    end_s = result.timeline.step_time_s
    unit, columns = _pack({**column, "lane": lane.ravel()}, end_s)
    return Lanes(
        title="Ranks by time",
        alt=(
            f"{len(lane):,} actions and transfers of {len(ranks)} ranks over"
            f" {format_quantity(end_s, Dimension.TIME)}."
        ),
        names=[
            names[rank] + ("" if of == _COMPUTES else f" {AXIS_NAMES[of]}")
            for rank, of in lanes.tolist()
        ],
        events=_EVENTS,
        words=words,
        unit_s=unit,
        end_s=end_s,
        count=len(lane),
        columns=columns,
        left_out=_left_out(len(names), len(ranks), len(np.unique(within["rank"]))),
    )


def lives_of(result: ServiceResult) -> Lanes:
    """Lives of requests around the one that waited longest for its first token, in order."""
    chart = lives_chart(result, unit="s")
    assert chart.window is not None, "of the requests alone"
    begin, end = chart.window
    own = chart.actions.where(chart.actions.start < end)
    times = {"start": own.start - begin, "end": np.minimum(own.end, end) - begin}
    unit, columns = _pack({**_computing(own), "lane": own.rank, **times}, end - begin)
    return Lanes(
        title=chart.title,
        alt=chart.alt,
        names=chart.names,
        events=_EVENTS,
        words=(),
        unit_s=unit,
        end_s=end - begin,
        count=len(own),
        columns=columns,
        left_out=f"Times count from {begin:.4g} s on." if begin else "",
        labels=chart.labels,
    )


def _pack(column: Mapping[str, NDArray[Any]], end_s: float) -> tuple[float, dict[str, str]]:
    """Unit of the times of bars [s], and their columns in it, in order of their lanes."""
    unit = _FINEST * 10.0 ** max(0, int(np.ceil(np.log10(max(end_s, _FINEST) / _FINEST / _WIDEST))))
    start = np.rint(column["start"] / unit)
    whole = {**column, "start": start, "length": np.rint(column["end"] / unit) - start}
    order = np.lexsort((start, column["lane"]))
    return unit, {name: packed(whole[name][order]) for name in _COLUMNS}


def _computing(actions: Actions) -> Columns:
    """Actions of ranks, which have no layer and no word."""
    nothing = np.full(len(actions), -1)
    own = {field.name: getattr(actions, field.name) for field in structs.fields(actions)}
    return {**own, "of": np.full(len(actions), _COMPUTES), "word": nothing, "layer": nothing}


def _transfers(result: Result, ranks: Ints, most: int) -> tuple[Columns, list[str]]:
    """Communication of as many ranks as there is room for, and names of its transfers."""
    first = result.communication_slices([int(ranks[0])])
    room = max(1, most // max(1, len(first)))  # ranks communicate about as often as each other
    chosen = ranks[_spread(len(ranks), room)]
    slices = result.communication_slices(chosen.tolist())
    words, word = np.unique(np.array(slices.names or [""], dtype=str), return_inverse=True)
    exposed, hidden = (
        np.array([_EVENTS.index(f"{kind}{axis}") for axis in AXIS_NAMES])
        for kind in ("exposed ", "")
    )
    return {
        **{name: getattr(slices, name) for name in ("rank", "layer", "microbatch")},
        "of": slices.axis,
        "word": word[: len(slices)],
        "start": slices.start * TICK,
        "end": slices.end * TICK,
        "event": np.where(slices.exposed, exposed[slices.axis], hidden[slices.axis]),
        "chunk": np.full(len(slices), -1),
    }, words.tolist()


def _spread(count: int, most: int) -> Ints:
    """Places of `count`, as many as there may be, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _left_out(ranks: int, shown: int, inside: int) -> str:
    """A sentence on what is left out; empty if nothing is."""
    words = f"{shown} of {ranks} ranks are shown, evenly chosen" if shown < ranks else ""
    if inside == shown:
        return words
    inner = f"communication of {inside} of them"
    return f"{words}; {inner}" if words else f"communication is shown of {inside} of {ranks} ranks"
