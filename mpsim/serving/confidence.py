"""Confidence in figures of one run: intervals of means and percentiles, and whether the run reached a steady state.

Latencies of neighbouring requests are alike, because they met the same queue. So intervals come from batch means [1]_: the run is cut into ten batches of requests in their order, whose
means are nearly independent. Percentiles have the wider of the interval from batches and that of order statistics, which takes requests as independent and holds for short runs too.

References
----------
.. [1] Law, Simulation Modeling and Analysis, 5th ed. (2015), section 9.5.3.
"""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from mpsim.result.residuals import HALF_WIDTH

__all__ = ["QUANTILES", "SteadyState", "distribution", "share_interval", "steady_state"]

Floats = NDArray[np.float64]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_T = 1.383  # the same of Student's with nine degrees of freedom
_FEWEST = 5  # values whose spread says something of their mean
_BATCHES = 10
_LEAST = 2 * _BATCHES  # values that are worth cutting into batches
_SERVICES = 10.0  # times the mean request that requests have to come for
_FILLING = 3.0  # times the mean request that a service takes to fill up
_TURNS = 5.0  # requests of each user of a closed loop
_SIGNIFICANT = 3.0  # standard errors of the growth of the queue
_MATERIAL = 0.5  # growth of the queue over the mean time of service
_GROWTH = 0.25  # of the requests in the service, over their mean
_LOOKS = 120  # at the requests in the service, evenly spread
_PARTS = 12  # of these looks, four to a third of the stream


def distribution(values: Floats) -> dict[str, float | list[float] | None] | None:
    """Mean and percentiles of a latency, each with an 80 % interval.

    Parameters
    ----------
    values : float64[N]
        In the order of the requests; NaN where a request has none.

    Returns
    -------
    dict, or None
        ``mean``, ``mean_interval``, ``p50``, ``p50_interval`` and so on; None without values. The
        interval of a percentile is None where the values are too few to have its ends among them, that of the mean of fewer than five.
    """
    finite = values[np.isfinite(values)]
    count = len(finite)
    if not count:
        return None
    ordered, mean = np.sort(finite), float(finite.mean())
    least = min(0.0, float(ordered[0]))  # no latency is below it
    half = 0.0
    if count >= _FEWEST:
        groups = _batches(finite) if count >= _LEAST else np.split(finite, count)
        half = _half_width(np.array([group.mean() for group in groups]))
    figures: dict[str, float | list[float] | None] = {
        "mean": mean,
        "mean_interval": [max(least, mean - half), mean + half] if count >= _FEWEST else None,
    }
    for name, share in QUANTILES.items():
        value = figures[name] = float(np.quantile(ordered, share))
        reach = HALF_WIDTH * math.sqrt(share * (1 - share) * count)
        # about the place of the quantile itself, so that it lies between them
        place = share * (count - 1)
        first, last = math.floor(place - reach), math.ceil(place + reach)
        if first < 0 or last >= count:
            figures[f"{name}_interval"] = None
            continue
        low, high = float(ordered[first]), float(ordered[last])
        if count / _BATCHES >= 1.0 / min(share, 1.0 - share):  # batches long enough to have it
            batches = [float(np.quantile(batch, share)) for batch in _batches(finite)]
            half = _half_width(np.array(batches))
            low, high = min(low, max(least, value - half)), max(high, value + half)
        figures[f"{name}_interval"] = [low, high]
    return figures


class SteadyState(TypedDict):
    """Whether figures are those of a steady state, why not, and whether more requests come than are served."""

    reached: bool
    reason: str
    growing: bool


def _batches(values: Floats) -> list[Floats]:
    return np.array_split(values, _BATCHES)


def share_interval(kept: NDArray[np.bool_]) -> tuple[float, float]:
    """The 80 % interval of a share of requests, given in their order: from batch means where they are enough, else Wilson's."""
    share, count = float(kept.mean()), len(kept)
    if count >= _LEAST:
        half = _half_width(np.array([batch.mean() for batch in _batches(kept.astype(float))]))
        return max(0.0, share - half), min(1.0, share + half)
    # of few requests that all kept the limits nobody knows that all others would
    middle, whole = share + HALF_WIDTH**2 / (2 * count), 1.0 + HALF_WIDTH**2 / count
    half = HALF_WIDTH * math.sqrt(share * (1.0 - share) / count + (HALF_WIDTH / (2 * count)) ** 2)
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def _half_width(means: Floats) -> float:
    return _T * float(means.std(ddof=1)) / math.sqrt(len(means))


def steady_state(
    arrival: Floats,
    queue: Floats,
    service: Floats,
    *,
    kind: str,
    users: int | None,
    since: float = 0.0,
) -> SteadyState:
    """Whether figures are those of a steady state, and why not.

    Parameters
    ----------
    arrival, queue, service : float64[N]
        Arrival of each request that was served, in order, its wait, and its time without that [s].
    since : float
        Where the warm-up ends: those that came before count only as long as they are in the service [s].

    Notes
    -----
    An open stream must come for ten times as long as a request takes. Neither its queue may grow from the first half of it to the second by more than three standard errors (of
    batch means) and half the mean time of service; nor the number of requests in the service from the first third to the last, once it has filled up, by more than three standard
    errors and a quarter of their mean. A closed loop must go round five times.
    """
    reason, growing, counted = "", False, arrival >= since
    if kind == "all-at-once":
        reason = "all requests come at once: filling and draining are part of every number"
    elif users is not None:
        turns = float(counted.sum()) / users
        if turns < _TURNS:
            reason = f"each of {users} users sends {turns:.3g} requests, so the burst of the first ones counts; {_TURNS:g} were enough"
    elif counted.sum() < _LEAST:
        reason = f"{counted.sum()} requests are too few to tell"
    else:
        mean = float(service[counted].mean())
        reason = _waiting(queue[counted], mean) or _crowding(arrival, queue + service, since)
        growing = bool(reason) and kind != "trace"  # which has ups and downs of its own
        reason = reason or _short(arrival[counted], mean)
    return {"reached": not reason, "reason": reason, "growing": growing}


def _waiting(queue: Floats, service: float) -> str:
    """Why the waits of an open stream are not steady."""
    means = np.array([batch.mean() for batch in _batches(queue)])
    half = _BATCHES // 2
    early, late = means[:half], means[half:]
    growth = float(late.mean() - early.mean())
    # the spread within halves: a queue that grows makes that of all batches large
    spread = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    if growth > max(_MATERIAL * service, 0.0) and (
        growth > _SIGNIFICANT * spread or bool((np.diff(means) > 0).all())
    ):
        return f"requests come faster than they are served: those of the second half wait {late.mean():.3g} s on average, those of the first {early.mean():.3g} s"
    return ""


def _crowding(arrival: Floats, stay: Floats, since: float) -> str:
    """Why the number of requests in the service is not steady, once it has had the time to fill up."""
    mean, end = float(stay.mean()), float(arrival[-1])
    begin = max(since, float(arrival[0]) + _FILLING * mean)
    third = (end - begin) / 3.0
    if third < _FILLING * mean:
        return ""  # too short to tell
    looks = np.linspace(begin, end, _LOOKS)
    inside = np.searchsorted(arrival, looks, side="right") - np.searchsorted(
        np.sort(arrival + stay), looks, side="right"
    )
    means = inside.reshape(_PARTS, -1).mean(axis=1)
    early, late = means[: _PARTS // 3], means[-_PARTS // 3 :]
    growth = float(late.mean() - early.mean())
    spread = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / len(early))
    # that of requests which have nothing to do with each other, who stay for `mean` each
    chance = math.sqrt(2.0 * float(means.mean()) * min(1.0, 2.0 * mean / third))
    if growth > max(_GROWTH * float(means.mean()), _SIGNIFICANT * max(spread, chance)):
        return f"requests come faster than they are served: {late.mean():.4g} are in the service in the last third, {early.mean():.4g} in the first"
    return ""


def _short(arrival: Floats, service: float) -> str:
    """Why a stream is too short to show a steady state."""
    span = float(arrival[-1] - arrival[0])
    if span >= _SERVICES * service:
        return ""
    return f"requests come for {span:.3g} s and take {service:.3g} s each: the start and the end, when the service is emptier, count too much; {_SERVICES:g} times as long were enough"
