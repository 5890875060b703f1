"""Jumps of pipeline stages: iterations passed without a decision are those that are decided one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.scenario import Scenario
from mpsim.serving import service
from mpsim.serving.planning import make_service
from mpsim.serving.result import serve_requests

CASES = {
    "open": {"workload": {"rate": 6, "requests": 120}},
    "least load": {"workload": {"rate": 8, "requests": 80}, "routing": "least-load", "replicas": 2},
    "closed": {"workload": {"arrival": "closed", "concurrency": 12, "requests": 80}},
    "little cache": {"workload": {"rate": 30, "requests": 80}, "kv_blocks": 1600},
    "prefixes": {
        "workload": {"rate": 9, "requests": 80, "shared_prefix": 256, "prefix_groups": 3},
        "routing": "prefix-aware",
        "replicas": 2,
    },
    "drafts": {
        "workload": {"rate": 5, "requests": 60},
        "speculation": {"tokens": 2, "acceptance": 0.6},
    },
    "sglang": {"workload": {"rate": 9, "requests": 90}, "engine": "sglang"},
    "outage": {"workload": {"rate": 9, "requests": 90}, "replicas": 2},
    "outage of sglang": {
        "workload": {"rate": 9, "requests": 90},
        "replicas": 2,
        "engine": "sglang",
    },
    "pools": {
        "workload": {"rate": 6, "requests": 60},
        "disaggregated": {"prefill": {"pp": 2}, "decode": {"pp": 4}},
    },
}


def served(case):
    serving = CASES[case]
    lengths = {
        "prompt": {"kind": "lognormal", "tokens": 500, "spread": 1.0},
        "output": {"kind": "lognormal", "tokens": 120, "spread": 1.0},
    }
    serving = {**serving, "workload": {**lengths, **serving["workload"]}}
    data = {"schema": 1, "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 2}}
    if case != "pools":
        data["parallelism"] = {"tp": 2, "pp": 4}
        serving.setdefault("replicas", 1)
    if case.startswith("outage"):
        data["variation"] = {"outages": [{"node": 0, "at": "2 s", "duration": "3 s"}]}
    scenario = Scenario.from_mapping({**data, "serving": serving})
    plan = make_service(scenario)
    return serve_requests(scenario, plan, plan.requests())


@pytest.mark.parametrize("case", CASES)
def test_jumps_change_no_time(case, monkeypatch):
    """Every request starts, gives its first and its last token as it does when each iteration is decided."""
    jumped = served(case)
    monkeypatch.setattr(service, "AHEAD", 0)
    stepped = served(case)
    for name in ("started", "first", "last"):
        pair = getattr(jumped.served, name), getattr(stepped.served, name)
        np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-9)
    totals = [
        (r.served.steps["count"].sum(), r.served.preemptions, r.served.moved)
        for r in (jumped, stepped)
    ]
    assert totals[0] == totals[1]
    assert len(jumped.served.steps["count"]) < len(stepped.served.steps["count"])
    for part, seconds in stepped.breakdown.items():
        assert jumped.breakdown[part] == pytest.approx(
            seconds, rel=1e-6, abs=2e-3 * stepped.served.end
        )
