"""Ties and fronts: whether two predictions differ for sure, and what no other beats in all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from mpsim import structs
from mpsim.result.residuals import HALF_WIDTH, LEVEL, Setting, chosen_of
from mpsim.training.intervals import residuals_of

_DRAWS: Final = 2000
T = TypeVar("T")


def front_of(rows: Iterable[T], figures: Callable[[T], tuple[float, ...]]) -> tuple[T, ...]:
    """The Pareto front: rows that no other beats in every figure; of equal rows the first."""
    front: dict[tuple[float, ...], T] = {}
    for mine, row in sorted(((figures(row), row) for row in rows), key=lambda pair: pair[0]):
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other in front):
            front[mine] = row
    return tuple(front.values())


@structs.dataclass(frozen=True, slots=True)
class Ratio:
    """A number of b over that of a, with its 80 % interval."""

    value: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether it cannot be said which is faster: the interval holds 1."""
        return self.low <= 1.0 <= self.high

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "ratio": self.value,
            "interval": [self.low, self.high],
            "level": LEVEL,
            "tie": self.tie,
        }


def ratio_of(
    a: Mapping[str, object], b: Mapping[str, object], figure: str = "step_time_s"
) -> Ratio | None:
    """The ratio of two step times, or of two rates. `a` and `b`: results in the shape of ``mpsim
    run --json``. `figure`: ``step_time_s``, or a rate such as ``tokens_per_s_per_accelerator``.

    Returns: None where a result says nothing of its setting, such as one stored by an older
    version.

    Notes
    -----
    Errors that both share (of the framework, the accelerator, the number format) cancel; see
    `mpsim.result.residuals.Residuals.difference`. Dense models and mixtures of experts share none.
    """
    first, second = _setting(a), _setting(b)
    if first is None or second is None:
        return None
    return ratio_between(first, second, _number(b, figure) / _number(a, figure))


def ratio_between(first: Setting, second: Setting, value: float) -> Ratio:
    """The ratio of figures of two settings, of which `value` is predicted, with its interval."""
    known, other = residuals_of(first), residuals_of(second)
    if known.figure == other.figure:
        half = known.difference(first, second)
        return Ratio(value, value * math.exp(-half), value * math.exp(half))
    parts = known.interval(1.0, first), other.interval(1.0, second)
    down = math.hypot(math.log(parts[0].high), math.log(parts[1].low))
    up = math.hypot(math.log(parts[0].low), math.log(parts[1].high))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def tie(best: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether a result cannot be told from the best by its tokens a second and accelerator."""
    ratio = ratio_of(best, other, "tokens_per_s_per_accelerator")
    return ratio is not None and ratio.tie


def selection(settings: Sequence[Setting], logs: Sequence[float]) -> float:
    """How much longer, in ln of time, the shortest of several predictions will take because it was
    chosen as the shortest.

    `settings`: of one model, machine and software. `logs`: ln of each prediction.

    Notes
    -----
    The winner's curse by a parametric bootstrap: were the predictions a_i true and predicted again
    with errors e_i, the one that came out shortest, J = argmin(a_i + e_i), would err by E[e_J] < 0
    on average; the answer is -E[e_J], the mean over `_DRAWS` draws of a fixed seed. An error is a
    sum of one for each decision, e_i = sum over kinds k of e_k(choice of i), so that layouts that
    share choices err alike; e_k(choice) is normal with sigma_k = h_k / (1.28 sqrt 2), where h_k is
    the half-width of differences by that kind (`mpsim.result.residuals.Residuals.pairs`), which
    have two such errors. What all share moves no choice. All e_k together are no wider than the
    interval of a step itself: beyond that they are scaled down.
    """
    known = residuals_of(settings[0])
    halves = known.pairs
    widest = max(halves.values(), default=0.0)
    chosen = [chosen_of(setting) for setting in settings]
    draw = np.random.default_rng(0)
    errors, square = np.zeros((_DRAWS, len(chosen))), 0.0
    for kind in sorted({kind for each in chosen for kind in each} - {"dp"}):
        values = {
            value: place
            for place, value in enumerate(dict.fromkeys(each.get(kind) for each in chosen))
        }
        sigma = halves.get(kind, widest) / (HALF_WIDTH * math.sqrt(2.0))
        if len(values) > 1:
            drawn = draw.normal(0.0, sigma, (_DRAWS, len(values)))
            square += sigma**2
            errors += drawn[:, [values[each.get(kind)] for each in chosen]]
    most = known.interval(1.0, settings[0]).sigma
    errors *= min(1.0, most / math.sqrt(square)) if square else 0.0
    winners = (np.array(logs) + errors).argmin(axis=1)
    return float(-errors[np.arange(_DRAWS), winners].mean())


def _setting(summary: Mapping[str, object]) -> Setting | None:
    ranges = summary.get("interval")
    of = ranges.get("of") if isinstance(ranges, Mapping) else None
    return Setting.from_json(of) if isinstance(of, Mapping) else None


def _number(summary: Mapping[str, object], figure: str) -> float:
    value = summary[figure]
    assert isinstance(value, int | float)
    return float(value)
