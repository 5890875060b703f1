"""Figures of a service as people measure them: latencies and throughput of a plan, and points that were measured of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpsim.serving.plan import ServicePlan
from mpsim.serving.service import serve
from mpsim.serving.stream import draw_requests
from mpsim.serving.summary import latencies

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
    """Serve the requests of a plan: ``ttft``, ``tpot``, ``e2e``, their means and ``_p99`` [s], ``throughput`` [output tokens/s].

    Of a static batch E2E is the time until all of it has ended, and nothing comes on top: such tables print it so.

    Raises
    ------
    ScenarioError
        If the service cannot hold its weights, or a request.
    """
    static = plan.engine.scheduler == "static"
    offset = 0.0 if static else plan.first_token_time
    plan.require()
    requests = draw_requests(plan.workload, seed=plan.seed, folder=Path(plan.folder))
    served = serve(
        requests,
        plan.prices,
        plan.rules,
        blocks=plan.blocks,
        concurrency=plan.workload.concurrency,
        turnaround=offset,
        replicas=plan.replicas,
        handover=plan.handover,
    )
    times = latencies(served, requests, offset)
    done = ~np.isnan(served.last)
    tpot, tpot_tail = _tpot(times["tpot"])
    return {
        "ttft": float(np.nanmean(times["ttft"])),
        "tpot": tpot,
        "e2e": served.end if static else float(np.nanmean(times["e2e"])),
        "throughput": float(requests.output[done].sum() / served.end),
        "ttft_p99": float(np.nanpercentile(times["ttft"], _TAIL)),
        "tpot_p99": tpot_tail,
    }


def _tpot(values: Any) -> tuple[float, float]:
    """Mean and 99th percentile of the requests that gave more than one token."""
    several = values[~np.isnan(values)]
    if not len(several):
        return 0.0, 0.0
    return float(several.mean()), float(np.percentile(several, _TAIL))
