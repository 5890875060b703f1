"""The pipeline timeline: one row a rank, time to the right, a bar an action, bubbles left blank.

Shapes: N bars, R ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import AXES, AXIS_NAMES
from mpsim.plot.display import Display, event_patches, legend_above, thin
from mpsim.plot.lanes import (
    Bands,
    Lanes,
    add_bands,
    add_lanes,
    add_waits,
    are_wide,
    key_patch,
    lanes_of,
)
from mpsim.plot.palette import COMMUNICATION, DARK, EVENTS, LUMINANCE, event_of_part, shades
from mpsim.program import COLLECTIVE, TICK, Program, Stream
from mpsim.units import Dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.engine import Timeline
    from mpsim.result import Result

__all__ = ["Bars", "TimelineDisplay", "draw_timeline", "time_unit"]

_EVENT_NAMES = tuple(EVENTS)
_OF_KIND = {
    **{kind: kind for kind in ("forward", "backward", "input_gradient", "weight_gradient")},
    "send": "pp",
}
_OF_STREAM = {axis.streams[0]: axis.name for axis in AXES}

_ROW_INCHES, _WIDTH_INCHES, _TALLEST_INCHES = 0.36, 12.0, 13.0
_COMPUTE_LANE, _COMMUNICATION_LANE, _ALONE_LANE = (-0.42, 0.52), (0.14, 0.24), (-0.42, 0.84)
_UPPER_LANE, _LANES, _LANE_INCHES = (-0.47, 0.48), (0.05, 0.4), 0.14
_COLUMNS, _COLUMNS_WITH_LANES = 11, 7  # of the legend
_DIGIT_WIDTH = 0.62  # of the font size, DejaVu Sans
_FONT_POINTS = (4.5, 7.0)
_MOST_NUMBERS = 4000
_FITTING = 0.1  # share of bars whose number may be too wide for them
_WORTH_WRITING = 0.25  # share of bars whose number must fit for any to be written
_VECTORS_BELOW = 5000  # bars; more of them are drawn as pixels in .svg and .pdf too
_POINTS_PER_INCH = 72.0
_SEPARATED_ABOVE, _SEPARATION_POINTS, _HAIRLINE_POINTS = 2.5, 0.4, 0.25  # points


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars of a timeline.

    Parameters
    ----------
    rank : int64[N]
    start, end : float64[N]
        In the unit of the picture.
    event : int64[N]
        Index into `mpsim.plot.palette.EVENTS`.
    chunk, microbatch : int64[N]
        -1 where there is none.
    """

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    event: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Bars:
        """Some of them."""
        return Bars(**{f.name: getattr(self, f.name)[chosen] for f in dataclasses.fields(self)})

    @property
    def events(self) -> set[str]:
        """Kinds of event that occur."""
        return {_EVENT_NAMES[index] for index in np.unique(self.event)}


class TimelineDisplay(Display):
    """Ranks by time, coloured by kind of event, shaded by chunk, numbered by microbatch where it fits.

    Parameters
    ----------
    rank_names : sequence of str
        One a row, drawn from top to bottom.
    compute, communication : Bars
        Drawn in the upper and, if there is any, the lower part of each row.
    unit : str
        Of time, as the axis says it.
    labels : mapping of str to str, optional
        What the legend calls kinds of event, where it is not the palette's own words.
    inside : tuple of Lanes and Bands, optional
        Communication inside actions and between them, drawn instead of `communication`.
    window : tuple of float, optional
        Part of the time axis to draw, in `unit`; all of it when left out.
    """

    def __init__(
        self,
        rank_names: Sequence[str],
        compute: Bars,
        communication: Bars,
        *,
        unit: str = "s",
        labels: Mapping[str, str] | None = None,
        inside: tuple[Lanes, Bands] | None = None,
        window: tuple[float, float] | None = None,
    ) -> None:
        self.rank_names = tuple(rank_names)
        self.compute = compute
        self.communication = communication
        self.unit = unit
        self.labels = dict(labels or {})
        self.inside, self.window = inside, window

    @classmethod
    def from_result(
        cls,
        result: Result,
        *,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
    ) -> TimelineDisplay:
        """Collect the actions of a result, and what ranks communicate inside them and between them.

        Parameters
        ----------
        result : Result
        ranks : sequence of int, optional
            Rank classes from top to bottom; all when left out.
        window : tuple of float, optional
            Part of the step to draw [s].
        """
        timeline = result.timeline
        program = timeline.program
        shown = list(range(program.ranks) if ranks is None else ranks)
        begin, end = window or (0.0, timeline.makespan * TICK)
        unit, seconds = time_unit(end - begin)
        tick = TICK / seconds
        rows = np.flatnonzero(
            (timeline.end > timeline.start)
            & (program.stream == Stream.COMPUTE)
            & np.isin(program.rank, shown)
        )
        part = begin / seconds, end / seconds
        bars = _placed(_bars(timeline, rows, tick, across=True), shown)
        bars = bars.where((bars.end > part[0]) & (bars.start < part[1]))
        inside = lanes_of(result, shown, (bars.rank, bars.start, bars.end), tick=tick, window=part)
        names = [program.rank_name[rank] for rank in shown]
        nothing = _bars(timeline, rows[:0], tick)
        return cls(names, bars, nothing, unit=unit, inside=inside, window=part if window else None)

    @classmethod
    def from_timeline(
        cls,
        timeline: Timeline,
        *,
        communication: bool = True,
        tick: float = TICK,
        unit: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TimelineDisplay:
        """Collect the bars of a timeline.

        Parameters
        ----------
        timeline : Timeline
        communication : bool
            Whether to draw sends (at the sender) and collectives under the actions.
        tick : float
            Length of a tick in `unit`; in seconds when `unit` is left out.
        unit : str, optional
            Left out: s, ms, us or ns, whichever suits the length.
        labels : mapping of str to str, optional
            As above.
        """
        if unit is None:
            unit, seconds = time_unit(timeline.makespan * tick)
            tick = tick / seconds
        program = timeline.program
        drawn = timeline.end > timeline.start
        computes = program.stream == Stream.COMPUTE
        return cls(
            program.rank_name,
            _bars(timeline, np.flatnonzero(drawn & computes), tick),
            _bars(timeline, np.flatnonzero(drawn & ~computes & communication), tick),
            unit=unit,
            labels=labels,
        )

    def _size(self) -> tuple[float, float]:
        lanes = len(self.inside[0].axes) if self.inside else 0
        rows = len(self.rank_names) * (_ROW_INCHES + lanes * _LANE_INCHES)
        return _WIDTH_INCHES, min(1.2 + rows, _TALLEST_INCHES)

    def _draw(self, ax: Axes) -> None:
        end = max(float(bars.end.max(initial=0.0)) for bars in (self.compute, self.communication))
        if (
            not ax.get_autoscalex_on()
        ):  # limits were set, by another timeline on a shared axis: keep them in view
            end = max(end, ax.get_xlim()[1])
        ax.set_xlim(*(self.window or (0.0, end or 1.0)))
        ax.set_ylim(len(self.rank_names) - 0.5, -0.5)
        lane = _COMPUTE_LANE if len(self.communication) else _ALONE_LANE
        if self.inside:
            lane = _UPPER_LANE
        self._label(ax)
        figure = ax.get_figure(root=True)
        if figure is not None and figure.get_layout_engine() is not None:
            figure.draw_without_rendering()  # settles the layout, so that widths are known
        wide = (
            bool(np.median(_widths(ax, self.compute)) > _SEPARATED_ABOVE)
            if len(self.compute)
            else False
        )
        _add_bars(ax, self.compute, lane, separate=wide)
        _add_bars(ax, self.communication, _COMMUNICATION_LANE, separate=False)
        _add_numbers(ax, self.compute, lane, self._add_inside(ax, lane))

    def _add_inside(self, ax: Axes, lane: tuple[float, float]) -> NDArray[np.float64]:
        """Draw communication, and return the share of each bar that stays free for its number."""
        if not self.inside:
            return np.ones(len(self.compute))
        lanes, bands = self.inside
        add_lanes(ax, lanes, _LANES)
        if are_wide(ax, lanes):
            add_waits(ax, lanes, lane)
            return np.ones(len(self.compute))
        add_bands(ax, bands, (self.compute.rank, self.compute.start, self.compute.end), lane)
        return bands.free

    def _label(self, ax: Axes) -> None:
        named = thin(len(self.rank_names), 32)
        ax.set_yticks(named, [self.rank_names[row] for row in named])
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(f"time ({self.unit})")
        ax.set_ylabel("rank")
        events = self.compute.events | self.communication.events
        lanes = [self.inside[0]] if self.inside else []
        events |= {AXIS_NAMES[axis] for each in lanes for axis in each.axes}
        handles = event_patches(events, labels=self.labels) + _chunk_patches(self.compute)
        handles += [patch for each in lanes for patch in key_patch(each.kinds)]
        legend_above(ax, handles, columns=_COLUMNS_WITH_LANES if lanes else _COLUMNS)


def draw_timeline(timeline: Timeline, labels: Mapping[str, str] | None = None) -> TimelineDisplay:
    """Draw any timeline, with communication under the kernels; `labels` as of `TimelineDisplay`."""
    return TimelineDisplay.from_timeline(timeline, labels=labels).plot()


def time_unit(seconds: float) -> tuple[str, float]:
    """Unit in which a time reads well, and its length [s].

    Examples
    --------
    >>> time_unit(0.25)
    ('ms', 0.001)
    """
    from mpsim.units import parse_quantity

    for unit in ("s", "ms", "us"):
        length = parse_quantity(f"1 {unit}", Dimension.TIME)
        if seconds >= length:
            return unit, length
    return "ns", parse_quantity("1 ns", Dimension.TIME)


def _events(program: Program) -> NDArray[np.int64]:
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
    result: NDArray[np.int64] = np.where(known == unknown, of_part[program.part], known)
    return result


def _placed(bars: Bars, ranks: Sequence[int]) -> Bars:
    """Bars of ranks by the row of the picture that each rank has, in order."""
    place = np.argsort(np.argsort(ranks)) if len(ranks) else np.zeros(0, dtype=np.int64)
    row = place[np.searchsorted(np.sort(ranks), bars.rank)]
    order = np.lexsort((bars.start, row))
    columns = {field.name: getattr(bars, field.name)[order] for field in dataclasses.fields(bars)}
    return Bars(**columns | {"rank": row[order]})


def _bars(
    timeline: Timeline, rows: NDArray[np.int64], tick: float, *, across: bool = False
) -> Bars:
    """One bar for all rows of an action that follow each other without a gap, or `across` gaps too."""
    program, start, end = timeline.program, timeline.start, timeline.end
    # by rank, stream and then row (the last key counts first), so that rows of a lane are neighbours
    rows = rows[np.lexsort((rows, program.stream[rows], program.rank[rows]))]
    before, after = rows[:-1], rows[1:]
    joined = (across | (end[before] == start[after])) & (program.microbatch[after] >= 0)
    for column in (program.rank, program.stream, program.kind, program.stage, program.microbatch):
        joined &= column[before] == column[after]
    first = np.concatenate([[True], ~joined])[: len(rows)]
    last = np.concatenate([~joined, [True]])[: len(rows)]
    leading = rows[first]
    return Bars(
        rank=program.rank[leading].astype(np.int64),
        start=start[leading] * tick,
        end=end[rows[last]] * tick,
        event=_events(program)[leading],
        chunk=program.chunk[leading].astype(np.int64),
        microbatch=program.microbatch[leading].astype(np.int64),
    )


def _colours(bars: Bars) -> NDArray[np.float64]:
    """Colour of each bar: its event's, lighter for later chunks of computing, float64[N, 3]."""
    chunks = int(bars.chunk.max(initial=0)) + 1
    table = np.stack([shades(EVENTS[name], chunks) for name in _EVENT_NAMES])
    thin_ones = [_EVENT_NAMES.index(name) for name in COMMUNICATION]
    table[thin_ones] = table[thin_ones, :1]
    result: NDArray[np.float64] = table[bars.event, np.maximum(bars.chunk, 0)]
    return result


def _add_bars(ax: Axes, bars: Bars, lane: tuple[float, float], *, separate: bool) -> None:
    """Draw all bars at once: apart from each other, or each at least a hairline wide."""
    from matplotlib.collections import PolyCollection

    if not len(bars):
        return
    top, bottom = bars.rank + lane[0], bars.rank + sum(lane)
    x = np.stack([bars.start, bars.end, bars.end, bars.start], axis=1)
    y = np.stack([top, top, bottom, bottom], axis=1)
    ax.add_collection(
        PolyCollection(
            list(np.stack([x, y], axis=2)),
            facecolors=_colours(bars),
            edgecolors="white" if separate else "face",
            linewidths=_SEPARATION_POINTS if separate else _HAIRLINE_POINTS,
            rasterized=len(bars) > _VECTORS_BELOW,
        ),
        autolim=False,
    )


def _widths(ax: Axes, bars: Bars) -> NDArray[np.float64]:
    """Width of each bar as drawn [points]."""
    left, right = ax.get_xlim()
    inches = ax.get_window_extent().width / ax.figure.dpi
    result: NDArray[np.float64] = (
        (bars.end - bars.start) / (right - left) * inches * _POINTS_PER_INCH
    )
    return result


def _add_numbers(
    ax: Axes, bars: Bars, lane: tuple[float, float], free: NDArray[np.float64]
) -> None:
    """Write microbatch numbers into the free upper share of bars that are wide enough, all of one size."""
    numbered = np.flatnonzero(bars.microbatch >= 0)
    bottom, top = ax.get_ylim()
    row = ax.get_window_extent().height / ax.figure.dpi * _POINTS_PER_INCH / abs(bottom - top)
    digits = np.floor(np.log10(np.maximum(bars.microbatch[numbered], 1))) + 1
    room = (_widths(ax, bars)[numbered] - _SEPARATION_POINTS) / (digits * _DIGIT_WIDTH)
    if not len(room) or 0.8 * lane[1] * row < _FONT_POINTS[0]:
        return
    size = min(max(float(np.quantile(room, _FITTING)), _FONT_POINTS[0]), _FONT_POINTS[1])
    size = min(size, 0.8 * lane[1] * row)
    fits = numbered[(room >= size) & (0.9 * free[numbered] * lane[1] * row >= size)]
    if len(fits) > _MOST_NUMBERS or len(fits) < _WORTH_WRITING * len(numbered):
        return
    dark = _colours(bars) @ LUMINANCE < DARK
    middle = (bars.start + bars.end) / 2
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": size}
    for bar in fits.tolist():
        ax.text(
            middle[bar],
            bars.rank[bar] + lane[0] + free[bar] * lane[1] / 2,
            str(bars.microbatch[bar]),
            color="white" if dark[bar] else "black",
            clip_on=True,
            **style,
        )


def _chunk_patches(bars: Bars) -> list[Any]:
    """Legend entries that say which shade is which chunk; the first has the colours of the events themselves."""
    from matplotlib.patches import Patch

    chunks = int(bars.chunk.max(initial=0)) + 1
    later = [chunk for chunk in np.unique(bars.chunk).tolist() if chunk > 0]
    colour = shades(EVENTS["forward"], chunks)
    shown = later if len(later) < 4 else later[-1:]
    return [Patch(facecolor=tuple(colour[chunk]), label=f"chunk {chunk}") for chunk in shown]
