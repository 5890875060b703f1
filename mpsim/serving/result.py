"""The result of serving: what a service did with a stream of requests, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mpsim import accessors, archive, structs
from mpsim.errors import ScenarioError
from mpsim.frame import to_frame
from mpsim.result.result import JobResult, Pictures
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.scenario.extent import is_long, refuse_large_scenario
from mpsim.serving.confidence import intervals, setting_of
from mpsim.serving.front_end import Progress
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.requests import TIMES, Requests, Served
from mpsim.serving.service import Service
from mpsim.serving.sessions import as_they_came
from mpsim.serving.stream import Stream
from mpsim.serving.summary import figures_of
from mpsim.serving.tally import Folded, Tally, tally_of
from mpsim.serving.words import service_sheet
from mpsim.table import Sheet

if TYPE_CHECKING:
    import pandas as pd

_TAIL = 0.99


@structs.dataclass(frozen=True, eq=False, repr=False)
class ServiceResult(JobResult):
    """One simulated service."""

    kind: ClassVar = "serving"
    plan: ServicePlan
    requests: Requests
    served: Served
    until: float | None = None  # requests that came later count for no figure [s]
    folded: Folded | None = None
    """Sums and sketches of a stream of which neither requests nor iterations were kept."""

    def _figures(self) -> Figures:
        until = self.requests.until if self.until is None else self.until
        kept = (self.plan, self.requests, self.served, until)
        figures = figures_of(self.plan, self.served, self.folded or tally_of(*kept))
        return {
            "scenario": self.scenario.name,
            "job": self.kind,
            "engine": self.plan.engine.name,
            **figures,
            **self.scenario.told,
            "interval": intervals(setting_of(self.plan), figures),
        }

    @property
    def breakdown(self) -> dict[str, float]:
        """Mean time over accelerators by part; sums to the duration [s]."""
        parts: dict[str, float] = self.summary["account_s"]
        return parts

    @property
    def plot(self) -> Pictures:
        """Pictures of the service; see `mpsim.plot.ServicePlots`."""
        pictures: Pictures = accessors.call("service.plot", self)
        return pictures

    def write_trace(self, path: str | Path) -> None:
        """Write a trace that Perfetto opens; gzipped when `path` ends in ``.gz``."""
        self.require_requests("a trace shows")
        accessors.call("service.write_trace", self, path)

    def require_requests(self, what: str) -> None:
        """Refuse what needs every request, of a stream that keeps none."""
        if self.folded is not None:
            raise ScenarioError(
                f"{what} every request, and of a stream of {self.summary['requests']:,} none is"
                " kept; needed serving.workload.requests below 200,000"
            )

    def _parts(self) -> dict[str, object]:
        self.require_requests("an archive holds")
        return {"kind": self.kind, "requests": self.requests, "served": self.served}

    @classmethod
    def _fields(cls, saved: archive.Archive, scenario: Scenario) -> dict[str, object]:
        return {
            # which follows from the scenario, and its prices are worked out when somebody asks
            "plan": make_service(scenario),
            "requests": saved.part("requests", Requests),
            "served": saved.part("served", Served),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row a request: tokens, and when it arrived, was started, had its first and its last
        token [s].

        Raises MissingExtraError: if pandas is not installed.
        """
        self.require_requests("a table has")
        served = self.served
        return to_frame(
            {
                "prompt_tokens": self.requests.prompt,
                "output_tokens": self.requests.output,
                "arrival_s": served.arrival,
                "started_s": served.started,
                "first_token_s": served.first,
                "last_token_s": served.last,
            }
        )

    def sheet(self) -> Sheet:
        """The figures of the service with units, as ``mpsim run`` prints them."""
        return service_sheet(self.summary)


def run_service(
    scenario: Scenario, plan: ServicePlan, *, progress: Progress = lambda *_: None
) -> ServiceResult:
    """Serve a plan's workload. ScenarioError if it cannot hold its weights, or a request."""
    if is_long(plan.workload) and plan.prefill is None:
        stream = Stream(plan.workload, plan.seed)
        whole, prompt = stream.longest, stream.longest_prompt
        plan.require(Requests(np.zeros(1), np.array([prompt]), np.array([whole - prompt])))
        folded = Folded(plan, stream)
        served = Service(stream, plan, folded=folded, progress=progress).run()
        folded.finish(served.end)
        return ServiceResult(scenario, plan, Requests(*np.zeros((3, 0))), served, folded=folded)
    requests = plan.requests()
    refuse_large_scenario(scenario, len(requests))  # nobody knew how many a trace has
    progress(0, len(requests))
    requests, served = _serve_workload(plan, requests, progress)
    return ServiceResult(scenario, plan, requests, served)


def serve_requests(scenario: Scenario, plan: ServicePlan, requests: Requests) -> ServiceResult:
    """Serve requests drawn before. ScenarioError if weights, or a request, do not fit."""
    plan.require(requests)
    return ServiceResult(scenario, plan, *as_they_came(requests, Service(requests, plan).run()))


def _serve_workload(
    plan: ServicePlan, requests: Requests, progress: Progress = lambda *_: None
) -> tuple[Requests, Served]:
    """Serve a workload; a closed loop with a duration draws twice as many until they suffice."""
    workload = plan.workload
    served = Service(requests, plan, progress=progress).run()
    if workload.concurrency is None or workload.duration is None:
        return as_they_came(requests, served)
    ended = int((served.last + plan.first_token_time < workload.duration).sum())
    wanted = workload.concurrency + ended
    if wanted > len(requests):
        return _serve_workload(plan, plan.requests(2 * len(requests)), progress)
    sent = int(np.isfinite(served.arrival).sum())
    # the others were never sent
    times = {name: getattr(served, name)[:sent] for name in TIMES}
    return requests.first(sent), structs.replace(served, **times)


@structs.dataclass(frozen=True, slots=True)
class ServedPoint:
    """A service of which something was measured."""

    id: str
    plan: ServicePlan
    measured: Mapping[str, float]  # as `measurable` names them, in its units; all above 0


def measurable(plan: ServicePlan) -> dict[str, float]:
    """Serve the requests of a plan as `run_service` does: ``ttft``, ``tpot``, ``e2e``, their means
    and ``_p99`` [s], ``throughput`` [output tokens/s].

    Of a static batch E2E is the time until all of it has ended: such tables print it so.
    ScenarioError if the service cannot hold its weights, or a request, or if none counts.
    """
    requests, served = _serve_workload(plan, plan.requests())
    tally = Tally(plan)
    tally.add(requests, served)
    if not tally.count:
        what = f"got a warm-up of {tally.since:g} s, and no request came after it"
        raise ScenarioError(f"{what}; needed one that ends before {served.end:.3g} s")
    ttft, tpot, e2e = (tally.spreads[name] for name in ("ttft", "tpot", "e2e"))
    static = plan.policy.together
    return {
        "ttft": ttft.mean,
        "tpot": tpot.mean if tpot.count else 0.0,  # of requests that gave more than one token
        "e2e": served.end if static else e2e.mean,
        "throughput": float(tally.output / tally.seconds),
        "ttft_p99": ttft.quantile(_TAIL),
        "tpot_p99": tpot.quantile(_TAIL) if tpot.count else 0.0,
    }
