"""Confidence in figures: intervals of one run, whether it is steady, ranges of measured ones.

Latencies of neighbouring requests are alike, because they met the same queue. So intervals come
from batch means [1]_: the run is cut into ten batches of requests in their order, whose means are
nearly independent. Percentiles have the wider of the interval from batches and that of order
statistics, which takes requests as independent and holds for short runs too.

References
----------
.. [1] Law, Simulation Modeling and Analysis, 5th ed. (2015), section 9.5.3.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.result.residuals import (
    HALF_WIDTH,
    LEVEL,
    Interval,
    Setting,
    chip_names,
    format_names,
    residuals,
)
from mpsim.result.words import Figures
from mpsim.serving.plan import ServicePlan
from mpsim.serving.spread import BATCHES, MANY, Sketch, Values, batches
from mpsim.units import Dimension, format_quantity

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_T = 1.383  # the same of Student's with nine degrees of freedom
_FEWEST = 5  # values whose spread says something of their mean
_SERVICES = 10.0  # times the mean request that requests have to come for
_FILLING = 3.0  # times the mean request that a service takes to fill up
_TURNS = 5.0  # requests of each user of a closed loop
_SIGNIFICANT = 3.0  # standard errors of the growth of the queue
_MATERIAL = 0.5  # growth of the queue over the mean time of service
_GROWTH = 0.25  # of the requests in the service, over their mean
LOOKS = 120  # at the requests in the service, evenly spread
_PARTS = 12  # of these looks, four to a third of the stream
# arrivals that wait for the service: its speed decides the throughput
_PUSHED = ("closed", "all-at-once")


def distribution(values: Floats | Values | Sketch) -> dict[str, float | list[float] | None] | None:
    """Mean and percentiles of a latency, each with an 80 % interval: ``mean``, ``mean_interval``,
    ``p50``, ``p50_interval`` and so on; None without values.

    `values` are in the order of the requests, float64[N], NaN where a request has none. The
    interval of a percentile is None where the values are too few to have its ends among them, that
    of the mean of fewer than five.
    """
    if isinstance(values, np.ndarray):
        (spread := Values()).add(0, values)
        return distribution(spread)
    if not (count := values.count):
        return None
    mean = values.mean
    least = min(0.0, values.least)  # no latency is below it
    half = _half_width(values.means) if count >= _FEWEST else 0.0
    figures: dict[str, float | list[float] | None] = {
        "mean": mean,
        "mean_interval": [max(least, mean - half), mean + half] if count >= _FEWEST else None,
    }
    for name, share in QUANTILES.items():
        value = figures[name] = values.quantile(share)
        reach = HALF_WIDTH * math.sqrt(share * (1 - share) * count)
        # about the place of the quantile itself, so that it lies between them
        place = share * (count - 1)
        first, last = math.floor(place - reach), math.ceil(place + reach)
        if first < 0 or last >= count:
            figures[f"{name}_interval"] = None
            continue
        low, high = values.at(first), values.at(last)
        if count / BATCHES >= 1.0 / min(share, 1.0 - share):  # batches long enough to have it
            half = _half_width(np.array(values.batch_quantiles(share)))
            low, high = min(low, max(least, value - half)), max(high, value + half)
        figures[f"{name}_interval"] = [low, high]
    return figures


class SteadyState(TypedDict):
    """Whether a state is steady, why not, and whether more requests come than are served."""

    reached: bool
    reason: str
    growing: bool


def share_interval(kept: Values | Sketch) -> tuple[float, float]:
    """The 80 % interval of a share of requests, each 1 or 0: by batch means, of few by Wilson's."""
    count = kept.count
    if not count or (count >= MANY and len(kept.means) < 2):
        return 0.0, 1.0
    share = kept.mean
    if count >= MANY:
        half = _half_width(kept.means)
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

    `arrival`, `queue` and `service`: arrival of each request that was served, in order, its wait,
    and its time without that, float64[N] [s]. `since`: where the warm-up ends; those that came
    before count only as long as they are in the service [s].

    An open stream must come for ten times as long as a request takes. Neither its queue may grow
    from the first half of it to the second by more than three standard errors (of batch means) and
    half the mean time of service; nor the number of requests in the service from the first third to
    the last, once it has filled up, by more than three standard errors and a quarter of their mean.
    A closed loop must go round five times.
    """
    counted = arrival >= since
    count = int(counted.sum())
    if kind == "all-at-once" or users is not None or count < MANY:
        return verdict(Course(count), kind=kind, users=users)
    stay, ends = queue + service, np.sort(arrival + queue + service)
    begin, third = crowded_from(float(arrival[0]), float(arrival[-1]), float(stay.mean()), since)
    looks = np.linspace(begin, float(arrival[-1]), LOOKS)
    inside = np.searchsorted(arrival, looks, side="right") - np.searchsorted(
        ends, looks, side="right"
    )
    course = Course(
        count,
        float(service[counted].mean()),
        np.array([batch.mean() for batch in batches(queue[counted])]),
        inside,
        third,
        float(arrival[counted][-1] - arrival[counted][0]),
        float(stay.mean()),
    )
    return verdict(course, kind=kind, users=users)


class Course(NamedTuple):
    """A stream of requests as it went."""

    counted: int  # requests that count
    # service, stay: mean time in the service without the wait, and with it [s]
    service: float = 0.0
    waits: Floats = np.zeros(0)  # mean wait of each batch of requests, float64[10] [s]
    # requests in the service at times evenly spread from when it had filled up, float64[120]
    inside: NDArray[Any] = np.zeros(0)
    third: float = 0.0  # a third of that time [s]; 0 where it is too short to tell
    span: float = 0.0  # from the first arrival to the last [s]
    stay: float = 0.0


def crowded_from(first: float, last: float, stay: float, since: float) -> tuple[float, float]:
    """When a service has filled up, and a third of its time from then on, 0 if too short [s]."""
    filling = _FILLING * stay
    begin = max(since, first + filling)
    third = (last - begin) / 3.0
    return begin, third if third >= filling else 0.0


def verdict(course: Course, *, kind: str, users: int | None) -> SteadyState:
    """Whether a stream reached a steady state; see `steady_state`."""
    reason, growing = "", False
    if kind == "all-at-once":
        reason = "all requests come at once: filling and draining are part of every number"
    elif users is not None:
        turns = course.counted / users
        if turns < _TURNS:
            reason = (
                f"each of {users} users sends {turns:.3g} requests, so the burst of the first ones"
                f" counts; {_TURNS:g} were enough"
            )
    elif course.counted < MANY:
        reason = f"too few requests to tell: {course.counted} of {MANY}"
    else:
        reason = _waiting(course.waits, course.service) or _crowding(course)
        growing = bool(reason) and kind != "trace"  # which has ups and downs of its own
        reason = reason or _short(course)
    return {"reached": not reason, "reason": reason, "growing": growing}


def _waiting(means: Floats, service: float) -> str:
    """Why the waits of an open stream are not steady."""
    half = BATCHES // 2
    early, late = means[:half], means[half:]
    growth = float(late.mean() - early.mean())
    # the spread within halves: a queue that grows makes that of all batches large
    spread = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    if growth > max(_MATERIAL * service, 0.0) and (
        growth > _SIGNIFICANT * spread or bool((np.diff(means) > 0).all())
    ):
        return (
            "requests come faster than they are served: those of the second half wait"
            f" {_time(late.mean())} on average, those of the first {_time(early.mean())}"
        )
    return ""


def _crowding(course: Course) -> str:
    """Why the number of requests in a service that has had the time to fill up is not steady."""
    if not course.third:
        return ""  # too short to tell
    means = course.inside.reshape(_PARTS, -1).mean(axis=1)
    early, late = means[: _PARTS // 3], means[-_PARTS // 3 :]
    growth = float(late.mean() - early.mean())
    spread = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / len(early))
    # that of requests which have nothing to do with each other, who stay for `stay` each
    chance = math.sqrt(2.0 * float(means.mean()) * min(1.0, 2.0 * course.stay / course.third))
    if growth > max(_GROWTH * float(means.mean()), _SIGNIFICANT * max(spread, chance)):
        return (
            f"requests come faster than they are served: {late.mean():.4g} are in the service in"
            f" the last third, {early.mean():.4g} in the first"
        )
    return ""


def _short(course: Course) -> str:
    """Why a stream is too short to show a steady state, or that more come than are served."""
    span, service = course.span, course.service
    if span >= _SERVICES * service:
        return ""
    told = ""
    if span:
        enough = f"{course.counted * _SERVICES * service / span:.2g}"
        told = f"; about {float(enough):,.0f} requests show whether the service keeps up at all"
    return (
        f"requests come for {_time(span)} and take {_time(service)} each: the start and the end,"
        f" when the service is emptier, count too much{told}"
    )


def _time(seconds: float) -> str:
    return format_quantity(seconds, Dimension.TIME)


def setting_of(plan: ServicePlan) -> Setting:
    """The setting of a service; a line of engines has the first word of their names."""
    return Setting(
        {
            "engine": (plan.engine.name, plan.engine.name.partition("-")[0]),
            "accelerator": chip_names(plan.cluster.accelerator),
            "format": format_names(plan.weights),
            "model": ("experts" if plan.model.moe is not None else "dense",),
            "arrival": (plan.workload.arrival,),
        },
        plan.tp * plan.pp,
    )


def of_request(setting: Setting, ttft: float, e2e: float) -> Setting:
    """The setting of a whole request, with the shares of TTFT and of the other tokens in it."""
    first = min(1.0, ttft / e2e)
    return structs.replace(setting, shares={"ttft": first, "tpot": 1.0 - first})


def request_interval(setting: Setting, e2e: float) -> Interval:
    """The interval of E2E, a sum of TTFT and of the other tokens, each at TPOT.

    Errors of the two do not go together (correlation -0.01 of 552 measured services): logarithms
    of their ends add in squares, by their shares of it.
    """
    parts = {name: residuals(name).interval(1.0, setting) for name in setting.shares}
    logs = [s * np.log([parts[name].low, parts[name].high]) for name, s in setting.shares.items()]
    low, high = (e2e * np.exp(np.hypot(*logs) * [-1.0, 1.0])).tolist()
    return Interval(low, high, parts["tpot"].basis)


def intervals(setting: Setting, figures: Figures) -> Figures:
    """Ranges that hold what would be measured: ``[low, high]`` of the mean of each latency that is
    predicted, and of the throughput where the service decides it; ``level`` and ``basis``.
    """
    ranges: dict[str, Interval] = {}
    ttft, tpot, e2e = ((figures[name] or {}).get("mean") for name in ("ttft_s", "tpot_s", "e2e_s"))
    for name, mean in (("ttft", ttft), ("tpot", tpot)):
        if mean:
            ranges[f"{name}_s"] = residuals(name).interval(mean, setting)
    if ttft and e2e:
        ranges["e2e_s"] = request_interval(of_request(setting, ttft, e2e), e2e)
    if setting.labels["arrival"][0] in _PUSHED:
        for name in ("output_tokens_per_s", "output_tokens_per_s_per_accelerator"):
            if figures[name]:
                ranges[name] = residuals("throughput").interval(figures[name], setting)
    return {
        **{name: interval.to_json() for name, interval in ranges.items()},
        "level": LEVEL,
        "basis": next((interval.basis for interval in ranges.values()), ""),
    }
