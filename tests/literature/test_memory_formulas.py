"""Model states and activations against the formulas that Megatron-LM and DeepSpeed ship, to the byte where they apply."""

from __future__ import annotations

import pytest

from mpsim.training.memory.activations import held_by_rank, kept_by_stage
from mpsim.training.memory.states import model_states
from mpsim.training.plan import Plan
from mpsim.training.recompute import Recompute
from tests.plans import small_plan


def _states(plan: Plan) -> float:
    return float(sum(one[0] for one in model_states(plan).values()))


@pytest.mark.parametrize(("zero", "each"), [(0, 18.0), (1, 6.0 + 12.0 / 4)])
def test_states_are_18_bytes_or_6_and_a_share_of_12(zero: int, each: float) -> None:
    """Megatron-LM megatron/training/theoretical_memory_usage.py: 18 B a parameter, 6 + 12 / dp with the distributed optimizer."""
    plan = small_plan(tp=1, pp=1, dp=4, preset="megatron-core", zero=zero)
    assert _states(plan) == each * float(plan.layout.rank_parameters[0])


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_layer_with_selective_recomputation_keeps_18_and_4_ffn_over_h(tp: int) -> None:
    """The same file: s b h (18 + 4 ffn / h) / tp bytes a layer with sequence parallelism; 16 without the two masks of dropout."""
    plan = small_plan(
        tp=tp,
        sequence_parallel=tp > 1,
        recompute=Recompute("selective"),
        preset="megatron-2022",
        overrides={"fused_attention": False},
        model_name="gpt-1.7b",
    )
    model, one = plan.layout.model, kept_by_stage(plan)[0]
    s_b_h = plan.sequence_length * plan.micro_batch * model.hidden
    masks = model.dropout > 0
    each = s_b_h * ((18 if masks else 16) + 4 * model.ffn_hidden / model.hidden) / tp
    shorter = small_plan(
        tp=tp,
        pp=4,
        sequence_parallel=tp > 1,
        recompute=Recompute("selective"),
        preset="megatron-2022",
        overrides={"fused_attention": False},
    )
    half = kept_by_stage(shorter)[0]
    layers = one.for_input + one.for_weight - half.for_input - half.for_weight
    assert layers == pytest.approx(6 * each, rel=1e-12)


def test_zero_2_is_deepspeeds_estimate() -> None:
    """estimate_zero2_model_states_mem_needs: 4 P + 16 P / N; fp16 gradients of a backward, fp32 ones of the share; 2 P with offload."""
    copies = {"gradient_bytes": 4, "microbatch_gradients": 2}
    plan = small_plan(tp=1, pp=1, dp=8, zero=2, preset="deepspeed-zero2", overrides=copies)
    p = float(plan.layout.rank_parameters[0])
    collected = kept_by_stage(plan)[0].collected
    assert _states(plan) + collected == pytest.approx(4 * p + 16 * p / 8, rel=1e-12)
    held = held_by_rank(plan, kept_by_stage(plan))[0]
    assert held.collected[held.fullest] == 2 * p
    offloaded = small_plan(tp=1, pp=1, dp=8, zero=2, preset="deepspeed-zero2", offload="optimizer")
    assert _states(offloaded) == 2 * p


@pytest.mark.parametrize(("offload", "each"), [("none", 18.0), ("optimizer", 2.0), ("parameters", 0.0)])  # fmt: skip
def test_zero_3_is_deepspeeds_estimate(offload: str, each: float) -> None:
    """estimate_zero3_model_states_mem_needs beside the largest layer: 18 P / N, 2 P / N, 0."""
    plan = small_plan(
        tp=1,
        pp=1,
        dp=8,
        zero=3,
        preset="deepspeed-zero3",
        overrides={"gradient_bytes": 4},
        offload=offload,
    )
    assert _states(plan) == pytest.approx(
        each * float(plan.layout.rank_parameters[0]) / 8, rel=1e-12
    )
