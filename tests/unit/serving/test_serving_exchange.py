"""Dispatch and combine of experts: bytes that leave a rank at a share of its link, beside a fixed time, against the tables they were fitted to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.hardware import build_cluster, link
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.batching import Batch
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.rates import Exchange, Reductions
from mpsim.workload import model


def _plan(ranks, *, attention_dp=None):
    nodes = -(-ranks // 8)
    return ServicePlan(
        name="exchange",
        model=model("deepseek-v3"),
        cluster=build_cluster(
            accelerator="h100-sxm", accelerators_per_node=8, nodes=nodes, nic=link("ib-ndr")
        ),
        engine=engine("sglang"),
        workload=Workload(rate=1.0),
        slo=ServiceLevel(),
        weights="fp8",
        tp=ranks,
        ep=ranks,
        attention_dp=ranks if attention_dp is None else attention_dp,
    )


@pytest.mark.parametrize(
    ("ranks", "tokens", "measured_us"),
    [(8, 1, 28), (8, 32, 45), (8, 128, 112), (8, 1024, 764), (32, 32, 141), (32, 128, 406)],
)
def test_exchanges_are_as_the_tables_of_their_kernels(ranks, tokens, measured_us):
    """Dispatch and combine together: one node and four (hidden 7168, eight experts a token)."""
    plan = _plan(ranks)
    assert Exchange(plan.cluster, plan.work).seconds(tokens) * 1e6 == pytest.approx(
        measured_us, rel=0.25
    )


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_no_exchange_is_faster_than_its_links(tokens):
    """Rows of 8 and 16 bits, seven eighths of which leave a rank of eight."""
    plan = _plan(8)
    sent = 7 / 8 * tokens * 8 * 7168 * (1 + 2)
    seconds = Exchange(plan.cluster, plan.work).seconds(tokens)
    assert seconds >= sent / plan.cluster.node.scale_up.bandwidth


def test_ranks_with_requests_of_their_own_exchange_rows_and_others_reduce():
    """One account each: what meets in the experts is none of tensor parallelism's."""
    tokens = np.array([512.0])
    own, shared = _plan(16).prices.parts(tokens), _plan(16, attention_dp=1).prices.parts(tokens)
    assert own["exchange"] > 0
    assert shared["exchange"] == 0
    assert shared["communication"] > own["communication"]


def test_hosts_of_ranks_see_to_their_own_requests_side_by_side():
    """An iteration of 64 requests on 16 ranks waits for the host's time for four."""
    plan, batch = _plan(16), Batch(64, 0.0)
    free = dataclasses.replace(plan, engine=dataclasses.replace(plan.engine, request_time=0.0))
    waits = plan.prices.seconds(batch) - free.prices.seconds(batch)
    assert waits == pytest.approx(4 * plan.engine.request_time)


@pytest.mark.parametrize(
    ("ranks", "size", "measured_us"),
    [
        *((2, 2, 4.3), (2, 128, 5.2), (2, 2048, 20.2)),
        *((4, 2, 4.7), (4, 128, 7.2), (4, 512, 12.8), (4, 2048, 30.2)),
        *((8, 2, 5.6), (8, 128, 10.8), (8, 512, 15.0), (8, 2048, 30.8)),
    ],
)
def test_small_all_reduces_are_as_measured_on_h100(ranks, size, measured_us):
    """vLLM's one-shot and two-shot kernels in a graph (aiconfigurator 0.12.0), sizes in KiB."""
    plan = _plan(8)
    reductions = Reductions(plan.cluster, ranks, plan.rates, plan.engine)
    assert reductions.seconds(size * 1024) * 1e6 == pytest.approx(measured_us, rel=0.25)


def test_reductions_without_graphs_wait_for_the_host_whatever_their_size():
    """FasterTransformer's all-reduces take the same 21 us more than the library's by themselves, of 4 KiB and of 16 MiB."""
    plan = _plan(8)
    host = engine("fastertransformer")
    alone = dataclasses.replace(host, reduction_time=0.0)
    both = [Reductions(plan.cluster, 8, plan.rates, each) for each in (host, alone)]
    for size in (1 << 12, 1 << 24):
        waits, runs = (reductions.seconds(size) for reductions in both)
        assert waits - runs == pytest.approx(21e-6)
