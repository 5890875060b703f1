"""Casts of a narrow training precision: which tensors, how many bytes, and where they show in a step."""

from __future__ import annotations

import itertools

import pytest

from mpsim import structs
from mpsim.cost import KernelModel
from mpsim.cost.quantise import casting
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import accelerator
from mpsim.parallel import Sharding, shard
from mpsim.training import build_program
from mpsim.workload import (
    Casting,
    Expansion,
    Lowering,
    OperatorKind,
    Phase,
    Role,
    Split,
    expand_head,
    expand_layer,
    model,
    with_casts,
)
from tests.plans import small_plan

TWO_COPIES = Casting(element_bytes=1.0, passes=1, copies=2)
TOKENS = 1024


def layer(*, fused: bool = True) -> Expansion:
    return expand_layer(
        model("gpt2-small"), Lowering(fused_attention=fused), sequences=1, sequence_length=TOKENS
    )


def test_every_linear_layer_casts_its_input_forward_and_its_gradient_backward() -> None:
    """Four projections, two casts each; each comes right before the product that reads it."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2)
    for operators, phase, what in (
        (cast.forward, Phase.FORWARD, "input"),
        (cast.backward, Phase.INPUT_GRADIENT, "gradient"),
    ):
        for one, after in itertools.pairwise(operators):
            if one.kind is OperatorKind.QUANTISE:
                assert (one.phase, one.name) == (phase, f"quantise {after.name} {what}")
        assert sum(one.kind is OperatorKind.QUANTISE for one in operators) == 4


def test_a_cast_reads_wide_and_writes_two_narrow_copies() -> None:
    """qkv reads T x 768: 2 B in and 2 x 1 B out; the gradient of fc1 is T x 3072."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2)
    moved = {one.name: one.bytes for one in (*cast.forward, *cast.backward)}
    assert moved["quantise qkv input"] == TOKENS * 768 * 4
    assert moved["quantise fc1 gradient"] == TOKENS * 3072 * 4


def test_products_of_attention_and_the_output_projection_stay_wide() -> None:
    """Unfused scores and the logits read 2 B an element, as without casts."""
    cast = with_casts(layer(fused=False), TWO_COPIES, wide_bytes=2)
    assert all(one.operand_bytes == 0 for one in cast.forward if one.name in ("scores", "context"))
    whole = expand_head(model("gpt2-small"), Lowering(), sequences=1, sequence_length=TOKENS)
    assert with_casts(whole, TWO_COPIES, wide_bytes=2, wide_roles=(Role.LOGITS,)) == whole


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_rank_reads_its_share_of_narrow_operands(tp: int) -> None:
    """fc1 on one of t ranks: T h + 4 h^2 / t narrow elements in, 4 T h / t wide ones out; its wgrad adds into fp32."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2)
    product = next(one for one in cast.forward if one.name == "fc1")
    mine = shard(product, Sharding(tp=tp))
    assert mine.bytes == TOKENS * 768 + 768 * 3072 / tp + 2 * TOKENS * 3072 / tp
    weight = next(
        one for one in cast.backward if one.name == "fc1" and one.phase is Phase.WEIGHT_GRADIENT
    )
    added = 2 * weight.accumulate_bytes * 768 * 3072 / tp
    assert shard(weight, Sharding(tp=tp)).bytes == TOKENS * 768 + TOKENS * 3072 / tp + added


def test_casts_are_divided_as_their_tensors_are() -> None:
    """What a column layer reads is divided by sequence parallelism only, what a row layer reads always; gradients the other way round."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2)
    splits = {one.name: one.split for one in (*cast.forward, *cast.backward)}
    assert splits["quantise fc1 input"] is splits["quantise fc2 gradient"] is Split.SEQUENCE
    assert splits["quantise fc2 input"] is splits["quantise fc1 gradient"] is Split.TENSOR


def test_what_is_gathered_narrow_is_transposed_whole() -> None:
    """A rank casts its share of what a column layer reads with one copy, 3 B an element; the whole is read and written for the weight gradient."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2, gathered=True)
    both = {one.name: (one.bytes, one.split) for one in (*cast.forward, *cast.backward)}
    assert both["quantise fc1 input"] == (TOKENS * 768 * 3, Split.SEQUENCE)
    assert both["quantise fc1 input for the weight"] == (TOKENS * 768 * 2, Split.NONE)
    assert both["quantise fc2 gradient for the weight"] == (TOKENS * 768 * 2, Split.NONE)
    assert both["quantise fc2 input"] == (TOKENS * 3072 * 4, Split.TENSOR)
    assert "quantise fc2 input for the weight" not in both


def test_inputs_of_frozen_weights_have_no_transposed_copy() -> None:
    """It serves the weight gradient alone (TransformerEngine v1.10, pytorch/module/linear.py: weight.requires_grad); gradients have both."""
    whole = layer()
    left = tuple(one for one in whole.backward if one.phase is not Phase.WEIGHT_GRADIENT)
    cast = with_casts(structs.replace(whole, backward=left), TWO_COPIES, wide_bytes=2)
    moved = {one.name: one.bytes for one in (*cast.forward, *cast.backward)}
    assert moved["quantise fc1 input"] == TOKENS * 768 * 3
    assert moved["quantise fc1 gradient"] == TOKENS * 3072 * 4


@pytest.mark.parametrize(
    ("casts", "qkv", "fc2", "gradient"),
    [
        ("separate", 4, 4, 4),
        ("norms", 2, 4, 4),  # the norm writes fp8; what is left reads 1 B and writes it transposed
        ("elementwise", 2, 2, 2),  # so do activations and their gradients
        ("twice", 4, 6, 6),  # 2 B are read for the largest magnitude, which norms find themselves
    ],
)
def test_kernels_before_a_product_do_its_cast_or_leave_it_more(
    casts: str, qkv: int, fc2: int, gradient: int
) -> None:
    """Bytes of a cast for an element, of two narrow copies of what is 2 B wide."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2, casts=casts)
    moved = {one.name: one.bytes for one in (*cast.forward, *cast.backward)}
    assert moved["quantise qkv input"] == TOKENS * 768 * qkv
    assert moved["quantise fc2 input"] == TOKENS * 3072 * fc2
    assert moved["quantise fc1 gradient"] == TOKENS * 3072 * gradient


def test_what_a_norm_writes_narrow_is_gathered_without_a_cast() -> None:
    """Ranks divide tokens: nothing is cast before the gather, and the whole is transposed behind it."""
    cast = with_casts(layer(), TWO_COPIES, wide_bytes=2, gathered=True, casts="norms")
    names = {one.name for one in (*cast.forward, *cast.backward)}
    assert "quantise qkv input" not in names
    assert {"quantise qkv input for the weight", "quantise fc2 input"} <= names


def test_scales_of_blocks_are_cast_as_ever() -> None:
    """Only fp8 with one scale a tensor asks how a stack makes it: MXFP8 of a norm's output is a kernel of its own."""
    for precision, same in (("fp8", False), ("mxfp8", True)):
        model = KernelModel(accelerator("b200-sxm"), precision)
        casts = (model.with_casts(layer(), 2, casts=casts) for casts in ("separate", "norms"))
        assert (next(casts) == next(casts)) is same


def test_scales_of_rows_are_cast_twice_and_after_the_gather() -> None:
    """Forward 2 B in and 1 B out of the whole input on every rank; both operands of the weight gradient are read again, 3.4 times over."""
    rows = Casting(element_bytes=1.0, passes=1, copies=1, late_passes=3.4)
    cast = with_casts(layer(), rows, wide_bytes=2)
    both = {one.name: (one.bytes, one.split) for one in (*cast.forward, *cast.backward)}
    assert both["quantise fc1 input"] == (TOKENS * 768 * 3, Split.NONE)
    late, split = both["quantise fc1 input for the weight"]
    assert (late, split) == (pytest.approx(TOKENS * 768 * 7.8), Split.NONE)
    assert both["quantise fc1 gradient for the weight"][1] is Split.TENSOR
    assert sum(name.endswith("for the weight") for name in both) == 8


def test_row_wise_fp8_of_torchao_is_slower_than_tensor_wise() -> None:
    """Its casts move more and its products are a little slower; both beat bf16 at 16k tokens without tensor parallelism."""
    shape = {"dp": 1, "pp": 1, "micro_batch": 8, "model_name": "llama2-7b", "cluster": "dgx-h100"}
    wide, tensor, row = (
        sum(one.duration.sum() for one in build_program(small_plan(**shape, precision=p)).templates)
        for p in ("bf16", "fp8", "fp8_rowwise")
    )
    assert tensor < row < wide


def test_transposed_copies_are_for_hopper_and_for_blocks() -> None:
    """fp8 with a scale a tensor needs one copy on Blackwell; blocks need two everywhere; bf16 casts nothing."""
    copies = {
        (chip, precision): cast.copies
        for chip in ("h100-sxm", "b200-sxm")
        for precision in ("fp8", "fp8_block")
        if (cast := casting(precision, accelerator(chip)))
    }
    assert copies == {
        ("h100-sxm", "fp8"): 2,
        ("b200-sxm", "fp8"): 1,
        ("h100-sxm", "fp8_block"): 2,
        ("b200-sxm", "fp8_block"): 2,
    }
    assert casting("bf16", accelerator("h100-sxm")) is None


@pytest.mark.parametrize("precision", ["fp8", "fp8_block", "mxfp8", "nvfp4"])
def test_a_narrow_step_shows_its_casts_and_is_faster(precision: str) -> None:
    """Kernels of every layer and one cast of all weights; casts included, a layer of 7B at 16k tokens beats bf16."""
    shape = {"cluster": "dgx-b200", "dp": 1, "pp": 1, "micro_batch": 8, "model_name": "llama2-7b"}
    narrow = build_program(small_plan(**shape, precision=precision))
    wide = build_program(small_plan(**shape))
    names = {name for template in narrow.templates for name in template.names}
    assert {"quantise qkv input", "quantise fc2 gradient"} <= names
    assert "quantise weights" in narrow.labels
    busy = [sum(one.duration.sum() for one in step.templates) for step in (narrow, wide)]
    assert busy[0] < busy[1]


def test_a_wide_step_casts_nothing() -> None:
    """bf16 has no kernel that quantises."""
    wide = build_program(small_plan())
    names = {name for template in wide.templates for name in template.names}
    assert not any("quantise" in name for name in (*names, *wide.labels))


def test_scales_of_the_matrix_unit_need_a_chip_that_has_them() -> None:
    """mxfp8 runs on Blackwell, with the constants of its relatives labelled so; Hopper refuses it."""
    assert KernelModel(accelerator("b200-sxm"), "mxfp8").provenance()
    with pytest.raises(HardwareError, match="no mxfp8"):
        KernelModel(accelerator("h100-sxm"), "mxfp8")
