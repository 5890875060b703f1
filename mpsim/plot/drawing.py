"""Bars, lines and heat maps on matplotlib axes; importing this module imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from mpsim.arrays import Floats
from mpsim.plot import chart as charts
from mpsim.plot.palette import DARK, EVENTS, LABELS, LIMIT, LUMINANCE, colour_of, rgb
from mpsim.units import percent

HATCH = "//////"
Style: TypeAlias = dict[str, Any]  # options of an artist

_ENTRY, _PER_LETTER = 0.42, 0.066  # of a legend [inch]
_NARROWEST_WRITTEN, _MOST_WRITTEN = 0.035, 24  # of the axis; bars
_NAMES_BELOW, _NAMES_BESIDE = 16, 32
_ABOVE_PERCENT = 38.0  # points, over the labels of the upper axis
_THOUSAND, _LONG = 1e3, 1e7  # numbers whose digits are grouped
_HEAT, _LOADS, _NOTHING = "cividis", "viridis", "#FFFFFF"  # even in lightness, for every eye


def event_patches(events: Collection[str], labels: Mapping[str, str]) -> list[Artist]:
    """Legend entries of kinds of event, in the palette's order; `labels` are other words."""
    words = {**LABELS, **labels}
    return [_patch(words.get(event, event), EVENTS[event]) for event in EVENTS if event in events]


def _patch(label: str, colour: str, *, hatched: bool = False) -> Patch:
    edge, hatch = ("white", "////") if hatched else (colour, None)
    return Patch(facecolor=colour, edgecolor=edge, hatch=hatch, label=label)


def columns_of(labels: Iterable[str], width: float) -> int:
    """How many entries of a legend fit beside each other."""
    longest = max(map(len, labels), default=1)
    return max(1, int(width / (_ENTRY + _PER_LETTER * longest)))


def legend_above(ax: Axes, handles: Sequence[Artist], *, lift: float = 2.0) -> None:
    """Put a legend above the axes, outside, where it hides nothing; `lift` [points]."""
    if not handles:
        return
    figure = _figure_of(ax)
    wide = float(ax.get_position().width * figure.get_figwidth() * 1.1)
    columns = columns_of([str(handle.get_label()) for handle in handles], wide)
    up = ScaledTranslation(0.0, lift / 72, figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        bbox_transform=ax.transAxes + up,
        ncols=math.ceil(len(handles) / math.ceil(len(handles) / columns)),
        borderaxespad=0.0,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def _limit_handles(limits: Iterable[charts.Limit]) -> list[Artist]:
    return [
        Line2D([], [], color=colour_of(limit.colour), linestyle="--", label=limit.label)
        for limit in limits
    ]


def draw_bars(ax: Axes, chart: charts.Bars) -> None:
    """Draw bars cut into parts or beside each other, along or upright."""
    word, size = chart.reading
    table, place = chart.table / size, np.arange(float(len(chart.names)))
    bar, across = (ax.bar, "width") if chart.upright else (ax.barh, "height")
    thick = 0.8 / len(chart.parts) if chart.beside and chart.parts else 0.8
    handles: list[Artist] = []
    for number, (part, lengths, base) in enumerate(
        zip(chart.parts, table, chart.starts / size, strict=True)
    ):
        colour = colour_of(part.colour, number)
        shift = (number - (len(chart.parts) - 1) / 2) * thick if chart.beside else 0.0
        style: Style = {across: 0.92 * thick if chart.beside else thick}
        style |= {"bottom" if chart.upright else "left": base, "color": colour, "linewidth": 0.3}
        bar(
            place + shift,
            lengths,
            edgecolor="white",
            hatch="////" if part.hatched else None,
            **style,
        )
        if part.name and np.abs(lengths).max(initial=0.0) > 1e-3 * np.abs(table).max(initial=0.0):
            handles.append(_patch(part.name, colour, hatched=part.hatched))
        if chart.written == "share" and len(place) <= _MOST_WRITTEN:
            _write_shares(ax, colour, base + lengths / 2, lengths, table.sum(axis=0))
        if chart.beside and chart.written:
            _write_ends(ax, chart, place + shift, lengths, lengths)
    if chart.written and not chart.beside and (chart.written == "total" or chart.joined):
        total = table.sum(axis=0)
        over, under = chart.ends / size
        _write_ends(ax, chart, place, np.where(total < 0, under, over), total)
    if chart.joined:
        _join(ax, np.cumsum(table, axis=0))
    for limit in chart.limits:
        line = ax.axhline if chart.upright else ax.axvline
        line(limit.value / size, color=colour_of(limit.colour), linestyle="--", linewidth=1.2)
    handles = handles if len(handles) > 1 or chart.limits else []
    _label_bars(ax, chart, word, size)
    lift = _percent_axis(ax, table) if chart.written == "share" and not chart.joined else 2.0
    legend_above(ax, [*handles, *_limit_handles(chart.limits)], lift=lift)
    if chart.line is not None:
        _draw_over(ax, chart.line, size)


def _label_bars(ax: Axes, chart: charts.Bars, word: str, size: float) -> None:
    """Name bars and lengths, and leave room for what is written at the ends."""
    ends = chart.ends / size
    most = max([float(ends.max(initial=0.0)), *(limit.value / size for limit in chart.limits)])
    least = float(ends.min(initial=0.0))
    room = 1.12 if chart.written != "share" or chart.joined else 1.0
    if least < 0:  # both ways: as far to each side
        most = max(most, -least)
        least = -1.12 * most
    low, high = chart.value.limits
    low, high = (each if each is None else each / size for each in (low, high))
    span = (least if low is None else low, (room * most or 1.0) if high is None else high)
    named = charts.thin(len(chart.names), _NAMES_BELOW if chart.upright else _NAMES_BESIDE)
    names = [chart.names[bar] for bar in named]
    if chart.upright:
        ax.set_xticks(named, names)
        ax.set(xlim=(-0.6, len(chart.names) - 0.4), ylim=span, xlabel=chart.across)
        ax.set_ylabel(chart.value.label(word))
        ax.grid(axis="y")
        return
    ax.set_yticks(named, names)
    ax.set(ylim=(len(chart.names) - 0.4, -0.6), xlim=span, ylabel=chart.across)
    ax.set_xlabel(chart.value.label(word))
    if least < 0:
        ax.axvline(0.0, color="black", linewidth=0.8)


def _draw_over(ax: Axes, line: charts.Series, size: float) -> None:
    """A line over columns, its numbers written."""
    values = np.asarray(line.y, dtype=np.float64)
    ax.plot(line.x, values / size, color="black", marker="o", linewidth=line.width)
    for x, value in zip(line.x, values.tolist(), strict=True):
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        offset: Style = {"xytext": (0, 6), "textcoords": "offset points"}
        ax.annotate(f"{value:.0%}", (x, value / size), ha="center", fontsize=8, bbox=box, **offset)


def _percent_axis(ax: Axes, table: Floats) -> float:
    """Say at the top what share of the longest bar the axis means; how high a legend must be."""
    longest = float(table.sum(axis=0).max(initial=0.0))
    if not longest:
        return 2.0
    scale = 100 / longest
    functions = (lambda value: np.asarray(value) * scale, lambda value: np.asarray(value) / scale)
    ax.secondary_xaxis("top", functions=functions).set_xlabel("share of the step (%)")
    return _ABOVE_PERCENT


def _write_shares(ax: Axes, colour: str, middle: Floats, length: Floats, total: Floats) -> None:
    """Write what share of its bar each piece is, where the piece is wide enough."""
    ink = "white" if float(rgb(colour) @ LUMINANCE) < DARK else "black"
    box = {"facecolor": colour, "edgecolor": "none", "pad": 0.8}
    style: Style = {"ha": "center", "va": "center_baseline", "fontsize": 7, "bbox": box}
    for bar in np.flatnonzero(length > _NARROWEST_WRITTEN * total.max()).tolist():
        ax.text(middle[bar], bar, percent(length[bar] / total[bar]), color=ink, **style)


def _write_ends(ax: Axes, chart: charts.Bars, place: Floats, ends: Floats, values: Floats) -> None:
    """Write numbers at the ends of bars, red where they are over a limit."""
    if len(place) > _MOST_WRITTEN:
        return
    word, size = chart.reading
    capacity = min(
        (limit.value / size for limit in chart.limits if limit.colour == LIMIT), default=math.inf
    )
    for at, end, value in zip(place.tolist(), ends.tolist(), values.tolist(), strict=True):
        full = value > capacity
        style: Style = {"color": LIMIT if full else "black", "weight": "bold" if full else "normal"}
        if chart.upright:
            ax.text(
                at, end, charts.short_number(value), ha="center", va="bottom", fontsize=7, **style
            )
        else:
            signed = (
                f"{'+' * (value > 0)}{charts.short_number(value)}"
                if float(chart.table.min(initial=0.0)) < 0
                else f"{charts.short_number(value)} {word}"
            )
            side = "left" if end >= 0 else "right"
            ax.text(end, at, f" {signed} ", ha=side, va="center_baseline", fontsize=8, **style)


def _join(ax: Axes, edges: Floats) -> None:
    """Thin lines between equal parts of neighbours."""
    for edge in edges[:-1]:
        for bar in range(edges.shape[1] - 1):
            ax.plot(edge[bar : bar + 2], [bar + 0.4, bar + 0.6], color="#636363", linewidth=0.6)


def draw_lines(ax: Axes, chart: charts.Lines) -> None:
    """Draw lines, marks and areas, with the names of points."""
    (x_word, x_size), (y_word, y_size) = chart.readings
    handles: list[Artist] = []
    base: Any = 0.0
    for number, series in enumerate(chart.series):
        colour = colour_of(series.colour, number)
        x, y = (np.asarray(column, dtype=np.float64) for column in (series.x, series.y))
        if chart.stacked:
            top = base + y / y_size
            ax.fill_between(
                x / x_size,
                base,
                top,
                step="post" if series.step else None,
                color=colour,
                linewidth=0,
                rasterized=True,
            )
            base = top
        else:
            _draw_line(ax, series, colour, x / x_size, y / y_size, y_size)
        if series.name:
            handles.append(
                _patch(series.name, colour) if chart.stacked else _line_handle(series, colour)
            )
    for limit in chart.limits:
        line, size = (ax.axvline, x_size) if limit.along else (ax.axhline, y_size)
        line(limit.value / size, color=colour_of(limit.colour), linestyle="--", linewidth=1.2)
    _scale(ax, "x", chart.x, x_word, x_size)
    _scale(ax, "y", chart.y, y_word, y_size)
    _shade_bands(ax, chart, y_size)
    if chart.grid:
        ax.grid(axis=chart.grid)  # type: ignore[arg-type] # one of matplotlib's words
    handles += _limit_handles(chart.limits)
    legend_above(ax, handles)
    _write_names(ax, chart, x_size, y_size)


def _draw_line(
    ax: Axes, series: charts.Series, colour: str, x: Floats, y: Floats, y_size: float
) -> None:
    style: Style = {"color": colour, "zorder": 2}
    if series.line:
        steps = "steps-post" if series.step else "default"
        ax.plot(x, y, linestyle=series.line, linewidth=series.width, drawstyle=steps, **style)
    if series.errors:
        low, high = np.array(series.errors).T / y_size
        ax.errorbar(x, y, yerr=np.stack([y - low, high - y]), fmt="none", capsize=3, **style)
    # matplotlib masks what has no place, and cannot draw a list of widths that is masked
    there = np.isfinite(x) & np.isfinite(y)
    if series.mark and there.any():
        hollow = np.broadcast_to(series.hollow if len(series.hollow) else [False], len(x))[there]
        size = np.square(np.asarray(series.size, dtype=np.float64))
        ax.scatter(
            x[there],
            y[there],
            s=np.broadcast_to(size, len(x))[there],
            marker=series.mark,
            facecolors=np.where(hollow, "white", colour).tolist(),
            edgecolors=colour,
            linewidth=np.where(hollow, 0.9, 0.4).tolist(),
            alpha=series.alpha,
            zorder=3,
        )


def _line_handle(series: charts.Series, colour: str) -> Artist:
    face = "white" if len(series.hollow) and all(series.hollow) else colour
    line: Any = series.line or "none"
    mark = series.mark or "none"
    return Line2D(
        [], [], color=colour, linestyle=line, marker=mark, markerfacecolor=face, label=series.name
    )


def _scale(ax: Axes, which: str, axis: charts.Axis, word: str, size: float) -> None:
    """Scale, limits, marks and name of one of the two axes."""
    own = ax.xaxis if which == "x" else ax.yaxis
    if axis.log:
        getattr(ax, f"set_{which}scale")("log", base=axis.log)
        own.set_major_formatter(_Plain(axis.log))
        own.set_minor_formatter(_Plain(axis.log, minor_thresholds=(1, 0.4)))
    if axis.ticks:
        own.set_ticks([tick / size for tick, _ in axis.ticks], [text for _, text in axis.ticks])
        own.set_minor_locator(NullLocator())
    low, high = (each if each is None else each / size for each in axis.limits)
    if low is not None or high is not None:
        if low is not None and high is None:  # marks that are all alike have room above, too
            ax.update_datalim([(low, low)], updatex=which == "x", updatey=which == "y")
            ax.autoscale_view()
        getattr(ax, f"set_{which}lim")(low, high)
    own.set_label_text(axis.label(word))


class _Plain(LogFormatter):
    """Numbers of a logarithmic axis, without powers of ten as long as that is readable."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        if not super().__call__(x, pos):
            return ""
        return f"{x:,.0f}" if _THOUSAND <= x < _LONG else f"{x:g}"


def _shade_bands(ax: Axes, chart: charts.Lines, size: float) -> None:
    for low, high in chart.bands:
        if chart.x.log and chart.y.log:
            ends = np.array(ax.get_xlim())
            ax.fill_between(ends, ends * low, ends * high, color=EVENTS["bubble"], zorder=0)
        else:
            ax.axhspan(low / size, high / size, color=EVENTS["bubble"], zorder=0)


def _write_names(ax: Axes, chart: charts.Lines, x_size: float, y_size: float) -> None:
    """Names beside marks, where they find room, with a thin line where they stand apart."""
    to_axes, box, dpi = ax.transData + ax.transAxes.inverted(), ax.bbox, ax.figure.dpi

    def shares(x: charts.Numbers, y: charts.Numbers) -> tuple[Floats, Floats]:
        read = [np.asarray(x, dtype=float) / x_size, np.asarray(y, dtype=float) / y_size]
        places = to_axes.transform(np.stack(read, axis=1))
        return places[:, 0], places[:, 1]

    arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": EVENTS["other"], "shrinkB": 3}
    style: Style = {
        **dict.fromkeys(("xycoords", "textcoords"), "axes fraction"),
        "fontsize": 7.5,
        "va": "center",
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    }
    for name in charts.names_beside(chart, shares, (dpi / 144 / box.width, dpi / 144 / box.height)):
        place, own = (name.left, name.middle), arrow if name.apart else None
        ax.annotate(name.text, name.mark, xytext=place, arrowprops=own, **style)


def draw_heat(ax: Axes, chart: charts.Heat) -> None:
    """Draw a grid of coloured cells with the scale of its colours."""
    word, size = charts.readable(chart.x.unit, float(np.max(chart.edges)))
    values = np.asarray(chart.values, dtype=np.float64)
    z_word, z_size = charts.readable(chart.z.unit, float(np.abs(values).max(initial=0.0)))
    low, high = (each if each is None else each / z_size for each in chart.z.limits)
    shown, rows = values / z_size, np.arange(len(chart.names) + 1) - 0.5
    style: Style = {"cmap": _HEAT, "vmin": low, "vmax": high}
    if chart.z.log:
        assert low is not None
        # small loads look like the least that is told apart, and nothing at all like nothing
        shown = np.where(shown > 0, np.maximum(shown, low), np.nan)
        top = max(high or low, float(np.nanmax(shown, initial=low)))
        style = {
            "cmap": mpl.colormaps[_LOADS].with_extremes(bad=_NOTHING),
            "norm": LogNorm(low, top),
        }
    mesh = ax.pcolormesh(np.asarray(chart.edges) / size, rows, shown, rasterized=True, **style)
    named = charts.thin(len(chart.names), _NAMES_BESIDE)
    ax.set_yticks(named, [chart.names[row] for row in named])
    if chart.columns:
        named = charts.thin(len(chart.columns), _NAMES_BESIDE)
        ax.set_xticks(named, [chart.columns[column] for column in named], rotation=90)
    ax.set(ylim=(len(chart.names) - 0.5, -0.5), ylabel=chart.across)
    ax.set_xlabel(chart.x.label(word))
    ax.grid(visible=False)
    grouped, label = any(chart.groups), chart.z.label(z_word)
    bar = _figure_of(ax).colorbar(mesh, ax=ax, label=label, pad=0.06 if grouped else 0.01)
    if chart.z.log:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if grouped:
        _name_groups(ax, chart.groups)


def _name_groups(ax: Axes, groups: Sequence[str]) -> None:
    """A line between groups of rows, and the name of each at the right."""
    for group in dict.fromkeys(groups):
        rows = [row for row, own in enumerate(groups) if own == group]
        if rows[0]:
            ax.axhline(rows[0] - 0.5, color="black", linewidth=0.8)
        style: Style = {"transform": ax.get_yaxis_transform(), "va": "center"}
        ax.text(1.005, (rows[0] + rows[-1]) / 2, group, fontsize=8, rotation=90, **style)
