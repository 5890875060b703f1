"""Parts of a fit: constants with bounds, curves, and errors of points that it saw and did not."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.calibrate.points import Point
from mpsim.calibrate.robust import Estimate, Unknown
from mpsim.cost.curves import Curve
from mpsim.hardware import Calibration, Fitted, MeasuredCurve
from mpsim.plot import Lines, residual_chart
from mpsim.shipped import read_shipped, say

Line = tuple[tuple[float, ...], tuple[float, ...]]  # sizes and times of a curve
_DIGITS = 6
_MOVES = 3.0  # a known machine may be as much faster or slower
_GAPS = 2  # gaps that become one where a point of a curve is left out


@structs.dataclass(frozen=True, slots=True)
class Score:
    """How far off a form or a curve is."""

    what: str
    form: str  # ``constants``, ``curve`` or ``constants, refused for a curve``
    ids: tuple[str, ...]
    # sizes, measured, predicted: of every point, in FLOP, B or what orders the series, and in s
    sizes: tuple[float, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    held_out: tuple[bool, ...]  # which of them were never fitted
    noise: float  # median relative spread of the samples themselves

    def errors(self, *, held_out: bool) -> Floats:
        """``predicted / measured - 1`` of the points that were fitted, or of the others."""
        pick = np.array(self.held_out, dtype=bool) == held_out
        ratio = np.array(self.predicted) / np.array(self.measured) - 1.0
        return np.asarray(ratio[pick])

    def median(self, *, held_out: bool) -> float | None:
        """Median absolute error; None where there are no such points."""
        errors = np.abs(self.errors(held_out=held_out))
        return float(np.median(errors)) if len(errors) else None


def residuals_of(scores: Sequence[Score]) -> Lines:
    """A chart of how far points of fits are from their forms."""
    errors = [np.array(score.predicted) / np.array(score.measured) - 1.0 for score in scores]
    held_out = [np.array(score.held_out, dtype=bool) for score in scores]
    return residual_chart([score.what for score in scores], errors, held_out)


@structs.dataclass(frozen=True, slots=True)
class Fit:
    """Everything one part of a calibration found."""

    constants: Mapping[str, Fitted] = structs.field(default_factory=dict)  # by dotted name
    kernels: tuple[MeasuredCurve, ...] = ()
    collectives: tuple[MeasuredCurve, ...] = ()
    framework: Mapping[str, object] = structs.field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    warnings: tuple[str, ...] = ()


def merged(fits: Iterable[Fit]) -> Fit:
    """All parts as one; later constants win."""
    parts = list(fits)
    return Fit(
        {name: constant for part in parts for name, constant in part.constants.items()},
        tuple(curve for part in parts for curve in part.kernels),
        tuple(curve for part in parts for curve in part.collectives),
        {name: value for part in parts for name, value in part.framework.items()},
        tuple(score for part in parts for score in part.scores),
        tuple(warning for part in parts for warning in part.warnings),
    )


def fitted(estimate: Estimate, unit: str, *, scale: float = 1.0) -> Fitted:
    """An estimate as a constant of the cost models."""
    low, value, high = (
        float(f"{scale * x:.{_DIGITS}g}") for x in (estimate.low, estimate.value, estimate.high)
    )
    return Fitted(value, low, high, unit)


def score(what: str, form: str, points: Sequence[Point], predicted: Floats) -> Score:
    """Points beside their predictions."""
    return Score(
        what,
        form,
        tuple(point.id for point in points),
        tuple(point.size for point in points),
        tuple(point.seconds for point in points),
        tuple(float(x) for x in predicted),
        tuple(point.held_out for point in points),
        float(np.median([point.noise for point in points])),
    )


def prefers_curve(by_form: Score, points: Sequence[Point], sizes: Floats) -> bool:
    """Whether a curve through the fitted points takes the place of a form.

    It does where the form is further off than `curve_above`, and further than half of what a curve
    is from each of its own points when that point is left out, which doubles the gap to bridge.
    """
    wrong = by_form.median(held_out=False)
    curve = best_curve(points, sizes)
    if curve is None or wrong is None or wrong <= limit("curve_above"):
        return False
    known = _times_at(points, sizes)
    left_out = []
    for size in curve[0][1:-1]:
        rest = _line(known, without=size)
        seconds = float(Curve(*rest).seconds(size))
        left_out.append(abs(seconds / known[size][0] - 1.0))
    return not left_out or float(np.median(left_out)) / _GAPS < wrong


def best_curve(points: Sequence[Point], sizes: Floats) -> Line | None:
    """Sizes and times of points that are not held out, medians by size; None with fewer than two.

    Times that fall are pooled by the weight of their samples: a size hardly measured moves none.
    """
    known = _times_at(points, sizes)
    return _line(known) if len(known) > 1 else None


def _times_at(points: Sequence[Point], sizes: Floats) -> dict[float, tuple[float, int]]:
    """Time and number of samples of every size that is not held out."""
    by_size: dict[float, list[Point]] = {}
    for point, size in zip(points, sizes.tolist(), strict=True):
        if not point.held_out and size > 0:
            by_size.setdefault(size, []).append(point)
    return {
        size: (float(np.median([row.seconds for row in rows])), sum(row.samples for row in rows))
        for size, rows in by_size.items()
    }


def _line(known: Mapping[float, tuple[float, int]], *, without: float | None = None) -> Line:
    """A curve that never falls through weighted times, in logarithms (pool-adjacent-violators)."""
    rising = sorted(size for size in known if size != without)
    blocks: list[tuple[float, int, int]] = []  # level, weight, how many sizes
    for size in rising:
        time, weight = known[size]
        blocks.append((math.log(time), weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m, i), (b, n, j) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n, i + j)]
    levels = [level for level, _, count in blocks for _ in range(count)]
    return tuple(rising), tuple(float(f"{math.exp(logarithm):.{_DIGITS}g}") for logarithm in levels)


def unknown(
    leaf: str, *, name: str = "", scale: float = 1.0, known: Calibration | None = None, of: str = ""
) -> Unknown:
    """A constant to be found within the bounds of `leaf` times `scale`, from what is `known`."""
    *figures, prior = map(float, read_shipped(__package__ or "", "data.yaml")["bounds"][leaf])
    start, low, high = (scale * x for x in figures)
    if known is not None and of in known.constants:
        start = known.constants[of].value
        low, high = min(low, start / _MOVES), max(high, _MOVES * start)
    return Unknown(name or leaf, start, low, high, prior)


def limit(name: str) -> float:
    """A limit by name."""
    return float(read_shipped(__package__ or "", "data.yaml")["limits"][name])


def is_wide(constant: Fitted) -> bool:
    """Whether the measurements say little about a constant."""
    return constant.high - constant.low > 2 * limit("unidentified") * constant.value


def outside_range(name: str, constant: Fitted) -> tuple[float, float] | None:
    """The physical range of a constant that is outside it."""
    leaf = name.rpartition(".")[2]
    for pattern, ends in read_shipped(__package__ or "", "data.yaml")["physical"].items():
        low, high = map(float, ends)
        if fnmatch.fnmatchcase(leaf, pattern) and not low <= constant.value <= high:
            return low, high
    return None


def range_warnings(constants: Mapping[str, Fitted]) -> Iterator[str]:
    """A line for each constant outside its physical range, or that the measurements did not fix."""
    for name, constant in constants.items():
        if ends := outside_range(name, constant):
            yield (
                f"{name} is {constant.value:.4g} {constant.unit}, outside its physical range of"
                f" {ends[0]:g} to {ends[1]:g}; something else is in these times"
            )
        if is_wide(constant):
            yield say("calibrate.says_little", name=name, constant=constant)
