"""Streams of which no request is kept: their figures are those of the same requests kept whole."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.serving import log, result, stream
from mpsim.serving.planning import make_service
from mpsim.serving.requests import Requests
from mpsim.serving.spread import Sketch

CASES = {
    "open": {},
    "warm": {"workload": {"warmup": "60 s"}},
    "closed": {"workload": {"arrival": "closed", "concurrency": 40, "rate": None}},
    "bursts": {"workload": {"arrival": "gamma", "burstiness": 0.4}, "routing": "least-load"},
    "prefixes": {
        "workload": {"shared_prefix": 128, "prefix_groups": 5},
        "routing": "prefix-aware",
        "engine": "sglang",
    },
    "for a while": {"workload": {"requests": None, "duration": "150 s"}},
    "stages": {"parallelism": {"pp": 2}, "replicas": 1},
    "crowded": {"workload": {"rate": 40}, "kv_blocks": 3000},
}


def scenario_of(case):
    change = dict(CASES[case])
    load = {
        "rate": 15.0,
        "requests": 2500,
        "prompt": {"kind": "lognormal", "tokens": 300, "spread": 0.8},
        "output": {"kind": "lognormal", "tokens": 80, "spread": 0.8},
        **change.pop("workload", {}),
    }
    load = {key: value for key, value in load.items() if value is not None}
    base = {"schema": 1, "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 1}}
    parallelism = {"parallelism": change.pop("parallelism")} if "parallelism" in change else {}
    slo = {"ttft": "100 ms", "tpot": "9 ms"}
    serving = {"replicas": 2, "slo": slo, **change, "workload": load}
    return Scenario.from_mapping({**base, **parallelism, "serving": serving})


@pytest.fixture
def short_pages(monkeypatch):
    """Pages small enough for a short stream to have many, which is long already."""
    monkeypatch.setattr(stream, "_PAGE", 50)
    monkeypatch.setattr(log, "_PAGE", 64)
    monkeypatch.setattr(result, "is_long", lambda load: True)


@pytest.mark.parametrize("case", CASES)
def test_a_folded_stream_has_the_figures_of_the_whole(case, short_pages):
    """Sums and means agree to rounding, percentiles within the stated error, the verdict to the word."""
    scenario = scenario_of(case)
    plan = make_service(scenario)
    pages = list(stream.Stream(plan.workload, plan.seed).pages())
    columns = (
        np.concatenate([getattr(p, name) for p in pages])
        for name in ("arrival", "prompt", "output")
    )
    hashes = tuple(units for p in pages for units in p.hashes or ()) or None
    whole = result.serve_requests(scenario, plan, Requests(*columns, hashes, pages[0].unit)).summary
    folded = result.run_service(scenario, plan).summary
    assert folded["requests"] == whole["requests"]
    same = (
        "duration_s",
        "request_rate_per_s",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "goodput_per_s",
    )
    for key in (
        *same,
        "requests_within_slo",
        "energy_j_per_output_token",
        "prefix_hit_share",
        "preemptions",
    ):
        assert folded[key] == pytest.approx(whole[key], rel=1e-9), key
    for part, seconds in whole["account_s"].items():
        # where one page of iterations ends, those of another batch may have begun before
        near = 2e-4 if case == "stages" else 1e-6
        assert folded["account_s"][part] == pytest.approx(
            seconds, rel=1e-6, abs=near * whole["duration_s"]
        ), part
    for key in ("batch", "cache_use"):
        assert folded[key] == pytest.approx(whole[key], rel=1e-9)
    error = 1.05 * folded["percentile_error"]
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s", "itl_s"):
        assert folded[name]["mean"] == pytest.approx(whole[name]["mean"], rel=1e-9)
        for tail in ("p50", "p90", "p99"):
            assert folded[name][tail] == pytest.approx(whole[name][tail], rel=error, abs=2e-7), (
                name,
                tail,
            )
    assert folded["slo"]["met"] == whole["slo"]["met"]
    assert folded["slo"]["binding"] == whole["slo"]["binding"]
    assert folded["steady_state"]["growing"] == whole["steady_state"]["growing"]


def test_a_sketch_is_within_its_error():
    """Every percentile of a million values lies within half a bin of the exact one."""
    values = np.random.default_rng(1).lognormal(-2.0, 1.5, 200_000)
    sketch = Sketch()
    for batch, part in enumerate(np.array_split(values, 10)):
        sketch.add(batch, part)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert sketch.quantile(share) == pytest.approx(
            float(np.quantile(values, share)), rel=0.0052
        )
    assert sketch.mean == pytest.approx(float(values.mean()), rel=1e-12)


def test_what_needs_every_request_is_refused(short_pages):
    """Pictures, traces and tables of a stream that keeps none say so."""
    scenario = scenario_of("open")
    folded = result.run_service(scenario, make_service(scenario))
    with pytest.raises(ScenarioError, match=r"of a stream of 2,500 none is kept"):
        folded.to_pandas()
    with pytest.raises(ScenarioError, match="pictures show every request"):
        folded.plot.batch()


def test_pages_are_the_same_each_time():
    """A stream may be drawn as often as one likes."""
    load = make_service(scenario_of("open")).workload
    drawn = stream.Stream(load, 3)
    first, second = (np.concatenate([p.arrival for p in drawn.pages()]) for _ in range(2))
    assert (first == second).all()
    assert (np.diff(first) >= 0).all()
    assert len(first) == drawn.count == 2500
