"""The page's pen: charts as inline SVG; the page's script adds hover and zoom.

Colours are variables of the page's style, so that a dark page needs no other drawing. Everything is
laid out on `WIDTH` units from left to right; ``data-frame`` says where the axes lie, so that the
script finds the number under the pointer in the document.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.plot import chart as charts
from mpsim.shipped import read_shipped

WIDTH = 960  # units from left to right


_LETTER = 6.6  # widest of most letters
_LONGEST = 34  # letters of a name beside a chart
_TOP, _RIGHT, _BOTTOM = 8, 18, 44
_ROWS = 32  # names beside a chart
_LEVELS = 24  # shades of a heat map
_DASHES: Mapping[str, str] = {"-": "", "--": "7 4", ":": "2 3", "-.": "7 3 2 3"}
_CYCLE = ("-", "--", ":", "-.")
_SHAPES: Mapping[str, str] = read_shipped("mpsim.report.data", "page.yaml")["marks"]
_LANE_COLUMNS = 480  # of a timeline without a script


class Span(NamedTuple):
    """An axis on the page: where it begins and ends [units], and the numbers there, as read."""

    start: float
    end: float
    low: float
    high: float
    log: bool = False

    def share(self, values: charts.Numbers | float) -> Floats:
        """How far along the axis numbers are, from 0 to 1."""
        low, high, shown = self.low, self.high, np.asarray(values, dtype=np.float64)
        if self.log:
            low, high = math.log10(low), math.log10(high)
            shown = np.log10(np.maximum(shown, 1e-300))
        return np.asarray((shown - low) / ((high - low) or 1.0))

    def place(self, share: float) -> float:
        """Place of what is so far along."""
        return self.start + share * (self.end - self.start)

    def at(self, values: charts.Numbers | float) -> Floats:
        """Places of numbers."""
        return np.asarray(self.start + self.share(values) * (self.end - self.start))


def rule_of(word: str, number: int = 0) -> str:
    """Variable of the page's style with a word's colour; see `mpsim.plot.palette.colour_of`."""
    if word.startswith("#"):
        return word
    name = word.replace(".", "-").replace("_", "-") if word else f"series-{number % 8}"
    return f"var(--{name})"


def svg(chart: charts.Chart, name: str) -> str:
    """A chart as an SVG element. `name`: said by a reader of screens."""
    if isinstance(chart, charts.Bars):
        return _bars(chart, name)
    if isinstance(chart, charts.Heat):
        return _heat(chart, name)
    assert isinstance(chart, charts.Lines)
    return _lines(chart, name)


def legend(chart: charts.Chart) -> str:
    """The legend of a chart as a list, which wraps as text does; none of one kind."""
    entries: list[str] = []
    limits: Sequence[charts.Limit] = ()
    if isinstance(chart, charts.Bars):
        limits = chart.limits
        entries = [
            _entry(part.name, rule_of(part.colour, i), "hatched" if part.hatched else "")
            for i, part in enumerate(chart.parts)
        ]
    elif isinstance(chart, charts.Lines):
        limits = chart.limits
        shown = [(i, series) for i, series in enumerate(chart.series) if series.name]
        entries = [
            _entry(series.name, rule_of(series.colour, i), _shape(chart, series, i))
            for i, series in shown
        ]
    entries += [_entry(limit.label, "var(--warning)", "line dashed") for limit in limits]
    if len(entries) < 2 and not limits:
        return ""
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _entry(name: str, colour: str, shape: str) -> str:
    return (
        f'<li><span class="swatch {shape}" style="--swatch:{colour}"'
        f' aria-hidden="true"></span>{html.escape(name)}</li>'
    )


def _shape(chart: charts.Lines, series: charts.Series, number: int) -> str:
    if chart.stacked:
        return ""
    if series.line:
        return "line" if not _dash(chart, series, number) else "line dashed"
    return {"o": "round", "D": "diamond", "^": "triangle"}.get(series.mark, "")


def _dash(chart: charts.Lines, series: charts.Series, number: int) -> str:
    """Strokes of a line: its own, or, where colours come in turn, those of its turn."""
    turn = series.line == "-" and not series.mark and not chart.stacked
    return _DASHES[_CYCLE[number % len(_CYCLE)] if turn else series.line or "-"]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(text)}</text>'


def _path(d: str, more: str) -> str:
    return f'<path d="{d}" {more}/>'


def _frame(
    name: str,
    body: Iterable[str],
    area: str,
    x: Span,
    y: Span,
    *,
    sizes: tuple[float, float] = (1.0, 1.0),
    zooms: bool = False,
) -> str:
    """The whole element: `area` zooms, `body` lies around it; `sizes` of the axes' units."""
    frame = {"x": [*x, sizes[0]], "y": [*y, sizes[1]], "zoom": zooms}
    top, low = min(y.start, y.end), max(y.start, y.end)
    height = low + _BOTTOM
    box = f'x="{x.start:.1f}" y="{top:.1f}" width="{x.end - x.start:.1f}" height="{low - top:.1f}"'
    view = f"{x.start:.1f} {top:.1f} {x.end - x.start:.1f} {low - top:.1f}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(name)}" '
        f"data-frame='{json.dumps(frame)}'>{''.join(body)}"
        f'<svg class="area" {box} viewBox="{view}" preserveAspectRatio="none">{area}</svg></svg>'
    )


def _ticks(span: Span, most: int = 8) -> list[float]:
    """Round numbers along an axis."""
    if span.log:
        decades = range(math.floor(math.log10(span.low)), math.ceil(math.log10(span.high)) + 1)
        narrow: tuple[float, ...] = (
            (1, 1.5, 2, 3, 4, 5, 7) if span.high < 12 * span.low else (1, 2, 5)
        )
        marks = narrow if len(decades) < 5 else (1,)
        every = [mark * 10.0**power for power in decades for mark in marks]
        inside = [tick for tick in every if span.low <= tick * 1.001 and tick <= span.high * 1.001]
        return [inside[i] for i in charts.thin(len(inside), most + 4)]
    width = (span.high - span.low) / most
    if width <= 0:
        return [span.low]
    power = 10.0 ** math.floor(math.log10(width))
    step = next(mark * power for mark in (1, 2, 5, 10) if mark * power >= width * 0.999)
    first = math.ceil(span.low / step - 1e-9)
    return [i * step for i in range(first, math.floor(span.high / step + 1e-9) + 1)]


def _axis_x(
    axis: charts.Axis, span: Span, word: str, top: float, low: float, grid: bool = True
) -> Iterator[str]:
    marks = list(axis.ticks) or [(tick, f"{tick:.6g}") for tick in _ticks(span)]
    yield '<g class="ticks">'
    for (_, text), at in zip(marks, span.at([tick for tick, _ in marks]).tolist(), strict=True):
        if grid:
            yield _path(f"M{at:.1f} {top:.1f}V{low:.1f}", 'class="grid"')
        yield _text(at, low + 16, text)
    yield "</g>"
    yield _text((span.start + span.end) / 2, low + 36, axis.label(word), more=' class="name"')


def _axis_y(axis: charts.Axis, span: Span, word: str, left: float, right: float) -> Iterator[str]:
    marks = list(axis.ticks) or [(tick, f"{tick:.6g}") for tick in _ticks(span, 6)]
    for (_, text), at in zip(marks, span.at([tick for tick, _ in marks]).tolist(), strict=True):
        yield _path(f"M{left:.1f} {at:.1f}H{right:.1f}", 'class="grid"')
        yield _text(left - 6, at + 4, _cut(text), "end")
    middle = (span.start + span.end) / 2
    turned = f' class="name" transform="rotate(-90 14 {middle:.1f})"'
    yield _text(14, middle, axis.label(word), more=turned)


class _Rows:
    """Names of rows from top to bottom, and room beside them for an axis of numbers."""

    def __init__(self, names: Sequence[str], low: float, high: float) -> None:
        longest = max((len(_cut(name)) for name in names), default=1)
        self.names = names
        self.high = min(24.0, max(5.0, 620 / max(1, len(names))))
        self.x = Span(14 + _LETTER * longest, WIDTH - _RIGHT, low, high)
        self.y = Span(_TOP, _TOP + self.high * len(names), 0, len(names))

    def cells(self, kinds: Ints, places: Floats, style: Callable[[int], str]) -> str:
        """A stroke for each run of equal kinds in a row, in their style; negative has none."""
        runs: dict[int, list[str]] = {}
        for row, own in enumerate(kinds):
            turns = np.flatnonzero(np.diff(own, prepend=-2, append=-2))
            for a, b in itertools.pairwise(turns.tolist()):
                middle = float(self.y.at(row + 0.5))
                cell = f"M{places[a]:.1f} {middle:.1f}H{places[b]:.1f}"
                runs.setdefault(int(own[a]), []).append(cell)
        return "".join(
            _path("".join(cells), style(kind)) for kind, cells in sorted(runs.items()) if kind >= 0
        )

    def drawn(
        self,
        name: str,
        area: str,
        axis: charts.Axis,
        reading: charts.Reading,
        *,
        grid: bool = False,
        zooms: bool,
    ) -> str:
        """The whole element; as many rows are named as there is room for."""
        body = [*_axis_x(axis, self.x, reading.word, self.y.start, self.y.end, grid)]
        for i in charts.thin(len(self.names), _ROWS):
            at = float(self.y.at(i + 0.5)) + 4
            body.append(_text(self.x.start - 6, at, _cut(self.names[i]), "end"))
        return _frame(name, body, area, self.x, self.y, sizes=(reading.size, 1.0), zooms=zooms)


def _bars(chart: charts.Bars, name: str) -> str:
    size = chart.reading.size
    ends = chart.ends / size
    low, high = float(ends.min(initial=0.0)), float(ends.max(initial=0.0))
    high = max([high, *(limit.value / size for limit in chart.limits)]) or 1.0
    rows = _Rows(chart.names, low * 1.03, high * 1.03)
    thick = 0.84 / (len(chart.parts) if chart.beside else 1)
    area: list[str] = []
    for i, (values, starts) in enumerate(zip(chart.table / size, chart.starts / size, strict=True)):
        sides, top = rows.x.at(np.sort([starts, starts + values], axis=0)).T, 0.08
        top += thick * i * chart.beside
        boxes = "".join(
            f"M{a:.1f} {rows.y.at(bar + top):.1f}h{b - a:.1f}v{thick * rows.high:.1f}h{a - b:.1f}z"
            for bar, (a, b) in enumerate(sides.tolist())
            if b > a
        )
        area.append(_path(boxes, f'fill="{rule_of(chart.parts[i].colour, i)}" class="part"'))
        if chart.parts[i].hatched:
            area.append(_path(boxes, 'fill="url(#hatch)"'))
    for limit in chart.limits:
        at = float(rows.x.at(limit.value / size))
        area.append(_path(f"M{at:.1f} {rows.y.start}V{rows.y.end:.1f}", 'class="limit"'))
    return rows.drawn(name, "".join(area), chart.value, chart.reading, grid=True, zooms=False)


def _heat(chart: charts.Heat, name: str) -> str:
    values, edges = (np.asarray(each, dtype=np.float64) for each in (chart.values, chart.edges))
    reading = charts.readable(chart.x.unit, float(np.max(edges)))
    rows = _Rows(chart.names, *(edges[[0, -1]] / reading.size).tolist())
    most = max(1.0 if chart.z.unit == "share" else 0.0, float(values.max(initial=0.0))) or 1.0
    # small loads must be seen beside large ones: nothing else has the colour of nothing
    level = np.where(values > 0, np.maximum(np.ceil(values / most * _LEVELS), 1), -1)
    area = rows.cells(
        level.astype(np.int64),
        rows.x.at(edges / reading.size),
        lambda shade: (
            f'class="cell" stroke-width="{0.94 * rows.high:.1f}"'
            f' stroke-opacity="{0.1 + 0.9 * shade / _LEVELS:.2f}"'
        ),
    )
    return rows.drawn(name, area, chart.x, reading, zooms=True)


def _lines(chart: charts.Lines, name: str) -> str:
    (x_word, x_size), (y_word, y_size) = chart.readings
    height = 400 if any(not series.line for series in chart.series) else 330
    marks = [tick for _, tick in chart.y.ticks]
    left = 30 + _LETTER * max([7, *(len(_cut(mark)) for mark in marks)])
    x = Span(left, WIDTH - _RIGHT, *_reach(chart, 0, x_size), bool(chart.x.log))
    y = Span(height, _TOP, *_reach(chart, 1, y_size), bool(chart.y.log))
    base = np.zeros(0)
    area: list[str] = []
    for i, series in enumerate(chart.series):
        values = np.asarray(series.y, dtype=np.float64) / y_size
        across = x.at(np.asarray(series.x, dtype=np.float64) / x_size)
        if chart.stacked:
            base = base if len(base) else np.zeros(len(values))
            outline = _outline(across, y.at(base), y.at(base + values), series.step)
            area.append(_path(outline, f'fill="{rule_of(series.colour, i)}"'))
            base = base + values
        else:
            area += _series(chart, i, across, y.at(values))
            ranges = y.at(np.array(series.errors).reshape(-1, 2) / y_size)
            ticks = zip(across, ranges, strict=False)
            d = "".join(f"M{a:.1f} {low:.1f}V{high:.1f}" for a, (low, high) in ticks)
            area += [_path(d, f'class="curve" stroke="{rule_of(series.colour, i)}"')] if d else []
    for limit in chart.limits:
        at = float((x if limit.along else y).at(limit.value / (x_size if limit.along else y_size)))
        line = (
            f"M{at:.1f} {_TOP}V{height}" if limit.along else f"M{x.start:.1f} {at:.1f}H{x.end:.1f}"
        )
        area.append(_path(line, 'class="limit"'))
    body = [
        *_axis_x(chart.x, x, x_word, _TOP, height),
        *_axis_y(chart.y, y, y_word, x.start, x.end),
        *_written(chart, x, y, (x_size, y_size)),
    ]
    zooms = any(each.line for each in chart.series) and not any(each.mark for each in chart.series)
    return _frame(
        name, body, "".join(area), x, y, sizes=(x_size, y_size), zooms=zooms and not chart.x.log
    )


def _reach(chart: charts.Lines, which: int, size: float) -> tuple[float, float]:
    """First and last number of an axis, as read."""
    axis = (chart.x, chart.y)[which]
    columns = [np.asarray((series.x, series.y)[which], dtype=np.float64) for series in chart.series]
    if which and chart.stacked and columns:
        columns = [np.sum(columns, axis=0)]
    limits = [limit.value for limit in chart.limits if limit.along == (which == 0)]
    every = np.concatenate([*columns, limits, np.zeros(0)])
    every = every[np.isfinite(every) & ((every > 0) | (not axis.log))]
    low, high = (float(every.min()), float(every.max())) if len(every) else (1.0, 10.0)
    if axis.log:
        low, high = low / 1.25, high * 1.25
    else:
        over = 1.04 if which or not any(series.line for series in chart.series) else 1.0
        low, high = min(low, 0.0), high * over if high > 0 else 0.0
        high = high if high > low else low + 1.0
    first, last = axis.limits
    return (low if first is None else first) / size, (high if last is None else last) / size


def _series(chart: charts.Lines, number: int, across: Floats, up: Floats) -> Iterator[str]:
    series = chart.series[number]
    colour = rule_of(series.colour, number)
    if series.line:
        dash = _dash(chart, series, number)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        d = _outline(across, up, None, series.step)
        yield _path(d, f'class="curve" stroke="{colour}"{dashed}')
    if series.mark:
        sizes = np.broadcast_to(np.asarray(series.size, dtype=np.float64), len(across))
        hollow = np.broadcast_to(series.hollow if len(series.hollow) else [False], len(across))
        shape = _SHAPES.get(series.mark, _SHAPES["o"])
        for a, b, size, empty in zip(across, up, sizes, hollow, strict=True):
            if np.isfinite(b):
                fill = "var(--panel)" if empty else colour
                yield (
                    f'<path d="{shape}" transform="translate({a:.1f} {b:.1f})'
                    f' scale({max(size, 4.0):.1f})" fill="{fill}"'
                    f' stroke="{colour if empty else "var(--panel)"}" class="mark"/>'
                )


def _outline(across: Floats, up: Floats, top: Floats | None, step: bool) -> str:
    """A line, with gaps where there is no number; or, under `top`, an area."""
    if step:
        across, up = np.repeat(across, 2)[1:], np.repeat(up, 2)[:-1]
        top = None if top is None else np.repeat(top, 2)[:-1]
    if top is not None:
        across, up = np.concatenate([across, across[::-1]]), np.concatenate([up, top[::-1]])
    points, lifted = [], True
    for a, b in zip(across.tolist(), up.tolist(), strict=True):
        if math.isfinite(b):
            points.append(f"{'M' if lifted else 'L'}{a:.1f} {b:.1f}")
        lifted = not math.isfinite(b)
    return "".join(points) + ("z" if top is not None else "")


def _written(chart: charts.Lines, x: Span, y: Span, sizes: tuple[float, float]) -> Iterator[str]:
    """Names beside marks, where they find room."""

    def shares(across: charts.Numbers, up: charts.Numbers) -> tuple[Floats, Floats]:
        return x.share(np.asarray(across) / sizes[0]), y.share(np.asarray(up) / sizes[1])

    for name in charts.names_beside(
        chart, shares, (1 / abs(x.end - x.start), 1 / abs(y.end - y.start))
    ):
        left, middle = x.place(name.left), y.place(name.middle)
        if name.apart:
            at = f"M{x.place(name.mark[0]):.1f} {y.place(name.mark[1]):.1f}"
            yield _path(f"{at}L{left:.1f} {middle:.1f}", 'class="grid"')
        yield _text(left, middle + 4, name.text, "start")


def lanes_svg(name: str, block: Mapping[str, Any], columns: Mapping[str, Ints]) -> str:
    """A timeline as readers without a script see it: what each lane does in the middle of each of
    so many spans.

    `block`: `mpsim.report.lanes.Lanes` as plain data. `columns` (mapping of str to int64[N]): its
    columns, unpacked.
    """
    names, events, end_s = block["names"], block["events"], block["end_s"]
    reading = charts.readable("s", end_s)
    rows = _Rows(names, 0.0, end_s / reading.size)
    middle = (np.arange(_LANE_COLUMNS) + 0.5) * end_s / block["unit_s"] / _LANE_COLUMNS
    kinds = np.full((len(names), _LANE_COLUMNS), -1)
    first = np.searchsorted(columns["lane"], np.arange(len(names) + 1)).tolist()
    for lane, since in enumerate(first[:-1]):
        mine = slice(since, first[lane + 1])
        start, length, event = (columns[name][mine] for name in ("start", "length", "event"))
        at = np.searchsorted(start, middle, side="right") - 1
        held = (at >= 0) & (middle < (start + length)[np.maximum(at, 0)])
        kinds[lane, held] = event[at[held]]
    area = rows.cells(
        kinds,
        np.linspace(rows.x.start, rows.x.end, _LANE_COLUMNS + 1),
        lambda kind: (
            f'class="lane" stroke="{rule_of(events[kind].removeprefix("exposed "))}"'
            f' stroke-width="{0.86 * rows.high:.1f}"'
        ),
    )
    return rows.drawn(name, area, charts.Axis("time"), reading, zooms=False)
