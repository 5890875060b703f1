"""Laws of services of every kind: folding is a matter of speed, equal seeds give equal bytes, more instances do no harm."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mpsim
from mpsim.scenario import Scenario
from mpsim.serving.batching import Engine

LOAD = {
    "rate": 25.0,
    "requests": 120,
    "prompt": {"kind": "lognormal", "tokens": 500, "spread": 0.8},
    "output": {"kind": "lognormal", "tokens": 80, "spread": 0.6},
}
KINDS = {
    "plain": {"replicas": 2},
    "least-load": {"replicas": 3, "routing": "least-load"},
    "closed": {
        "replicas": 2,
        "workload": {**LOAD, "arrival": "closed", "rate": None, "concurrency": 12},
    },
    "small cache": {"replicas": 1, "kv_blocks": 600},
    "drafts": {"replicas": 2, "speculation": {"tokens": 3, "acceptance": 0.6, "draft": "n-gram"}},
    "pools": {"disaggregated": {"prefill": {"tp": 1, "replicas": 2}, "decode": {"tp": 2}}},
    "full pool": {
        "disaggregated": {
            "prefill": {"tp": 1, "kv_blocks": 900},
            "decode": {"tp": 2, "kv_blocks": 700},
            "first_token": "decode",
        }
    },
}


def _scenario(kind, preset="vllm-v1", **more):
    serving = {"workload": LOAD, **KINDS[kind], "engine": {"preset": preset, "block": 16}}
    serving["workload"] = {k: v for k, v in serving["workload"].items() if v is not None}
    return Scenario.from_mapping(
        {
            "schema": 1,
            "name": kind,
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "serving": serving,
            **more,
        }
    )


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang"])
@pytest.mark.parametrize("kind", KINDS)
def test_folding_iterations_changes_no_time(kind, preset, monkeypatch):
    """Iterations passed at once end when they end one after the other, whatever is handed over, drafted or preempted meanwhile."""
    folded = mpsim.simulate(_scenario(kind, preset)).served
    monkeypatch.setattr(Engine, "steady", lambda self: 0)
    single = mpsim.simulate(_scenario(kind, preset)).served
    assert len(single.steps["start"]) > len(folded.steps["start"])
    assert folded.last == pytest.approx(single.last, rel=1e-9)
    assert folded.first == pytest.approx(single.first, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_bytes(kind):
    first, again, other = (
        mpsim.simulate(_scenario(kind).with_values({"simulation.seed": seed})).to_json()
        for seed in (4, 4, 5)
    )
    assert first == again
    assert json.loads(first)["ttft_s"] != json.loads(other)["ttft_s"]


def test_an_outage_folds_too(monkeypatch):
    """What is cut by a failure is cut at the end of the iteration under way, folded or not."""
    trouble = {"variation": {"outages": [{"node": 0, "at": "1 s", "duration": "1 s"}]}}
    folded = mpsim.simulate(_scenario("plain", **trouble)).served
    monkeypatch.setattr(Engine, "steady", lambda self: 0)
    single = mpsim.simulate(_scenario("plain", **trouble)).served
    assert folded.last == pytest.approx(single.last, rel=1e-9)
    assert folded.moved == single.moved > 0


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x"])
def test_more_instances_never_lower_goodput(preset):
    """One, two, four and eight instances: no fewer requests within the limits, no longer a run."""
    goodput, ends = [], []
    for replicas in (1, 2, 4, 8):
        scenario = _scenario("plain", preset).with_values(
            {
                "serving.replicas": replicas,
                "serving.workload.rate": 60.0,
                "serving.slo": {"ttft": "300 ms", "tpot": "15 ms"},
            }
        )
        summary = mpsim.simulate(scenario).summary
        goodput.append(summary["goodput_per_s"])
        ends.append(summary["duration_s"])
    assert goodput == sorted(goodput)
    assert np.all(np.diff(ends) <= 1e-9)
