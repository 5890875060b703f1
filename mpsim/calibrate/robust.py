"""Robust fits in logarithms: positive constants of a form, from times that may hold outliers.

Shapes: N points, K constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import CalibrationError

__all__ = ["Estimate", "Unknown", "fit_robust", "spread_of"]

Floats = NDArray[np.float64]
Form = Callable[[Floats], Floats]
"""Seconds of N points for K constants."""

_ROUNDS = 80
_STEP = 1e-4
_HUBER = 1.345  # Huber (1964): 95 % efficient where errors are normal
_MAD = 1.4826  # of a normal distribution's standard deviation over its median absolute deviation
_LEAST_SPREAD = 0.01  # clocks and noise keep no two samples closer
_Z95 = 1.96
_PRIOR_NOISE = 0.1  # a first guess weighs as one point with this relative error
_WIDE = 50.0  # in logarithms: a constant the points say nothing about


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """A constant to be found.

    Parameters
    ----------
    name : str
    start, low, high : float
        First guess, and the bounds it stays in, all above 0.
    prior : float
        Standard deviation of the first guess, in logarithms: what decides where the points say little.
    """

    name: str
    start: float
    low: float
    high: float
    prior: float = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A constant that was found.

    Parameters
    ----------
    name : str
    value, low, high : float
        With the interval of 95 %, cut at the bounds.
    at_bound : bool
        Whether the fit would have left its bounds.
    identified : bool
        Whether the points say anything about it.
    """

    name: str
    value: float
    low: float
    high: float
    at_bound: bool
    identified: bool


def fit_robust(
    form: Form,
    unknowns: Sequence[Unknown],
    seconds: Floats,
    *,
    step: float = _STEP,
    rounds: int = _ROUNDS,
) -> tuple[tuple[Estimate, ...], Floats]:
    """Find the constants whose form is closest to measured times, by Huber's loss of logarithms.

    Parameters
    ----------
    form : callable
        Seconds for values of the unknowns, in their order.
    unknowns : sequence of Unknown
    seconds : array of N
        Measured, above 0 [s].
    step : float
        Of numeric derivatives, in logarithms.
    rounds : int
        At most so many.

    Returns
    -------
    tuple of Estimate
    array of N
        Residuals ``log(form / measured)``.

    Raises
    ------
    CalibrationError
        If there are no points, or times are not above 0.

    Notes
    -----
    Levenberg-Marquardt with weights recomputed each round. Intervals come from the weighted normal matrix at the end; they say how
    well the points alone fix a constant if the form holds, not whether it does: that is what the held-out error is for.
    """
    if not len(seconds) or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise CalibrationError("a fit needs one time or more, all finite and above 0")
    low = np.log([unknown.low for unknown in unknowns])
    high = np.log([unknown.high for unknown in unknowns])
    theta = np.clip(np.log([unknown.start for unknown in unknowns]), low, high)
    target = np.log(seconds)

    guess = theta.copy()
    pull = np.array([_PRIOR_NOISE / unknown.prior for unknown in unknowns])

    def residuals(at: Floats) -> Floats:
        points = np.log(np.maximum(form(np.exp(at)), 1e-300)) - target
        return np.concatenate([points, pull * (at - guess)])

    now = residuals(theta)
    damping = 1e-2
    count = len(seconds)
    for _ in range(rounds):
        weights = np.concatenate([_weights(now[:count]), np.ones(len(unknowns))])
        slope = _slope(residuals, theta, now, step)
        moved, now_moved = _move(residuals, theta, slope, weights, now, damping, (low, high))
        if _loss(now_moved, weights) < _loss(now, weights):
            shift = float(np.max(np.abs(moved - theta)))
            theta, now, damping = moved, now_moved, max(damping / 3, 1e-9)
            if shift < 1e-7:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    slope = _slope(residuals, theta, now, step)[:count]
    return _estimates(unknowns, theta, slope, now[:count], (low, high)), now[:count]


def spread_of(residuals: Floats) -> float:
    """Robust standard deviation of residuals."""
    if not len(residuals):
        return 0.0
    return float(_MAD * np.median(np.abs(residuals - np.median(residuals))))


def _weights(residuals: Floats) -> Floats:
    size = np.abs(residuals)
    scale = max(_MAD * float(np.median(size)), _LEAST_SPREAD)
    return np.asarray(np.minimum(1.0, _HUBER * scale / np.maximum(size, 1e-12)))


def _loss(residuals: Floats, weights: Floats) -> float:
    return float(np.sum(weights * residuals**2))


def _slope(residuals: Callable[[Floats], Floats], at: Floats, here: Floats, step: float) -> Floats:
    columns = []
    for index in range(len(at)):
        moved = at.copy()
        moved[index] += step
        columns.append((residuals(moved) - here) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(here), 0))


def _move(
    residuals: Callable[[Floats], Floats],
    theta: Floats,
    slope: Floats,
    weights: Floats,
    now: Floats,
    damping: float,
    bounds: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Where a damped step leads, and the residuals there; constants at a bound that pull outwards stay."""
    gradient = slope.T @ (weights * now)
    low, high = bounds
    stuck = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
    free = np.flatnonzero(~stuck)
    normal = slope[:, free].T @ (weights[:, None] * slope[:, free])
    scale = np.diag(normal) + 1e-9
    shift = np.linalg.lstsq(normal + damping * np.diag(scale), -gradient[free], rcond=None)[0]
    moved = theta.copy()
    moved[free] = np.clip(theta[free] + np.clip(shift, -1.0, 1.0), low[free], high[free])
    return moved, residuals(moved)


def _estimates(
    unknowns: Sequence[Unknown],
    theta: Floats,
    slope: Floats,
    residuals: Floats,
    bounds: tuple[Floats, Floats],
) -> tuple[Estimate, ...]:
    weights = _weights(residuals)
    freedom = max(len(residuals) - len(unknowns), 1)
    scale = max(_loss(residuals, weights) / freedom, _LEAST_SPREAD**2)
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
