"""Slow ranks and outages of services: what is slow is as slow as said, and no request is lost."""

from __future__ import annotations

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.serving.planning import make_service


def _scenario(variation=None, **serving):
    load = {"rate": 20.0, "requests": 120, "prompt": 400, "output": 60}
    return Scenario.from_mapping(
        {
            "schema": 1,
            "name": "trouble",
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 2},
            "parallelism": {"tp": 4},
            "serving": {**serving, "workload": {**load, **serving.get("workload", {})}},
            **({"variation": variation} if variation else {}),
        }
    )


def test_an_instance_is_as_slow_as_its_slowest_rank():
    """Rank 5 is in the second of four instances; half its speed is twice the time. A slow node has two instances."""
    plan = make_service(_scenario({"slow": [{"ranks": [5], "speed": 0.5}]}))
    assert plan.paces == (1.0, 2.0, 1.0, 1.0)
    plan = make_service(_scenario({"slow": [{"node": 1, "speed": 0.8}]}))
    assert plan.paces == pytest.approx((1.0, 1.0, 1.25, 1.25))
    assert make_service(_scenario()).paces == ()


def test_a_slow_instance_takes_so_much_longer():
    """All instances at half the speed: a request alone has twice the TPOT."""
    load = {"workload": {"rate": 0.5, "requests": 10}}
    usual = mpsim.simulate(_scenario(**load)).summary
    slow = mpsim.simulate(_scenario({"slow": [{"node": n, "speed": 0.5} for n in (0, 1)]}, **load))
    assert slow.summary["tpot_s"]["mean"] == pytest.approx(2 * usual["tpot_s"]["mean"], rel=0.01)


def test_drawn_speeds_spread_and_are_drawn_by_the_seed():
    plans = [
        make_service(_scenario({"speed": 0.05}).with_values({"simulation.seed": seed}))
        for seed in (0, 0, 1)
    ]
    paces = [plan.paces for plan in plans]
    assert paces[0] == paces[1] != paces[2]
    assert 1.0 < np.mean(paces[0]) < 1.3  # of four ranks the slowest counts


def test_an_outage_takes_the_instances_of_its_node():
    plan = make_service(_scenario({"outages": [{"node": 1, "at": "2 s", "duration": "3 s"}]}))
    assert plan.outages == ((2, 2.0, 5.0), (3, 2.0, 5.0))


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x"])
@pytest.mark.parametrize("pp", [1, 2])
def test_no_request_is_lost_in_an_outage(preset, pp):
    """Those of the failed instances go on elsewhere, later than without; nothing runs on a failed instance but the iteration that was under way."""
    outage = {"outages": [{"node": 0, "at": "2 s", "duration": "2 s"}]}
    more = {"engine": preset, "workload": {"rate": 60.0, "requests": 300}}
    layout = {"parallelism.pp": pp, "parallelism.tp": 2}
    usual = mpsim.simulate(_scenario(**more).with_values(layout))
    failed = mpsim.simulate(_scenario(outage, **more).with_values(layout))
    served = failed.served
    assert np.isfinite(served.last).all()
    assert (served.first <= served.last).all()
    assert failed.summary["moved"] > 0
    assert failed.summary["e2e_s"]["mean"] > usual.summary["e2e_s"]["mean"]
    down = served.steps["engine"] < served.engines // 2
    start = served.steps["start"][down]
    assert not ((start > 2.0) & (start < 4.0)).any()
    assert (start > 4.0).any()
    parts = failed.summary["account_s"]
    assert parts["down"] == pytest.approx(1.0, rel=0.1)  # half of the instances, two seconds
    assert sum(parts.values()) == pytest.approx(failed.summary["duration_s"])
    assert "lost their instance" in failed.summary["warnings"][-1]


def test_requests_wait_while_everything_is_down():
    outage = {"outages": [{"node": n, "at": "1 s", "duration": "4 s"} for n in (0, 1)]}
    served = mpsim.simulate(_scenario(outage)).served
    assert np.isfinite(served.last).all()
    late = (served.arrival > 1.1) & (served.arrival < 5.0)
    assert late.any()
    assert (served.first[late] >= 5.0).all()


@pytest.mark.parametrize(
    ("variation", "words"),
    [
        ({"jitter": 0.1}, "variation.jitter: is not simulated for services"),
        ({"links": [{"node": 0, "bandwidth": 0.5}]}, "variation.links: is not simulated"),
        ({"slow": [{"node": 2, "speed": 0.5}]}, "got node 2, but the cluster has 2"),
        ({"slow": [{"ranks": [16], "speed": 0.5}]}, "got rank 16, but the cluster has 16"),
        ({"outages": [{"node": 7, "at": "1 s", "duration": "1 s"}]}, "got node 7"),
        ({"outages": [{"node": 0, "at": 1, "duration": "1 s"}]}, "no unit"),
    ],
)
def test_wrong_variation_is_named(variation, words):
    with pytest.raises(ScenarioError, match=words):
        mpsim.simulate(_scenario(variation))


def test_outages_are_of_services_with_one_pool():
    outages = {"outages": [{"node": 0, "at": "1 s", "duration": "1 s"}]}
    pools = {"disaggregated": {"prefill": {"tp": 4}, "decode": {"tp": 4}}}
    data = dict(_scenario(outages).resolved())
    serving = {**pools, "workload": {"rate": 1.0}}
    scenario = Scenario.from_mapping({**data, "serving": serving, "parallelism": {}}, checked=False)
    with pytest.raises(ScenarioError, match="simulated for one pool"):
        mpsim.simulate(scenario)
    training = mpsim.load("scenarios/quickstart.yaml").with_values(
        {"variation": outages}, checked=False
    )
    with pytest.raises(ScenarioError, match="which services have"):
        mpsim.simulate(training)


def test_a_model_that_was_released_narrow_is_served_so():
    """gpt-oss fits one H100 in the 4 bits of its checkpoint, and the run says what it took, the version of its engine too; what is written wins."""
    data = {
        "schema": 1,
        "model": "gpt-oss-120b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "serving": {"replicas": 1, "workload": {"rate": 1.0, "requests": 3, "output": 4}},
    }
    result = mpsim.simulate(Scenario.from_mapping(data))
    assert result.plan.weights == "mxfp4"
    rows = dict(result.sheet().sections[0].rows)
    assert rows["taken by default"] == "serving.weights: mxfp4"
    assert "vLLM from 0.14 on" in rows["engine"]
    wide = {**data["serving"], "weights": "bf16"}
    with pytest.raises(ScenarioError, match=r"or serving\.weights: mxfp4"):
        mpsim.simulate(Scenario.from_mapping({**data, "serving": wide}))
    old = {**data, "model": "deepseek-v3", "cluster": {"preset": "dgx-a100-80gb", "nodes": 1}}
    with pytest.raises(ScenarioError, match="fp8_block, as released, but a100-sxm-80 has no fp8"):
        Scenario.from_mapping(old)
    other = Scenario.from_mapping({**data, "model": "llama3-8b"})
    assert (other.service.weights, other.told) == ("bf16", {})


def _figures(model, load, **serving):
    """Summary of one instance on a node of H100."""
    data = {
        "schema": 1,
        "model": model,
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "serving": {"replicas": 1, "workload": load, **serving},
    }
    return mpsim.simulate(Scenario.from_mapping(data)).summary


def test_requests_beyond_what_a_model_was_released_for_are_told():
    """An engine refuses them by its max_model_len, and nothing else of a run would say so."""
    load = {"rate": 1.0, "requests": 2, "prompt": 4090, "output": 8}
    told = _figures("llama2-7b", load)["warnings"]
    assert any("4,098 tokens, and llama2-7b was released for 4,096" in text for text in told)
    told = _figures("llama2-7b", {**load, "output": 6})["warnings"]
    assert not any("released for" in text for text in told)


def test_a_process_that_sends_all_answers_is_told_where_it_is_the_limit():
    """Larger pieces than those that it sends are the mend; who leaves it unsaid reads a fourth of what the accelerators could do."""
    load = {"concurrency": 2048, "requests": 4096, "prompt": 64, "output": 64}
    one = _figures("llama3-8b", load, engine="trtllm")
    (told,) = [text for text in one["warnings"] if "stream_interval: 10 sends 10 tokens" in text]
    assert "holds this run to 10,000 tokens a second in all, not the accelerators" in told
    assert "--num_postprocess_workers" in told
    ten = _figures("llama3-8b", load, engine={"preset": "trtllm", "stream_interval": 10})
    assert not any("stream_interval" in text for text in ten["warnings"])
    assert ten["output_tokens_per_s"] > 1.1 * one["output_tokens_per_s"]
    slow = {"preset": "trtllm", "stream_interval": 10, "stream_time": "10 ms"}
    told = _figures("llama3-8b", load, engine=slow)["warnings"]
    assert any("stream_interval: 100 sends 100 tokens" in text for text in told)


def test_users_and_files_come_in_one_way():
    """`concurrency` without an arrival is a closed loop, a trace a trace; with a rate beside it nobody knows."""
    base = {
        "schema": 1,
        "model": "llama3-8b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
    }

    def arrival(workload):
        return Scenario.from_mapping({**base, "serving": {"workload": workload}}).service.workload

    assert arrival({"concurrency": 4}).arrival == "closed"
    assert arrival({"rate": 4}).arrival == "poisson"
    with pytest.raises(ScenarioError, match="poisson without rate"):
        arrival({"arrival": "poisson", "concurrency": 4})
    with pytest.raises(ScenarioError, match="concurrency with arrival: poisson"):
        arrival({"rate": 4, "concurrency": 4})
