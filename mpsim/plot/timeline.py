"""The pipeline timeline as a value: one row a rank, time to the right, a bar an action, and under
it what the rank communicates over each axis.

Transfers are the share of each span of time: a large step's picture is small as its pixels.

Shapes: N bars, R ranks drawn, A axes, T spans of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine import Timeline as Times
from mpsim.engine.cover import Cover
from mpsim.parallel import AXES
from mpsim.parallel.axes import AXIS_NAMES
from mpsim.plot.chart import Chart, Panels, readable
from mpsim.plot.palette import EVENTS, event_of_part
from mpsim.program import COLLECTIVE, TICK, Program, Stream
from mpsim.result import Result

EXPOSED, HIDDEN = 0, 1

_EVENT_NAMES = tuple(EVENTS)
_OF_KIND = {
    **{kind: kind for kind in ("forward", "backward", "input_gradient", "weight_gradient")},
    "send": "pp",
}
_OF_STREAM = {axis.streams[0]: axis.name for axis in AXES}
_SPANS, _LEAST = 1600, 1e-9
_ROW_INCHES, _LANE_INCHES, _WIDTH_INCHES, _TALLEST_INCHES = 0.36, 0.14, 12.0, 13.0


@structs.dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """Bars of a timeline: actions, or what is communicated."""

    rank: Ints  # int64[N]
    start: Floats  # start, end: float64[N], in the unit of the picture
    end: Floats
    event: Ints  # int64[N], index into `mpsim.plot.palette.EVENTS`
    chunk: Ints  # chunk, microbatch: int64[N], -1 where there is none
    microbatch: Ints

    @classmethod
    def plain(cls, bars: Sequence[tuple[int, float, float, str]]) -> Actions:
        """Bars of a row, start, end and kind of event, which have no chunk and no microbatch."""
        rank, start, end, event = (np.array([bar[place] for bar in bars]) for place in range(4))
        kinds, none = [_EVENT_NAMES.index(name) for name in event], np.full(len(bars), -1)
        return cls(rank.astype(int), start, end, np.array(kinds, dtype=int), none, none)

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, chosen: Flags | Ints) -> Actions:
        """Some of them."""
        return Actions(**{f.name: getattr(self, f.name)[chosen] for f in structs.fields(self)})

    def within(self, window: tuple[float, float]) -> Actions:
        """Actions that are seen in a part of the time."""
        return self.where((self.end > window[0]) & (self.start < window[1]))

    @property
    def events(self) -> set[str]:
        """Kinds of event that occur."""
        return {_EVENT_NAMES[index] for index in np.unique(self.event)}


@structs.dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Communication of ranks over time."""

    edges: Floats  # float64[T + 1], edges of spans, in the unit of the picture
    # float64[R, A, 2, T], share of each span in which an axis (by `mpsim.parallel.axes.AXIS_NAMES`)
    # is exposed, and in which it is hidden
    share: Floats
    waited: Floats  # float64[N, A], share of each action in which its kernels wait for an axis

    @property
    def axes(self) -> list[int]:
        """Axes that communicate, as they are laid out from top to bottom."""
        return np.flatnonzero(self.share.any(axis=(0, 2, 3))).tolist()


@structs.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline(Chart):
    """Ranks by time, coloured by kind of event, shaded by chunk, numbered by microbatch."""

    block: ClassVar[str] = "timeline"
    names: Sequence[str]  # one a row, from top to bottom
    # actions, communication: drawn in the upper and, if there is any, the lower part of each row
    actions: Actions
    communication: Actions = structs.field(default_factory=lambda: Actions.plain([]))
    unit: str = "s"  # of time, as the axis says it
    across: str = "rank"  # word for a row
    # what the legend calls kinds of event, where it is not the palette's own words
    labels: Mapping[str, str] = structs.field(default_factory=dict)
    # communication inside actions and between them, drawn instead of `communication`
    lanes: Lanes | None = None
    # part of the time axis to draw, in `unit`; all of it when left out
    window: tuple[float, float] | None = None
    # mapping of str to float64[n, 2], spans of time that are shaded behind the rows, by what the
    # legend says of them, in `unit`
    shaded: Mapping[str, Floats] = structs.field(default_factory=dict)


def timeline_chart(
    source: Result | Times,
    *,
    communication: bool = True,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    tick: float = TICK,
    unit: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Timeline:
    """The actions of a result, and what ranks communicate inside them and between them; or the bars
    of a timeline.

    `communication`: whether to draw what is communicated under the actions; of a timeline sends (at
    the sender) and collectives. `ranks`: rank classes from top to bottom; all when left out.
    `window`: part of the time to draw, in `unit` or seconds. `tick`: length of a tick in `unit`; in
    seconds when `unit` is left out. `unit`: left out: s, ms, us or ns, whichever suits the length.
    `labels`: words of the legend for kinds of event.
    """
    times = source.timeline if isinstance(source, Result) else source
    program = times.program
    shown = list(range(program.ranks) if ranks is None else ranks)
    begin, end = window or (0.0, times.makespan * tick)
    size = 1.0
    if unit is None:
        unit, size = readable("s", end - begin)
    tick, part = tick / size, (begin / size, end / size)
    drawn = (times.end > times.start) & np.isin(program.rank, shown)
    computes = program.stream == Stream.COMPUTE
    inside = source if isinstance(source, Result) and communication else None
    bars = _bars(times, drawn & computes, shown, tick, across=inside is not None).within(part)
    moved = _bars(times, drawn & ~computes & (communication and inside is None), shown, tick)
    lanes = _lanes_of(inside, shown, bars, tick=tick, window=part) if inside else None
    return Timeline(
        names=[program.rank_name[rank] for rank in shown],
        actions=bars,
        communication=moved.within(part),
        unit=unit,
        labels=labels or {},
        lanes=lanes,
        window=part if window else None,
        size=_size(len(shown), len(lanes.axes) if lanes else 0),
    )


def timelines_chart(
    titles: Sequence[str],
    timelines: Sequence[Times],
    *,
    shaded: Sequence[Mapping[str, Floats]] = (),
) -> Panels:
    """Timelines one above the other, to one scale, with spans that are `shaded` in each [s]."""
    longest = max(timeline.makespan for timeline in timelines) * TICK
    unit, size = readable("s", longest)
    charts = [
        structs.replace(
            timeline_chart(timeline, tick=TICK / size, unit=unit),
            title=title,
            window=(0.0, longest / size),
            shaded={word: spans / size for word, spans in own.items()},
        )
        for title, timeline, own in zip(
            titles, timelines, shaded or [{}] * len(titles), strict=True
        )
    ]
    heights = [chart.size[1] for chart in charts]
    ratios = [max(2, len(chart.names)) for chart in charts]
    return Panels(charts=charts, ratios=ratios, size=(_WIDTH_INCHES, sum(heights) + 0.6))


def _size(ranks: int, lanes: int) -> tuple[float, float]:
    return _WIDTH_INCHES, min(1.2 + ranks * (_ROW_INCHES + lanes * _LANE_INCHES), _TALLEST_INCHES)


def _events(program: Program) -> Ints:
    """Kind of event of each row, as an index into the palette."""
    unknown = -1
    words = program.vocabulary
    of_kind = np.full((len(words.kinds), len(Stream)), unknown)
    for kind, event in _OF_KIND.items():
        if kind in words.kinds:
            of_kind[words.kinds.index(kind)] = _EVENT_NAMES.index(event)
    for stream, event in _OF_STREAM.items():
        of_kind[COLLECTIVE, stream] = _EVENT_NAMES.index(event)
    of_part = np.array([_EVENT_NAMES.index(event_of_part(part)) for part in words.parts])
    known = of_kind[program.kind, program.stream]
    result: Ints = np.where(known == unknown, of_part[program.part], known)
    return result


def _bars(
    timeline: Times, chosen: Flags, ranks: Sequence[int], tick: float, *, across: bool = False
) -> Actions:
    """One bar for the chosen rows of an action without a gap between, or `across` gaps too."""
    program, start, end = timeline.program, timeline.start, timeline.end
    rows = np.flatnonzero(chosen)
    # by rank, stream and row (the last key counts first): rows of a lane are neighbours
    rows = rows[np.lexsort((rows, program.stream[rows], program.rank[rows]))]
    before, after = rows[:-1], rows[1:]
    joined = (across | (end[before] == start[after])) & (program.microbatch[after] >= 0)
    for column in (program.rank, program.stream, program.kind, program.stage, program.microbatch):
        joined &= column[before] == column[after]
    first = np.concatenate([[True], ~joined])[: len(rows)]
    last = np.concatenate([~joined, [True]])[: len(rows)]
    place = np.argsort(ranks)[np.searchsorted(np.sort(ranks), program.rank[rows[first]])]
    order = np.lexsort((start[rows[first]], place))
    leading, trailing = rows[first][order], rows[last][order]
    return Actions(
        rank=place[order],
        start=start[leading] * tick,
        end=end[trailing] * tick,
        event=_events(program)[leading],
        chunk=program.chunk[leading].astype(np.int64),
        microbatch=program.microbatch[leading].astype(np.int64),
    )


def _lanes_of(
    result: Result, ranks: Sequence[int], bars: Actions, *, tick: float, window: tuple[float, float]
) -> Lanes:
    """Communication of some ranks in a window of time, and what share of each bar waits for it."""
    edges = np.linspace(*window, _SPANS + 1)
    spans, width = (edges[:-1], edges[1:]), edges[1] - edges[0]
    share = np.zeros((len(ranks), len(AXIS_NAMES), 2, _SPANS))
    waited = np.zeros((len(bars), len(AXIS_NAMES)))
    for row, rank in enumerate(ranks):  # one by one: all slices of a large step are millions
        slices = result.communication_slices([rank])
        start, end = slices.start * tick, slices.end * tick
        mine = slice(*np.searchsorted(bars.rank, [row, row + 1]).tolist())
        begins, ends = bars.start[mine], bars.end[mine]
        for axis in np.unique(slices.axis).tolist():
            moves = slices.axis == axis
            waits = moves & slices.exposed
            every, exposed = Cover(start[moves], end[moves]), Cover(start[waits], end[waits])
            share[row, axis, EXPOSED] = exposed.within(*spans) / width
            share[row, axis, HIDDEN] = every.within(*spans) / width - share[row, axis, EXPOSED]
            waited[mine, axis] = exposed.within(begins, ends) / (ends - begins)
    # differences of large sums leave rests around zero
    return Lanes(edges, np.where(share > _LEAST, share, 0.0), waited)
