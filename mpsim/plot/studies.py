"""Charts of studies: comparisons, sweeps, searches, plans, scaling, schedules, sensitivity, goodput, and answers to a question.

Shapes: V variants, N points, F places of a front, X values of a sweep's horizontal key, L lines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError, nearest
from mpsim.plot.chart import Axis, Bars, Chart, Limit, Lines, Panels, Part, Series
from mpsim.plot.palette import EVENTS, MARKERS, SERIES, event_of_part
from mpsim.plot.step import parts_of
from mpsim.study import Comparison, ScheduleChoice, Search, Sensitivity, Sweep
from mpsim.study.goodput import Goodput
from mpsim.study.plan import Plans
from mpsim.study.rows import Row
from mpsim.study.scaling import Scale

__all__ = [
    "METRICS",
    "answer_chart",
    "comparison_chart",
    "goodput_chart",
    "line_chart",
    "plan_chart",
    "scaling_chart",
    "schedules_chart",
    "search_chart",
    "sensitivity_chart",
    "sweep_chart",
]

Floats = NDArray[np.float64]

METRICS: Mapping[str, Axis] = MappingProxyType(
    {
        "tokens_per_s_per_accelerator": Axis(name="tokens/s per accelerator"),
        "tokens_per_s": Axis(name="tokens/s"),
        "step_time_s": Axis(name="step time", unit="s"),
        "mfu": Axis(name="model FLOP/s utilisation", unit="share"),
        "hfu": Axis(name="hardware FLOP/s utilisation", unit="share"),
        "tensor_utilisation": Axis(name="utilisation of matrix units", unit="share"),
        "bubble_fraction": Axis(name="bubble, share of the step", unit="share"),
        "peak_memory_bytes": Axis(name="peak memory", unit="B"),
        "energy_j_per_step": Axis(name="energy per step", unit="J"),
        "cost_per_step": Axis(name="cost per step", unit="USD"),
        "accelerators": Axis(name="accelerators"),
        "output_tokens_per_s_per_accelerator": Axis(name="output tokens/s per accelerator"),
        "output_tokens_per_s": Axis(name="output tokens/s"),
        "output_tokens_per_s_per_user": Axis(name="output tokens/s of a user"),
        "goodput_per_s": Axis(name="requests/s within the limits"),
        "ttft_s.p99": Axis(name="p99 of TTFT", unit="s"),
        "tpot_s.p99": Axis(name="p99 of TPOT", unit="s"),
        "cost_per_million_output_tokens": Axis(name="cost per million output tokens", unit="USD"),
    }
)
"""Figures of a summary that can be drawn, and what their axis says."""

_LESS_IS_BETTER = frozenset(
    {
        *("step_time_s", "bubble_fraction", "peak_memory_bytes", "energy_j_per_step"),
        *("cost_per_step", "accelerators", "ttft_s.p99", "tpot_s.p99"),
        "cost_per_million_output_tokens",
    }
)
_MOST_LINES, _MOST_PANELS, _PANELLED = (
    len(SERIES),
    6,
    3,
)  # lines of a panel, panels along each side, keys
_FRONT = "Pareto front: no other is better in both"
_LETTERS = "ABCDEFGH"
_LINE_INCHES = 0.17
_DAY, _MINUTE, _MILLION = 86400.0, 60.0, 1e6
_ALIKE = 0.03  # share of an interval within which two lines look like one
_REACH, _BEFORE, _ROOM = 2.5, 0.97, 1.25  # of a search's axes, times the shortest and the largest
_SENSITIVITY = {"hardware": "forward", "software": "host"}


def answer_chart(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    answer: str,
    xlabel: str = "",
) -> Bars:
    """Variants side by side, and under them the sentence that follows from the numbers.

    Parameters
    ----------
    labels : sequence of str
        Of variants [V].
    series : mapping of str to sequence of float
        Name to one value a variant; one series without a name has no legend.
    ylabel, xlabel : str
        With units.
    answer : str
        One sentence.
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
        value=Axis(name=ylabel),
        across=xlabel,
        upright=True,
        beside=True,
        written="total" if few else "",
        size=(8.0, 4.4),
    )


def comparison_chart(comparison: Comparison) -> Bars:
    """Parts of the step times of two results, in the order of the palette, equal parts joined."""
    order = list(EVENTS)
    parts = sorted(comparison.parts, key=lambda part: order.index(event_of_part(part.name)))
    return Bars(
        title="Parts of the step",
        alt=f"{comparison.explanation}.",
        names=[comparison.a, comparison.b],
        parts=parts_of({part.name: [part.a or 0.0, part.b or 0.0] for part in parts}),
        value=Axis(name="time, mean over ranks", unit="s"),
        written="share",
        joined=True,
        size=(10.0, 3.0),
    )


def sensitivity_chart(sensitivity: Sensitivity) -> Bars:
    """Per cent of step time for one per cent more of each parameter, the strongest on top; what shortens the step to the left."""
    rows = sensitivity.rows
    lead = (
        f"The step answers most to {rows[0].name}: {rows[0].elasticity:+.3f} per cent for one per cent."
        if rows
        else ""
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
        value=Axis(name="% of step time for 1 % more"),
        written="total",
        size=(8.0, 1.4 + 0.32 * len(rows)),
    )


def sweep_chart(
    sweep: Sweep, *, metric: str = "tokens_per_s_per_accelerator", key: str | None = None
) -> Chart:
    """A metric of a sweep against one key: a line for every combination of the others, of three keys or more in panels.

    In panels the first key is the horizontal axis. Of the others the one with most values tells lines apart, the next two panels: columns,
    then rows. Of all further keys every point shows the best value, of those that fit into memory if any does.

    Parameters
    ----------
    sweep : Sweep
    metric : str
        One of `METRICS`.
    key : str, optional
        Key of the horizontal axis; left out, the first that was varied.

    Raises
    ------
    ScenarioError
        If the key was not varied, or the metric is unknown.
    """
    key = sweep.keys[0] if key is None else key
    if key not in sweep.keys:
        raise ScenarioError(f"got key {key!r}, which was not varied; {nearest(key, sweep.keys)}")
    rows = list(sweep)
    if len(sweep.keys) >= _PANELLED:
        return _panels(rows, key, sweep.keys, metric)
    choices = list(dict.fromkeys(str(row.values[key]) for row in rows))
    names = list(dict.fromkeys(_line_name(row, key) for row in rows))
    lines = {name: np.full(len(choices), np.nan) for name in names}
    usable = {name: np.zeros(len(choices), dtype=bool) for name in names}
    for row in rows:
        name, at = _line_name(row, key), choices.index(str(row.values[key]))
        lines[name][at], usable[name][at] = row.number(metric), row.usable
    return line_chart(key, choices, lines, usable, metric=metric)


def line_chart(
    key: str,
    choices: Sequence[str],
    lines: Mapping[str, Floats],
    usable: Mapping[str, NDArray[np.bool_]] | None = None,
    *,
    metric: str = "tokens_per_s_per_accelerator",
) -> Lines:
    """A metric against the values of one key, in the order given; hollow marks do not fit into memory.

    Parameters
    ----------
    key : str
    choices : sequence of str
        Its values.
    lines : mapping of str to float64[X]
        Name of each line to the metric in SI units; NaN where there is nothing to draw.
    usable : mapping of str to bool[X], optional
        Which points fit; left out, all do.
    metric : str
        One of `METRICS`.
    """
    if metric not in METRICS:
        raise ScenarioError(f"got metric {metric!r}; {nearest(metric, METRICS)}")
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
        series.append(
            Series(
                "hollow: does not fit into memory",
                [],
                [],
                "other",
                line="",
                mark="o",
                hollow=[True],
            )
        )
    return Lines(
        title=f"{METRICS[metric].name} against {key}",
        alt=f"{len(lines)} lines over {len(choices)} values of {key}.",
        series=series,
        x=Axis(name=key, ticks=list(enumerate(choices)), limits=(-0.4, len(choices) - 0.6)),
        y=Axis(name=METRICS[metric].name, unit=METRICS[metric].unit, limits=(0.0, None)),
        size=(float(np.clip(3.0 + 0.5 * len(choices), 6.0, 12.0)), 4.0),
    )


def _line_name(row: Row, key: str) -> str:
    """The other keys of a row, by their last word: they tell its line apart."""
    others = {name: value for name, value in row.values.items() if name != key}
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in others.items())


class _Roles(NamedTuple):
    """Key of the lines, keys of the panels, and those whose best value counts."""

    lines: str
    panels: tuple[str, ...]
    rest: tuple[str, ...]


def _roles(keys: Sequence[str], values: Mapping[str, Sequence[str]]) -> _Roles:
    """Most values first, as far as there is room."""
    # sorted() is stable: of keys with as many values the first stays first
    ordered = sorted(keys, key=lambda name: -len(values[name]))
    lines = next((name for name in ordered if len(values[name]) <= _MOST_LINES), ordered[-1])
    left = [name for name in ordered if name != lines]
    panels = [name for name in left if len(values[name]) <= _MOST_PANELS][:2] or left[-1:]
    return _Roles(lines, tuple(panels), tuple(name for name in left if name not in panels))


def _panels(rows: Sequence[Row], key: str, keys: Sequence[str], metric: str) -> Panels:
    values = {name: list(dict.fromkeys(str(row.values[name]) for row in rows)) for name in keys}
    roles = _roles([name for name in keys if name != key], values)
    figures, usable = _table(rows, (key, roles.lines, *roles.panels), values, metric)
    column_key, *row_key = roles.panels
    most = 1.08 * float(np.nanmax(figures, initial=0.0)) or 1.0
    named = [f"{_short(roles.lines)} {value}" for value in values[roles.lines]]
    charts = []
    for down in range(len(values[row_key[0]]) if row_key else 1):
        for across, column in enumerate(values[column_key]):
            # axes of the table: horizontal key, lines, columns, and rows if there are any
            at = (across, down) if row_key else (across,)
            lines = dict(zip(named, np.moveaxis(figures, (0, 1), (-1, -2))[at], strict=True))
            fits = dict(zip(named, np.moveaxis(usable, (0, 1), (-1, -2))[at], strict=True))
            words = [
                f"{_short(column_key)} {column}",
                *(f"{_short(name)} {values[name][down]}" for name in row_key),
            ]
            own = line_chart(key, values[key], lines, fits, metric=metric)
            y = dataclasses.replace(own.y, limits=(0.0, most))
            charts.append(dataclasses.replace(own, y=y, title=", ".join(words)))
    columns, high = len(values[column_key]), math.ceil(len(charts) / len(values[column_key]))
    wide = 0.9 + columns * float(np.clip(0.5 * len(values[key]), 1.9, 4.0))
    return Panels(
        charts=charts,
        columns=columns,
        same=True,
        notes=[f"each point: the best over {', '.join(roles.rest)}"] if roles.rest else (),
        size=(min(max(6.0, wide), 15.0), 1.5 + 1.9 * high),
    )


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _table(
    rows: Sequence[Row], keys: Sequence[str], values: Mapping[str, list[str]], metric: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """The metric and whether it fits, by the values of `keys`; of several rows at one place the best that fits."""
    shape = tuple(len(values[name]) for name in keys)
    figures, usable = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    sign = -1.0 if metric in _LESS_IS_BETTER else 1.0
    for row in rows:
        place = tuple(values[name].index(str(row.values[name])) for name in keys)
        number = row.number(metric)
        known = sign * figures[place] if np.isfinite(figures[place]) else -math.inf
        if math.isfinite(number) and (row.usable, sign * number) > (usable[place], known):
            figures[place], usable[place] = number, row.usable
    return figures, usable


def search_chart(search: Search) -> Lines:
    """Simulated layouts by step time and memory, up to 2.5 times the shortest step: the best ones, and those that no other beats in both.

    Both ends of the front have a letter, and between them the places where memory falls most; notes say which layouts they are.

    Raises
    ------
    ScenarioError
        If no layout was simulated.
    """
    rows = list(search.rows)
    if not rows:
        raise ScenarioError("no layout was simulated: nothing to draw")
    times, memory = [row.step_time_s for row in rows], [row.memory_bytes for row in rows]
    edge = min(_REACH * min(times), max(times) / _BEFORE)
    beyond = sum(time > edge for time in times)
    left_out = f" ({beyond} slower one{'s' * (beyond != 1)} not shown)" if beyond else ""
    front, leaders = list(search.front), list(search.leaders)
    lettered = _lettered([row.memory_bytes for row in front])
    letters = dict(zip(lettered, _LETTERS, strict=False))
    best = [
        f"{number}  {row.step_time_s:.4g} s  {row.name}"
        for number, row in enumerate(leaders[:3], 1)
    ]
    notes = [
        f"{letter}  {front[at].step_time_s:.4g} s, {front[at].memory_bytes / 1e9:.3g} GB: {front[at].name}"
        for at, letter in letters.items()
    ]
    return Lines(
        title="Step time and memory",
        alt=f"{len(rows)} layouts simulated; the quickest takes {min(times):.4g} s.",
        notes=[*best, *notes],
        series=[
            Series(
                f"simulated{left_out}",
                times,
                memory,
                "other",
                line="",
                mark="o",
                size=3.5,
                labels=[row.name for row in rows],
            ),
            Series(
                _FRONT,
                [row.step_time_s for row in front],
                [row.memory_bytes for row in front],
                "backward",
                mark="o",
                size=2.0,
                step=True,
                labels=[letters.get(at, "") for at in range(len(front))],
                written=[at for at in lettered if front[at].step_time_s <= edge],
            ),
            Series(
                f"the best {len(leaders)}",
                [row.step_time_s for row in leaders],
                [row.memory_bytes for row in leaders],
                "forward",
                line="",
                mark="o",
                labels=[row.name for row in leaders],
            ),
        ],
        x=Axis(name="step time", unit="s", limits=(_BEFORE * min(times), edge)),
        y=Axis(name="memory of the fullest rank", unit="B", limits=(0.0, _ROOM * max(memory))),
        size=(8.0, 4.5 + _LINE_INCHES * len(best + notes)),
    )


def _lettered(memory: Sequence[float]) -> list[int]:
    """Places of a front, by step time, that have a letter: both ends, and between them where memory falls most."""
    falls = np.concatenate([[0.0], -np.diff(memory)])
    between = [place for place in np.argsort(-falls, kind="stable").tolist() if falls[place] > 0]
    chosen = dict.fromkeys([0, len(memory) - 1, *between]) if len(memory) else {}
    return sorted(list(chosen)[: len(_LETTERS)])


def plan_chart(plans: Plans) -> Lines:
    """Plans that have a price by their days and dollars, the front of those that no other beats in both, and the deadline.

    Raises
    ------
    ScenarioError
        If no plan has a price.
    """
    rows = [row for row in plans.rows if row.cost is not None]
    if not rows:
        raise ScenarioError("no plan has a price: nothing to draw; give --prices FILE")
    front = [row for row in rows if any(row is best for best in plans.front)]
    front.sort(key=lambda row: row.days)

    def labels(some: Sequence[object]) -> list[str]:
        return [f"{row.accelerators:,} accelerators" for row in some]  # type: ignore[attr-defined] # rows of plans

    def points(some: Sequence[object]) -> tuple[list[float], list[float]]:
        return [row.days for row in some], [row.cost / _MILLION for row in some]  # type: ignore[attr-defined]

    deadline = plans.deadline
    return Lines(
        title="Days and price",
        alt=f"{len(rows)} plans, {len(front)} on the front.",
        series=[
            Series(
                "plan", *points(rows), "other", line="", mark="o", size=4.2, labels=labels(rows)
            ),
            Series(
                _FRONT,
                *points(front),
                "forward",
                mark="o",
                step=True,
                labels=labels(front),
                written=range(len(front)),
            ),
        ],
        x=Axis(
            name="days of training, failures and checkpoints included",
            limits=(0.0, 1.2 * max(*(row.days for row in rows), deadline or 0.0)),
        ),
        y=Axis(name="price (million USD)", limits=(0.0, 1.2 * max(points(rows)[1]))),
        limits=[] if deadline is None else [Limit(deadline, "deadline", "backward", along=True)],
        size=(8.0, 4.5),
    )


def scaling_chart(scale: Scale) -> Panels:
    """Throughput against accelerators beside the straight line, and the parts of the step at each size with the efficiency as a line.

    Raises
    ------
    ScenarioError
        If no size could run.
    """
    modes = {
        mode: rows
        for mode in dict.fromkeys(row.mode for row in scale.rows)
        if (rows := scale.of(mode))
    }
    if not modes:
        raise ScenarioError("no size could run: nothing to draw")
    charts: list[Chart] = []
    sizes = {
        mode: np.array([row.accelerators for row in rows], dtype=np.float64)
        for mode, rows in modes.items()
    }
    each = {
        mode: np.array([row.figure("tokens_per_s_per_accelerator") for row in rows])
        for mode, rows in modes.items()
    }
    every = np.unique(np.concatenate([*sizes.values()]))
    best = max(float(rate[0]) for rate in each.values())
    charts.append(
        Lines(
            title="throughput",
            series=[
                Series("straight line", every, best * every, "other", line="--", width=1.0),
                *(
                    Series(
                        f"{mode} scaling",
                        sizes[mode],
                        each[mode] * sizes[mode],
                        SERIES[number],
                        mark=MARKERS[number],
                    )
                    for number, mode in enumerate(modes)
                ),
            ],
            x=Axis(
                name="accelerators",
                log=2,
                ticks=[(size, f"{size:,.0f}") for size in every.tolist()],
            ),
            y=Axis(name="tokens/s", log=10),
        )
    )
    for mode, rows in modes.items():
        shares = {part: [row.shares[part] for row in rows] for part in rows[0].shares}
        charts.append(
            Bars(
                title=f"{mode} scaling, line: tokens/s and accelerator",
                names=[f"{size:,.0f}" for size in sizes[mode].tolist()],
                parts=parts_of(
                    {part: share for part, share in shares.items() if max(share) > 0.001}
                ),
                value=Axis(name="share of the step; efficiency", unit="share", limits=(0.0, 1.15)),
                across="accelerators",
                upright=True,
                line=Series("efficiency", range(len(rows)), each[mode] / each[mode][0], mark="o"),
            )
        )
    return Panels(charts=charts, columns=len(charts), size=(4.6 * len(charts) + 1.0, 4.8))


def schedules_chart(choices: Sequence[ScheduleChoice], *, memory: float | None = None) -> Lines:
    """Bubble of each schedule against the activations that it holds, and a line through those that no other beats in both.

    Hollow marks do not fit the memory that was given; the shape tells copies of the weights.

    Parameters
    ----------
    choices : sequence of ScheduleChoice
    memory : float, optional
        Activations that fit, of a rank's share of the model, as the comparison had it.

    Raises
    ------
    ScenarioError
        If no schedule could be built.
    """
    built = [
        (choice, choice.timed.bubble_fraction) for choice in choices if choice.timed is not None
    ]
    if not built:
        raise ScenarioError("no schedule could be built: nothing to draw")
    front: list[tuple[float, float]] = []
    for choice, bubble in sorted(built, key=lambda each: (each[0].activations, each[1])):
        if not choice.reason and (not front or bubble < front[-1][1]):
            front.append((choice.activations, bubble))
    series = [
        Series(
            "Pareto front: no other is better in both",
            *_columns(front),
            "other",
            width=1.0,
            step=True,
        )
    ]
    for number, copies in enumerate(sorted({choice.weight_copies for choice, _ in built})):
        for fits in (True, False):
            mine = [
                each
                for each in built
                if each[0].weight_copies == copies and (not each[0].reason) == fits
            ]
            if not mine:
                continue
            series.append(
                Series(
                    f"weights x{copies}" + ("" if fits else ", does not fit"),
                    *_columns([(choice.activations, bubble) for choice, bubble in mine]),
                    SERIES[number % len(SERIES)],
                    line="",
                    mark="oDs"[number % 3],
                    hollow=[not fits] * len(mine),
                    labels=[choice.name for choice, _ in mine],
                    written=range(len(mine)),
                )
            )
    held = [choice.activations for choice, _ in built if choice.activations > 0] or [1.0]
    most = max(bubble for _, bubble in built) or 1.0
    return Lines(
        title="Bubble against memory",
        alt=f"{len(built)} schedules, {len(front)} on the front.",
        series=series,
        x=Axis(
            name="activations held at most, of a rank's share of the model",
            log=2,
            limits=(0.7 * min(held), 1.6 * max(held)),
        ),
        y=Axis(name="bubble, of the makespan", unit="share", limits=(-0.04 * most, 1.12 * most)),
        limits=[] if memory is None else [Limit(memory, f"memory for {memory:g}", along=True)],
        size=(9.0, 5.0),
    )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def goodput_chart(goodput: Goodput) -> Lines:
    """The expected goodput over intervals between checkpoints, the best intervals by formula, and the simulated one."""
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
        alt=f"{100 * mean:.1f} % of the time is progress, with a checkpoint every {goodput.interval / _MINUTE:.3g} minutes.",
        notes=[
            "curve: long-run share for interruptions at random (Daly 2006, equation 20), with a node always at hand",
            f"point: mean of {len(goodput.shares):,} simulated runs of {goodput.days:g} days, with spare nodes, their repair and checkpoints that are still being stored",
            "lines: where the curve is highest by the formulas of Young (first order) and Daly (higher order)",
        ],
        series=[
            Series("expected by formula", curve.interval_s / _MINUTE, curve.expected, "forward"),
            Series(
                "simulated, 95 % confidence",
                [goodput.interval / _MINUTE],
                [mean],
                "optimizer",
                line="",
                mark="o",
                errors=[goodput.confidence],
            ),
        ],
        x=Axis(name="work between checkpoints (min)", log=10),
        y=Axis(name="progress, of the time", unit="share"),
        limits=limits,
        grid="y",
        size=(8.0, 4.2 + 3 * _LINE_INCHES),
    )
