"""KernelModel: which constants apply to which operator, and its bookkeeping."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.cost import KernelModel, Status
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Lowering,
    Operator,
    OperatorKind,
    Phase,
    Role,
    expand_layer,
    make_elementwise,
    make_gemm,
    model,
)


def product(**changes: object) -> Operator:
    shape: dict[str, object] = {"m": 4096, "n": 4096, "k": 4096, "bytes": 6.0 * 4096**2}
    fields = {"name": "up", "kind": OperatorKind.GEMM, "role": Role.UP, "phase": Phase.FORWARD}
    return Operator(**{**fields, **shape, **changes})  # type: ignore[arg-type]


def attention(**changes: object) -> Operator:
    fields: dict[str, object] = {
        "name": "attention",
        "kind": OperatorKind.ATTENTION,
        "role": Role.ATTENTION,
        "phase": Phase.FORWARD,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "head_dim_v": 128,
        "queries": 4096,
        "keys": 4096,
        "sequences": 2,
    }
    return Operator(**{**fields, **changes})  # type: ignore[arg-type]


def stream(kind: OperatorKind, moved: float = 1e9) -> Operator:
    return make_elementwise(Role.KERNEL, Phase.FORWARD, moved=moved, kind=kind)


def time(
    operator: Operator, name: str = "h100-sxm", precision: str = "bf16", **more: object
) -> float:
    chosen = KernelModel(accelerator(name), precision, **more)  # type: ignore[arg-type]
    return float(chosen.seconds([operator])[0])


def test_scores_of_attention_wait_for_memory_as_the_kernels_around_them_do() -> None:
    """Batched products of short k move bytes: in training 1.22 times as long as in a benchmark, as elementwise kernels; products of weights do not."""
    sides = {"m": 2048, "n": 2048, "k": 8, "batch": 384}
    scores = product(**sides, bytes=2.0 * 384 * (2048**2 + 2 * 8 * 2048))
    few = product(m=8, bytes=2.0 * 4096**2)
    for operator, slower in ((scores, 1.22), (few, 1.0)):
        burst, hot = (time(operator, clocks=clocks) for clocks in ("burst", "sustained"))
        assert hot / burst == pytest.approx(slower, rel=0.01)


def test_weight_gradients_take_four_percent_longer() -> None:
    """Same shape, same bytes, other layout."""
    forward, gradient = product(), product(phase=Phase.WEIGHT_GRADIENT)
    assert time(gradient) / time(forward) == pytest.approx(1.04)


@pytest.mark.parametrize("precision", ["fp8", "fp8_rowwise"])
def test_hopper_promotes_sums_of_gradients_in_fp8_and_no_others(precision: str) -> None:
    """Fast accumulation is for the forward alone; the head stays wide, and Blackwell has full sums at its full rate."""
    for phase, layout in ((Phase.INPUT_GRADIENT, 1.0), (Phase.WEIGHT_GRADIENT, 1.04)):
        for chip, narrow, role, slower in (
            ("h100-sxm", precision, Role.UP, 1.085),
            ("h200-sxm", precision, Role.UP, 1.085),
            ("h100-sxm", precision, Role.LOGITS, 1.0),
            ("h100-sxm", "fp8_block", Role.UP, 1.0),
            ("h100-sxm", "bf16", Role.UP, 1.0),
            ("b200-sxm", "fp8", Role.UP, 1.0),
        ):
            forward, gradient = (product(phase=each, role=role) for each in (Phase.FORWARD, phase))
            longer = time(gradient, chip, narrow) / time(forward, chip, narrow)
            assert longer == pytest.approx(slower * layout), (chip, narrow, role, phase)


@pytest.mark.parametrize(
    ("phase", "again"),
    [
        # wq, wk and wv read the same (m, k) input three times instead of once
        (Phase.FORWARD, 2 * 2.0 * 65536 * 64),
        # three gradients of (m, n) are written where one product would add them up
        (Phase.INPUT_GRADIENT, 2 * 2.0 * 65536 * 128),
        # the (k, n) input is read for each of the three weight gradients
        (Phase.WEIGHT_GRADIENT, 2 * 2.0 * 64 * 128),
    ],
)
def test_separate_weights_move_what_they_share_once_for_each(phase: Phase, again: float) -> None:
    """Three products take as long as one of the same FLOPs that moves what the second and the third read or write anew."""
    shape = {"m": 65536, "n": 128, "k": 64, "phase": phase}
    moved = 2.0 * (65536 * 64 + 64 * 128 + 65536 * 128)
    separate = time(product(**shape, bytes=moved, weights=3))
    assert separate == pytest.approx(time(product(**shape, bytes=moved + again)), rel=1e-12)
    assert separate > time(product(**shape, bytes=moved))


def test_batched_products_with_an_odd_head_dim_fall_off_a_cliff() -> None:
    """head_dim 108 is not a multiple of 8: about 20 TFLOP/s on A100, as BLOOM's tuning rows show."""
    odd = product(m=2048, n=2048, k=108, batch=64, bytes=64 * 2.0 * (2 * 2048 * 108 + 2048**2))
    even = dataclasses.replace(odd, k=112)
    assert time(odd, "a100-sxm-80") > 10 * time(even, "a100-sxm-80")
    rate = 2.0 * 64 * 2048**2 * 108 / time(odd, "a100-sxm-80")
    assert 8e12 < rate < 24e12


@pytest.mark.parametrize(
    ("chip", "matrix", "plain"),
    [("a100-sxm-80", 0.765 * 312, 19.5), ("h100-sxm", 0.66 * 989, 67.0)],
)
def test_the_cliff_is_as_high_as_float32_units_are_slower(
    chip: str, matrix: float, plain: float
) -> None:
    """Rows that matrix units cannot take run on the plain units at 0.95 of their peak: 12.9 x on A100, 10.4 x on H100."""
    even = product(m=2048, n=2048, k=112, batch=64)
    odd = dataclasses.replace(even, n=2047)
    assert time(odd, chip) / time(even, chip) == pytest.approx(matrix / (0.95 * plain), rel=0.01)


def test_chips_without_float32_units_have_no_cliff() -> None:
    """A TPU pads what it is given; nothing falls back to other units."""
    even = product(m=2048, n=2048, k=128, batch=64)
    odd = dataclasses.replace(even, n=2047)
    assert time(odd, "tpu-v4") == pytest.approx(time(even, "tpu-v4"), rel=0.01)


def test_linear_layers_do_not_pay_for_an_odd_width() -> None:
    """The cliff is that of batched attention products alone."""
    assert time(product(k=4095)) == pytest.approx(time(product()), rel=0.01)


def test_fp8_runs_linear_layers_faster_and_leaves_the_logits_and_attention_in_bf16() -> None:
    """Attention products, fused attention and the output projection keep their bf16 time."""
    assert time(product(), precision="fp8") < 0.65 * time(product())
    for wide in (product(role=Role.LOGITS), product(batch=8), attention()):
        assert time(wide, precision="fp8") == time(wide)


def test_a_narrow_head_is_as_fast_as_other_linear_layers() -> None:
    """Nothing but the output projection leaves bf16 with it."""
    narrow = KernelModel(accelerator("h100-sxm"), "fp8", narrow_head=True)
    head, layer, router = narrow.seconds(
        [product(role=Role.LOGITS), product(), product(role=Role.ROUTER)]
    )
    assert head == layer < 0.65 * router


def test_a_missing_precision_is_refused() -> None:
    """A100 has no fp8 and V100 no bf16: never guessed."""
    with pytest.raises(HardwareError, match="a100-sxm-80 has no fp8"):
        KernelModel(accelerator("a100-sxm-80"), "fp8")
    with pytest.raises(HardwareError, match="no bf16"):
        KernelModel(accelerator("v100-sxm2-32"), "bf16")


def test_single_precision_uses_its_own_peak() -> None:
    """tf32 is half of bf16, fp32 outside tensor cores far below; both borrow bf16's fraction and say so."""
    assert time(product(m=16384), precision="tf32") == pytest.approx(
        2 * time(product(m=16384)), rel=0.1
    )
    single = KernelModel(accelerator("h100-sxm"), "fp32")
    assert time(product(), precision="fp32") > 5 * time(product())
    used = {c.name: c for c in single.provenance()}["kernels.gemm.h100-sxm.sustained_fraction"]
    assert used.status is Status.FAMILY_DEFAULT


def test_unknown_settings_name_the_nearest() -> None:
    """A typo in the kernel or the clocks is answered with what exists."""
    chip = accelerator("h100-sxm")
    with pytest.raises(HardwareError, match="did you mean 'flash2'"):
        KernelModel(chip, "bf16", attention_kernel="flash-2")
    with pytest.raises(HardwareError, match="sustained"):
        KernelModel(chip, "bf16", clocks="sustainned")
    with pytest.raises(HardwareError, match="eager_factor is 0"):
        KernelModel(chip, "bf16", eager_factor=0.0)


def test_forward_and_backward_attention_share_their_time_one_to_three() -> None:
    """Backward has 2.5 x the FLOPs and takes 3 x the time of forward."""
    backward = attention(phase=Phase.INPUT_GRADIENT)
    assert time(backward) / time(attention()) == pytest.approx(3.0)


def test_attention_level_follows_the_kernel_generation() -> None:
    """flash1 is 0.53 of flash2 at any clock; cuDNN on Hopper runs 503 TFLOP/s of both passes at 4k."""
    for clocks in ("sustained", "burst"):
        old, new = (
            time(attention(), attention_kernel=kernel, clocks=clocks)
            for kernel in ("flash1", "flash2")
        )
        assert new / old == pytest.approx(0.53, rel=0.1)  # a burst's forward has a chart of its own
    flops = 3.5 * 4.0 * 2 * 32 * 4096**2 * 128 / 2
    cudnn = time(attention(), attention_kernel="cudnn") + time(
        attention(phase=Phase.INPUT_GRADIENT), attention_kernel="cudnn"
    )
    assert flops / cudnn == pytest.approx(3.5e12 / (1 / 591 + 2.5 / 474), rel=0.04)


def test_flash_attention_in_triton_is_fast_forward_alone() -> None:
    """Both passes take as long as those in CUDA, of which forward is 0.18 in place of 0.25."""
    forward, both = (
        sum(time(attention(phase=phase), attention_kernel="triton") for phase in phases)
        for phases in ([Phase.FORWARD], [Phase.FORWARD, Phase.INPUT_GRADIENT])
    )
    assert forward / both == pytest.approx(0.18)
    assert 0.25 * both == pytest.approx(time(attention(), attention_kernel="flash1"))


@pytest.mark.parametrize("kernel", ["flash1", "triton"])
def test_heads_of_64_are_as_fast_as_of_128_before_flash_attention_2(kernel: str) -> None:
    """Half as much work of an endless sequence takes half as long; FlashAttention 2 takes longer."""
    narrow, wide = (
        attention(queries=2**18, keys=2**18, head_dim=dim, head_dim_v=dim) for dim in (64, 128)
    )
    ratio = [
        time(wide, attention_kernel=each) / time(narrow, attention_kernel=each)
        for each in (kernel, "flash2")
    ]
    assert ratio[0] == pytest.approx(2.0, rel=0.01)
    assert ratio[1] < 1.8


def test_attention_of_another_accelerator_scales_with_its_peak() -> None:
    """L40S borrows the H100 chart at the ratio of their peaks."""
    ratio = accelerator("l40s").peak("bf16") / 989.4e12
    assert time(attention()) / time(attention(), "l40s") == pytest.approx(ratio, rel=1e-3)


def test_head_dims_between_charts_lie_between_them() -> None:
    """head_dim 96 per FLOP is slower than 128 and faster than 64."""
    cost = {d: time(attention(head_dim=d, head_dim_v=d)) / d for d in (64, 96, 128)}
    assert cost[64] > cost[96] > cost[128]


def test_a_power_limited_h100_sustains_less() -> None:
    """500 W keeps 0.82 of GEMM and attention rates when hot, and all of it in a burst."""
    board = dataclasses.replace(accelerator("h100-sxm"), tdp_w=500.0)
    for operator in (product(m=32768, bytes=0.0), attention()):
        hot = KernelModel(board, "bf16").seconds([operator])[0]
        assert time(operator) / hot == pytest.approx(0.82, rel=0.01)
    burst = KernelModel(board, "bf16", clocks="burst").seconds([product()])[0]
    assert burst == time(product(), clocks="burst")


def test_a_power_cap_slows_products_and_spares_what_memory_bounds() -> None:
    """H100 at half power: products by 1.4 to 1.8 times, streams hardly; a cap never speeds anything up."""
    board, ratios = accelerator("h100-sxm"), {}
    for cap in (700.0, 600.0, 500.0, 350.0, 200.0):
        model = KernelModel(dataclasses.replace(board, tdp_w=cap), "bf16")
        gemm, moved = model.seconds([product(m=32768, bytes=0.0), stream(OperatorKind.ELEMENTWISE)])
        ratios[cap] = (
            gemm / time(product(m=32768, bytes=0.0)),
            moved / time(stream(OperatorKind.ELEMENTWISE)),
        )
    assert ratios[700.0] == (1.0, 1.0)
    assert 1.4 < ratios[350.0][0] < 1.8
    assert ratios[350.0][1] == 1.0
    assert ratios[200.0][1] > 1.0
    products = [gemm for gemm, _ in ratios.values()]
    assert products == sorted(products)


@pytest.mark.parametrize(
    ("board", "burst", "sustained"),
    [("t4", 42.3, 24.0), ("v100-sxm2-16", 97.4, 86.9), ("a40", 122.3, None)],
)
def test_boards_of_a_table_of_torch_products_reach_what_it_has(
    board: str, burst: float, sustained: float | None
) -> None:
    """A large fp16 product runs at the measured rate [TFLOP/s]; under T4's 70 W at 24."""
    large = make_gemm(Role.KERNEL, Phase.FORWARD, m=8192, n=8192, k=8192)
    for clocks, rate in (("burst", burst), ("sustained", sustained)):
        kernels = KernelModel(accelerator(board), "fp16", clocks=clocks)
        reached = large.flops / float(kernels.seconds([large])[0]) / 1e12
        assert rate is None or reached == pytest.approx(rate, rel=0.03)


def test_memory_kernels_take_the_level_of_real_training() -> None:
    """1 GB at 0.85 of 3.35 TB/s, times 1.22; norms at 0.75; eager kernels more, but not the loss."""
    assert time(stream(OperatorKind.ELEMENTWISE)) == pytest.approx(1.22 * 1e9 / (0.85 * 3.35e12))
    assert time(stream(OperatorKind.NORM)) == pytest.approx(1.22 * 1e9 / (0.75 * 3.35e12))
    for kind, factor in ((OperatorKind.NORM, 1.7), (OperatorKind.LOSS, 1.0)):
        ratio = time(stream(kind), eager_factor=1.7) / time(stream(kind))
        assert ratio == pytest.approx(factor)


def test_memory_kernels_of_a_benchmark_have_no_slowdown() -> None:
    """H200 copies 8.6 GB in 2 ms: 0.90 of its memory measured, 0.85 here; norms reach 0.85 there too."""
    copy = stream(OperatorKind.ELEMENTWISE, 8.6e9)
    assert time(copy, "h200-sxm", clocks="burst") == pytest.approx(2e-3, rel=0.06)
    norm = stream(OperatorKind.NORM)
    assert time(norm, clocks="burst") == pytest.approx(1e9 / (0.85 * 3.35e12))


def test_small_memory_kernels_take_three_microseconds() -> None:
    """The floor of a kernel."""
    assert time(stream(OperatorKind.ELEMENTWISE, 10.0)) == 3e-6


def test_remembered_shapes_equal_fresh_ones_and_keep_their_order() -> None:
    """Repeats, other names and any order give the same number for the same shape."""
    layer = expand_layer(model("gpt2-small"), Lowering(), sequences=2, sequence_length=1024)
    operators = [*layer.forward, *layer.backward]
    once = KernelModel(accelerator("a100-sxm-80"), "bf16")
    first = once.seconds(operators)
    alone = [KernelModel(accelerator("a100-sxm-80"), "bf16").seconds([o])[0] for o in operators]
    assert first.tolist() == alone
    assert once.seconds(operators[::-1]).tolist() == first[::-1].tolist()
    assert once.seconds([]).size == 0


def test_provenance_lists_what_was_used_and_nothing_else() -> None:
    """Attention constants appear with the first attention; every entry is complete."""
    chosen = KernelModel(accelerator("h100-sxm"), "bf16")
    chosen.seconds([product()])
    before = {c.name for c in chosen.provenance()}
    assert "hardware.h100-sxm.peak_flops.bf16" in before
    assert not any("attention" in name for name in before)
    chosen.seconds([attention()])
    after = {c.name for c in chosen.provenance()}
    assert "kernels.attention_flash2.h100.rate_causal_128" in after
    assert np.all([c.source and c.unit for c in chosen.provenance()])
