"""Prefill and decode on pools of their own: transfers worked out by hand, back-pressure, and what is conserved."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import ScenarioError
from mpsim.hardware import build_cluster
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.batching import Batch
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.service import Service
from mpsim.serving.summary import figures_of
from mpsim.serving.tally import tally_of
from mpsim.workload import model


def _plan(name="llama3-8b", *, nodes=2, prefill=None, preset="vllm-v1", cluster=None, **fields):
    common = {
        "name": "pools",
        "model": model(name),
        "cluster": cluster
        or build_cluster(
            accelerator="h100-sxm",
            accelerators_per_node=8,
            nodes=nodes,
            nics_per_node=8,
            nic="ib-ndr",
        ),
        "engine": engine(preset),
        "workload": Workload(rate=8.0),
        "slo": ServiceLevel(ttft="1 s"),
    }
    behind = ServicePlan(**common, **{"tp": 1, "replicas": 1, **(prefill or {})})
    return ServicePlan(**common, **{"tp": 1, **fields}, prefill=behind)


def _serve(plan, requests):
    """Serve requests that no front end delays."""
    own = dataclasses.replace(plan.engine, tokenizer_time=0.0)
    return Service(requests, dataclasses.replace(plan, engine=own)).run()


def _stream(arrival, prompt, output):
    return Requests(np.array(arrival, dtype=float), np.array(prompt), np.array(output))


def test_one_request_is_prefilled_sent_and_decoded():
    """Both pools in one NVLink domain: the first token ends the prompt; then latency + bytes / rate, then the other tokens one by one.

    Llama 3 8B: 2 x 32 layers x 8 heads x 128 elements x 2 B = 128 KiB a token.
    """
    plan = _plan()
    assert plan.token_bytes == 128 * 1024
    served = _serve(plan, _stream([0.0], [1000], [5]))
    price = plan.prices.seconds
    first = price(Batch(0, 0.0, 1000, 1000**2 / 2), 1)
    link = plan.cluster.node.scale_up
    sent = link.latency + 1000 * 128 * 1024 / (link.bandwidth * link.efficiency)
    assert served.first[0] == pytest.approx(first, rel=1e-12)
    assert served.transfers["end"] - served.transfers["start"] == pytest.approx([sent], rel=1e-6)
    steps = [price(Batch(1, 1000.0 + given)) for given in range(1, 5)]
    assert served.last[0] == pytest.approx(first + sent + sum(steps), rel=1e-6)


def test_the_pool_that_decodes_may_give_the_first_token():
    """It then decodes once more, and the first token comes after transfer and one iteration."""
    plan = _plan(samples_first=True)
    served = _serve(plan, _stream([0.0], [1000], [5]))
    arrived = served.transfers["end"][0]
    price = plan.prices.seconds
    assert served.first[0] == pytest.approx(arrived + price(Batch(1, 1000.0)), rel=1e-9)
    steps = [price(Batch(1, 1000.0 + given)) for given in range(5)]
    assert served.last[0] == pytest.approx(arrived + sum(steps), rel=1e-9)


def test_transfers_share_the_ports_of_an_instance():
    """Two instances of one node fill prompts for one of another node at the same time: its NIC takes both, each at half its rate, so twice as long."""
    plan = _plan(prefill={"replicas": 8})  # the decode instance is the first of the second node
    alone = _serve(plan, _stream([0.0], [4000], [2]))
    both = _serve(plan, _stream([0.0, 0.0], [4000, 4000], [2, 2]))
    latency = plan.network.path(0, 0).latency
    took = [(run.transfers["end"] - run.transfers["start"] - latency) for run in (alone, both)]
    assert took[1] == pytest.approx(2 * np.repeat(took[0], 2), rel=1e-6)


def test_an_oversubscribed_fabric_slows_transfers_down():
    """Up-links with an eighth of the NICs' bandwidth: the instances of sixteen nodes that send at once wait for each other."""
    took = []
    for oversubscription in (1.0, 8.0):
        cluster = build_cluster(
            accelerator="h100-sxm",
            accelerators_per_node=8,
            nodes=128,
            nics_per_node=8,
            nic="ib-ndr",
            fabric_kind="fat-tree",
            oversubscription=oversubscription,
        )
        # prompts on the first 16 nodes of 64; the other 64 decode, under other leaves
        plan = _plan(cluster=cluster, prefill={"replicas": 512}, replicas=512)
        served = _serve(plan, _stream(np.zeros(128), np.full(128, 4000), np.full(128, 2)))
        took.append(float((served.transfers["end"] - served.transfers["start"]).max()))
    assert took[1] > 1.5 * took[0]


def test_a_full_decode_pool_holds_up_the_prompts():
    """Room for one request where they decode, and for two prompts where they are computed: the third prompt starts when the first request has ended.

    Prompts of 160 tokens and 20 more, blocks of 16: 12 blocks a request (13 with the block it grows into), 10 a prompt.
    """
    plan = _plan()
    limited = dataclasses.replace(plan.prefill, given_blocks=22)
    requests = _stream([0.0, 0.0, 0.0], [160] * 3, [20] * 3)
    one = dataclasses.replace(plan.engine, scheduler="no-evict")
    small = dataclasses.replace(plan, engine=one, given_blocks=13, prefill=limited)
    served = _serve(small, requests)
    begin = served.transfers["start"]
    assert begin[1] == pytest.approx(served.last[0], rel=1e-9)
    assert begin[2] == pytest.approx(served.last[1], rel=1e-9)
    assert served.started[2] == pytest.approx(served.transfers["end"][0], rel=1e-9)
    assert served.started[2] > served.first[1]
    free = _serve(plan, requests)
    assert free.started[2] == 0.0
    held = dataclasses.replace(plan, prefill=limited)
    pools = figures_of(held, served, tally_of(held, requests, served))["pools"]
    assert pools["prefill"]["account_s"]["idle_cache"] > 0.0
    assert pools["decode"]["account_s"]["exposed_kv"] > 0.0


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=25),
    preset=st.sampled_from(["vllm-v1", "sglang", "tensorrt-llm-1.x"]),
    spare=st.integers(0, 12),
    shape=st.sampled_from([(1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 2), (1, 1, 2, 1)]),
    samples_first=st.booleans(),
    gap=st.floats(0, 0.02),
)
def test_every_request_ends_and_every_accelerator_second_is_accounted_for(
    lengths, preset, spare, shape, samples_first, gap
):
    """However small the caches: all requests end, tokens come in order, no pool holds more blocks than it has, and its account sums to the duration."""
    x, pp, y, tp = shape
    prompt, output = (np.array(column) for column in zip(*lengths, strict=True))
    block = engine(preset).block
    need = int(-(-(prompt + output + 1).max() // block)) + spare
    plan = _plan(
        preset=preset,
        prefill={"replicas": x, "pp": pp, "given_blocks": need * pp},
        replicas=y,
        tp=tp,
        given_blocks=need,
        samples_first=samples_first,
    )
    requests = Requests(np.arange(len(prompt)) * gap, prompt, output)
    served = _serve(plan, requests)
    assert np.isfinite(served.last).all()
    assert (served.first <= served.last).all()
    assert (served.arrival <= served.started).all()
    numbers = served.steps["engine"]
    assert served.steps["used"][numbers < served.pools[0]].max() <= need
    assert served.steps["used"].max() <= need
    figures = figures_of(plan, served, tally_of(plan, requests, served))
    for parts in (pool["account_s"] for pool in figures["pools"].values()):
        assert sum(parts.values()) == pytest.approx(served.end, rel=1e-9)
        assert min(parts.values()) >= 0.0
    seconds = sum(figures["account_s"].values()) * plan.accelerators
    assert seconds == pytest.approx(served.end * plan.accelerators, rel=1e-9)
    assert sum(pool["accelerators"] for pool in figures["pools"].values()) == plan.accelerators


def test_a_prompt_that_the_prefill_pool_cannot_hold_is_refused():
    plan = _plan(prefill={"given_blocks": 4})
    with pytest.raises(ScenarioError, match="an instance of the prefill pool holds 64"):
        plan.require(_stream([0.0], [1000], [5]))
