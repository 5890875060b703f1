"""The largest rate at which a service keeps its limits for as long as anybody looks.

Every rate is judged by the same requests, their gaps stretched, without those that fill the service and those that see it drain. The interval is halved on short streams, and
its ends are confirmed on long ones: a short stream ends before an overload shows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.bounds import bound_service
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.result import ServiceResult, serve_requests
from mpsim.serving.stream import draw_requests
from mpsim.serving.summary import latencies
from mpsim.study.search.given import defaults

__all__ = ["LargestRate", "Streams", "largest_rate", "require_stream", "saturation"]

_BELOW = 0.7  # of what a service can serve at most, where the search begins
_LEAST = 1.0 / 4096  # of that, below which nothing is tried
_FILLING = 3.0  # times in the service that a stream takes to fill it
_DRAINING = 1.0  # such times before its end
_DOUBT = 1.64  # half-widths of an 80 % interval to that of a 95 % one: Student's with nine degrees of freedom
_TRIES = 6  # to find how long requests stay
_DRAWN = 1 << 15  # requests that are drawn at once
_WIDEST = 1.04  # interval of a confirmed rate, highest over lowest


@dataclasses.dataclass(frozen=True, slots=True)
class LargestRate:
    """Largest rate within limits.

    Parameters
    ----------
    rate : float
        Largest one that was simulated and kept the limits [1/s]; 0 if none did.
    above : float
        Smallest one that was simulated and did not, or that no service can reach [1/s].
    summary : mapping of str to object
        Of the service at `rate`; at the least one tried if none kept them.
    """

    rate: float
    above: float
    summary: Mapping[str, Any]


def require_stream(workload: Workload, slo: ServiceLevel) -> None:
    """Refuse a workload without a rate, or without limits that could break.

    Raises
    ------
    ScenarioError
    """
    if workload.arrival not in ("poisson", "gamma", "trace"):
        raise ScenarioError(
            f"got arrival: {workload.arrival}, which has no rate; needed poisson, gamma or trace to search for the largest rate"
        )
    if slo.ttft is None and slo.tpot is None:
        raise ScenarioError(
            "got no limits; needed serving.slo with ttft or tpot to search for the largest rate"
        )


class Streams:
    """The requests of a workload at any rate, as many as are asked for: the same ones, their gaps stretched.

    Parameters
    ----------
    plan : ServicePlan
        Its workload has a rate; how many requests that has, and how long they come, does not count.

    Notes
    -----
    A trace is repeated as a whole until it is long enough, each time with prefixes of its own.
    """

    def __init__(self, plan: ServicePlan) -> None:
        free = {"requests": None, "duration": None, "warmup": None}
        self._workload = plan.workload.model_copy(update=free)
        self._seed, self._folder = plan.seed, plan.folder
        self._drawn = self._once = self._draw(_DRAWN)
        self._trace = plan.workload.trace is not None
        span = max(float(self._once.arrival[-1]), 1e-9)
        self._rate = self._workload.rate or len(self._once) / span
        self.sample = self.first(_DRAWN if not self._trace else len(self._once), self._rate)
        """Requests whose lengths stand for all, to bound what a service can do."""

    def first(self, count: int, rate: float) -> Requests:
        """At least so many requests, at so many a second in the mean [1/s]."""
        if self._trace:
            count = -(-count // len(self._once)) * len(self._once)
        if len(self._drawn) < count:
            self._drawn = (
                self._once.repeated(count // len(self._once))
                if self._trace
                else self._draw(1 << count.bit_length())
            )
        chosen = self._drawn.first(count)
        return dataclasses.replace(chosen, arrival=chosen.arrival * (self._rate / rate))

    def _draw(self, count: int) -> Requests:
        return draw_requests(self._workload, seed=self._seed, folder=self._folder, count=count)


def saturation(plan: ServicePlan, streams: Streams) -> float:
    """Requests a second that no service can exceed for long, by its closed form: requests over the least time that they keep it busy."""
    return len(streams.sample) / bound_service(plan, streams.sample).busy


@dataclasses.dataclass(eq=False)
class _Judge:
    """A service before streams of several rates and lengths."""

    scenario: Scenario
    plan: ServicePlan
    streams: Streams

    def __post_init__(self) -> None:
        self._stay = 0.0  # mean time in the service of the last stream that kept the limits [s]
        usual = defaults("serving")
        self._least, self._times = float(usual["rate_requests"]), float(usual["rate_stays"])
        self._longer = float(usual["rate_confirmed"])

    def judged(self, rate: float, *, confirmed: bool) -> Mapping[str, Any]:
        """The summary at a rate, filling and draining left out; confirmed on a stream ten times as long.

        The stream is drawn anew, longer, where requests stay longer than it was made for.
        """
        for _ in range(_TRIES):
            own = max(self._least, self._times * rate * self._stay)
            measured = self._longer * own if confirmed else own
            count = math.ceil(measured + (_FILLING + _DRAINING) * rate * self._stay)
            result, stay = self._served(rate, count)
            short = self._stay < 0.8 * stay
            if not short or not result.summary["slo"]["met"]:
                break
            self._stay = stay
        return result.summary

    def _served(self, rate: float, count: int) -> tuple[ServiceResult, float]:
        """A stream of so many requests, and how long they stay in the mean [s]."""
        requests = self.streams.first(count, rate)
        result = serve_requests(self.scenario, self.plan, requests)
        times = latencies(result.served, result.requests, self.plan.first_token_time)
        stay, end = float(times["e2e"].mean()), float(requests.arrival[-1])
        if self.plan.workload.trace is not None:  # its own ups and downs count, once each
            return result, stay
        begin = min(_FILLING * max(stay, self._stay), end / 3.0)
        workload = self.plan.workload.model_copy(update={"warmup": begin, "duration": None})
        until = max(end - _DRAINING * stay, 2.0 * end / 3.0)
        plan = dataclasses.replace(self.plan, workload=workload)
        return dataclasses.replace(result, plan=plan, until=until), stay

    def keeps(self, rate: float) -> bool:
        """Whether a short stream keeps the limits."""
        return bool(self.judged(rate, confirmed=False)["slo"]["met"])

    def confirmed(self, rate: float) -> Mapping[str, Any] | None:
        """The summary of a long stream; None unless it keeps the limits in a steady state, by all that the interval of the share holds."""
        summary = self.judged(rate, confirmed=True)
        share, (low, _) = summary["requests_within_slo"], summary["requests_within_slo_interval"]
        sure = share - _DOUBT * (share - low) >= self.plan.slo.share
        steady = summary["steady_state"]["reached"] or self.plan.workload.trace is not None
        return summary if summary["slo"]["met"] and sure and steady else None

    def fails(self, summary: Mapping[str, Any]) -> bool:
        """Whether the limits are missed, by all that the interval of the share holds."""
        share, (_, high) = summary["requests_within_slo"], summary["requests_within_slo_interval"]
        sure = share + _DOUBT * (high - share) < self.plan.slo.share
        return bool(summary["steady_state"]["growing"] or sure)


def largest_rate(
    scenario: Scenario,
    plan: ServicePlan,
    streams: Streams | None = None,
    *,
    steps: int = 5,
    at_least: float = 0.0,
) -> LargestRate:
    """Find the largest rate at which the share of the requests that was promised keeps every limit.

    Parameters
    ----------
    plan : ServicePlan
        Its workload has a rate.
    streams : Streams, optional
        Its requests, if they were drawn before.
    steps : int
        Halvings of the interval on short streams, once it is found to a factor of two.
    at_least : float
        Give up, with a rate of 0, where the limits are not kept at this one [1/s].

    Raises
    ------
    ScenarioError
        If the workload has no rate, or there are no limits.
    """
    require_stream(plan.workload, plan.slo)
    streams = streams or Streams(plan)
    judge, most = _Judge(scenario, plan, streams), saturation(plan, streams)
    if at_least:
        summary = judge.judged(at_least, confirmed=False)
        if judge.fails(summary):
            return LargestRate(0.0, at_least, summary)
    low, high = _BELOW * most, most
    while not judge.keeps(low):
        low, high = low / 2.0, low
        if high < _LEAST * most:
            return LargestRate(0.0, high, judge.judged(high, confirmed=False))
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if judge.keeps(middle):
            low = middle
        else:
            high = middle
    return _confirmed(judge, low, high, most)


def _confirmed(judge: _Judge, low: float, high: float, most: float) -> LargestRate:
    """The largest rate by long streams, where short ones say that it is between two."""
    step = high / low
    best = judge.confirmed(low)
    while best is not None and high < most:  # up, as far as the limits are kept
        above = judge.confirmed(high)
        if above is None:
            return LargestRate(low, high, best)
        low, high, best = high, min(high * step, most), above
    while best is None:  # down, in growing steps, until they are
        low, high, step = low / step, low, step**1.5
        if high < _LEAST * most:
            return LargestRate(0.0, high, judge.judged(high, confirmed=True))
        best = judge.confirmed(low)
    while high > _WIDEST * low:
        middle = math.sqrt(low * high)
        between = judge.confirmed(middle)
        if between is None:
            high = middle
        else:
            low, best = middle, between
    return LargestRate(low, high, best)
