"""Parts of a service by hand: how many batches run at once, how fast a cache travels, which figures have a range, what drafts spare a bound."""

import dataclasses

import numpy as np
import pytest

from mpsim.hardware import build_cluster
from mpsim.scenario import Scenario
from mpsim.scenario.servers import preset_for, preset_of
from mpsim.serving.bounds import bound_service
from mpsim.serving.confidence import intervals, setting_of
from mpsim.serving.engines import engine, engine_names
from mpsim.serving.planning import make_service
from mpsim.serving.result import run_service
from mpsim.serving.transfers import CacheNetwork
from mpsim.shipped import read_shipped


def _service(**more):
    serving = {
        "engine": "vllm-v1",
        "workload": {
            "arrival": "all-at-once",
            "requests": 12,
            "prompt": {"kind": "fixed", "tokens": 64},
            "output": {"kind": "fixed", "tokens": 200},
        },
        **more.pop("serving", {}),
    }
    return Scenario.from_mapping(
        {
            "schema": 1,
            "name": "parts",
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 2},
            **more,
            "serving": serving,
        }
    )


def test_a_batch_runs_on_every_stage_of_every_instance():
    """Three instances of two stages have six batches under way, and each a sixth of the cache's rows of a pool."""
    scenario = _service(parallelism={"tp": 1, "pp": 2}, serving={"replicas": 3})
    plan = make_service(scenario)
    assert plan.lanes == 6
    assert plan.room == plan.blocks // 2 * plan.rules.block


@pytest.mark.parametrize(("place", "rate"), [(4, "scale_up"), (8, "nic")])
def test_a_cache_travels_over_as_many_ports_as_the_smaller_side_has(place, rate):
    """Four ranks that hold a request send to two: two ports of the domain, or two NICs to another node."""
    cluster = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=2, nic="ib-ndr")
    node = cluster.node
    pools = np.array([[0, 1, 2, 3]]), np.array([[place, place + 1]])
    network = CacheNetwork(cluster, pools, holders=2)
    port = {
        "scale_up": node.scale_up.bandwidth * node.scale_up.efficiency,
        "nic": node.nic_bandwidth_per_accelerator * node.nic.efficiency,
    }
    path = network.path(0, 0)
    assert path.rate == pytest.approx(2 * port[rate])
    farther = cluster.network_latency(2)
    assert (path.latency == farther) == (rate == "nic")
    assert 0 < path.latency <= farther


@pytest.mark.parametrize(
    ("arrival", "decides"), [("closed", 1), ("all-at-once", 1), ("poisson", 0)]
)
def test_the_rate_has_a_range_where_the_service_decides_it(arrival, decides):
    """Users that wait for an answer, and a batch of requests, are served as fast as can be; a stream comes when it comes."""
    setting = setting_of(make_service(_service()))
    labels = {**setting.labels, "arrival": (arrival,)}
    figures = {
        **{f"{name}_s": {"mean": 0.1} for name in ("ttft", "tpot", "e2e")},
        "output_tokens_per_s": 1000.0,
        "output_tokens_per_s_per_accelerator": 125.0,
    }
    told = intervals(dataclasses.replace(setting, labels=labels), figures)
    assert {"ttft_s", "tpot_s", "e2e_s"} <= set(told)
    rates = [name for name in told if name.startswith("output_tokens")]
    assert len(rates) == 2 * decides


def test_a_bound_counts_the_tokens_that_drafts_spare():
    """Where three of four drafted tokens are taken an iteration gives several, and no run beats the bound of so few."""
    drafts = {"tokens": 4, "acceptance": 0.95, "draft": "n-gram"}
    one, few = (_service(serving=more) for more in ({}, {"speculation": drafts}))
    plans = [make_service(scenario) for scenario in (one, few)]
    runs = [run_service(scenario, plan) for scenario, plan in zip((one, few), plans, strict=True)]
    bounds = [bound_service(plan, run.requests) for plan, run in zip(plans, runs, strict=True)]
    for bound, run in zip(bounds, runs, strict=True):
        assert bound.duration <= run.summary["duration_s"]
    assert bounds[1].busy < 0.6 * bounds[0].busy


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ("vLLM 0.10.1.1", "vllm-0.8"),
        ("vLLM 0.10.4", "vllm-0.8"),
        ("vLLM v0.12.0", "vllm-v1"),
        ("vllm==0.6.3", "vllm-0.5"),
        ("trtllm 0.12", "tensorrt-llm-0.14"),
        ("vLLM v0.15.1", "vllm-async"),
        ("vLLM", "vllm-async"),
        ("TensorRT-LLM", "tensorrt-llm-1.x"),
        ("vLLM 0.2.7", "vllm-2023-eager"),
        ("vLLM 0.3.3", "vllm-0.5"),
        ("TensorRT-LLM v0.14.0", "tensorrt-llm-0.14"),
        ("TensorRT-LLM 0.21.0", "tensorrt-llm-0.17"),
        ("TensorRT-LLM 1.2.0rc6.post3", "tensorrt-llm-1.x"),
    ],
)
def test_a_version_is_read_whole(words: str, preset: str) -> None:
    """A scenario's engine reads as published rows do: 0.10.1.1 is no 0.1, 0.10.4 no 0.4, a letter before a version says nothing, and no version means the newest."""
    assert preset_for(words) == preset
    assert engine(words).name == preset


@pytest.mark.parametrize("name", [*engine_names(), "vllm-v2", "vllm2", "my vllm 0.6.3"])
def test_names_of_the_catalog_and_slips_are_no_versions(name: str) -> None:
    """They stay as they are: a slip is told with the nearest names."""
    assert preset_of(name) == name


@pytest.mark.parametrize(("server", "preset"), [("vllm", "vllm-async"), ("sglang", "sglang")])
def test_a_servers_own_name_is_its_newest_engine(server: str, preset: str) -> None:
    """So that `mpsim show engine vllm` shows what `engine: vllm` means, where it asked: did you mean 'vllm'?"""
    assert engine(server).name == preset


def test_a_runtime_without_graphs_keeps_back_a_context_and_a_communicator() -> None:
    """As a rank of a training does beside its tensors: an engine whose graphs are captured keeps back more."""
    constants = read_shipped("mpsim.training.data", "memory.yaml")["constants"]
    beside = sum(float(constants[name]["value"]) for name in ("context", "communicator"))
    assert engine("tensorrt-llm-0.17").reserve == pytest.approx(beside, rel=0.02)
    assert engine("tensorrt-llm-1.x").reserve > 2.0 * beside
