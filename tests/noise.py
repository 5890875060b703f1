"""Logs of training steps with noise of several kinds, on which a watch is tried."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "logs", "steps"]

KINDS = ("normal", "skewed", "outliers", "correlated", "mean of five")
_SIGMAS = (0.002, 0.005, 0.01, 0.02, 0.05)


def steps(kind: str, count: int, sigma: float, seed: int) -> NDArray[np.float64]:
    """Steps of a second with noise: a long tail, pauses now and then, steps like the one before, or a log that writes means."""
    draw = np.random.default_rng([seed, len(kind)])
    off = draw.normal(size=count + 4)
    if kind == "skewed":
        off = draw.exponential(size=count) - 1
    elif kind == "outliers":
        off += (draw.random(count + 4) < 0.02) * draw.exponential(20, size=count + 4)
    elif kind == "correlated":
        for n in range(1, count):
            off[n] += 0.6 * off[n - 1]
    elif kind == "mean of five":
        off = np.convolve(off, np.full(5, 5**-0.5), "valid")
    return np.maximum(0.1, 1 + sigma * off[:count])


def logs(kind: str) -> Iterator[list[float]]:
    """A hundred thousand steps, half of them in starts of three hundred."""
    for number in range(200):
        count = 300 if number < 167 else 1515
        yield steps(kind, count, _SIGMAS[number % 5], number).tolist()
