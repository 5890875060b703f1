"""Robust fits in logarithms: positive constants of a form, from times that may hold outliers.

Shapes: N points, K constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.errors import CalibrationError, MissingExtraError

Form = Callable[[Floats], Floats]  # seconds of N points for K constants

_ROUNDS = 80
_PASSES = 12  # fits in a row, each with the spread that the one before it left
_SETTLED = 1e-6  # in logarithms
_STEP = 1e-4
_HUBER = 1.345  # Huber (1964): 95 % efficient where errors are normal
_MAD = 1.4826  # of a normal distribution's standard deviation over its median absolute deviation
_LEAST_SPREAD = 0.01  # clocks and noise keep no two samples closer
_Z95 = 1.96
_PRIOR_NOISE = 0.1  # a first guess weighs as one point with this relative error
_WIDE = 50.0  # in logarithms: a constant the points say nothing about


@structs.dataclass(frozen=True, slots=True)
class Unknown:
    """A constant to be found."""

    name: str
    start: float  # start, low, high: first guess, and the bounds it stays in, all above 0
    low: float
    high: float
    # standard deviation of the first guess, in logarithms: what decides where the points say little
    prior: float = 10.0


@structs.dataclass(frozen=True, slots=True)
class Estimate:
    """A constant that was found."""

    name: str
    value: float  # value, low, high: with the interval of 95 %, cut at the bounds
    low: float
    high: float
    at_bound: bool  # whether the fit would have left its bounds
    identified: bool  # whether the points say anything about it


def fit_robust(
    form: Form,
    unknowns: Sequence[Unknown],
    seconds: Floats,
    *,
    step: float = _STEP,
    rounds: int = _ROUNDS,
    passes: int = _PASSES,
    method: Literal["trf", "dogbox"] = "trf",
) -> tuple[Estimate, ...]:
    """Find the constants whose form is closest to measured times, by Huber's loss of logarithms.

    `form`: seconds for values of the unknowns, in their order. `seconds`: measured, above 0 [s].
    `step`: of numeric derivatives, in logarithms. `rounds` and `passes`: at most so many steps of a
    fit, and fits in a row. `method`: of scipy: the second for forms that jump, and where constants
    lie at their bounds. CalibrationError if there are no points, or times are not above 0;
    MissingExtraError if scipy is not installed.

    Notes
    -----
    Least squares of scipy within bounds. Huber's loss bends at a multiple of the spread of the
    residuals, which a fit changes: it is fitted again until neither moves. Intervals come from the
    weighted normal matrix at the end; they say how well the points alone fix a constant if the form
    holds, not whether it does: that is what the held-out error is for.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingExtraError("scipy", "calibrate") from error
    if not len(seconds) or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise CalibrationError("a fit needs one time or more, all finite and above 0")
    low, high = (np.log([getattr(unknown, end) for unknown in unknowns]) for end in ("low", "high"))
    guess = np.clip(np.log([unknown.start for unknown in unknowns]), low, high)
    target, count = np.log(seconds), len(seconds)
    pull = np.array([_PRIOR_NOISE / unknown.prior for unknown in unknowns])

    seen: dict[bytes, Floats] = {}  # fits in a row begin where the one before ended

    def residuals(at: Floats) -> Floats:
        if (key := at.tobytes()) not in seen:
            points = np.log(np.maximum(form(np.exp(at)), 1e-300)) - target
            seen[key] = np.concatenate([points, pull * (at - guess)])
        return seen[key]

    def slope(at: Floats) -> Floats:
        # forward steps of one size: forms that form iterations anew are flat between their jumps
        here = residuals(at)
        columns = [(residuals(at + row) - here) / step for row in step * np.eye(len(at))]
        return np.stack(columns, axis=1)

    theta, spread = guess, _spread(residuals(guess)[:count])
    for _ in range(passes):
        bend = np.concatenate([np.full(count, _HUBER * spread), np.full(len(unknowns), np.inf)])
        fit = least_squares(
            residuals,
            theta,
            jac=slope,
            bounds=(low, high),
            method=method,
            x_scale="jac",
            loss=lambda squares, bend=bend: _huber(squares, bend),
            max_nfev=rounds,
        )
        # it stays inside: a constant that pushes against a bound belongs on it
        at = np.where(fit.active_mask < 0, low, np.where(fit.active_mask > 0, high, fit.x))
        shift, theta = float(np.max(np.abs(at - theta))), at
        now = _spread(fit.fun[:count])
        if shift < _SETTLED and abs(now / spread - 1) < _SETTLED:
            break
        spread = now
    return _estimates(unknowns, theta, slope(theta)[:count], residuals(theta)[:count], (low, high))


def _spread(residuals: Floats) -> float:
    """Robust size of residuals around 0."""
    return max(_MAD * float(np.median(np.abs(residuals))), _LEAST_SPREAD)


def _huber(squares: Floats, bend: Floats) -> Floats:
    """Huber's loss of squared residuals with its two derivatives, linear beyond `bend`."""
    size = np.sqrt(np.maximum(squares, 1e-300))
    inside = size <= bend
    with np.errstate(invalid="ignore"):
        loss = np.where(inside, squares, 2 * bend * size - bend**2)
        first = np.where(inside, 1.0, bend / size)
        second = np.where(inside, 0.0, -bend / (2 * size**3))
    return np.stack([loss, first, second])


def _estimates(
    unknowns: Sequence[Unknown],
    theta: Floats,
    slope: Floats,
    residuals: Floats,
    bounds: tuple[Floats, Floats],
) -> tuple[Estimate, ...]:
    bend = _HUBER * _spread(residuals)
    weights = np.minimum(1.0, bend / np.maximum(np.abs(residuals), 1e-12))
    freedom = max(len(residuals) - len(unknowns), 1)
    scale = max(float(np.sum(weights * residuals**2)) / freedom, _LEAST_SPREAD**2)
    normal = slope.T @ (weights[:, None] * slope)
    deviations = np.sqrt(np.maximum(np.diag(np.linalg.pinv(normal)) * scale, 0.0))
    felt = np.sqrt(np.diag(normal)) > 1e-3
    low, high = bounds
    estimates = []
    for index, unknown in enumerate(unknowns):
        wide = float(deviations[index]) * _Z95 if felt[index] else _WIDE
        edges = np.clip([theta[index] - wide, theta[index] + wide], low[index], high[index])
        estimates.append(
            Estimate(
                unknown.name,
                float(np.exp(theta[index])),
                float(np.exp(edges[0])),
                float(np.exp(edges[1])),
                bool(felt[index] and theta[index] in (low[index], high[index])),
                bool(felt[index]),
            )
        )
    return tuple(estimates)
