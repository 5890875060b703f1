"""Published trainings: how far their hours lie from those that mpsim plans, and the interval of a plan that follows."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Final, NamedTuple

from mpsim.memo import remembered
from mpsim.shipped import read_shipped

Hours = str
"""What the hours of a training contain: ``computing`` (its steps alone) or ``allocation`` (failures, restarts and lost work as well)."""

_LEVEL: Final = 0.8  # of the interval
_MEDIAN: Final = 0.5 - 1e-9  # share of the weight


class Known(NamedTuple):
    """Trainings whose hours were published, against their plans."""

    trainings: int
    developers: int
    low: float  # low, high: ends of the 80 % interval of measured over planned hours
    high: float
    error: float  # error, bias: mean absolute and mean error of the plans
    bias: float


@remembered(64)
def known_trainings(hours: Hours, *, without: str = "") -> Known:
    """Errors of plans of trainings that count such hours, those of one developer left out.

    Notes
    -----
    Logarithms of measured over planned hours have heavy tails; they are taken to follow a Laplace distribution about their median, whose scale is the
    mean absolute deviation. Every developer weighs the same, however many trainings it has published.
    """
    rows = [
        (str(row["developer"]), math.log(float(row["measured_over_planned"])))
        for row in read_shipped("mpsim.study.data", "trainings.yaml")["trainings"]
        if row["hours"] == hours and row["developer"] != without
    ]
    of = collections.Counter(developer for developer, _ in rows)
    weighed = sorted((value, 1.0 / of[developer] / len(of)) for developer, value in rows)
    below = itertools.accumulate(weight for _, weight in weighed)
    centre = next(row[0] for row, share in zip(weighed, below, strict=True) if share >= _MEDIAN)
    scale = math.fsum(weight * abs(value - centre) for value, weight in weighed)
    half = -math.log(1.0 - _LEVEL) * scale
    errors = [math.expm1(-value) for _, value in rows]
    return Known(
        trainings=len(rows),
        developers=len(of),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        error=math.fsum(map(abs, errors)) / len(errors),
        bias=math.fsum(errors) / len(errors),
    )
