"""A chart as a value: what is drawn, in SI numbers with their units; two pens draw it, matplotlib's
(`mpsim.plot.pen`) and the page's (`mpsim.report.pen`).

Nothing here draws. What both pens must agree on stands here: the unit an axis reads in, which ticks
it has, and where names beside marks find room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np

from mpsim import structs
from mpsim.accessors import Drawn, call
from mpsim.arrays import Flags, Floats, Ints
from mpsim.errors import ScenarioError
from mpsim.plot.palette import LIMIT
from mpsim.units import Dimension, rung

Numbers: TypeAlias = Sequence[float] | Floats

LINE_INCHES = 0.17  # height of a line of notes
_DIMENSIONS = {dimension.value: dimension for dimension in Dimension}
_FEW, _BETWEEN = 24, 60  # points of a line that names keep off, places between two of them
_MOST_KEPT_FREE = 300  # points of a series: of more there is no room between them
_MOST_POINTS = 2000  # of a line
_LETTER, _LINE, _BESIDE, _MARK = 0.0098, 0.036, 0.012, 0.009  # of names and marks [of the axes]


@structs.dataclass(frozen=True, slots=True)
class Axis:
    """Kind of the numbers along an axis."""

    name: str = ""
    # ``s``, ``B``, ``share``, ``FLOP/s`` and the like get the prefix that suits, others none
    unit: str = ""
    log: int = 0  # base of a logarithmic scale; 0 for a linear one
    # first and last number shown; either may be None
    limits: tuple[float | None, float | None] = (None, None)
    ticks: Sequence[tuple[float, str]] = ()  # the only marks there are

    def label(self, word: str) -> str:
        """The name with the unit that it is read in."""
        return f"{self.name} ({word})" if word else self.name


class Reading(NamedTuple):
    """The unit in which numbers read well, and its size."""

    word: str
    size: float


def readable(unit: str, largest: float) -> Reading:
    """The unit in which numbers up to `largest` read well.

    Examples
    --------
    >>> readable("s", 0.25)
    Reading(word='ms', size=0.001)
    >>> readable("days", 3.0)
    Reading(word='days', size=1.0)
    """
    if unit == "share":
        return Reading("%", 0.01)
    if unit not in _DIMENSIONS or not largest:
        return Reading(unit, 1.0)
    return Reading(*rung(largest, _DIMENSIONS[unit]))


@structs.dataclass(frozen=True, slots=True)
class Limit:
    """A line across a chart, at a number of the axis of values or, if `along`, of the other one."""

    value: float
    label: str  # of the legend; or, where the chart has room, beside the line
    colour: str = LIMIT
    along: bool = False  # whether it crosses the horizontal axis of `Lines`


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The parts that every chart has."""

    block: ClassVar[str]
    title: str = ""  # what is shown, and perhaps a headline in a second line
    alt: str = ""  # what there is to see, in a sentence
    notes: Sequence[str] = ()  # lines under the chart
    size: tuple[float, float] = (8.0, 4.2)  # of a picture that suits the numbers [inch]

    def titled(self, title: str) -> Self:
        """The same chart with another title."""
        return structs.replace(self, title=title)

    def plot(self, ax: Any = None) -> Drawn:
        """Draw with matplotlib, on the axes `ax` or on a figure of its own."""
        drawn: Drawn = call("chart.display", self).plot(ax)
        return drawn

    def save(self, path: str | Path) -> Path:
        """Write a picture; the suffix chooses among ``.png``, ``.svg`` and ``.pdf``."""
        written: Path = call("chart.display", self).save(path)
        return written

    def _repr_png_(self) -> bytes:
        picture: bytes = call("chart.display", self)._repr_png_()
        return picture


@structs.dataclass(frozen=True, slots=True)
class Part:
    """One part of every bar, with a value for each."""

    name: str
    values: Numbers
    colour: str = ""  # a word of `mpsim.plot.palette.colour_of`; empty for the next of its series
    hatched: bool = False


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Chart):
    """Bars cut into parts, or beside each other. ScenarioError without one value for each name."""

    block: ClassVar[str] = "bars"
    names: Sequence[str]  # one a bar, from top to bottom or from left to right
    parts: Sequence[Part]
    value: Axis  # what the lengths are
    across: str = ""  # what the names are
    upright: bool = False  # whether a picture has columns; the page always has rows
    beside: bool = False
    # ``share`` writes each wide part's share of its bar, ``total`` the sum over each bar
    written: str = ""
    joined: bool = False  # whether thin lines join equal parts of neighbours
    limits: Sequence[Limit] = ()
    line: Series | None = None  # over columns, its x their places

    def __post_init__(self) -> None:
        for part in self.parts:
            if len(part.values) != len(self.names):
                raise ScenarioError(
                    f"{part.name}: got {len(part.values)} values; needed one for each of"
                    f" {len(self.names)} bars"
                )

    @property
    def table(self) -> Floats:
        """Values by part and bar, float64[parts, bars]."""
        if not self.parts:
            return np.zeros((0, len(self.names)))
        return np.array([np.asarray(part.values, dtype=np.float64) for part in self.parts])

    @property
    def starts(self) -> Floats:
        """Where parts begin: on those before them on their side of zero, float64[parts, bars]."""
        over, under = (np.cumsum(side, axis=0) - side for side in self._sides)
        return np.where(self.table < 0, under, over) * (not self.beside)

    @property
    def ends(self) -> Floats:
        """How far each bar goes above zero and below it, float64[2, bars]."""
        over, under = self._sides
        if self.beside:
            return np.stack([over.max(axis=0, initial=0.0), under.min(axis=0, initial=0.0)])
        return np.stack([over.sum(axis=0), under.sum(axis=0)])

    @property
    def _sides(self) -> tuple[Floats, Floats]:
        return np.maximum(self.table, 0.0), np.minimum(self.table, 0.0)

    @property
    def reading(self) -> Reading:
        """Unit in which the lengths read well."""
        whole = np.abs(self.table).max(axis=0) if self.beside else np.abs(self.table).sum(axis=0)
        return readable(self.value.unit, float(whole.max(initial=0.0)))


@structs.dataclass(frozen=True, slots=True)
class Series:
    """Points along a chart, joined by a line or marked one by one."""

    name: str  # of the legend; empty for none
    x: Numbers
    y: Numbers
    colour: str = ""  # as of a Part
    line: str = "-"  # ``-``, ``--``, ``:`` or ``-.``; empty for none
    mark: str = ""  # one of matplotlib's; empty for none
    step: bool = False  # whether a value stays until the next
    width: float = 1.4  # of the line [point]
    hollow: Sequence[bool] | Flags = ()  # which marks are not filled
    size: float | Numbers = 5.0  # of marks [point]
    labels: Sequence[str] = ()  # what each point is
    # what stands beside points, by their place
    written: Mapping[int, str] = structs.field(default_factory=dict)
    errors: Sequence[tuple[float, float]] = ()  # ends of the range of each point
    alpha: float = 1.0  # how little marks let through, in [0, 1]


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Chart):
    """Lines and scattered points over two axes; stacked areas where they are parts of a whole."""

    block: ClassVar[str] = "lines"
    series: Sequence[Series]
    x: Axis
    y: Axis
    limits: Sequence[Limit] = ()
    stacked: bool = False
    # ranges of y that are shaded; of a chart whose axes are both logarithmic, factors of x
    bands: Sequence[tuple[float, float]] = ()
    grid: str = "both"  # ``x``, ``y``, ``both`` or nothing

    @property
    def readings(self) -> tuple[Reading, Reading]:
        """Units in which x and y read well."""
        x = _largest([series.x for series in self.series])
        if self.stacked:
            y = float(np.sum([np.asarray(line.y) for line in self.series], axis=0).max(initial=0.0))
        else:
            y = _largest([series.y for series in self.series])
        y = max([y, *(limit.value for limit in self.limits if not limit.along)])
        return readable(self.x.unit, x), readable(self.y.unit, y)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Chart):
    """A grid of coloured cells. ScenarioError unless values match names and edges."""

    block: ClassVar[str] = "heat"
    names: Sequence[str]  # one a row, from top to bottom
    edges: Numbers  # of the columns; one more than there are
    values: Sequence[Numbers] | Floats  # by row and column
    # x, z: of columns and cells; with ``z.log`` small values are told apart from its first limit on
    x: Axis
    z: Axis
    columns: Sequence[str] = ()  # names of the columns where they are no numbers
    # group of each row; rows of one follow each other, and a line parts groups
    groups: Sequence[str] = ()
    across: str = ""  # what the rows are

    def __post_init__(self) -> None:
        shape = np.asarray(self.values).shape
        if shape != (len(self.names), len(self.edges) - 1):
            raise ScenarioError(
                f"got values of shape {shape}; needed {len(self.names)} rows by"
                f" {len(self.edges) - 1} columns"
            )


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Panels(Chart):
    """Several charts in a grid."""

    block: ClassVar[str] = "panels"
    charts: Sequence[Chart]  # row by row, each under its title
    columns: int = 1
    ratios: Sequence[float] = ()  # heights of the rows; equal when left out
    same: bool = False  # whether all have the axes, and the legend, of the first


def _largest(columns: Sequence[Numbers]) -> float:
    """The largest size of any number that is one."""
    sizes = [np.abs(np.asarray(column, dtype=np.float64)) for column in columns if len(column)]
    return max((float(np.nanmax(size)) for size in sizes if np.isfinite(size).any()), default=0.0)


def thin(count: int, most: int) -> list[int]:
    """Which of `count` positions to label, at most `most`: every one, every 2nd, 4th, 8th...

    Examples
    --------
    >>> thin(8, 4)
    [0, 2, 4, 6]
    """
    step = 2 ** max(0, math.ceil(math.log2(count / most))) if count else 1
    return list(range(0, count, step))


def fullest(values: Floats) -> Ints:
    """Which points of a line to draw: all, or the highest of each span of a screen's column."""
    places = np.arange(len(values))
    if len(values) <= _MOST_POINTS:
        return places
    return np.array(
        [span[np.argmax(values[span])] for span in np.array_split(places, _MOST_POINTS)]
    )


def short_number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable.

    Examples
    --------
    >>> short_number(1234.5), short_number(0.01234)
    ('1234', '0.0123')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Name(NamedTuple):
    """A name beside its mark: text, mark, left end and middle of its line [shares of the axes]."""

    text: str
    mark: tuple[float, float]
    left: float
    middle: float
    apart: bool


def names_beside(
    chart: Lines,
    shares: Callable[[Numbers, Numbers], tuple[Floats, Floats]],
    point: tuple[float, float],
) -> list[Name]:
    """Places for what is written beside the points of a chart.

    `shares`: makes shares of the axes of SI numbers along x and along y. `point`: half a unit of
    the size of marks along both axes [shares of them].
    """
    marks: list[tuple[float, float]] = []
    texts: list[str] = []
    taken = [np.zeros((0, 4))]
    for series in chart.series:
        x, y = shares(series.x, series.y)
        marks += [(float(x[int(at)]), float(y[int(at)])) for at in series.written]
        texts += series.written.values()
        if len(x) <= _MOST_KEPT_FREE:
            sizes = np.asarray(series.size if series.mark else 0.0, dtype=np.float64)
            wide, high = (np.maximum(sizes * each, _MARK) for each in point)
            taken.append(np.stack([x - wide, y - high, x + wide, y + high], axis=1))
            taken.append(_around(*_between(series, x, y)))
    return placed_names(marks, texts, np.concatenate(taken)) if texts else []


def _around(x: Floats, y: Floats) -> Floats:
    """Boxes that small marks take, float64[N, 4]."""
    return np.stack([x - _MARK, y - _MARK, x + _MARK, y + _MARK], axis=1)


def _between(series: Series, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Points on the way of a line of few points."""
    if not series.line or not 0 < len(x) < _FEW:
        return x[:0], y[:0]
    if series.step:
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    along = np.arange(0.0, len(x) - 1, 1 / _BETWEEN)
    return np.interp(along, np.arange(len(x)), x), np.interp(along, np.arange(len(y)), y)


def placed_names(
    marks: Sequence[tuple[float, float]], texts: Sequence[str], taken: Floats | None = None
) -> list[Name]:
    """Places for names beside marks, as near as others leave room [shares of the axes].

    Marks in one place share a line of names. `taken`: boxes of what else is there, float64[N, 4].
    """
    shared: dict[tuple[float, float], list[str]] = {}
    for mark, text in zip(marks, texts, strict=True):
        at = next((key for key in shared if math.dist(key, mark) < 1e-6), mark)
        shared.setdefault(at, []).append(text)
    own = _around(*np.array([*shared]).reshape(-1, 2).T)
    taken = own if taken is None else np.concatenate([own, taken])
    names = []
    for (x, y), parts in shared.items():
        text = ", ".join(dict.fromkeys(parts))
        box = _free_place(x, y, len(text), taken)
        taken = np.concatenate([taken, [box]])
        left, middle = float(box[0]), float(box[1]) + _LINE / 2
        names.append(Name(text, (x, y), left, middle, abs(middle - y) > _LINE or left < x))
    return names


def _free_place(x: float, y: float, letters: int, taken: Floats) -> Floats:
    """Box of a name: right or left of its mark, then by lines away; beside it if none is free."""
    wide = letters * _LETTER
    boxes = [
        np.array([left, bottom, left + wide, bottom + _LINE])
        for shift in range(12)
        for bottom in (y - _LINE / 2 + shift * _LINE, y - _LINE / 2 - shift * _LINE)
        for left in (x + _BESIDE, x - _BESIDE - wide)
    ]
    for box in boxes:
        covers = ((taken[:, :2] < box[2:]) & (box[:2] < taken[:, 2:])).all(axis=1)
        if box.min() >= 0 and box.max() <= 1 and not covers.any():
            return box
    return boxes[0]
