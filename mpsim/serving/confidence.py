"""Confidence in figures of one run: intervals of means and percentiles, and whether the run reached a steady state.

Latencies of neighbouring requests are alike, because they met the same queue. So intervals come from batch means [1]_: the run is cut into ten batches of requests in their order, whose
means are nearly independent. Percentiles have the wider of the interval from batches and that of order statistics, which takes requests as independent and holds for short runs too.

References
----------
.. [1] Law, Simulation Modeling and Analysis, 5th ed. (2015), section 9.5.3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVEL", "distribution", "steady_state"]

Floats = NDArray[np.float64]

LEVEL = 0.8
"""Share of such intervals that hold the true value."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_Z = 1.2816  # half-width of an 80 % interval of the normal distribution
_T = 1.383  # the same of Student's with nine degrees of freedom
_BATCHES = 10
_LEAST = 2 * _BATCHES  # values that are worth cutting into batches
_SERVICES = 3.0  # times the mean request that requests have to come for
_TURNS = 5.0  # requests of each user of a closed loop
_SIGNIFICANT = 3.0  # standard errors of the growth of the queue
_MATERIAL = 0.5  # growth of the queue over the mean time of service


def distribution(values: Floats) -> dict[str, Any] | None:
    """Mean and percentiles of a latency, each with an 80 % interval.

    Parameters
    ----------
    values : float64[N]
        In the order of the requests; NaN where a request has none.

    Returns
    -------
    dict, or None
        ``mean``, ``mean_interval``, ``p50``, ``p50_interval`` and so on; None without values.
    """
    finite = values[np.isfinite(values)]
    count = len(finite)
    if not count:
        return None
    ordered, mean = np.sort(finite), float(finite.mean())
    if count >= _LEAST:
        half = _half_width(np.array([batch.mean() for batch in _batches(finite)]))
    else:
        half = _Z * float(finite.std()) / math.sqrt(count)
    figures: dict[str, Any] = {"mean": mean, "mean_interval": [mean - half, mean + half]}
    for name, share in _QUANTILES.items():
        value = figures[name] = float(np.quantile(ordered, share))
        reach = _Z * math.sqrt(share * (1 - share) * count)
        places = (round(share * count + sign * reach) for sign in (-1, 1))
        low, high = (float(ordered[min(count - 1, max(0, place))]) for place in places)
        if count / _BATCHES >= 1.0 / min(share, 1.0 - share):  # batches long enough to have it
            batches = [float(np.quantile(batch, share)) for batch in _batches(finite)]
            half = _half_width(np.array(batches))
            low, high = min(low, value - half), max(high, value + half)
        figures[f"{name}_interval"] = [low, high]
    return figures


def _batches(values: Floats) -> list[Floats]:
    return np.array_split(values, _BATCHES)


def _half_width(means: Floats) -> float:
    return _T * float(means.std(ddof=1)) / math.sqrt(_BATCHES)


def steady_state(
    arrival: Floats, queue: Floats, service: Floats, *, kind: str, users: int | None
) -> dict[str, Any]:
    """Whether figures are those of a steady state, and why not.

    Parameters
    ----------
    arrival, queue, service : float64[N]
        Arrival of each request that counts, in order, its wait, and its time without that [s].
    kind : str
        How requests arrive.
    users : int, optional
        Of a closed loop.

    Returns
    -------
    dict
        ``reached`` and ``reason``, empty where it was reached.

    Notes
    -----
    An open stream must come for three times as long as a request takes, and its queue must not grow from the first half of it to the second by more than three standard errors (of
    batch means) and half the mean time of service. A closed loop must go round five times.
    """
    reason = ""
    if kind == "all-at-once":
        reason = "all requests come at once: filling and draining are part of every figure"
    elif users is not None:
        turns = len(arrival) / users
        if turns < _TURNS:
            reason = f"each of {users} users sends {turns:.3g} requests, so the burst of the first ones counts; {_TURNS:g} were enough"
    elif len(arrival) < _LEAST:
        reason = f"{len(arrival)} requests are too few to tell"
    else:
        reason = _open(arrival, queue, float(service.mean()))
    return {"reached": not reason, "reason": reason}


def _open(arrival: Floats, queue: Floats, service: float) -> str:
    """Why an open stream is not steady."""
    means = np.array([batch.mean() for batch in _batches(queue)])
    half = _BATCHES // 2
    early, late = means[:half], means[half:]
    growth = float(late.mean() - early.mean())
    # the spread within halves: a queue that grows makes that of all batches large
    spread = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    if growth > max(_MATERIAL * service, 0.0) and (
        growth > _SIGNIFICANT * spread or bool((np.diff(means) > 0).all())
    ):
        return f"requests come faster than they are served: those of the second half wait {late.mean():.3g} s in the mean, those of the first {early.mean():.3g} s"
    span = float(arrival[-1] - arrival[0])
    if span < _SERVICES * service:
        return f"requests come for {span:.3g} s and take {service:.3g} s each: the service never fills up; {_SERVICES:g} times as long were enough"
    return ""
