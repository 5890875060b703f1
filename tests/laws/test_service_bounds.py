"""Laws of the closed forms that prune a search of services: no simulation is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.scenario import Scenario
from mpsim.serving.bounds import bound_service
from mpsim.serving.planning import make_service
from mpsim.serving.tally import latencies
from tests.nightly import examples

MODELS = ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma2-9b"]
ENGINES = [
    "vllm-v1",
    "sglang",
    "tensorrt-llm-1.x",
    "tensorrt-llm-0.17",
    "fastertransformer",
    "vllm-2023-eager",
]


def _service(model, engine, layout, load, **more):
    tp, pp, replicas = layout
    serving = {
        "engine": {"preset": engine, "max_tokens": 16384},
        "replicas": replicas,
        "workload": {
            "requests": 40,
            "prompt": {"kind": "lognormal", "tokens": 700, "spread": 1.0},
            "output": {"kind": "lognormal", "tokens": 60, "spread": 0.7},
            **load,
        },
        **more,
    }
    data = {
        "schema": 1,
        "name": "bounds",
        "model": model,
        "cluster": {"preset": "dgx-h100", "nodes": 2},
    }
    return Scenario.from_mapping({**data, "parallelism": {"tp": tp, "pp": pp}, "serving": serving})


@settings(max_examples=examples(24, 60), deadline=None)
@given(
    model=st.sampled_from(MODELS),
    engine=st.sampled_from(ENGINES),
    layout=st.sampled_from([(2, 1, 1), (4, 1, 2), (2, 2, 1), (8, 1, 1)]),
    load=st.sampled_from(
        [
            {"rate": 1.0},
            {"rate": 50.0},
            {"arrival": "gamma", "rate": 20.0, "burstiness": 0.3},
            {"arrival": "closed", "concurrency": 4},
            {"arrival": "all-at-once"},
            {"rate": 20.0, "shared_prefix": 512, "prefix_groups": 3},
        ]
    ),
    blocks=st.sampled_from([None, 20_000, 100_000]),
    drafts=st.sampled_from([None, {"tokens": 3, "acceptance": 0.6, "draft": "n-gram"}]),
    seed=st.integers(0, 5),
)
def test_no_simulation_is_better_than_the_closed_form(
    model, engine, layout, load, blocks, drafts, seed
):
    """Whatever model, engine, layout, stream and cache: a run takes no less time, and no request is served faster."""
    more = {"speculation": drafts} if drafts else {}
    scenario = _service(model, engine, layout, load, **more)
    plan = make_service(scenario)
    if blocks is not None:
        scenario = _service(
            model, engine, layout, load, kv_blocks=blocks // plan.engine.block, **more
        )
    result = mpsim.simulate(scenario.with_values({"simulation.seed": seed}))
    bounds = bound_service(result.plan, result.requests)
    times = latencies(result.served, result.requests, result.plan.first_token_time)
    slack = 1 + 1e-9
    assert bounds.duration <= result.served.end * slack
    assert (bounds.ttft <= times["ttft"] * slack).all()
    several = result.requests.output > 1
    assert (bounds.tpot[several] <= times["tpot"][several] * slack).all()


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("rate", [1.0, 80.0])
def test_the_closed_form_bounds_two_pools(first_token, rate):
    pools = {"prefill": {"tp": 2, "replicas": 2}, "decode": {"tp": 4}, "first_token": first_token}
    serving = {
        "disaggregated": pools,
        "workload": {"requests": 60, "rate": rate, "prompt": 900, "output": 50},
    }
    base = {
        "schema": 1,
        "name": "bounds",
        "model": "llama3-8b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
    }
    result = mpsim.simulate(Scenario.from_mapping({**base, "serving": serving}))
    bounds = bound_service(result.plan, result.requests)
    times = latencies(result.served, result.requests, result.plan.first_token_time)
    assert bounds.duration <= result.served.end
    assert (bounds.ttft <= times["ttft"] * (1 + 1e-9)).all()
    assert (bounds.tpot <= times["tpot"] * (1 + 1e-9)).all()


def test_the_closed_form_is_close_where_nothing_waits_and_where_everything_does():
    """A request alone is served as fast as its bound says but for its growing context; a saturated service is within a factor of two."""
    alone = mpsim.simulate(
        _service("llama3-8b", "vllm-v1", (1, 1, 1), {"rate": 0.01, "requests": 5})
    )
    bounds = bound_service(alone.plan, alone.requests)
    times = latencies(alone.served, alone.requests, alone.plan.first_token_time)
    assert times["ttft"] == pytest.approx(bounds.ttft, rel=0.02)
    assert np.nanmean(times["tpot"]) < 1.1 * np.nanmean(bounds.tpot)
    full = mpsim.simulate(
        _service("llama3-8b", "vllm-v1", (1, 1, 1), {"arrival": "all-at-once", "requests": 2000})
    )
    assert full.served.end < 2 * bound_service(full.plan, full.requests).duration
