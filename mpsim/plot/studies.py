"""Charts of studies: comparisons, sweeps, searches, plans, scaling, schedules, sensitivity,
goodput, answers to a question, and predictions against measurements.

Shapes: V variants, N points, F places of a front, X values of a sweep's horizontal key, L lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.errors import ScenarioError, nearest
from mpsim.plot.chart import LINE_INCHES, Axis, Bars, Chart, Limit, Lines, Panels, Part, Series
from mpsim.plot.palette import EVENTS, MARKERS, SERIES, event_of_part
from mpsim.plot.step import parts_of
from mpsim.shipped import say
from mpsim.study import Comparison, Sensitivity, Sweep
from mpsim.study.goodput import Goodput
from mpsim.study.rows import FIGURES, SERVICE_FIGURES, Row, column_of, title_of, unit_of, worded
from mpsim.study.scaling import Scale
from mpsim.units import percent

_METRICS = {**FIGURES, **SERVICE_FIGURES}
_LESS_IS_BETTER = ("accelerators", "bubble_fraction")  # besides what has a unit
_MOST_LINES, _MOST_PANELS = len(SERIES), 6  # lines of a panel, panels along each side
_MINUTE = 60.0
_ALIKE = 0.03  # share of an interval within which two lines look like one
_OF_TOKEN = "Parts of an accelerator's time for an output token"
_SENSITIVITY = {"hardware": "other", "software": "host"}


def answer_chart(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    answer: str,
    xlabel: str = "",
) -> Bars:
    """Variants side by side, and under them the sentence that follows from the numbers.

    `labels`: of variants [V]. `series`: name to one value a variant; one series without a name has
    no legend. `ylabel` and `xlabel`: with units. `answer`: one sentence.
    """
    colours = ("forward", "backward", "weight_gradient", "recompute")
    few = len(labels) * len(series) <= 12
    return Bars(
        alt=answer,
        notes=[answer],
        names=labels,
        parts=[
            Part(name, values, colour)
            for (name, values), colour in zip(series.items(), colours, strict=False)
        ],
        value=Axis(ylabel),
        across=xlabel,
        upright=True,
        beside=True,
        written="total" if few else "",
        size=(8.0, 4.4),
    )


def comparison_chart(*comparisons: Comparison, names: Sequence[str] = ()) -> Bars:
    """Parts of the times of results, each set against the same first one, in the order of the
    palette, equal parts joined.

    `comparisons`: of one result with each of the others. `names`: of the results; left out, those
    of the scenarios.
    """
    others = [{part.name: part for part in comparison.parts} for comparison in comparisons]
    order = list(EVENTS)
    found = sorted(
        dict.fromkeys(name for parts in others for name in parts),
        key=lambda name: order.index(event_of_part(name)),
    )
    seconds = {
        name: [
            next((parts[name].a for parts in others if name in parts), None) or 0.0,
            *((parts[name].b if name in parts else None) or 0.0 for parts in others),
        ]
        for name in found
    }
    serves = comparisons[0].whole != "step_time_s"
    return Bars(
        title=_OF_TOKEN if serves else "Parts of the step",
        alt="; ".join(comparison.explanation for comparison in comparisons) + ".",
        names=names or [comparisons[0].a, *(comparison.variant for comparison in comparisons)],
        parts=parts_of(seconds),
        value=Axis("time, mean over ranks", "s"),
        written="share",
        joined=True,
        size=(10.0, 3.0),
    )


def sensitivity_chart(sensitivity: Sensitivity) -> Bars:
    """Per cent of step time for one per cent more of each parameter, the strongest on top."""
    rows = sensitivity.rows
    lead = (
        say("plot.most_elastic", name=rows[0].name, elasticity=rows[0].elasticity) if rows else ""
    )
    return Bars(
        title="Elasticity of the step time",
        alt=lead,
        names=[f"{row.name} ({row.value})" if row.value else row.name for row in rows],
        parts=[
            Part(kind, [row.elasticity if row.kind == kind else 0.0 for row in rows], colour)
            for kind, colour in _SENSITIVITY.items()
            if any(row.kind == kind for row in rows)
        ],
        value=Axis("% of step time for 1 % more"),
        written="total",
        size=(8.0, 1.4 + 0.32 * len(rows)),
    )


def sweep_chart(
    sweep: Sweep, *, metric: str = "tokens_per_s_per_accelerator", key: str | None = None
) -> Chart:
    """A metric of a sweep against one key: a line for every value of another, and panels for the
    values of two more.

    Of the other keys the one with most values tells lines apart, the next two panels: columns, then
    rows. Of all further keys every point shows the best value, of those that fit into memory if any
    does. `metric`: of `mpsim.study.rows`; after a dot one of a mapping, such as ``ttft_s.p99``.
    `key`: key of the horizontal axis; left out, the first that was varied. ScenarioError if the key
    was not varied, or the metric is unknown.
    """
    key = sweep.keys[0] if key is None else key
    if key not in sweep.keys:
        raise ScenarioError(f"got key {key!r}, which was not varied; {nearest(key, sweep.keys)}")
    rows = list(sweep)
    values = {key: [*dict.fromkeys(worded(row.values[key]) for row in rows)] for key in sweep.keys}
    roles = _roles([name for name in sweep.keys if name != key], values)
    named = [[f"{_short(name)} {value}" for value in values[name]] for name in roles.shown]
    lines, columns, downs = [*named, [""], [""], [""]][:3]
    shape = len(values[key]), len(lines), len(columns), len(downs)
    figures, usable = (
        each.reshape(shape) for each in _table(rows, (key, *roles.shown), values, metric)
    )
    most = 1.08 * float(np.nanmax(figures, initial=0.0)) or 1.0
    charts = []
    for down, across in np.ndindex(len(downs), len(columns)):
        own = line_chart(
            key,
            values[key],
            dict(zip(lines, figures[:, :, across, down].T, strict=True)),
            dict(zip(lines, usable[:, :, across, down].T, strict=True)),
            metric=metric,
        )
        words = ", ".join(filter(None, (columns[across], downs[down])))
        y = structs.replace(own.y, limits=(0.0, most))
        charts.append(structs.replace(own, y=y, title=words) if words else own)
    if len(roles.shown) < 2:
        return charts[0]
    wide = 0.9 + len(columns) * float(np.clip(0.5 * len(values[key]), 1.9, 4.0))
    return Panels(
        charts=charts,
        columns=len(columns),
        same=True,
        notes=[f"each point: the best over {', '.join(roles.rest)}"] if roles.rest else (),
        size=(min(max(6.0, wide), 15.0), 1.5 + 1.9 * len(downs)),
    )


class _Roles(NamedTuple):
    """Keys of the lines and of the panels, at most three, and those whose best value counts."""

    shown: tuple[str, ...]
    rest: tuple[str, ...]


def _roles(keys: Sequence[str], values: Mapping[str, Sequence[str]]) -> _Roles:
    """Most values first, as far as there is room."""
    # sorted() is stable: of keys with as many values the first stays first
    ordered = sorted(keys, key=lambda name: -len(values[name]))
    fitting = [name for name in ordered if len(values[name]) <= _MOST_LINES]
    lines = (fitting or ordered[-1:])[:1]
    left = [name for name in ordered if name not in lines]
    panels = [name for name in left if len(values[name]) <= _MOST_PANELS][:2] or left[-1:]
    return _Roles((*lines, *panels), tuple(name for name in left if name not in panels))


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _table(
    rows: Sequence[Row], keys: Sequence[str], values: Mapping[str, list[str]], metric: str
) -> tuple[Floats, Flags]:
    """The metric and whether it fits, by values of `keys`; of rows at one place the best."""
    shape = tuple(len(values[name]) for name in keys)
    figures, usable = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    less = metric in _LESS_IS_BETTER or _axis_of(metric).unit not in ("", "share")
    sign = -1.0 if less else 1.0
    for row in rows:
        place = tuple(values[name].index(worded(row.values[name])) for name in keys)
        number = row.number(metric)
        known = sign * figures[place] if np.isfinite(figures[place]) else -math.inf
        if math.isfinite(number) and (row.usable, sign * number) > (usable[place], known):
            figures[place], usable[place] = number, row.usable
    return figures, usable


def _axis_of(metric: str) -> Axis:
    """Name and unit of a figure of a summary."""
    figure = column_of(metric)
    if figure not in _METRICS:
        raise ScenarioError(f"got metric {metric!r}; {nearest(metric, _METRICS)}")
    return Axis(title_of(figure), unit_of(figure).strip("1").replace("count", ""))


def line_chart(
    key: str,
    choices: Sequence[str],
    lines: Mapping[str, Floats],
    usable: Mapping[str, Flags] | None = None,
    *,
    metric: str = "tokens_per_s_per_accelerator",
) -> Lines:
    """A metric against the values of one key, in the order given; hollow marks do not fit into
    memory.

    `choices`: values of the key. `lines` (mapping of str to float64[X]): name of each line to the
    metric in SI units; NaN where there is nothing to draw. `usable` (mapping of str to bool[X],
    optional): which points fit; left out, all do. `metric`: of `mpsim.study.rows`; after a dot
    one of a mapping, such as ``ttft_s.p99``.
    """
    axis = _axis_of(metric)
    hollow = {name: ~fits & np.isfinite(lines[name]) for name, fits in (usable or {}).items()}
    series = [
        Series(
            name,
            np.arange(len(choices), dtype=np.float64),
            values,
            SERIES[number % len(SERIES)],
            line="-" if number < len(SERIES) else "--",
            mark=MARKERS[number % len(MARKERS)],
            hollow=hollow.get(name, ()),
        )
        for number, (name, values) in enumerate(lines.items())
    ]
    if any(marks.any() for marks in hollow.values()):
        word = "hollow: does not fit into memory"
        series.append(Series(word, [], [], "other", line="", mark="o", hollow=[True]))
    return Lines(
        title=f"{axis.name} against {key}",
        alt=f"{len(lines)} lines over {len(choices)} values of {key}.",
        series=series,
        x=Axis(key, ticks=list(enumerate(choices)), limits=(-0.4, len(choices) - 0.6)),
        y=structs.replace(axis, limits=(0.0, None)),
        size=(float(np.clip(3.0 + 0.5 * len(choices), 6.0, 12.0)), 4.0),
    )


def scaling_chart(scale: Scale) -> Panels:
    """Throughput against accelerators beside the straight line, and the parts of the step at each
    size with the efficiency as a line. ScenarioError if no size could run.
    """
    lines: list[Series] = []
    bars: list[Chart] = []
    for mode in dict.fromkeys(row.mode for row in scale.rows):
        rows = scale.of(mode)
        if not rows:
            continue
        number = len(lines)
        sizes = np.array([row.accelerators for row in rows], dtype=np.float64)
        each = np.array([row.figure("tokens_per_s_per_accelerator") for row in rows])
        colour, mark = SERIES[number], MARKERS[number]
        lines.append(Series(f"{mode} scaling", sizes, each * sizes, colour, mark=mark))
        shares = {part: [row.shares[part] for row in rows] for part in rows[0].shares}
        bars.append(
            Bars(
                title=f"{mode} scaling; line: tokens/s per accelerator",
                names=[f"{size:,.0f}" for size in sizes.tolist()],
                parts=parts_of({part: own for part, own in shares.items() if max(own) > 0.001}),
                value=Axis("share of the step; efficiency", "share", limits=(0.0, 1.15)),
                across="accelerators",
                upright=True,
                line=Series("efficiency", range(len(rows)), each / each[0], mark="o"),
            )
        )
    if not lines:
        raise ScenarioError("no size could run: nothing to draw")
    every = np.unique(np.concatenate([np.asarray(series.x) for series in lines]))
    best = max(float(series.y[0] / series.x[0]) for series in lines)
    throughput = Lines(
        title="throughput",
        series=[
            Series("straight line", every, best * every, "other", line="--", width=1.0),
            *lines,
        ],
        x=Axis("accelerators", log=2, ticks=[(size, f"{size:,.0f}") for size in every.tolist()]),
        y=Axis("tokens/s", log=10),
    )
    charts = [throughput, *bars]
    return Panels(charts=charts, columns=len(charts), size=(4.6 * len(charts) + 1.0, 4.8))


def goodput_chart(goodput: Goodput) -> Lines:
    """Expected goodput over checkpoint intervals, best ones by formula, and the simulated."""
    curve = goodput.curve()
    limits: list[Limit] = []
    for (name, at), colour in zip(curve.best.items(), ("backward", "tp"), strict=False):
        text = f"{name} {at / _MINUTE:.3g} min"
        if (
            limits and abs(at / _MINUTE / limits[-1].value - 1.0) < _ALIKE
        ):  # nobody could tell them apart
            limits[-1] = Limit(
                limits[-1].value, f"{limits[-1].label}, {text}", limits[-1].colour, along=True
            )
        else:
            limits.append(Limit(at / _MINUTE, f"best interval by {text}", colour, along=True))
    mean = goodput.effective
    return Lines(
        title="Goodput",
        alt=say("plot.progress", share=percent(mean), interval=goodput.interval / _MINUTE),
        notes=[
            say("plot.curve"),
            say("plot.point", count=len(goodput.shares), days=goodput.days),
            say("plot.formulas"),
        ],
        series=[
            Series("expected by formula", curve.interval_s / _MINUTE, curve.expected, "forward"),
            Series(
                "simulated" + ", 95 % confidence" * (goodput.confidence is not None),
                [goodput.interval / _MINUTE],
                [mean],
                "optimizer",
                line="",
                mark="o",
                errors=[goodput.confidence or (mean, mean)],
            ),
        ],
        x=Axis("work between checkpoints (min)", log=10),
        y=Axis("progress, of the time", "share"),
        limits=limits,
        grid="y",
        size=(8.0, 4.2 + 3 * LINE_INCHES),
    )


_MOST_NAMED = 12  # families that get a mark of their own
_REST = "other families"
_MOST_TICKS = 8  # sizes that get a tick each
_MARGIN = 1.3  # beyond the first and the last of them
_BAND = 0.1  # error that the shaded band shows
_ROW = 0.24  # inch
_MOST = 2.0  # error that is drawn
_SIZES = {
    "training": "accelerators",
    "memory": "accelerators",
    "collective": "message (B)",
    "kernel": "work (FLOP, or B where memory-bound)",
    "schedule": "ranks x microbatches",
}


class Scored(NamedTuple):
    """Points measured and predicted, above 0, in their chart's unit; size NaN if unknown."""

    family: str
    measured: float
    predicted: float
    size: float = float("nan")


def agreement_chart(points: Sequence[Scored], *, unit: str) -> Lines:
    """Predicted against measured, with the diagonal and a band of 10 % around it."""
    every = [value for point in points for value in (point.measured, point.predicted)]
    ends = (min(every, default=1.3) / 1.3, max(every, default=1.0) * 1.3)
    series = _families(points, lambda point: (point.measured, point.predicted))
    return Lines(
        title="Predicted against measured",
        alt=f"{len(points)} points; the band is 10 % around the diagonal.",
        series=[Series("", ends, ends, "optimizer", width=0.8), *series],
        x=Axis(f"measured ({unit})", log=10, limits=ends),
        y=Axis(f"predicted ({unit})", log=10, limits=ends),
        bands=[(1 - _BAND, 1 + _BAND)],
        size=(7.0, 5.0),
    )


def error_chart(points: Sequence[Scored], *, kind: str) -> Lines:
    """Error of predictions of one kind against size, with a band of 10 %."""
    sized = [point for point in points if np.isfinite(point.size)]
    sizes = sorted({point.size for point in sized}) or [1.0]
    few = len(sizes) <= _MOST_TICKS
    return Lines(
        title="Error against size",
        alt=f"{len(sized)} points; the band is 10 %.",
        series=_families(sized, lambda point: (point.size, point.predicted / point.measured - 1)),
        x=Axis(
            _SIZES.get(kind, "size"),
            log=10,
            ticks=[(size, f"{size:g}") for size in sizes] if few else (),
            limits=(sizes[0] / _MARGIN, sizes[-1] * _MARGIN),
        ),
        y=Axis("error of the prediction", "share"),
        limits=[Limit(0.0, "no error", "optimizer")],
        bands=[(-_BAND, _BAND)],
        size=(7.0, 5.0),
    )


def _families(
    points: Sequence[Scored], place: Callable[[Scored], tuple[float, float]]
) -> list[Series]:
    """A series each of the families with most points, and one of the rest."""
    names, counts = np.unique(np.array([point.family for point in points]), return_counts=True)
    named = set(names[np.argsort(-counts, kind="stable")[:_MOST_NAMED]].tolist())
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault(point.family if point.family in named else _REST, []).append(place(point))
    return [
        Series(
            name,
            [x for x, _ in own],
            [y for _, y in own],
            "other" if name == _REST else SERIES[number % len(SERIES)],
            line="",
            mark="." if name == _REST else MARKERS[(number // len(SERIES) + number) % len(MARKERS)],
            size=4.0,
            alpha=0.6,
        )
        for number, (name, own) in enumerate(groups.items())
    ]


def residual_chart(
    names: Sequence[str], errors: Iterable[Floats], held_out: Iterable[Flags]
) -> Lines:
    """How far each fitted and each held-out point is from its form: a line a series, a dot a fitted
    point, a ring one that was held out.

    `names`: of the series. `errors` (iterable of float64[P]): ``fitted / measured - 1``. `held_out`
    (iterable of bool[P]).
    """
    ends = -0.5, len(names) - 0.5
    series = [Series("", [end * _BAND] * 2, ends, "other", line="--", width=0.8) for end in (-1, 1)]
    for row, (each, held) in enumerate(zip(errors, held_out, strict=True)):
        for out, colour, size in ((False, "forward", 2.5), (True, "backward", 5.0)):
            mine = np.clip(each[held == out], -_MOST, _MOST)
            rows, hollow = np.full(len(mine), float(row)), [out] * len(mine)
            style: dict[str, Any] = {"line": "", "mark": "o", "size": size, "hollow": hollow}
            series.append(Series("", mine, rows, colour, **style))
    return Lines(
        series=series,
        x=Axis("fitted / measured - 1; rings were held out; lines at 10 %", "share"),
        y=Axis(ticks=list(enumerate(names)), limits=ends[::-1]),
        grid="x",
        size=(7.0, 1.2 + _ROW * len(names)),
    )
