"""What a flag of the server costs is told, with the change that mends it, and nothing is told where it costs nothing."""

from __future__ import annotations

import pytest

import mpsim
from mpsim.scenario import Scenario


def warnings_of(**serving):
    load = {
        "rate": 3.0,
        "requests": 60,
        "prompt": 8000,
        "output": 200,
        **serving.pop("workload", {}),
    }
    scenario = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "serving": {"replicas": 1, **serving, "workload": load},
        }
    )
    return mpsim.simulate(scenario).summary["warnings"]


def test_a_wide_cache_that_runs_out_names_the_narrow_one():
    """Preempted requests, and how many tokens 8 bits would hold."""
    engine = {"memory_fraction": 0.35}
    told = [text for text in warnings_of(engine=engine, workload={"rate": 20}) if "kv: fp8" in text]
    assert len(told) == 1
    assert "preempted" in told[0] or "waited for cache" in told[0]
    narrow = warnings_of(engine=engine, kv="fp8", workload={"rate": 20})
    assert not [text for text in narrow if "kv: fp8" in text]


def test_a_chunk_that_holds_up_tokens_names_one_that_keeps_the_limit():
    """Where TPOT misses its limit, an iteration full of prompt says how long it takes; that chunk then keeps it."""
    slo = {"tpot": "12 ms"}
    (told,) = [text for text in warnings_of(slo=slo) if "max_tokens" in text]
    assert "hold up tokens whose limit is 12 ms" in told
    chunk = int(told.rpartition("max_tokens: ")[2].split()[0].replace(",", ""))
    again = warnings_of(slo=slo, engine={"max_tokens": chunk})
    assert not [text for text in again if "max_tokens" in text]
    assert not [text for text in warnings_of(slo={"tpot": "1 s"}) if "max_tokens" in text]


@pytest.mark.parametrize(
    ("users", "padding", "told"), [(32, False, 0), (33, False, 1), (33, True, 0)]
)
def test_batches_between_graphs_are_told_with_the_switch_that_pads_them(users, padding, told):
    """TensorRT-LLM captures 32 and 64 sequences: 33 are launched layer by layer, unless they are padded."""
    warnings = warnings_of(
        engine={"preset": "tensorrt-llm-1.x", "graph_padding": padding},
        workload={"arrival": "all-at-once", "rate": None, "requests": users, "prompt": 64},
    )
    assert sum("graph_padding: true" in text for text in warnings) == told
