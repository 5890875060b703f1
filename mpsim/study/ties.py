"""Ties: whether the difference of two predictions is larger than what such differences were off by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from mpsim.result.residuals import LEVEL, Setting
from mpsim.training.intervals import residuals_of

__all__ = ["Ratio", "ratio_between", "ratio_of", "selection", "ties"]

_RIVALS: Final = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of b over that of a, with the interval that four of five measured ratios lie in."""

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
    """The ratio of two step times, or of two rates.

    Parameters
    ----------
    a, b : mapping
        Results in the shape of ``mpsim run --json``.
    figure : str
        ``step_time_s``, or a rate such as ``tokens_per_s_per_accelerator``.

    Returns
    -------
    Ratio or None
        None where a result says nothing of its setting, such as one stored by an older version.

    Notes
    -----
    Errors that both share (of the framework, the accelerator, the number format) cancel; see `mpsim.result.residuals.Residuals.difference`. Dense models and mixtures of
    experts share none.
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


def ties(best: Mapping[str, object], others: Sequence[Mapping[str, object]]) -> int:
    """How many of the others cannot be told from the best by their tokens a second and accelerator."""
    ratios = (ratio_of(best, other, "tokens_per_s_per_accelerator") for other in others)
    return sum(ratio is not None and ratio.tie for ratio in ratios)


def selection(logs: Sequence[float], sigma: float) -> float:
    """How much longer, in ln of time, the shortest of several predictions will take because it was chosen as the shortest.

    Parameters
    ----------
    logs : sequence of float
        ln of the predictions, the shortest first; beyond the first `_RIVALS` they change nothing.
    sigma : float
        Standard deviation of what each errs by itself; what all share moves no choice.

    Notes
    -----
    The winner's curse by a parametric bootstrap: were the predictions a_i true and predicted again with errors e_i ~ N(0, sigma), the one that came out shortest, J = argmin(a_i + e_i),
    would err by E[e_J] < 0 on average, and the answer is its opposite,

        - sum over i of the integral of  sigma x phi(x) prod over j != i of Phi((a_j - a_i) / sigma - x)  dx,

    sigma x 0.56 for two alike and sigma x 1.54 for ten, 0 for one that leads by far.

    Examples
    --------
    >>> round(selection([0.0, 0.0], 1.0), 2), round(selection([0.0] * 10, 1.0), 2), round(selection([0.0, 9.0], 1.0), 2)
    (0.56, 1.54, 0.0)
    """
    if len(logs) < 2 or sigma <= 0.0:
        return 0.0
    ahead = np.array(logs[:_RIVALS]) / sigma
    x = np.linspace(-6.0, 6.0, 241)
    apart = ahead[None, :, None] - ahead[:, None, None] - x  # [i, j, x]
    beaten = 0.5 * np.vectorize(math.erfc)(-apart / math.sqrt(2.0))
    beaten[np.arange(len(ahead)), np.arange(len(ahead))] = 1.0
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    wins = beaten.prod(axis=1).sum(axis=0)
    return float(-sigma * (x * density * wins).sum() * (x[1] - x[0]))


def _setting(summary: Mapping[str, object]) -> Setting | None:
    ranges = summary.get("interval")
    of = ranges.get("of") if isinstance(ranges, Mapping) else None
    return Setting.from_json(of) if isinstance(of, Mapping) else None


def _number(summary: Mapping[str, object], figure: str) -> float:
    value = summary[figure]
    assert isinstance(value, int | float)
    return float(value)
