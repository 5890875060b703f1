"""Laws of fine-tuning: what does not train costs no gradient, no state and no message, and never makes a step longer or fuller."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.training import make_plan

BASE: dict[str, Any] = {
    "schema": 1,
    "model": "llama2-7b",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "framework": "torchtitan-2025",
}
STEP = {"global_batch": 16, "sequence_length": 2048}


def scenario(parallelism: dict[str, Any] | None = None, **training: object) -> Scenario:
    """A step of a Llama on eight GPUs."""
    parts = {"parallelism": parallelism or {"zero": 3}, "training": {**STEP, **training}}
    return Scenario.model_validate({**BASE, **parts})


def figures(parallelism: dict[str, Any] | None = None, **training: object) -> tuple[float, float]:
    """Step time [s] and peak memory [B]."""
    result = mpsim.simulate(scenario(parallelism, **training)).summary
    return result["step_time_s"], result["peak_memory_bytes"]


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fewer_trained_parts_never_cost_more(zero: int, recompute: str) -> None:
    """Freezing one part after the other never raises time or memory."""
    if zero < 2 and recompute == "none":
        pytest.skip("one case of whole replicas says the same")
    parts = ["embedding", "attention", "mlp"]
    steps = [
        figures({"zero": zero}, recompute=recompute, frozen=parts[:count])
        for count in range(len(parts) + 1)
    ]
    for more, fewer in itertools.pairwise(steps):
        assert fewer[0] <= more[0] * (1 + 1e-9)
        assert fewer[1] <= more[1]
    assert steps[-1][0] < 0.9 * steps[0][0]
    assert steps[-1][1] < steps[0][1]


def test_adapters_cost_more_than_frozen_weights_and_grow_with_rank() -> None:
    """Wider adapters never cost less, and those of one product less than those of all."""
    ranks = [figures(method="lora", adapter={"rank": rank}) for rank in (1, 16, 256)]
    assert ranks == sorted(ranks)
    alone = figures(method="lora", adapter={"rank": 16, "modules": ["qkv"]})
    assert alone < ranks[1]
    assert ranks[1] < figures()


def test_trained_parameters_of_adapters_are_counted_by_their_widths() -> None:
    """Rank 16 beside output (4096 x 4096) and down (4096 x 11008): 16 x (8192 + 15104) a layer."""
    adapter = {"rank": 16, "modules": ["output", "down"]}
    plan = make_plan(scenario(method="lora", adapter=adapter))
    assert plan.layout.trained_kinds.dense == pytest.approx([32 * 16 * (8192 + 15104)])


def test_adapters_stand_beside_some_of_joined_projections() -> None:
    """Rank 8 beside query (4096 x 4096) and value (4096 x 4096): 8 x 2 x 8192 a layer."""
    adapter = {"rank": 8, "modules": ["query", "value"]}
    separate = make_plan(_of_stack("torchtune", method="lora", adapter=adapter))
    assert separate.layout.trained_kinds.dense == pytest.approx([32 * 8 * 2 * 8192])


def _of_stack(preset: str, **training: object) -> Scenario:
    parts = {"framework": preset, "parallelism": {"zero": 0}, "training": {**STEP, **training}}
    return Scenario.model_validate({**BASE, **parts})


def _kept(preset: str, name: str, **training: object) -> float:
    """Bytes that an operator of a layer keeps, over those of a hidden state in 16 bits."""
    plan = make_plan(_of_stack(preset, method="lora", **training))
    forward = plan.expansions["dense"].forward
    kept = sum(each.saved + each.saved_for_weight for each in forward if each.name == name)
    return kept / (2.0 * plan.micro_batch * plan.sequence_length * plan.layout.model.hidden)


def test_what_attention_returns_stays_for_its_own_gradient() -> None:
    """A frozen output projection reads no input in its backward, but fused attention reads what it returned."""
    assert _kept("torchtune", "proj", adapter={"modules": ["query", "value"]}) == 1.0
    assert _kept("torchtune", "fc2", adapter={"modules": ["query", "value"]}) == 0.0


def test_an_adapted_product_keeps_its_input_whatever_stands_behind_it() -> None:
    """The input of an adapted output projection is not dropped because the next product is frozen."""
    assert _kept("torchtune", "proj", adapter={"modules": ["output"]}) == 1.0


def test_wide_adapters_keep_a_copy_of_their_own_of_what_they_read() -> None:
    """PEFT's float32 adapters of query, key and value each keep the hidden state in 4 bytes: three times two of 16 bits."""
    assert _kept("huggingface-peft", "qkv adapter input", adapter={"modules": ["qkv"]}) == 6.0
    assert _kept("torchtune", "qkv adapter input", adapter={"modules": ["qkv"]}) == 0.0


def test_tensor_parallel_ranks_share_one_factor_of_an_adapter() -> None:
    """Beside a column product the first factor is whole on every rank and the second divided; the other way round beside a row."""
    adapter = {"rank": 16, "modules": ["up", "down"]}
    plan = make_plan(scenario({"tp": 2, "zero": 0}, method="lora", adapter=adapter))
    column, row = 4096 * 2 + 22016 / 2, 11008 / 2 + 4096
    assert plan.layout.model.gated_mlp
    weights = 2 if plan.layout.framework.lowering.separate_projections else 1
    column = 4096 * weights + 22016 / 2
    assert plan.layout.trained_kinds.dense == pytest.approx([32 * 16 * (column + row)])


def test_narrow_weights_take_less_memory_and_more_time() -> None:
    """NF4 weights are a quarter as large, and widened before every use."""
    wide, narrow = (
        figures({"zero": 0}, method=method, recompute="full") for method in ("lora", "qlora")
    )
    assert narrow[0] > wide[0]
    linear = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert wide[1] - narrow[1] == pytest.approx((2 - 0.5159) * linear, rel=1e-3)


def test_messages_carry_gradients_of_what_trains() -> None:
    """With whole replicas only the gradients of adapters are reduced."""
    result = mpsim.simulate(
        scenario({"zero": 0}, global_batch=8, method="lora", adapter={"rank": 8})
    )
    timeline = result.timeline.program
    sizes = timeline.size[timeline.collective >= 0].sum()
    trained = make_plan(scenario({"zero": 0}, method="lora")).layout.trained_kinds.dense[0]
    assert sizes <= 4 * trained + 8


def _told(**training: object) -> Any:
    return mpsim.simulate(_of_stack("torchtune", **training)).summary


def test_a_reference_model_runs_one_forward_more() -> None:
    """Of three passes of products DPO has four: 4/3 of the FLOPs, and a third of them are the forward's."""
    alone, beside = _told(), _told(reference=True)
    assert beside["hardware_flops_per_step"] == pytest.approx(
        4 / 3 * alone["hardware_flops_per_step"], rel=0.01
    )
    assert beside["breakdown_s"]["forward"] == pytest.approx(
        2 * alone["breakdown_s"]["forward"], rel=0.05
    )


def test_a_reference_is_a_copy_of_the_weights_or_the_model_without_its_adapters() -> None:
    """2 B a parameter of full training, nothing of adapters."""
    for method, bytes_each in (("full", 2), ("lora", 0)):
        alone, beside = (_told(method=method, reference=reference) for reference in (False, True))
        more = beside["memory"]["parameters"] - alone["memory"]["parameters"]
        assert more == pytest.approx(bytes_each * 6.738e9, rel=1e-3)


def test_a_reward_model_has_one_value_a_token() -> None:
    """Neither the table of 32,000 x 4,096 nor logits; 4,096 weights instead."""
    whole, scalar = (
        make_plan(
            Scenario.model_validate(
                {
                    **BASE,
                    "model": {"preset": "llama2-7b", **changes},
                    "parallelism": {"zero": 0},
                    "training": STEP,
                }
            )
        )
        for changes in ({}, {"scalar_head": True})
    )
    more = whole.layout.parameter_kinds.dense[0] - scalar.layout.parameter_kinds.dense[0]
    assert more == pytest.approx(32000 * 4096 - 4096)
    assert (
        mpsim.simulate(
            Scenario.model_validate(
                {
                    **BASE,
                    "model": {"preset": "llama2-7b", "scalar_head": True},
                    "parallelism": {"tp": 2},
                    "training": STEP,
                }
            )
        ).memory.total[0]
        > 0
    )


def test_packed_samples_attend_to_themselves_alone() -> None:
    """Samples of 512 tokens take the attention of 512, whatever sequence they fill, and all tokens are used."""
    flops = []
    for length, lengths in ((2048, None), (2048, 512), (512, None)):
        plan = make_plan(
            _of_stack("torchtune", sequence_length=length, lengths=lengths, packing=bool(lengths))
        )
        (core,) = (each for each in plan.expansions["dense"].forward if each.name == "attention")
        flops.append(core.flops / (plan.micro_batch * plan.sequence_length))
        assert plan.used == 1.0
    assert flops[1] == flops[2] == flops[0] / 4


def test_padded_samples_are_as_long_as_the_longest_of_their_microbatch() -> None:
    """Of n uniform lengths from 0 to 1 the longest is n / (n + 1) on average, and a half of that is used: (n + 1) / 2n."""
    for count in (1, 4, 9):
        lengths = {"kind": "uniform", "tokens": 2000, "shortest": 1e-9}
        parts = {"lengths": lengths, "micro_batch": count, "global_batch": 8 * 2 * count}
        plan = make_plan(_of_stack("torchtune", **parts))
        assert plan.sequence_length == pytest.approx(2000 * count / (count + 1), rel=0.01)
        assert plan.used == pytest.approx((count + 1) / (2 * count), rel=0.01)


def test_memory_holds_the_longest_batch_and_time_the_mean_one() -> None:
    """A spread of lengths shortens the step and leaves the peak where full sequences have it."""
    whole = mpsim.simulate(_of_stack("torchtune")).summary
    lengths = {"kind": "lognormal", "tokens": 300, "spread": 1.0}
    some = mpsim.simulate(_of_stack("torchtune", lengths=lengths)).summary
    assert some["peak_memory_bytes"] == pytest.approx(whole["peak_memory_bytes"])
    assert some["step_time_s"] < 0.6 * whole["step_time_s"]
    assert some["tokens_per_s"] < whole["tokens_per_s"]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"adapter": {"rank": 0}, "method": "lora"}, "rank"),
        ({"adapter": {"rank": 5000}, "method": "lora"}, "needed 1 to 4096"),
        ({"adapter": {"modules": ["q_prj"]}, "method": "lora"}, "modules"),
        ({"adapter": {"rank": 8}}, "set method to lora"),
        ({"method": "lora", "frozen": ["mlp"]}, "only adapters train"),
        ({"method": "qlora", "adapter": {"base": "bf16"}}, "take nf4 or int8"),
        ({"method": "qlora", "precision": "fp8"}, "set precision to bf16"),
        ({"method": "lora", "recompute": "per-op"}, "full, none"),
        ({"packing": True}, "give training.lengths"),
        ({"adapter": {"base": "fp8"}, "method": "lora"}, "set training.precision to fp8"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_mend(parts: dict[str, Any], word: str) -> None:
    """Each mistake is told at its key with what would do."""
    with pytest.raises((ScenarioError, ValueError), match=word):
        make_plan(scenario(**parts))


@pytest.mark.parametrize(
    ("changes", "training", "word"),
    [
        ({"parallelism": {"pp": 2}}, {"reference": True}, "set parallelism.pp to 1"),
        ({"parallelism": {"cp": 2}}, {"lengths": 500}, "set parallelism.cp to 1"),
        (
            {"framework": {"preset": "torchtune", "fused_attention": False}},
            {"lengths": 500, "packing": True},
            "fused_attention to true",
        ),
        ({"model": "t5-11b"}, {"lengths": 500}, "encoder and decoder have two"),
    ],
)
def test_what_samples_and_references_cannot_stand_beside_is_refused(
    changes: dict[str, Any], training: dict[str, Any], word: str
) -> None:
    """Each mistake is told at its key with what would do."""
    with pytest.raises(ScenarioError, match=word):
        make_plan(Scenario.model_validate({**BASE, **changes, "training": {**STEP, **training}}))


def test_narrow_weights_are_refused_where_no_kernel_widens_them() -> None:
    """A TPU has no kernels of bitsandbytes."""
    cluster = {"cluster": {"preset": "tpu-v4-pod", "nodes": 4}, "framework": "maxtext"}
    with pytest.raises((ScenarioError, ValueError), match="no kernels"):
        make_plan(
            Scenario.model_validate({**BASE, **cluster, "training": {**STEP, "method": "qlora"}})
        )


def test_a_weight_gradient_that_is_gone_launches_nothing() -> None:
    """Where a schedule splits backwards, the host of frozen layers has no launches for their second half."""
    split = {**BASE, "framework": "megatron-core", "schedule": "zb-h1"}
    split |= {"parallelism": {"tp": 2, "pp": 4}}
    parts = (
        Scenario.model_validate({**split, "training": {**STEP, "frozen": frozen}})
        for frozen in ([], ["attention", "mlp"])
    )
    whole, frozen = (mpsim.simulate(part).summary for part in parts)
    assert frozen["breakdown_s"]["host"] <= whole["breakdown_s"]["host"]
    assert frozen["step_time_s"] < whole["step_time_s"]


def test_narrow_experts_are_refused_with_the_mend() -> None:
    """Experts are widened where they are, which is not simulated."""
    mixture = {**BASE, "model": "mixtral-8x7b", "training": {**STEP, "method": "qlora"}}
    with pytest.raises(ScenarioError, match="set base to bf16"):
        make_plan(Scenario.model_validate(mixture))


def test_packed_samples_count_model_flops_of_their_own_attention() -> None:
    """16 samples of 1,024 tokens in a sequence, and 16 sequences of 1,024, are the same work: MFU is no higher than HFU."""
    packed = {"packing": True, "lengths": {"kind": "fixed", "tokens": 1024}}
    data = {
        "schema": 1,
        "model": {"preset": "llama2-7b", "layers": 2},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "framework": "torch-fsdp2",
    }
    one, other = (
        mpsim.simulate(Scenario.from_mapping({**data, "training": training})).summary
        for training in (
            {"global_batch": 8, "sequence_length": 16384, **packed},
            {"global_batch": 128, "micro_batch": 16, "sequence_length": 1024},
        )
    )
    assert one["model_flops_per_step"] == pytest.approx(other["model_flops_per_step"])
    assert one["mfu"] <= one["hfu"]
