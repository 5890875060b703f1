"""The matplotlib pen for timelines: bars of actions, and communication under them and in them."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from mpsim.arrays import Floats
from mpsim.parallel.axes import AXIS_NAMES
from mpsim.plot.chart import thin
from mpsim.plot.drawing import HATCH, Style, event_patches, legend_above
from mpsim.plot.palette import COMMUNICATION, DARK, EVENTS, LUMINANCE, rgb, shades
from mpsim.plot.timeline import EXPOSED, HIDDEN, Actions, Lanes, Timeline

_EVENT_NAMES = tuple(EVENTS)
_COMPUTE_LANE, _COMMUNICATION_LANE, _ALONE_LANE = (-0.42, 0.52), (0.14, 0.24), (-0.42, 0.84)
_SHADE = 0.7
_UPPER_LANE, _LANES = (-0.47, 0.48), (0.05, 0.4)
_DIGIT_WIDTH = 0.62  # of the font size, DejaVu Sans
_FONT_POINTS = (4.5, 7.0)
_MOST_NUMBERS = 4000
_FITTING = 0.1  # share of bars whose number may be too wide for them
_WORTH_WRITING = 0.25  # share of bars whose number must fit for any to be written
_VECTORS_BELOW = 5000  # bars; more of them are drawn as pixels in .svg and .pdf too
_POINTS_PER_INCH = 72.0
_SEPARATED_ABOVE, _SEPARATION_POINTS, _HAIRLINE_POINTS = 2.5, 0.4, 0.25  # points


def draw_timeline(ax: Axes, chart: Timeline) -> None:
    """Draw a timeline on axes, labels and legend included."""
    actions, communication = chart.actions, chart.communication
    end = max(float(bars.end.max(initial=0.0)) for bars in (actions, communication))
    if not ax.get_autoscalex_on():  # set by another timeline on a shared axis: keep it in view
        end = max(end, ax.get_xlim()[1])
    ax.set_xlim(*(chart.window or (0.0, end or 1.0)))
    ax.set_ylim(len(chart.names) - 0.5, -0.5)
    lane = _COMPUTE_LANE if len(communication) else _ALONE_LANE
    lane = _UPPER_LANE if chart.lanes else lane
    for colour, spans in zip(_shades(), chart.shaded.values(), strict=False):
        for begin, until in spans.tolist():
            ax.axvspan(begin, until, color=colour, alpha=_SHADE, zorder=0, linewidth=0)
    _label(ax, chart)
    figure = ax.get_figure(root=True)
    if figure is not None and figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # settles the layout, so that widths are known
    wide = len(actions) > 0 and bool(np.median(_widths(ax, actions)) > _SEPARATED_ABOVE)
    _add_bars(ax, actions, lane, separate=wide)
    _add_bars(ax, communication, _COMMUNICATION_LANE, separate=False)
    _add_numbers(ax, actions, lane, _add_inside(ax, chart, lane))


def _add_inside(ax: Axes, chart: Timeline, lane: tuple[float, float]) -> Floats:
    """Draw communication, and return the share of each action that stays free for its number."""
    free: Floats = np.ones(len(chart.actions))
    if chart.lanes is None:
        return free
    _add_lanes(ax, chart.lanes)
    if chart.window:  # few actions are shown: each wait stands where it is
        for axis in chart.lanes.axes:
            _add(ax, _areas(chart.lanes, axis, EXPOSED, *lane), AXIS_NAMES[axis])
        return free
    _add_bands(ax, chart.lanes.waited, chart.actions, lane)
    return np.asarray(free - np.minimum(chart.lanes.waited.sum(axis=1), 1.0))


def _shades() -> list[str]:
    """Colours of shaded spans, told from those of bars by lying behind them."""
    return [EVENTS[name] for name in ("straggling", "recompute", "weight_gradient", "tp", "ep")]


def _label(ax: Axes, chart: Timeline) -> None:
    named = thin(len(chart.names), 32)
    ax.set_yticks(named, [chart.names[row] for row in named])
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel=f"time ({chart.unit})", ylabel=chart.across)
    lanes = chart.lanes
    events = chart.actions.events | chart.communication.events
    events |= {AXIS_NAMES[axis] for axis in lanes.axes} if lanes else set()
    handles = event_patches(events, chart.labels) + _chunk_patches(chart.actions)
    if lanes and lanes.share[:, :, EXPOSED].any():
        hidden = "; pale: hidden" * bool(lanes.share[:, :, HIDDEN].any())
        words = f"hatched, dark: exposed{hidden}"
        style: Style = {"facecolor": "white", "edgecolor": "black", "linewidth": 0.3}
        handles.append(Patch(label=words, hatch=HATCH, **style))
    handles += [
        Patch(label=word, color=colour, alpha=_SHADE, linewidth=0)
        for colour, word in zip(_shades(), chart.shaded, strict=False)
    ]
    legend_above(ax, handles)


def _colours(bars: Actions) -> Floats:
    """Colour of each bar: its event's, lighter for later chunks of computing, float64[N, 3]."""
    chunks = int(bars.chunk.max(initial=0)) + 1
    table = np.stack([shades(EVENTS[name], chunks) for name in _EVENT_NAMES])
    thin_ones = [_EVENT_NAMES.index(name) for name in COMMUNICATION]
    table[thin_ones] = table[thin_ones, :1]
    result: Floats = table[bars.event, np.maximum(bars.chunk, 0)]
    return result


def _add_bars(ax: Axes, bars: Actions, lane: tuple[float, float], *, separate: bool) -> None:
    """Draw all bars at once: apart from each other, or each at least a hairline wide."""
    if not len(bars):
        return
    ax.add_collection(
        PolyCollection(
            _boxes(bars.start, bars.end, bars.rank + lane[0], bars.rank + sum(lane)),
            facecolors=_colours(bars),
            edgecolors="white" if separate else "face",
            linewidths=_SEPARATION_POINTS if separate else _HAIRLINE_POINTS,
            rasterized=len(bars) > _VECTORS_BELOW,
        ),
        autolim=False,
    )


def _widths(ax: Axes, bars: Actions) -> Floats:
    """Width of each bar as drawn [points]."""
    left, right = ax.get_xlim()
    inches = ax.get_window_extent().width / ax.figure.dpi
    result: Floats = (bars.end - bars.start) / (right - left) * inches * _POINTS_PER_INCH
    return result


def _add_numbers(ax: Axes, bars: Actions, lane: tuple[float, float], free: Floats) -> None:
    """Write microbatch numbers into the free upper part of bars wide enough, in one size."""
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
    style: Style = {"ha": "center", "va": "center_baseline", "fontsize": size}
    for bar in fits.tolist():
        ax.text(
            middle[bar],
            bars.rank[bar] + lane[0] + free[bar] * lane[1] / 2,
            str(bars.microbatch[bar]),
            color="white" if dark[bar] else "black",
            clip_on=True,
            **style,
        )


def _chunk_patches(bars: Actions) -> list[Artist]:
    """Legend entries of shades of chunks; the first has the events' own colours."""
    chunks = int(bars.chunk.max(initial=0)) + 1
    later = [chunk for chunk in np.unique(bars.chunk).tolist() if chunk > 0]
    colour = shades(EVENTS["forward"], chunks)
    shown = later if len(later) < 4 else later[-1:]
    return [Patch(facecolor=tuple(colour[chunk]), label=f"chunk {chunk}") for chunk in shown]


def _add_lanes(ax: Axes, lanes: Lanes) -> None:
    """Draw the lanes of every rank into the lower part of its row."""
    for place, axis in enumerate(lanes.axes):
        height = _LANES[1] / len(lanes.axes)
        for kind in (EXPOSED, HIDDEN):
            polygons = _areas(lanes, axis, kind, _LANES[0] + place * height, 0.92 * height)
            _add(ax, polygons, AXIS_NAMES[axis], pale=kind == HIDDEN)


def _boxes(
    start: Floats, end: Floats, top: NDArray[np.floating], bottom: NDArray[np.floating]
) -> list[Floats]:
    x = np.stack([start, end, end, start], axis=1)
    y = np.stack([top, top, bottom, bottom], axis=1)
    return list(np.stack([x, y], axis=2))


def _areas(lanes: Lanes, axis: int, kind: int, top: float, height: float) -> list[Floats]:
    """An outline a run of spans that are not empty: exposed from the bottom, hidden on it."""
    polygons: list[Floats] = []
    for row, share in enumerate(lanes.share[:, axis]):
        floor = np.zeros(share.shape[1]) if kind == EXPOSED else share[EXPOSED]
        filled = share[kind] > 0
        turns = np.flatnonzero(np.diff(np.concatenate([[False], filled, [False]]).astype(int)))
        for first, last in turns.reshape(-1, 2).tolist():
            x = np.repeat(lanes.edges[first : last + 1], 2)[1:-1]
            low = np.repeat(floor[first:last], 2)
            high = low + np.repeat(share[kind][first:last], 2)
            outline = np.concatenate([low, high[::-1]])
            y = row + top + height * (1.0 - outline)
            polygons.append(np.stack([np.concatenate([x, x[::-1]]), y], axis=1))
    return polygons


def _add(ax: Axes, polygons: list[Floats], event: str, *, pale: bool = False) -> None:
    """Draw polygons in the colour of an event: pale, or in full and hatched."""
    if not polygons:
        return
    closed = [np.concatenate([polygon, polygon[:1]]) for polygon in polygons]
    codes = [
        np.array([Path.MOVETO, *[Path.LINETO] * (len(polygon) - 2), Path.CLOSEPOLY], dtype=np.uint8)
        for polygon in closed
    ]
    colour = shades(EVENTS[event], 2)[1] if pale else rgb(EVENTS[event])
    # one path for all: hatching thousands of polygons one by one takes a minute
    patch = PathPatch(
        Path(np.concatenate(closed), np.concatenate(codes)),
        facecolor=tuple(colour),
        edgecolor="white",
        linewidth=0.0,
        hatch=None if pale else HATCH,
        rasterized=True,
    )
    # not `add_patch`, which looks at every corner for limits that are set already
    ax.add_artist(patch)


def _add_bands(ax: Axes, waited: Floats, bars: Actions, lane: tuple[float, float]) -> None:
    """Fill the lower part of bars with what kernels wait for: area as the time."""
    floor = np.zeros(len(waited))
    for axis, name in enumerate(AXIS_NAMES):
        share = waited[:, axis]
        mine = np.flatnonzero(share > 0)
        bottom = bars.rank[mine] + lane[0] + lane[1] * (1.0 - floor[mine])
        boxes = _boxes(bars.start[mine], bars.end[mine], bottom - lane[1] * share[mine], bottom)
        _add(ax, boxes, name)
        floor += share
