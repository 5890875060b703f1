"""The bars of serving, each a ratio to simpy itself: ``pytest tests/benchmarks/test_serving_bars.py --benchmark-only``.

The unit is **bare**: processor time of one ``yield env.timeout(1)`` in one simpy process, measured in the same run. On a core on which it takes 0.65 us, 1e5 decoding iterations a
second are 15 bare each, 1e6 requests in a minute 92 each, and 1.5 s are 2.3 million.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

import mpsim
from mpsim.hardware import build_cluster
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.service import Service
from mpsim.serving.stream import draw_requests
from mpsim.workload import model
from tests.benchmarks.timing import best

pytestmark = [
    pytest.mark.benchmark(group="serving bars"),
    pytest.mark.usefixtures("heap_of_a_user"),
]

_REQUESTS = 20_000


def _plan() -> ServicePlan:
    """Eight replicas of an 8-billion-parameter model on one node."""
    return ServicePlan(
        name="bar",
        model=model("llama3-8b"),
        cluster=build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=1),
        engine=engine("vllm-v1"),
        workload=Workload(rate=1.0),
        slo=ServiceLevel(),
        replicas=8,
    )


def test_decoding_iterations(clear, bare):
    """One replica, 64 users, outputs of 256 to 512 tokens: bare timeouts a decoding iteration, those of jumps counted."""
    loop = Workload(arrival="closed", concurrency=64)
    plan = dataclasses.replace(_plan(), replicas=1, workload=loop)
    output = LengthChoice(kind="uniform", tokens=512, shortest=0.5)
    requests = draw_requests(Workload(rate=1.0, requests=640, output=output), seed=0)
    served = []

    def run() -> None:
        served.append(Service(requests, plan).run())

    seconds = best(run, rounds=5)
    steps = served[0].steps
    iterations = float(steps["count"][steps["decodes"] > 0].sum())
    clear(seconds / iterations / bare, at_most=15)


def test_requests_of_a_trace_on_eight_replicas(clear, bare, tmp_path):
    """From the file of a trace at 60 requests/s to the figures: bare timeouts a request."""
    random = np.random.default_rng(0)
    columns = (
        np.cumsum(random.exponential(1 / 60, _REQUESTS)),
        np.maximum(1, random.lognormal(np.log(1000), 0.8, _REQUESTS)).astype(int),
        np.maximum(1, random.lognormal(np.log(200), 0.8, _REQUESTS)).astype(int),
    )
    rows = "".join(f"{at:.6f},{p},{o}\n" for at, p, o in zip(*columns, strict=True))
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    (tmp_path / "served.yaml").write_text(_SCENARIO)
    scenario = mpsim.load(tmp_path / "served.yaml")
    seconds = best(lambda: mpsim.simulate(scenario).to_json(), rounds=3)
    clear(seconds / _REQUESTS / bare, at_most=92)


_SCENARIO = """
schema: 1
name: bar
model: llama3-8b
cluster: {preset: dgx-h100, nodes: 1}
parallelism: {tp: 1}
serving:
  engine: vllm-v1
  workload: {arrival: trace, trace: trace.csv}
"""


def test_cold_run_of_a_thousand_requests(clear, bare, scenarios):
    """A new interpreter that serves 1,000 requests: processor time in millions of bare timeouts."""
    command = [
        sys.executable,
        "-m",
        "mpsim",
        "run",
        str(scenarios / "serving/llama3-70b-h100.yaml"),
    ]
    times = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    clear(min(times) / bare / 1e6, at_most=2.3)
