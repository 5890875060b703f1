"""Services of hybrids: layers with a state hold and read as much whatever the context, beside some with attention."""

from __future__ import annotations

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.serving.batching import Batch
from mpsim.serving.planning import make_service
from mpsim.serving.stream import draw_requests
from mpsim.workload import model

NAME = "nemotron-h-8b"


def scenario_of(name=NAME, *, tp=2, serving=None, **load):
    load = {"rate": 4.0, "requests": 40, "prompt": 1000, "output": 60, **load}
    serving = {"replicas": 1, **(serving or {}), "workload": load}
    base = {"schema": 1, "model": name, "cluster": {"preset": "dgx-h100", "nodes": 1}}
    return Scenario.from_mapping({**base, "parallelism": {"tp": tp}, "serving": serving})


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_weights_are_the_parameters_of_the_model(tp):
    """All ranks together hold every parameter but norms once, two bytes each."""
    plan = make_service(scenario_of(tp=tp))
    whole = 2.0 * model(NAME).parameters().total
    assert plan.memory.weights * tp == pytest.approx(whole, rel=2e-3)


def test_a_state_costs_the_same_whatever_the_context():
    """What grows with the context is the attention of the few layers that have it."""
    plan = make_service(scenario_of())
    prices = plan.prices
    short, long = (float(prices.seconds(Batch(8, 8.0 * tokens))) for tokens in (1_000, 100_000))
    attention = plan.work.attention[0]
    bytes_read = 8 * 99_000 * attention.layers * attention.read_width * 2.0
    floor = bytes_read / plan.cluster.accelerator.memory_bandwidth
    assert floor < long - short < 2.5 * floor
    few, many = (float(prices.seconds(Batch(n, 0.0))) for n in (64, 65))
    states = 2.0 * plan.work.state.layers * plan.work.state.held
    assert many - few > 0.9 * states / plan.cluster.accelerator.memory_bandwidth


def test_a_sequence_takes_its_states_and_the_tokens_of_few_layers():
    """Blocks are those of four layers of 52; a request's states are taken with it and come back."""
    plan = make_service(scenario_of())
    rules = plan.rules
    held = plan.work.state.layers * plan.work.state.held
    assert rules.state_blocks == int(np.ceil(held / plan.memory.block_bytes))
    result = mpsim.simulate(scenario_of())
    assert np.isfinite(result.served.last).all()
    used = result.summary["cache_use"]["max"] * plan.blocks
    assert used > rules.state_blocks * result.summary["batch"]["max"]


def test_what_is_not_simulated_is_refused():
    """Pools, drafts, shared prompts, and ranks that do not divide the heads of the state."""
    for serving in (
        {"speculation": {"tokens": 1, "acceptance": 0.5}},
        {"workload": {"shared_prefix": 100}},
    ):
        load = serving.pop("workload", {})
        with pytest.raises(ScenarioError, match="whose layers carry states"):
            scenario_of(serving=serving, **load)
    plan = make_service(scenario_of())
    shared = plan.workload.model_copy(update={"shared_prefix": 100})
    with pytest.raises(ScenarioError, match=r"needed serving\.engine\.prefix_cache: false"):
        plan.require(draw_requests(shared, seed=0))


def test_experts_beside_states_are_served():
    """Qwen3-Next has experts in every layer, and a delta net in three of four."""
    result = mpsim.simulate(scenario_of("qwen3-next-80b-a3b", tp=4))
    assert result.summary["requests"] == 40
    assert sum(result.breakdown.values()) == pytest.approx(result.summary["duration_s"])
