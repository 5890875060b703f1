"""The largest rate at which a service keeps its limits: bisection with the same requests at every rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.bounds import bound_service
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.result import serve_requests

__all__ = ["LargestRate", "largest_rate", "require_stream", "saturation"]

_LEAST = 1.0 / 1024  # of the rate of the workload, below which nothing is tried
_MOST = 1e6  # times that rate, above which nothing is
_BELOW = 0.7  # of what a service can serve at most, where the search begins


@dataclasses.dataclass(frozen=True, slots=True)
class LargestRate:
    """Largest rate within limits.

    Parameters
    ----------
    rate : float
        Largest one that was simulated and kept the limits [1/s]; 0 if none did.
    above : float
        Smallest one that was simulated and did not [1/s].
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


def saturation(plan: ServicePlan, requests: Requests) -> float:
    """Requests a second that no service can exceed for long, by its closed form: all requests over the least time that they keep it busy."""
    closed = dataclasses.replace(requests, arrival=np.zeros(len(requests)))
    return len(requests) / bound_service(plan, closed).duration


def largest_rate(
    scenario: Scenario,
    plan: ServicePlan,
    requests: Requests,
    *,
    steps: int = 5,
    at_least: float = 0.0,
) -> LargestRate:
    """Find the largest rate at which the share of the requests that was promised keeps every limit.

    Parameters
    ----------
    plan : ServicePlan
        Its workload has a rate.
    requests : Requests
        Served at every rate: their gaps are stretched, their lengths and their order stay.
    steps : int
        Halvings of the interval, once it is found to a factor of two.
    at_least : float
        Give up, with a rate of 0, where the limits are not kept at this one [1/s].

    Raises
    ------
    ScenarioError
        If the workload has no rate, or there are no limits.
    """
    require_stream(plan.workload, plan.slo)
    base = len(requests) / max(float(requests.arrival.max(initial=0.0)), 1e-9)
    known: dict[float, Mapping[str, Any]] = {}

    def keeps(factor: float) -> bool:
        stretched = dataclasses.replace(requests, arrival=requests.arrival / factor)
        known[factor] = serve_requests(scenario, plan, stretched).summary
        return bool(known[factor]["slo"]["met"])

    if at_least and not keeps(at_least / base):
        return LargestRate(0.0, at_least, known[at_least / base])
    low, high = 0.0, _BELOW * saturation(plan, requests) / base
    while keeps(high):
        low, high = high, 2.0 * high
        if high > _MOST:  # all at once keeps them, too
            return LargestRate(low * base, float("inf"), known[low])
    while not low and high > _LEAST:
        if keeps(high / 2.0):
            low = high / 2.0
        else:
            high /= 2.0
    if not low:
        return LargestRate(0.0, high * base, known[high])
    for _ in range(steps):
        middle = float(np.sqrt(low * high))
        if keeps(middle):
            low = middle
        else:
            high = middle
    return LargestRate(low * base, high * base, known[low])
