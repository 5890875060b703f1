"""Habits of frameworks: each field moves the step by what it says, by hand."""

from __future__ import annotations

import pytest

import mpsim

LAYERS, MICROBATCHES = 4, 8
STAGED = {"pp": 2, "tp": 2, "dp": 2}


def _step(parallelism: dict[str, object] | None = None, **habits: object):
    """A small GPT on eight A100 with some habits of its framework changed."""
    scenario = {
        "schema": 1,
        "model": {"hidden": 1024, "layers": LAYERS, "heads": 16, "vocab": 32000},
        "cluster": {"preset": "dgx-a100-80gb", "nodes": 1},
        "parallelism": parallelism or {"tp": 1, "pp": 1, "dp": 8},
        "training": {"global_batch": 8 * MICROBATCHES, "sequence_length": 512},
        "framework": {"preset": "megatron-2021", "launch_cost": "0 us", **habits},
    }
    if parallelism:
        scenario["training"]["global_batch"] = 2 * MICROBATCHES
    return mpsim.simulate(mpsim.Scenario.from_mapping(scenario))


def _added(result, before, part: str) -> float:
    return result.breakdown[part] - before.breakdown[part]


def test_a_wait_of_a_stage_adds_its_cost_to_every_forward_and_backward():
    """One stage: 8 microbatches x (forward and backward) x 3 waits x 1 ms = 48 ms of host time."""
    waits = _step(stage_synchronizations=3, synchronization_cost="1 ms")
    assert _added(waits, _step(), "host") == pytest.approx(MICROBATCHES * 2 * 3 * 1e-3)


@pytest.mark.parametrize(
    ("chip", "times"), [("h100-sxm", 1.0), ("gb200", 2.46), ("gh200-96", 2.46)]
)
def test_calls_take_longer_on_grace(chip: str, times: float):
    """A layer whose launches take 100 ms in each pass on an x86 server takes 246 beside Grace: 8 microbatches x 4 layers x 2 passes."""
    scenario = {
        "schema": 1,
        "model": {"hidden": 1024, "layers": LAYERS, "heads": 16, "vocab": 32000},
        "cluster": {"accelerator": chip, "accelerators_per_node": 1, "nodes": 1},
        "parallelism": {"tp": 1, "pp": 1, "dp": 1},
        "training": {"global_batch": MICROBATCHES, "sequence_length": 512},
        "framework": {
            "preset": "megatron-2021",
            "launch_cost": "0 us",
            "layer_host_time": "100 ms",
        },
    }
    step = mpsim.simulate(mpsim.Scenario.from_mapping(scenario)).summary["step_time_s"]
    assert step == pytest.approx(MICROBATCHES * LAYERS * 2 * 0.1 * times, rel=0.02)


def test_hooks_of_a_layer_hold_it_up_like_launches():
    """100 ms of hooks a pass hide the kernels: 8 microbatches x 4 layers x 2 passes x 100 ms, and the ends."""
    hooked = _step(layer_host_time="100 ms").summary["step_time_s"]
    least = MICROBATCHES * LAYERS * 2 * 0.1
    assert least <= hooked <= least + _step().summary["step_time_s"]


def test_launches_of_a_backward_cost_what_the_engine_of_autograd_takes():
    """16 launches of 1 ms in a forward and 43 of 10 ms in a backward hide the kernels; 0 means that both cost the same."""
    split = _step(launch_cost="1 ms", backward_launch_cost="10 ms").summary["step_time_s"]
    least = MICROBATCHES * LAYERS * (16 * 1e-3 + 43 * 10e-3)
    assert least <= split <= least + _step().summary["step_time_s"]
    same = _step(launch_cost="1 ms").summary["step_time_s"]
    assert same == _step(launch_cost="1 ms", backward_launch_cost="1 ms").summary["step_time_s"]


def test_collectives_of_a_layer_hold_up_the_host():
    """Two all-reduces a layer in each direction, 50 ms of host each: 16 microbatches x 4 layers x 4 x 50 ms, and five of both ends."""
    wide = {"tp": 8, "pp": 1, "dp": 1}
    issued = _step(wide, collective_launch_cost="50 ms").summary["step_time_s"]
    least = 2 * MICROBATCHES * (LAYERS * 4 * 0.05)
    ends = 2 * MICROBATCHES * 5 * 0.05
    assert least + ends <= issued <= least + ends + _step(wide).summary["step_time_s"]


def test_a_softmax_whose_heads_do_not_fill_a_block_falls_apart():
    """16 heads over 8 ranks leave 2 to a microbatch of one, where the kernel takes 4; over 4 ranks they leave 4."""
    eight, four = ({"tp": size, "pp": 1, "dp": 8 // size} for size in (8, 4))
    fused, apart = (_step(eight, softmax_group=g).summary["step_time_s"] for g in (0, 4))
    assert apart > 1.01 * fused
    assert _step(four, softmax_group=4).summary == _step(four, softmax_group=0).summary
    calls = _step(eight, softmax_group=4, launch_cost="1 ms").summary["step_time_s"]
    more = _step(eight, softmax_group=4, launch_cost="1 ms", softmax_launches=16)
    added = 2 * MICROBATCHES * LAYERS * 2 * 10 * 1e-3
    assert more.summary["step_time_s"] - calls == pytest.approx(added, rel=0.02)


def test_two_messages_for_one_tensor_pay_the_latency_twice():
    """Each exchange of a blocking pipeline is longer by one latency, so the step is longer, by microseconds an exchange."""
    one, two = (_step(STAGED, send_messages=count).summary["step_time_s"] for count in (1, 2))
    assert 0 < two - one < 4 * (MICROBATCHES + 2) * 50e-6


def test_a_stage_that_rebuilds_its_output_gathers_it_before_each_backward():
    """Two gathers cost twice what one does, on the stage that has a next one; with sequence parallelism there are none."""
    before = _step(STAGED)
    once, twice = (_added(_step(STAGED, stage_gathers=n), before, "exposed_tp") for n in (1, 2))
    assert once > 0
    assert twice == pytest.approx(2 * once, rel=1e-6)
    parallel = {**STAGED, "sequence_parallel": True}
    assert _step(parallel, stage_gathers=2).summary == _step(parallel).summary


def test_a_gather_or_reduction_of_a_list_takes_longer_for_each_rank():
    """2 microbatches of 4 layers, gathered twice and reduced once, and both ends once each, 8 ranks x 1 ms, none hidden."""
    plain, listed = (
        _step({"dp": 8, "zero": 3}, preset="deepspeed-zero3-2021", gather_rank_time=time)
        for time in ("0 ms", "1 ms")
    )
    units = _added(listed, plain, "exposed_dp") / (2 * 8e-3)
    assert units == pytest.approx(3 * LAYERS + 4, abs=0.5)


def test_a_collective_of_a_layer_takes_longer_by_what_the_framework_adds():
    """tp 8 without overlap: 16 microbatches x (4 layers x 4 all-reduces, 1 after the embedding, 1 before the head, 3 of the loss) x 1 ms."""
    plain, slow = (
        _step({"tp": 8, "dp": 1}, collective_cost=time).breakdown["exposed_tp"]
        for time in ("0 ms", "1 ms")
    )
    assert slow - plain == pytest.approx(2 * MICROBATCHES * (LAYERS * 4 + 5) * 1e-3)


def test_narrow_layers_and_experts_launch_more():
    """Where the host sets the pace, twice the launches in fp8 take twice as long; experts add products and bookkeeping."""
    eager = {"preset": "megatron-core", "launch_cost": "1 ms"}

    def layers(precision: str, model: dict[str, object] | None = None, **habits: object) -> float:
        scenario = {
            "schema": 1,
            "model": {
                "hidden": 1024,
                "layers": LAYERS,
                "heads": 16,
                "vocab": 32000,
                **(model or {}),
            },
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "training": {"global_batch": 8, "sequence_length": 512, "precision": precision},
            "framework": {**eager, **habits},
        }
        parts = mpsim.simulate(mpsim.Scenario.from_mapping(scenario)).breakdown
        return sum(parts[part] for part in ("forward", "backward", "weight_gradient", "host"))

    wide, narrow = (layers(precision) for precision in ("bf16", "fp8"))
    assert narrow / wide == pytest.approx(2.0, rel=0.05)
    moe = {"moe": {"experts": 4, "ffn_hidden": 512, "top_k": 2}}
    routed, more = (layers("bf16", moe, expert_launches=count) for count in (0, 10))
    assert more - routed == pytest.approx(LAYERS * 2 * 10 * 1e-3, rel=0.01)
    # a call for the first expert of each product, a loop in C++ for the others
    calls, looped = 6 * 1e-3, 6 * 3 * 8e-6
    assert routed - wide == pytest.approx(LAYERS * (calls + looped), rel=0.05)
    # in fp8 a call takes twice as long, and four casts are looped over beside the six products
    routed = layers("fp8", moe, expert_launches=0, product_launch_cost="100 us")
    looped = (6 + 4) * 3 * 100e-6
    assert routed - narrow == pytest.approx(LAYERS * (2 * calls + looped), rel=0.02)


def test_metrics_gathered_from_every_rank_cost_the_host_time_for_each():
    """Eight ranks x 1 ms a step, before the first kernel."""
    gathered = _step(step_rank_time="1 ms")
    assert _added(gathered, _step(), "host") == pytest.approx(8e-3)


def test_recomputation_that_stops_early_does_not_run_the_last_product_again():
    """torch from 2.1 on: 8 of the 24 h^2 products of a layer's forward, and the addition behind, do not run again."""

    def recompute(*, early: bool) -> float:
        scenario = {
            "schema": 1,
            "model": {"hidden": 8192, "layers": 2, "heads": 64, "vocab": 32000},
            "cluster": {"preset": "dgx-a100-80gb", "nodes": 1},
            "parallelism": {"tp": 1, "pp": 1, "dp": 8},
            "training": {
                "global_batch": 64,
                "micro_batch": 8,
                "sequence_length": 1024,
                "recompute": "full",
            },
            "framework": {"preset": "torch-ddp", "recompute_stops_early": early},
        }
        return mpsim.simulate(mpsim.Scenario.from_mapping(scenario)).breakdown["recompute"]

    assert recompute(early=True) / recompute(early=False) == pytest.approx(16 / 24, abs=0.03)
