"""Published trainings: how far their hours lie from plans, and the interval that follows."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Final, NamedTuple

from mpsim.memo import remembered
from mpsim.shipped import read_shipped

Hours = str
"""What the hours of a training contain: ``computing`` (its steps alone) or ``allocation``
(failures, restarts and lost work as well)."""

_LEVEL: Final = 0.8  # of the interval
_MEDIAN: Final = 0.5 - 1e-9  # share of the weight


class Known(NamedTuple):
    """Trainings whose hours were published, against their plans."""

    trainings: int
    developers: int
    # low, high: ends of the 80 % interval of ln(measured over planned hours), over the half-width
    # of what a plan knows of its steps and of what stops them
    low: float
    high: float
    error: float  # error, bias: mean absolute and mean error of the plans
    bias: float

    def ends(self, known: tuple[float, float]) -> tuple[float, float]:
        """Factors on the hours of a plan that leaves them between two: as much farther off as
        trainings were.
        """
        half = math.log(known[1] / known[0]) / 2
        return math.exp(self.low * half), math.exp(self.high * half)


@remembered(64)
def known_trainings(hours: Hours, *, without: str = "") -> Known:
    """Errors of plans of trainings that count such hours, those of one developer left out.

    Notes
    -----
    Logarithms of measured over planned hours have heavy tails; over the half-width of what each
    plan knew they are taken to follow a Laplace distribution about their median, whose scale is the
    mean absolute deviation. Every developer weighs the same, however many trainings it has
    published.
    """
    rows = [
        (str(row["developer"]), math.log(float(row["measured_over_planned"])), float(row["half"]))
        for row in read_shipped("mpsim.study.data", "trainings.yaml")["trainings"]
        if row["hours"] == hours and row["developer"] != without
    ]
    of = collections.Counter(developer for developer, *_ in rows)
    weighed = sorted((ln / known, 1.0 / of[name] / len(of)) for name, ln, known in rows)
    below = itertools.accumulate(weight for _, weight in weighed)
    centre = next(row[0] for row, share in zip(weighed, below, strict=True) if share >= _MEDIAN)
    scale = math.fsum(weight * abs(value - centre) for value, weight in weighed)
    half = -math.log(1.0 - _LEVEL) * scale
    errors = [math.expm1(-ln) for _, ln, _ in rows]
    return Known(
        trainings=len(rows),
        developers=len(of),
        low=centre - half,
        high=centre + half,
        error=math.fsum(map(abs, errors)) / len(errors),
        bias=math.fsum(errors) / len(errors),
    )
