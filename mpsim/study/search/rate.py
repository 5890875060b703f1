"""Rates that a service sustains: the largest rate at which it keeps its limits, or the fewest
instances that keep them at a stated rate.

Every rate is judged by the same requests, their gaps stretched, without those that fill the service
and those that see it drain. Short streams bound what a service can do: a rate that misses the
limits there, by all that the interval of the share holds, is out. Long ones confirm the answer, as
a short stream ends before an overload shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mpsim import structs
from mpsim.errors import Problem, ScenarioError
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.bounds import bound_service
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.result import ServiceResult, serve_requests
from mpsim.serving.stream import draw_requests
from mpsim.serving.tally import latencies
from mpsim.study.search.given import defaults

_BELOW = 0.7  # of what a service can serve at most, where the search begins
_LEAST = 1.0 / 4096  # of that, below which nothing is tried
_FILLING = 3.0  # times in the service that a stream takes to fill it
_DRAINING = 1.0  # such times before its end
# half-widths of an 80 % interval to that of a 95 % one: Student's with nine degrees of freedom
_DOUBT = 1.64
_TRIES = 6  # to find how long requests stay
_DRAWN = 1 << 15  # requests that are drawn at once
_WIDEST = 1.04  # interval of a confirmed rate, highest over lowest
_BOUNDED = 1.1  # of one that short streams bound
_OPEN = ("poisson", "gamma", "trace")  # arrivals that have a rate
_BACK = 1.02  # of a rate that only the longest stream refuses
_STEP = 1.12  # of the first look beside a guess


@structs.dataclass(frozen=True, slots=True)
class Rate:
    """Largest rate within limits, as far as it is known."""

    # largest rate that kept the limits, or did not surely miss them [1/s]; or 0
    rate: float
    above: float  # smallest one that did not, or that no service can reach [1/s]
    summary: Figures  # of the service at `rate`; at `above` if none kept them
    confirmed: bool = True  # whether `rate` is kept, and `above` is not, by long streams


def has_stream(workload: Workload, slo: ServiceLevel) -> bool:
    """Whether requests come at a rate, and there are limits that could break."""
    limited = slo.ttft is not None or slo.tpot is not None
    return limited and workload.arrival in _OPEN


def require_stream(scenario: Scenario) -> None:
    """Refuse a workload without a rate, or without limits that could break: a ScenarioError."""
    load, slo, problems = scenario.service.workload, scenario.service.slo, []
    ask = "to search for a rate, or for the fewest gpus"
    if load.arrival not in _OPEN:
        text = f"got {load.arrival}, which has no rate; needed poisson, gamma or trace {ask}"
        problems.append(Problem(text, key="serving.workload.arrival"))
    if load.turns > 1:
        text = f"got {load.turns}, whose requests wait for answers; needed 1 {ask}"
        text += ": ask for --objective goodput, cost or throughput"
        problems.append(Problem(text, key="serving.workload.turns"))
    if slo.ttft is None and slo.tpot is None:
        text = f"got no limits; needed ttft or tpot {ask}"
        problems.append(Problem(text, key="serving.slo"))
    if problems:
        raise ScenarioError(scenario.locate(problems))


class Streams:
    """The requests of a plan's workload at any rate: the same ones, their gaps stretched.

    A trace is repeated as a whole until it is long enough, each time with prefixes of its own.
    """

    def __init__(self, plan: ServicePlan) -> None:
        free = {"requests": None, "duration": None, "warmup": None}
        self._workload = plan.workload.model_copy(update=free)
        self._seed, self._folder = plan.seed, plan.folder
        self._drawn = self._once = self._draw(_DRAWN)
        self._trace = plan.workload.trace is not None
        span = max(float(self._once.arrival[-1]), 1e-9)
        self.rate = self._workload.rate or len(self._once) / span
        """As the workload has it [1/s]."""
        self.sample = self.first(_DRAWN if not self._trace else len(self._once), self.rate)
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
        return structs.replace(chosen, arrival=chosen.arrival * (self.rate / rate))

    def _draw(self, count: int) -> Requests:
        return draw_requests(self._workload, seed=self._seed, folder=self._folder, count=count)


def saturation(plan: ServicePlan, streams: Streams) -> float:
    """Requests a second that no service exceeds for long: over the least time they keep it busy."""
    return len(streams.sample) / bound_service(plan, streams.sample).busy


@structs.dataclass(eq=False)
class Judge:
    """A service before streams of several rates and lengths."""

    scenario: Scenario
    plan: ServicePlan
    streams: Streams

    def __post_init__(self) -> None:
        self._stay = 0.0  # mean time in the service of the last stream that kept the limits [s]
        usual = defaults("serving")
        self._least, self._times = float(usual["rate_requests"]), float(usual["rate_stays"])
        self._longer = float(usual["rate_confirmed"])
        self._final = float(usual["rate_final"])

    def judged(self, rate: float, times: float = 1.0) -> Figures:
        """The summary at a rate without filling and draining, of a longer stream.

        The stream is drawn anew, longer, where requests stay longer than it was made for.
        """
        for _ in range(_TRIES):
            own = max(self._least, self._times * rate * self._stay)
            count = math.ceil(times * own + (_FILLING + _DRAINING) * rate * self._stay)
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
        plan = structs.replace(self.plan, workload=workload)
        return structs.replace(result, plan=plan, until=until), stay

    def confirmed(self, rate: float, *, final: bool = False) -> Figures | None:
        """The summary of a long stream; None unless it keeps the limits in a steady state, by all
        that the interval of the share holds.

        Bursts near saturation are rare: the final answer has a longer stream still.
        """
        for times in (self._final,) if final else (self._longer, self._final):
            summary = self.judged(rate, times)
            share, low = summary["requests_within_slo"], summary["requests_within_slo_interval"][0]
            sure = share - _DOUBT * (share - low) >= self.plan.slo.share
            steady = summary["steady_state"]["reached"] or self.plan.workload.trace is not None
            if summary["slo"]["met"] and sure and steady:
                return summary
            if not summary["slo"]["met"]:
                return None
        return None

    def fails(self, summary: Figures) -> bool:
        """Whether the limits are missed, by all that the interval of the share holds."""
        share, (_, high) = summary["requests_within_slo"], summary["requests_within_slo_interval"]
        sure = share + _DOUBT * (high - share) < self.plan.slo.share
        return bool(summary["steady_state"]["growing"] or sure)


def bounded_rate(
    judge: Judge, most: float, *, share: float = _BELOW, at_least: float = 0.0
) -> Rate:
    """Bound the largest rate by short streams.

    `most`: no service is faster [1/s]. `share`: of that, where to look first. `at_least`: a service
    that misses the limits at this rate is looked at no further [1/s].
    """
    low, high, step = 0.0, most, _STEP
    refused = False  # whether `high` was tried: `most` itself may be
    summary: Figures = {}
    rate = at_least or share * most
    while high > _BOUNDED * low and high >= _LEAST * most:
        judged = judge.judged(rate)
        if judge.fails(judged):
            high, summary, refused = rate, summary if low else judged, True
            if rate == at_least:
                break
        else:
            low, summary = rate, judged
        if low and refused:
            rate = math.sqrt(low * high)
        elif low:  # the guess was low: up, in growing steps
            rate, step = min(max(low * step, share * most), most), step**1.5
        else:
            rate, step = high / step, step**1.5
    return Rate(low, high, summary, confirmed=False)


def confirmed_rate(judge: Judge, bound: Rate, most: float, at_least: float = 0.0) -> Rate:
    """The largest rate by long streams, where short ones bound it. `at_least`: a service that
    misses the limits at this rate is looked at no further, and its bound is lowered to it [1/s].
    """
    low, high = bound.rate or bound.above / _STEP, bound.above
    if at_least:
        best = judge.confirmed(at_least)
        if best is None:
            rate = min(bound.rate, at_least)
            return structs.replace(bound, rate=rate, above=at_least)
        low = at_least
    else:
        best = judge.confirmed(low)
    step = min(_STEP, high / low) if high > low else _STEP
    while best is not None and high < most:  # up, as far as the limits are kept
        above = judge.confirmed(high)
        if above is None:
            break
        low, high, best = high, min(high * step, most), above
    while best is None:  # down, in growing steps, until they are
        low, high, step = low / step, low, step**1.5
        if high < _LEAST * most:
            return Rate(0.0, high, judge.judged(high))
        best = judge.confirmed(low)
    while high > _WIDEST * low:
        middle = math.sqrt(low * high)
        between = judge.confirmed(middle)
        if between is None:
            high = middle
        else:
            low, best = middle, between
    while (best := judge.confirmed(low, final=True)) is None:
        low, high = low / _BACK, low
        if low < _LEAST * most:
            return Rate(0.0, high, judge.judged(high))
    return Rate(low, high, best)


def fewest(counts: Sequence[int], misses: Callable[[int], bool]) -> int | None:
    """The least of ascending `counts` of instances that keeps the limits; None if none does."""
    low, high, step = -1, 0, 1
    while high < len(counts) and misses(counts[high]):
        if high == len(counts) - 1:
            return None
        low, high, step = high, min(high + step, len(counts) - 1), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if misses(counts[middle]) else (low, middle)
    return counts[high] if counts else None
