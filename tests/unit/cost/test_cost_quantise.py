"""Narrow formats, their casts, grouped products and launches."""

from __future__ import annotations

import pytest

from mpsim.cost import GemmConstants, KernelModel, Status
from mpsim.cost.formulas import group_padding
from mpsim.cost.quantise import FORMATS, format_bytes, launch_seconds, quantise_seconds
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Operator,
    OperatorKind,
    Phase,
    Role,
    make_gemm,
)

C = GemmConstants(compute_fraction=0.8, memory_fraction=0.8, launch=3e-6, knee=3.0)
SIZE = 8192


def rate(chip: str, precision: str, clocks: str = "burst") -> float:
    work = make_gemm(
        Role.UP, Phase.FORWARD, m=SIZE, n=SIZE, k=SIZE, element_bytes=1, result_bytes=2
    )
    time = KernelModel(accelerator(chip), precision, clocks=clocks).seconds([work])[0]
    return float(2.0 * SIZE**3 / time)


def test_a_cast_moves_its_bytes_and_starts_its_kernels() -> None:
    """fp8 with a scale a tensor reads 2 B twice and writes 1 B: 5 GB of 1e9 elements at 0.75 of the memory, and five starts."""
    assert float(quantise_seconds(1e9, "fp8", 1e12)) == pytest.approx(15e-6 + 5e9 / 0.75e12)
    assert float(quantise_seconds(1e9, "fp8_block", 1e12)) == pytest.approx(
        3e-6 + 3.03125e9 / 0.75e12
    )
    assert float(quantise_seconds(1e9, "nvfp4", 1e12, from_bytes=4.0)) == pytest.approx(
        6e-6 + 8.5625e9 / 0.75e12
    )


def test_formats_count_their_scales() -> None:
    """A 4-byte scale for 128 elements, a 1-byte scale for 32 and for 16."""
    expected = {
        "fp8": 1.0,
        "fp8_rowwise": 1.0,
        "fp8_block": 1 + 4 / 128,
        "mxfp8": 1 + 1 / 32,
        "nvfp4": 0.5 + 1 / 16,
    }
    assert {one: format_bytes(one) for one in FORMATS} == expected


def test_narrower_formats_are_faster_and_none_reaches_its_peak() -> None:
    """On B200 8192 cubed: bf16 < fp8 < nvfp4, each below its own peak."""
    chip = accelerator("b200-sxm")
    rates = [rate("b200-sxm", one) for one in ("bf16", "fp8", "nvfp4")]
    assert rates == sorted(rates)
    for reached, peak in zip(rates, ("bf16", "fp8", "fp4"), strict=True):
        assert reached < chip.peak(peak)
    assert rate("b200-sxm", "fp4") == rate("b200-sxm", "nvfp4")


def test_hot_clocks_slow_a_format_that_was_only_measured_in_bursts() -> None:
    """fp8_block is scaled as bf16 is, and labelled so."""
    assert rate("h100-sxm", "fp8_block", "sustained") < 0.9 * rate("h100-sxm", "fp8_block")
    used = KernelModel(accelerator("h100-sxm"), "fp8_block").provenance()
    mine = [one for one in used if one.name.endswith("fp8_block_burst_fraction")]
    assert [one.status for one in mine] == [Status.FAMILY_DEFAULT]


def test_a_model_casts_to_its_own_format_and_a_wide_one_casts_nothing() -> None:
    """quantisation_seconds is that of the precision; the constants it used are listed."""
    chip = accelerator("b200-sxm")
    narrow = KernelModel(chip, "fp4")
    expected = quantise_seconds(1e8, "nvfp4", chip.memory_bandwidth)
    assert float(narrow.quantisation_seconds(1e8)) == float(expected)
    used = {one.name for one in narrow.provenance()}
    assert {"kernels.quantise.nvfp4.passes", "kernels.transpose.blackwell.copies_blocks"} <= used
    assert float(KernelModel(chip, "bf16").quantisation_seconds(1e8)) == 0.0


def test_a_missing_or_misspelt_format_is_refused() -> None:
    """H100 has no fp4; fp8_blok is answered with fp8_block."""
    with pytest.raises(HardwareError, match="no nvfp4"):
        KernelModel(accelerator("h100-sxm"), "nvfp4")
    with pytest.raises(HardwareError, match="fp8_block"):
        quantise_seconds(1.0, "fp8_blok", 1e12)


def test_a_graph_launches_cheaper_than_a_compiler_and_that_than_eager() -> None:
    """2.45 us in a graph on Hopper, 1.75 us on Blackwell; host costs are recalled."""
    assert launch_seconds("graph") < launch_seconds("compiled") < launch_seconds("eager")
    assert launch_seconds("graph", accelerator("b200-sxm")) < launch_seconds(
        "graph", accelerator("h100-sxm")
    )
    assert launch_seconds("synchronised") == pytest.approx(21e-6)
    with pytest.raises(HardwareError, match="did you mean 'graph'"):
        launch_seconds("grphs")


def experts(m: int, batch: int, phase: Phase = Phase.FORWARD) -> Operator:
    """`batch` experts of 4096 x 2048 with `m` tokens each in the mean."""
    rows, columns, inner = (4096, 2048, m) if phase is Phase.WEIGHT_GRADIENT else (m, 4096, 2048)
    shape = {"m": rows, "n": columns, "k": inner, "batch": batch}
    return make_gemm(Role.UP, phase, kind=OperatorKind.GROUPED_GEMM, **shape)


def test_experts_waste_half_a_tile_each_and_more_of_them_waste_more() -> None:
    """The same 8192 tokens over 8, 32 and 128 experts: 6 % over one product, then more, and in the end the weights are all that counts."""
    chip = accelerator("h100-sxm")
    model = KernelModel(chip, "bf16")
    times = model.seconds([experts(8192 // count, count) for count in (8, 32, 128)])
    whole = model.seconds([experts(8192, 1)])[0]
    assert list(times) == sorted(times)
    assert 1.02 < times[0] / whole < 1.12
    weights = 2.0 * 128 * 4096 * 2048 / chip.memory_bandwidth
    assert weights < times[2] < 1.5 * weights


def test_group_padding_by_hand() -> None:
    """512 ragged rows fill 4.5 tiles of 128; equal rows fill theirs; one tile for 132 processors leaves 131 idle."""
    sizes = {"tile": (128, 128), "processors": 132.0}
    assert float(group_padding(512, 4096, 8, ragged=True, **sizes)) == 576 / 512
    assert float(group_padding(512, 4096, 8, ragged=False, **sizes)) == 1.0
    assert float(group_padding(128, 128, 1, ragged=False, **sizes)) == 132.0


@pytest.mark.parametrize(("chip", "rows"), [("tpu-v5p", 512), ("tpu-v7x", 1024)])
def test_experts_of_a_tpu_follow_each_other_in_tiles_that_two_of_them_work_on(
    chip: str, rows: int
) -> None:
    """A tile of 512 more an expert on each core, in weight gradients too."""
    model = KernelModel(accelerator(chip), "bf16")
    few, many = (model.seconds([experts(m, 65536 // m)])[0] for m in (2048, 8192))
    assert few / many == pytest.approx((1 + rows / 2048) / (1 + rows / 8192), rel=0.05)
    few, many = (
        model.seconds([experts(m, 65536 // m, Phase.WEIGHT_GRADIENT)])[0] for m in (2048, 8192)
    )
    assert few / many == pytest.approx((1 + rows / 2048) / (1 + rows / 8192), rel=0.05)


def test_experts_run_in_the_narrow_format_and_their_weight_gradients_a_little_slower() -> None:
    """fp8 halves the time of large groups; weight gradients are 1.26 x of a product without ragged rows."""
    chip, work = accelerator("h100-sxm"), experts(4096, 8)
    wide, narrow = (KernelModel(chip, one).seconds([work])[0] for one in ("bf16", "fp8"))
    assert 0.45 < narrow / wide < 0.65
    weight = KernelModel(chip, "bf16").seconds([experts(4096, 8, Phase.WEIGHT_GRADIENT)])[0]
    assert weight / wide == pytest.approx(1.26 / (1 + 64 / 4096), rel=0.01)


@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm"])
def test_row_wise_products_follow_the_level_of_tensor_wise_ones(chip: str) -> None:
    """0.964 of it: one of three products runs at 0.9."""
    ratio = KernelModel(accelerator(chip), "fp8_rowwise").peak_fraction("fp8_rowwise")
    assert ratio == pytest.approx(
        0.964 * KernelModel(accelerator(chip), "fp8").peak_fraction("fp8")
    )


def test_a_chip_without_fp8_has_no_rows_of_it() -> None:
    """A100: the message names the precision."""
    with pytest.raises(HardwareError, match="fp8_rowwise"):
        KernelModel(accelerator("a100-sxm-80"), "fp8_rowwise")
