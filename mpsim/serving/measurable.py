"""Figures of a service as people measure them: latencies and throughput of a plan, and points that were measured of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpsim.serving.plan import ServicePlan
from mpsim.serving.result import serve_workload
from mpsim.serving.summary import latencies, window_of

__all__ = ["ServedPoint", "measurable"]

_TAIL = 99


@dataclasses.dataclass(frozen=True, slots=True)
class ServedPoint:
    """A service of which something was measured.

    Parameters
    ----------
    measured : mapping of str to float
        As `measurable` names them, in its units; all above 0.
    """

    id: str
    plan: ServicePlan
    measured: Mapping[str, float]


def measurable(plan: ServicePlan) -> dict[str, float]:
    """Serve the requests of a plan as `run_service` does: ``ttft``, ``tpot``, ``e2e``, their means and ``_p99`` [s], ``throughput`` [output tokens/s].

    Of a static batch E2E is the time until all of it has ended: such tables print it so.

    Raises
    ------
    ScenarioError
        If the service cannot hold its weights, or a request.
    """
    requests, served = serve_workload(plan)
    times = latencies(served, requests, plan.first_token_time)
    window = window_of(plan, requests, served)
    times = {name: each[window.counted] for name, each in times.items()}
    static = plan.engine.scheduler == "static"
    tpot, tpot_tail = _tpot(times["tpot"])
    return {
        "ttft": float(np.nanmean(times["ttft"])),
        "tpot": tpot,
        "e2e": served.end if static else float(np.nanmean(times["e2e"])),
        "throughput": float(window.output / window.seconds),
        "ttft_p99": float(np.nanpercentile(times["ttft"], _TAIL)),
        "tpot_p99": tpot_tail,
    }


def _tpot(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and 99th percentile of the requests that gave more than one token."""
    several = values[~np.isnan(values)]
    if not len(several):
        return 0.0, 0.0
    return float(several.mean()), float(np.percentile(several, _TAIL))
