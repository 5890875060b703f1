"""Communication of ranks in a timeline: a lane an axis under the actions of each rank, and in the actions what they wait for.

Few slices are drawn where they are. Of many, a lane is as full in each span of time as the axis communicates in it, so a picture of a large step stays as small as its pixels.

Shapes: S slices, R ranks drawn, A axes, T spans of time, N bars.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel.axes import AXIS_NAMES
from mpsim.plot.palette import EVENTS, rgb, shades

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from mpsim.result import CommunicationSlices, Result

__all__ = [
    "Bands",
    "Lanes",
    "add_bands",
    "add_lanes",
    "add_waits",
    "are_wide",
    "key_patch",
    "lanes_of",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SPANS = 800
_MOST_SLICES = 20_000
_NARROWEST = 1.0  # median width of slices that are drawn each by itself [points]
_HATCH = "//////"
_POINTS_PER_INCH = 72.0
_EXPOSED, _HIDDEN = 0, 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Communication of ranks over time.

    Parameters
    ----------
    edges : float64[T + 1]
        Edges of spans, in the unit of the picture.
    share : float64[R, A, 2, T]
        Share of each span in which an axis (by `mpsim.parallel.axes.AXIS_NAMES`) is exposed, and in which it is hidden.
    rank, axis : int64[S]
        Row of the picture and axis of every slice; empty where there are too many of them.
    start, end : float64[S]
        In the unit of the picture.
    exposed : bool[S]
    """

    edges: Floats
    share: Floats
    rank: Ints
    axis: Ints
    start: Floats
    end: Floats
    exposed: NDArray[np.bool_]

    @property
    def axes(self) -> list[int]:
        """Axes that communicate, as they are laid out from top to bottom."""
        return np.flatnonzero(self.share.any(axis=(0, 2, 3))).tolist()

    @property
    def kinds(self) -> tuple[bool, bool]:
        """Whether anything is exposed, and whether anything is hidden."""
        exposed, hidden = (bool(self.share[:, :, kind].any()) for kind in (_EXPOSED, _HIDDEN))
        return exposed, hidden


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """Share of each bar of a timeline in which its kernels wait for an axis, float64[N, A]."""

    share: Floats

    @property
    def free(self) -> Floats:
        """Share of each bar that its kernels run [N]."""
        free: Floats = 1.0 - np.minimum(self.share.sum(axis=1), 1.0)
        return free


def lanes_of(
    result: Result,
    ranks: Sequence[int],
    bars: tuple[Ints, Floats, Floats],
    *,
    tick: float,
    window: tuple[float, float],
) -> tuple[Lanes, Bands]:
    """Communication of some ranks of a result in a window of time.

    Parameters
    ----------
    result : Result
    ranks : sequence of int
        Rank classes, from top to bottom.
    bars : tuple of int64[N], float64[N], float64[N]
        Row, start and end of the bars of their compute streams, by row and start [unit of the picture].
    tick : float
        Length of a tick in the unit of the picture.
    window : tuple of float
        In the unit of the picture.
    """
    edges = np.linspace(*window, _SPANS + 1)
    share = np.zeros((len(ranks), len(AXIS_NAMES), 2, _SPANS))
    waited = np.zeros((len(bars[0]), len(AXIS_NAMES)))
    kept: list[tuple[NDArray[Any], ...]] = []
    count = 0
    for row, rank in enumerate(ranks):
        slices = result.communication_slices([rank])
        start, end = slices.start * tick, slices.end * tick
        share[row] = _shares(slices, start, end, edges)
        first, last = np.searchsorted(bars[0], [row, row + 1]).tolist()
        waited[first:last] = _waited(slices, start, end, bars[1][first:last], bars[2][first:last])
        seen = (end > window[0]) & (start < window[1])
        count += int(seen.sum())
        if count <= _MOST_SLICES:
            of_rank = np.full(int(seen.sum()), row)
            kept.append((of_rank, slices.axis[seen], start[seen], end[seen], slices.exposed[seen]))
    columns = zip(*kept, strict=True) if count <= _MOST_SLICES else zip(*[_nothing()], strict=True)
    each = (np.concatenate(column) for column in columns)
    return Lanes(edges, share, *each), Bands(waited)


def _nothing() -> tuple[NDArray[Any], ...]:
    ints, floats = np.zeros(0, dtype=np.int64), np.zeros(0)
    return ints, ints, floats, floats, np.zeros(0, dtype=bool)


def _shares(slices: CommunicationSlices, start: Floats, end: Floats, edges: Floats) -> Floats:
    """Share of each span that slices of one rank take, by axis and kind [A, 2, T]; at most all of it."""
    share = np.zeros((len(AXIS_NAMES), 2, len(edges) - 1))
    for axis in np.unique(slices.axis).tolist():
        for kind in (_EXPOSED, _HIDDEN):
            mine = (slices.axis == axis) & (slices.exposed == (kind == _EXPOSED))
            share[axis, kind] = _covered(start[mine], end[mine], edges)
    exposed = np.minimum(share[:, _EXPOSED], 1.0)
    # several transfers of one axis may run at once: together they fill the lane
    hidden = np.minimum(share[:, _HIDDEN], 1.0 - exposed)
    return np.stack([exposed, hidden], axis=1)


def _covered(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Sum over intervals of the share of each span that they take."""

    def until(times: Floats) -> Floats:
        # sum of max(0, edge - time) over all times, at each edge
        ordered = np.sort(times)
        before = np.searchsorted(ordered, edges)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        total: Floats = before * edges - sums[before]
        return total

    taken = np.diff(until(start) - until(end)) / np.diff(edges)
    # sums of many terms leave rests around zero
    return np.where(taken > 1e-9, taken, 0.0)


def _waited(
    slices: CommunicationSlices, start: Floats, end: Floats, begins: Floats, ends: Floats
) -> Floats:
    """Share of each bar of one rank that is exposed, by axis [bars, A]."""
    total = np.zeros((len(begins), len(AXIS_NAMES)))
    if not len(begins):
        return total
    middle = (start + end) / 2
    bar = np.searchsorted(begins, middle, side="right") - 1
    inside = slices.exposed & (bar >= 0) & (middle < ends[np.maximum(bar, 0)])
    np.add.at(total, (bar[inside], slices.axis[inside]), (end - start)[inside])
    length = np.maximum(ends - begins, 1e-300)
    return np.minimum(total / length[:, None], 1.0)


def are_wide(ax: Axes, lanes: Lanes) -> bool:
    """Whether slices are so few and so wide that each is drawn by itself."""
    return len(lanes.start) > 0 and float(np.median(_widths(ax, lanes))) > _NARROWEST


def add_lanes(ax: Axes, lanes: Lanes, zone: tuple[float, float]) -> None:
    """Draw the lanes of every rank into a zone of its row, from `zone[0]` below the middle on and `zone[1]` high."""
    axes = lanes.axes
    if not axes:
        return
    height, exactly = zone[1] / len(axes), are_wide(ax, lanes)
    for place, axis in enumerate(axes):
        top = zone[0] + place * height
        for kind in (_EXPOSED, _HIDDEN):
            draw = _rectangles if exactly else _areas
            polygons = draw(lanes, axis, kind, top, 0.92 * height)
            _add(ax, polygons, AXIS_NAMES[axis], pale=kind == _HIDDEN, hatched=exactly)


def _widths(ax: Axes, lanes: Lanes) -> Floats:
    left, right = ax.get_xlim()
    inches = ax.get_window_extent().width / ax.figure.dpi
    return (lanes.end - lanes.start) / (right - left) * inches * _POINTS_PER_INCH


def _rectangles(lanes: Lanes, axis: int, kind: int, top: float, height: float) -> list[Floats]:
    mine = np.flatnonzero((lanes.axis == axis) & (lanes.exposed == (kind == _EXPOSED)))
    above = (lanes.rank[mine] + top).astype(np.float64)
    return _boxes(lanes.start[mine], lanes.end[mine], above, above + height)


def _boxes(start: Floats, end: Floats, top: Floats, bottom: Floats) -> list[Floats]:
    x = np.stack([start, end, end, start], axis=1)
    y = np.stack([top, top, bottom, bottom], axis=1)
    return list(np.stack([x, y], axis=2))


def _areas(lanes: Lanes, axis: int, kind: int, top: float, height: float) -> list[Floats]:
    """One outline for every run of spans that are not empty: exposed grows from the bottom, hidden stands on it."""
    polygons: list[Floats] = []
    for row, share in enumerate(lanes.share[:, axis]):
        floor = np.zeros(share.shape[1]) if kind == _EXPOSED else share[_EXPOSED]
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


def _add(ax: Axes, polygons: list[Floats], event: str, *, pale: bool, hatched: bool) -> None:
    """Draw polygons in the colour of an event: pale, or in full and perhaps hatched."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

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
        hatch=_HATCH if hatched and not pale else None,
        rasterized=True,
    )
    # not `add_patch`, which looks at every corner for limits that are set already
    ax.add_artist(patch)


def add_waits(ax: Axes, lanes: Lanes, lane: tuple[float, float]) -> None:
    """Draw exposed slices over the actions that wait for them, where few are shown."""
    for axis in lanes.axes:
        boxes = _rectangles(lanes, axis, _EXPOSED, *lane)
        _add(ax, boxes, AXIS_NAMES[axis], pale=False, hatched=True)


def add_bands(
    ax: Axes, bands: Bands, bars: tuple[Ints, Floats, Floats], lane: tuple[float, float]
) -> None:
    """Fill the lower part of each bar with what its kernels wait for: as much of its area as of its time."""
    floor = np.zeros(len(bands.share))
    for axis, name in enumerate(AXIS_NAMES):
        share = bands.share[:, axis]
        mine = np.flatnonzero(share > 0)
        bottom = bars[0][mine] + lane[0] + lane[1] * (1.0 - floor[mine])
        boxes = _boxes(bars[1][mine], bars[2][mine], bottom - lane[1] * share[mine], bottom)
        _add(ax, boxes, name, pale=False, hatched=True)
        floor += share


def key_patch(kinds: tuple[bool, bool]) -> list[Any]:
    """Legend entry that says what hatched and pale mean, of what is drawn; for what is exposed and what is hidden."""
    from matplotlib.patches import Patch

    exposed, hidden = kinds
    if not exposed:
        return []
    words = "hatched, dark: exposed" + ("; pale: hidden" if hidden else "")
    return [Patch(facecolor="white", edgecolor="black", hatch=_HATCH, linewidth=0.3, label=words)]
