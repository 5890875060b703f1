"""Charts of predictions against measurements: agreement, error by size, residuals of a fit.

Shapes: P points of a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim.arrays import Flags, Floats
from mpsim.plot.chart import Axis, Limit, Lines, Series
from mpsim.plot.palette import MARKERS, SERIES

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
        x=Axis(name=f"measured ({unit})", log=10, limits=ends),
        y=Axis(name=f"predicted ({unit})", log=10, limits=ends),
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
            name=_SIZES.get(kind, "size"),
            log=10,
            ticks=[(size, f"{size:g}") for size in sizes] if few else (),
            limits=(sizes[0] / _MARGIN, sizes[-1] * _MARGIN),
        ),
        y=Axis(name="error of the prediction", unit="share"),
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
        x=Axis(name="fitted / measured - 1; rings were held out; lines at 10 %", unit="share"),
        y=Axis(ticks=list(enumerate(names)), limits=ends[::-1]),
        grid="x",
        size=(7.0, 1.2 + _ROW * len(names)),
    )
