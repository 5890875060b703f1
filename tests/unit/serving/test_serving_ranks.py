"""Ranks that keep requests of their own: they wait for the busiest, and equal ones are as one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim import simulate
from mpsim.hardware import build_cluster
from mpsim.scenario import Scenario
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.batching import Batch, BatchRules
from mpsim.serving.engines import engine, override
from mpsim.serving.lane import Lane
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.policies import POLICIES
from mpsim.serving.requests import Requests
from mpsim.serving.result import measurable
from mpsim.serving.service import Service
from mpsim.workload import model


def _plan(ranks="apart", *, preset="vllm-v1", **fields):
    return ServicePlan(
        name="ranks",
        model=model("deepseek-v2-lite"),
        cluster=build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=1),
        engine=override(engine(preset), {"attention_ranks": ranks}),
        workload=Workload(rate=8.0),
        slo=ServiceLevel(),
        **{"tp": 4, "ep": 4, "attention_dp": 4, **fields},
    )


def _serve(plan, requests):
    return Service(requests, plan).run()


@pytest.mark.parametrize(
    "load", [(8, 9000.0, 0, 0.0), (3, 2000.0, 500, 500**2 / 2), (0, 0.0, 700, 700**2 / 2)]
)
def test_equal_ranks_are_as_one_that_spreads_its_work_evenly(load):
    """Four ranks with the same sequences, contexts and prompts take what the sum of them takes, evenly spread."""
    prices = _plan().prices
    together = prices.seconds(Batch(*(4 * part for part in load)), 4)
    assert prices.apart_seconds([Batch(*load)] * 4, 4) == pytest.approx(together, rel=1e-9)


def test_all_ranks_wait_for_the_busiest():
    """32 sequences: 8 on each rank, or all on one, whose attention reads four times as much and whose projections have four times the tokens."""
    prices = _plan().prices
    even = prices.apart_seconds([Batch(8, 40_000.0)] * 4, 0)
    uneven = prices.apart_seconds([Batch(32, 160_000.0)], 0)
    shape = prices.work.attention[0]
    read = sum(s.layers for s in prices.work.attention) * (shape.read_width * 2.0) * 120_000.0
    assert uneven - even >= read / prices.rates.bandwidth
    arrays = prices.apart_seconds([Batch(8, np.array([40_000.0, 50_000.0]))] * 4, 0)
    assert arrays[0] == pytest.approx(even)
    assert arrays[1] > arrays[0]


def test_a_request_joins_the_rank_with_the_least_load():
    rules = BatchRules(block=4)
    engines = tuple(POLICIES[rules.scheduler](rules, 100, [8] * 5, [4] * 5) for _ in range(2))
    ranks = Lane(0, 0, _plan().prices, engines)
    for request in range(5):
        ranks.join().enter(request)
    assert [rank.load for rank in ranks.engines] == [3, 2]
    iteration = ranks.next()
    assert iteration.prompt_tokens == 40
    assert sorted(iteration.started) == [0, 1, 2, 3, 4]
    first, last = ranks.finish(iteration)
    assert sorted(first) == [0, 1, 2, 3, 4]
    assert last == []
    assert ranks.decoding[0] == 5


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 60)), min_size=1, max_size=30),
    preset=st.sampled_from(["vllm-v1", "sglang", "tensorrt-llm-1.x"]),
    spare=st.integers(0, 8),
    pp=st.sampled_from([1, 2]),
    gap=st.floats(0, 0.01),
)
def test_every_request_ends_and_no_rank_holds_more_than_it_has(lengths, preset, spare, pp, gap):
    prompt, output = (np.array(column) for column in zip(*lengths, strict=True))
    block = engine(preset).block
    need = int(-(-(prompt + output).max() // block)) + spare
    plan = _plan(preset=preset, pp=pp, given_blocks=need * 4 * pp)
    served = _serve(plan, Requests(np.arange(len(prompt)) * gap, prompt, output))
    assert np.isfinite(served.last).all()
    assert (served.first <= served.last).all()
    assert served.steps["used"].max() <= need * 4


def test_iterations_passed_at_once_are_those_one_after_the_other(monkeypatch):
    """Folding many iterations into one event changes nothing."""
    plan = _plan()
    random = np.random.default_rng(0)
    requests = Requests(
        np.sort(random.uniform(0, 1, 60)), random.integers(50, 900, 60), random.integers(2, 80, 60)
    )
    folded = _serve(plan, requests)
    monkeypatch.setattr(Lane, "steady", lambda self: 0)
    single = _serve(plan, requests)
    assert len(single.steps["start"]) > len(folded.steps["start"])
    assert folded.last == pytest.approx(single.last, rel=1e-9)


def test_ranks_apart_take_longer_than_evenly_spread_ones():
    """Requests of unequal length, and prompts on one rank at a time: somebody always waits."""
    random = np.random.default_rng(1)
    requests = Requests(np.zeros(64), random.integers(50, 3000, 64), random.integers(20, 200, 64))
    ends = [_serve(_plan(ranks), requests).end for ranks in ("even", "apart")]
    assert ends[0] < ends[1] < 2 * ends[0]


@pytest.mark.parametrize("ranks", ["even", "apart"])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_limits_of_an_engine_are_those_of_each_rank(ranks, degree):
    """vLLM's ``max_num_seqs`` is one engine's, of which attention data parallelism starts one a rank."""
    plan = _plan(ranks, attention_dp=degree)
    assert plan.rules.max_sequences == degree * plan.engine.max_sequences
    assert plan.rules.max_tokens == degree * plan.engine.max_tokens
    apart = _plan("apart", attention_dp=degree).rank_rules
    assert (apart.max_sequences, apart.max_tokens) == (
        plan.engine.max_sequences,
        plan.engine.max_tokens,
    )
    assert plan.memory.activations == _plan(ranks).memory.activations


@pytest.mark.parametrize("scheduler", ["budget", "static"])
@pytest.mark.parametrize("ranks", ["even", "apart"])
def test_a_point_is_measured_on_the_service_that_runs(ranks, scheduler):
    """What a fit and a table of measured services are compared with is what ``mpsim run`` says, of whatever routing and warm-up."""
    workload = {"rate": 40.0, "requests": 60, "prompt": 700, "output": 40}
    given = workload if scheduler == "static" else {**workload, "warmup": "0.5 s"}
    scenario = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "deepseek-v2-lite",
            "cluster": {"accelerator": "h100-sxm", "accelerators_per_node": 8, "nodes": 1},
            "parallelism": {"tp": 4, "ep": 4},
            "serving": {
                "engine": {"preset": "vllm-v1", "attention_ranks": ranks, "scheduler": scheduler},
                "attention_dp": 4,
                "routing": "least-load",
                "workload": given,
            },
        }
    )
    summary = simulate(scenario).summary
    figures = measurable(make_service(scenario))
    for name in ("ttft", "tpot"):
        assert figures[name] == pytest.approx(summary[f"{name}_s"]["mean"], rel=1e-12)
    assert figures["throughput"] == pytest.approx(summary["output_tokens_per_s"], rel=1e-12)
