"""Prices of iterations, work of chunked prompts, and the account of a service, solved by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from mpsim.hardware import build_cluster, host_of, system
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.batching import Batch, BatchRules
from mpsim.serving.engines import EnginePreset, engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.policies import Budget
from mpsim.serving.prices import IterationPrices, Products
from mpsim.serving.rates import Reductions
from mpsim.serving.requests import Requests, Served
from mpsim.serving.summary import _long_chunks, figures_of
from mpsim.serving.tally import tally_of
from mpsim.workload import model


def _plan(pp: int = 1, **fields: float) -> ServicePlan:
    """Llama 2 7B on H100s, with an engine that costs nothing beside its kernels but for `fields`."""
    return ServicePlan(
        name="small",
        model=model("llama2-7b"),
        cluster=system("dgx-h100", nodes=1),
        engine=EnginePreset(name="bare", **fields),  # type: ignore[arg-type]
        workload=Workload(rate=1.0),
        slo=ServiceLevel(),
        pp=pp,
    )


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize(("decodes", "prompt"), [(8, 0), (8, 100), (0, 500)])
def test_every_boundary_between_stages_costs_one_message(
    pp: int, decodes: int, prompt: int
) -> None:
    """A batch of n tokens of 4,096 features of 2 B crosses pp - 1 boundaries, whose latency and bytes both count.

        t(link) - t(no link) = (pp - 1) (20 us + n x 8,192 B / (50 GB/s))

    times the engine's slowdown, as the rest of the device's time.
    """
    plan = _plan(pp, slowdown=1.1)
    reductions = Reductions(plan.cluster, 1, plan.rates, plan.engine)

    def seconds(latency: float, rate: float) -> float:
        prices = IterationPrices(
            plan.work,
            plan.rates,
            plan.engine,
            reductions,
            2.0,
            send=(latency, rate),
            products=Products(plan.cluster, plan.rates),
        )
        return float(prices.seconds(Batch(decodes, 1000.0 * decodes, prompt, prompt**2 / 2)))

    message = 20e-6 + (decodes + prompt) * 4096 * 2 / 50e9
    without = seconds(0.0, np.inf)
    assert seconds(20e-6, 50e9) - without == pytest.approx(1.1 * (pp - 1) * message)


@pytest.mark.parametrize("budget", [3, 8, 10, 64])
def test_chunks_of_a_prompt_attend_to_the_chunks_before_them(budget: int) -> None:
    """A causal prompt of s tokens has s^2 / 2 pairs of query and key, however it is cut.

    A chunk of c tokens behind b others sees c b pairs with those and c^2 / 2 with itself: of 10 tokens in chunks of 8 and 2 these are 32 and
    2 x 8 + 2 = 18, which sum to 50.
    """
    engine = Budget(BatchRules(max_tokens=budget, block=4), 100, [10], [1])
    engine.waiting.append(0)
    pairs = []
    while (iteration := engine.next()) is not None:
        pairs.append(iteration.pairs)
        engine.finish(iteration)
    assert len(pairs) == -(-10 // budget)
    assert sum(pairs) == 10**2 / 2
    if budget == 8:
        assert pairs == [32, 18]


def _served(seconds: float, count: int, rows: int) -> Served:
    """An engine that does nothing but decode four sequences: `rows` jumps over `count` iterations each."""
    none = np.zeros(0)
    took = np.full(rows, count * seconds)
    steps = {
        "start": np.arange(rows) * count * seconds,
        "seconds": took,
        "count": np.full(rows, float(count)),
        "decodes": np.full(rows, 4.0),
        "context": np.full(rows, 4000.0),
        "prompt_tokens": np.zeros(rows),
        "used": np.zeros(rows),
        "engine": np.zeros(rows),
        "held": np.zeros(rows),
    }
    stalled = ({"cache": 0.0, "transfer": 0.0, "down": 0.0},)
    return Served(none, none, none, none, steps, 0, 0, 1, float(took.sum()), (1,), stalled, {})


def _account(plan: ServicePlan, served: Served) -> dict[str, float]:
    """Where the time of a run went whose requests do not matter."""
    tally = tally_of(plan, Requests(*np.zeros((3, 0))), served)
    return figures_of(plan, served, tally)["account_s"]


def test_a_jump_over_equal_iterations_is_accounted_as_these() -> None:
    """Ten iterations of 5 ms, in one row or in ten: the host has its 1 ms + 4 x 0.25 ms of each, kernels the other 3 ms, nothing is idle."""
    plan = _plan(step_time=1e-3, request_time=0.25e-3)
    single, jump = (_account(plan, _served(5e-3, *shape)) for shape in ((1, 10), (10, 1)))
    expected = dict.fromkeys(single, 0.0) | {"host": 20e-3, "decode": 30e-3}
    assert single == pytest.approx(expected)
    assert jump == pytest.approx(expected)
    # a host that would need longer than the iterations took is counted for as long as these
    slow = dataclasses.replace(plan, engine=dataclasses.replace(plan.engine, step_time=1.0))
    assert _account(slow, _served(5e-3, 10, 1))["host"] == pytest.approx(50e-3)


def test_two_stages_pay_one_message_over_the_link_between_them():
    """Llama 2 7B in two stages on NVLink 4: 8 sequences send 8 x 4096 x 2 B; two stages take what one takes for the whole model, and that message."""
    whole, halves = _plan(pp=1).prices, _plan(pp=2).prices
    alone, staged = (float(p.seconds(Batch(8, 8000.0))) for p in (whole, halves))
    link = system("dgx-h100", nodes=1).node.scale_up
    message = link.latency + 8 * 4096 * 2 / (link.bandwidth * link.efficiency)
    assert staged == pytest.approx(alone + message, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "decodes", "floor"),
    [
        ({"graph_sizes": (1, 8)}, 8, False),
        ({"graph_sizes": (1, 8)}, 7, False),
        ({"graph_sizes": (1, 8), "graph_padding": False}, 7, True),
        ({"graph_sizes": (1, 8), "graph_padding": False}, 8, False),
        ({"graph_sizes": (1, 8)}, 9, True),
        ({"graph_sizes": (1, 8), "piecewise_graphs": True}, 9, False),
        ({"graph_sizes": (), "piecewise_graphs": True}, 8, True),
    ],
)
def test_without_a_graph_the_host_launches_each_layer(
    options: dict[str, Any], decodes: int, floor: bool
) -> None:
    """Mixtral's 32 layers of 0.625 ms and three times that for their experts: 80 ms for batches without a graph, less with; lines and single prices agree. So do prompts, but where compiled pieces run."""
    plan = dataclasses.replace(
        _plan(host_layer_time=0.625e-3, **options), model=model("mixtral-8x7b"), tp=8
    )
    seconds = plan.prices.seconds(Batch(decodes, 8000.0))
    assert (seconds == pytest.approx(80e-3)) is floor
    assert floor or seconds < 40e-3
    assert (plan.prices.decoding(decodes) is None) is floor
    prompted = plan.prices.seconds(Batch(decodes, 8000.0, 16, 128.0))
    compiled = plan.engine.piecewise_graphs and bool(plan.engine.graph_sizes)
    assert (prompted == pytest.approx(80e-3)) is not compiled


@pytest.mark.parametrize(
    ("name", "kv", "narrow", "times"),
    [
        ("llama2-7b", "fp8", True, 1.45),
        ("llama2-7b", "bf16", True, 1.0),
        ("llama2-7b", "fp8", False, 1.0),
        ("deepseek-v2-lite", "fp8", True, 1.0),
    ],
)
def test_prompts_multiply_in_eight_bits_where_engine_and_cache_do(
    name: str, kv: str, narrow: bool, times: float
) -> None:
    """On an H100 attention of prompts is 1.45 times as fast as in 16 bits; latent attention is not."""
    plan = dataclasses.replace(_plan(), model=model(name))
    eight = dataclasses.replace(_plan(narrow_prompts=narrow), model=model(name), kv=kv)
    wide, seconds = (p.prices.pairs_seconds(4096, 4096**2 / 2) for p in (plan, eight))
    assert seconds == pytest.approx(wide / times)


def test_a_host_that_samples_one_by_one_takes_longer_for_more_sequences() -> None:
    """vLLM of 2023: 64 sequences of Llama 2 70B on eight H100 wait for the host 63 times 0.3 ms longer than one."""
    plan = dataclasses.replace(
        _plan(), model=model("llama2-70b"), tp=8, engine=engine("vllm-2023-eager")
    )
    one, many = (float(plan.prices.seconds(Batch(n, n * 512.0))) for n in (1, 64))
    assert many - one == pytest.approx(63 * 0.3e-3)


def test_layers_are_launched_at_the_pace_of_the_machines_host() -> None:
    """Llama 2's 32 layers of 0.5 ms are 16 ms on an x86 server, and on a Grace as much more as its calls take."""
    slow = build_cluster(accelerator="gb200", accelerators_per_node=4, nodes=1)
    plans = [
        dataclasses.replace(_plan(host_layer_time=0.5e-3), cluster=cluster)
        for cluster in (system("dgx-h100", nodes=1), slow)
    ]
    seconds = [plan.prices.seconds(Batch(1, 100.0)) for plan in plans]
    assert seconds[0] == pytest.approx(16e-3)
    assert host_of(slow).call_time > 2.0
    assert seconds[1] == pytest.approx(16e-3 * host_of(slow).call_time)


def test_ranks_with_requests_of_their_own_pad_each_to_its_graph() -> None:
    """Nine sequences on eight ranks are two on the busiest, whose attention all ranks wait for: two tokens of each, not 9 / 8. Unequal ranks have no graph unless they pad."""
    prices, plain, exact = (
        dataclasses.replace(
            _plan(**{"graph_sizes": (1, 2, 4), **options}),
            model=model("mixtral-8x7b"),
            tp=8,
            ep=8,
            attention_dp=8,
        ).prices
        for options in ({}, {"graph_sizes": ()}, {"graph_padding": False})
    )
    nine, sixteen = Batch(9, 0.0), Batch(16, 0.0)
    one, two = prices._own_table[:2]
    more = prices.stage_seconds(nine) - plain.stage_seconds(nine)
    assert more == pytest.approx(7 / 8 * (two - one))
    assert exact.stage_seconds(nine) == plain.stage_seconds(nine)
    assert exact.stage_seconds(sixteen) == prices.stage_seconds(sixteen)


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8", "gaudi3-hlb325", "tpu-v6e", "aws-trn2"])
def test_weights_of_four_bits_pass_at_the_pace_of_those_of_sixteen_or_so(name: str) -> None:
    """One token passes matrices of 4 bits in no more than three times what 16 bits take: cores of few chips have more lanes."""
    cluster, seconds = system(name, nodes=1), []
    for weights in ("w4a16", "bf16"):
        plan = dataclasses.replace(_plan(), cluster=cluster, weights=weights)
        products = Products(cluster, plan.rates)
        seconds.append(sum(products.seconds(each, np.ones(1))[0] for each in plan.work.linears))
    assert seconds[0] < 3 * seconds[1]


def test_a_chunk_is_told_with_what_its_prompt_has_before_it() -> None:
    """The iterations of a long prompt attend to its tokens so far: a size that keeps the limit is smaller than of a short one."""
    sizes = []
    for tokens in (8192, 131072):
        load = Workload(rate=1.0, prompt=LengthChoice(tokens=tokens))
        plan = dataclasses.replace(_plan(), workload=load, slo=ServiceLevel(tpot="60 ms"))  # type: ignore[arg-type]
        (text,) = _long_chunks(plan)
        sizes.append(int(text.split("max_tokens: ")[1].split()[0].replace(",", "")))
    assert sizes[1] < sizes[0]


def test_norms_of_all_heads_wait_for_the_ranks_that_have_them() -> None:
    """A kernel a layer where each head is normed; three and a sum of all ranks where one norm spans four of them."""
    each, (layers, latency) = {}, (32, 3e-6)
    kinds = ((False, False), (True, False), (True, True))
    for (normed, spans), tp in itertools.product(kinds, (1, 4)):
        shape = dataclasses.replace(model("llama2-7b"), qk_norm=normed, qk_norm_whole=spans)
        plan = dataclasses.replace(_plan(), model=shape, tp=tp)
        each[normed, spans, tp] = float(plan.prices.seconds(Batch(8, 8000.0)))
    for tp in (1, 4):
        assert each[True, False, tp] - each[False, False, tp] == pytest.approx(layers * latency)
    assert each[True, True, 1] == each[True, False, 1]
    assert each[True, True, 4] - each[False, False, 4] > layers * 4 * latency
