"""Windows that are not held in full: layers with a window keep no more than its tokens."""

from __future__ import annotations

import numpy as np
import pytest

import mpsim
from mpsim.scenario import Scenario
from mpsim.serving.batching import BatchRules
from mpsim.serving.planning import make_service
from mpsim.serving.policies import POLICIES


def scenario_of(model, prompt, *, window_cache, **serving):
    load = {"rate": 20.0, "requests": 60, "prompt": prompt, "output": 60}
    engine = {"preset": "vllm-v1", "window_cache": window_cache}
    return Scenario.from_mapping(
        {
            "schema": 1,
            "model": model,
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "serving": {"replicas": 1, **serving, "engine": engine, "workload": load},
        }
    )


def test_half_of_the_layers_with_a_small_window_leave_room_for_twice_the_tokens():
    """gpt-oss has a window of 128 tokens in every other layer: a token takes half, a sequence 128 more."""
    plans = [
        make_service(scenario_of("gpt-oss-20b", 1000, window_cache=keeps))
        for keeps in (False, True)
    ]
    full, windowed = plans
    assert windowed.cache_tokens == pytest.approx(2 * full.cache_tokens, rel=1e-3)
    assert (windowed.rules.window, windowed.rules.window_share) == (128, 1.0)


def test_models_of_one_kind_of_layer_are_as_they_were():
    """Without windows, or with nothing else, nothing is kept beside the tokens."""
    for model in ("llama3-8b", "mistral-7b"):
        plan = make_service(scenario_of(model, 500, window_cache=True))
        assert plan.rules.window == 0


@pytest.mark.parametrize("scheduler", ["budget", "prefill-first", "no-evict", "static"])
def test_blocks_are_conserved_with_windows(scheduler):
    """After every iteration blocks of requests and free ones are all; at the end all are free."""
    random = np.random.default_rng(5)
    prompt, output = (random.integers(1, 60, 40).tolist() for _ in range(2))
    rules = BatchRules(
        scheduler=scheduler, max_sequences=8, max_tokens=64, block=4, window=16, window_share=0.7
    )
    engine = POLICIES[rules.scheduler](rules, 90, prompt, output)
    for request in range(40):
        engine.enter(request)
    ended = []
    while (iteration := engine.next()) is not None:
        ended += engine.finish(iteration)[1]
        cache = engine.cache
        held = {r: cache.own(r, 0) for r in cache.held}
        assert all(windows == engine.windows(r) for r, windows in held.items())
        assert 0 <= cache.free <= cache.total
        assert sum(cache.held.values()) <= cache.total - cache.free
    assert sorted(ended) == list(range(40))
    assert engine.cache.free == engine.cache.total


def test_room_is_never_worse_and_nothing_else_moves():
    """With room for all, times are the same to the bit: windows are read as before."""
    kept, full = (
        mpsim.simulate(scenario_of("gpt-oss-20b", 800, window_cache=keeps))
        for keeps in (True, False)
    )
    assert (kept.served.last == full.served.last).all()
    assert kept.summary["cache_use"]["max"] < full.summary["cache_use"]["max"]
