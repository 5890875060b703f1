"""Fused attention: charts by pass, kernels measured by heads, and waiting processors."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim import structs
from mpsim.cost import KernelModel
from mpsim.cost.attention import waiting
from mpsim.errors import HardwareError
from mpsim.hardware.components import Calibration, Fitted
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Operator,
    OperatorKind,
    Phase,
    Role,
)


def attention(**changes: object) -> Operator:
    fields: dict[str, object] = {
        "name": "attention",
        "kind": OperatorKind.ATTENTION,
        "role": Role.ATTENTION,
        "phase": Phase.FORWARD,
        "heads": 16,
        "kv_heads": 16,
        "head_dim": 128,
        "head_dim_v": 128,
        "queries": 4096,
        "keys": 4096,
        "sequences": 4,
    }
    return Operator(**{**fields, **changes})  # type: ignore[arg-type]


def time(
    operator: Operator, chip: str = "h100-sxm", kernel: str = "flash2", **more: object
) -> float:
    settings = {"clocks": "burst", **more}
    model = KernelModel(accelerator(chip), "bf16", attention_kernel=kernel, **settings)  # type: ignore[arg-type]
    return float(model.seconds([operator])[0])


def test_forward_alone_has_its_own_chart_in_a_burst() -> None:
    """FlashAttention 2 on H100 at 8k causal: 333 TFLOP/s forward, as its chart prints."""
    work = attention(queries=8192, keys=8192, sequences=2)
    flops = 4.0 * 2 * 16 * 8192**2 * 128 / 2
    assert flops / time(work) == pytest.approx(333e12, rel=0.02)


def test_backward_of_a_forward_chart_takes_its_measured_ratio() -> None:
    """2.9 x forward where only forward was charted."""
    backward = attention(phase=Phase.INPUT_GRADIENT)
    ratio = time(backward, kernel="flash3") / time(attention(), kernel="flash3")
    assert ratio == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("tokens", "width", "forward", "backward"),
    [(4096, 128, 591, 474), (8192, 128, 644, 541), (32768, 128, 688, 581), (8192, 192, 643, 442)],
)
def test_cudnn_on_hopper_has_a_rate_of_each_pass(
    tokens: int, width: int, forward: float, backward: float
) -> None:
    """NVIDIA's tables of H200 in a burst and in training, heads of 128 and MLA's of 192 and 128 (cuDNN 9.19)."""
    work = {"queries": tokens, "keys": tokens, "heads": 128, "sequences": 1, "head_dim": width}
    flops = 2.0 * 128 * (width + 128) * tokens**2 / 2
    for clocks in ("burst", "sustained"):
        rates = [
            share * flops / time(attention(phase=phase, **work), kernel="cudnn", clocks=clocks)
            for phase, share in ((Phase.FORWARD, 1.0), (Phase.INPUT_GRADIENT, 2.5))
        ]
        assert rates == pytest.approx([forward * 1e12, backward * 1e12], rel=0.05)


@pytest.mark.parametrize(("chip", "waits"), [("h100-sxm", False), ("b200-sxm", True)])
def test_nothing_rests_on_tiles_where_none_of_them_waits(chip: str, waits: bool) -> None:
    """Hopper's tables hold what waits, so that a step is not told to rest on assumed numbers of tiles."""
    model = KernelModel(accelerator(chip), "bf16", attention_kernel="cudnn")
    model.seconds([attention()])
    assert any("occupancy" in each.name for each in model.provenance()) == waits


@pytest.mark.parametrize("chip", ["h100-sxm", "gb200"])
def test_a_measured_chart_takes_the_place_of_rates_by_pass(chip: str) -> None:
    """A machine file whose cuDNN attention reaches 100 TFLOP/s of both passes on long sequences."""
    values = {"peak": accelerator(chip).peak("bf16"), "chart_share": 1.0}
    for mask in ("causal", "full"):
        values |= {f"rate_{mask}_128": 100e12, f"half_{mask}_128": 0.0}
    constants = {
        f"kernels.attention_cudnn.{leaf}": Fitted(value, value, value, "1")
        for leaf, value in values.items()
    }
    machine = Calibration("here", "a test", "2026-11", constants, (), (), "", {})
    model = KernelModel(
        structs.replace(accelerator(chip), calibration=machine), "bf16", attention_kernel="cudnn"
    )
    both = [attention(), attention(phase=Phase.INPUT_GRADIENT)]
    flops = 3.5 * 4.0 * 4 * 16 * 4096**2 * 128 / 2
    assert flops / model.seconds(both).sum() == pytest.approx(100e12, rel=0.01)


def test_heads_of_unequal_width_run_slower_per_flop() -> None:
    """MLA's 192 and 128: 0.79 of the backward rate of Transformer Engine on A100."""
    plain = attention(phase=Phase.INPUT_GRADIENT, head_dim=160, head_dim_v=160)
    latent = attention(phase=Phase.INPUT_GRADIENT, head_dim=192, head_dim_v=128)
    ratio = time(latent, "a100-pcie-80", "te") / time(plain, "a100-pcie-80", "te")
    assert ratio == pytest.approx(1 / 0.79)


def test_few_heads_leave_processors_waiting() -> None:
    """Four heads of one sequence run at 0.46 of the rate of 32 on A100 (measured 0.5142 / 1.1185)."""
    few, many = (
        heads / time(attention(heads=heads, sequences=1), "a100-pcie-80", "te") for heads in (4, 32)
    )
    assert few / many == pytest.approx(0.5142 / 1.1185, rel=0.1)


def test_waiting_is_an_option_of_the_charts() -> None:
    """Off, time is proportional to heads; on, four heads cost more than their share and many cost the same."""
    few, many = attention(heads=4, sequences=1), attention(heads=64, sequences=4)
    assert time(many) / time(few) == pytest.approx(64)
    assert time(few, few_heads=True) > 1.5 * time(few)
    assert time(many, few_heads=True) == time(many)


def test_waiting_fades_with_the_work() -> None:
    """1 + wait * processors / tiles."""
    assert waiting(np.array([100.0, 1e9]), 100, 2).tolist() == pytest.approx([3.0, 1.0], rel=1e-6)


def test_a_window_saves_time_and_grouped_heads_do_not() -> None:
    """A window of an eighth of the keys works on a quarter of the causal pairs; kv heads change bytes, not the time."""
    windowed = attention(queries=32768, keys=32768, window=4096)
    whole = attention(queries=32768, keys=32768)
    assert time(windowed) / time(whole) == pytest.approx(2 * (1 / 8 - 1 / 128))
    assert time(attention(kv_heads=2)) == time(attention())


def test_the_bend_goes_from_a_sum_to_the_larger_of_tile_and_work() -> None:
    """The longest tile takes half of the shared work: 1.5 together, the work alone in the end; no work at all waits without end."""
    tiles = np.array([200.0])
    by_bend = [float(waiting(tiles, 100.0, 1.0, bend)[0]) for bend in (1.0, 2.0, 4.0, 64.0)]
    assert by_bend[0] == 1.5
    assert by_bend == sorted(by_bend, reverse=True)
    assert by_bend[-1] == pytest.approx(1.0)
    assert float(waiting(np.array([10.0]), 100.0, 1.0, 64.0)[0]) == pytest.approx(10.0)


@pytest.mark.parametrize(("window", "measured"), [(1024, 675e12), (128, 167e12)])
def test_a_window_runs_slower_by_the_keys_that_a_query_sees(window: int, measured: float) -> None:
    """64 heads of 64 on GB300 at 8k: 675 TFLOP/s in a window of 1024 keys, 167 in one of 128 (cuDNN 9.19 and 9.22), one law for both."""
    work = attention(
        queries=8192, keys=8192, heads=64, sequences=1, head_dim=64, head_dim_v=64, window=window
    )
    pairs = 8192 * window - window**2 / 2
    rate = 4 * 64 * 64 * pairs / time(work, "gb300", "cudnn")
    assert rate == pytest.approx(measured, rel=0.11)


@pytest.mark.parametrize(("seq", "before", "after"), [(4096, 1145, 1688), (8192, 1496, 1894)])
def test_releases_of_a_kernel_differ_in_what_short_rows_cost(
    seq: int, before: float, after: float
) -> None:
    """GB300 forward, cuDNN of 2025-10 against those of 2025-12 and later: half as fast again at 4k, one rate for endless rows."""
    work = attention(queries=seq, keys=seq, heads=64, sequences=1)
    flops = 4.0 * 64 * 128 * seq**2 / 2
    rates = [flops / time(work, "gb300", kernel) for kernel in ("cudnn-2025", "cudnn")]
    assert rates == pytest.approx([before * 1e12, after * 1e12], rel=0.02)
    endless = attention(queries=1 << 20, keys=1 << 20, heads=64, sequences=1)
    assert time(endless, "gb300", "cudnn-2025") == pytest.approx(
        time(endless, "gb300", "cudnn"), rel=0.01
    )


@pytest.mark.parametrize(
    ("phase", "torch", "vendor"), [(Phase.FORWARD, 630, 1173), (Phase.INPUT_GRADIENT, 224, 1034)]
)
def test_attention_of_torch_on_amd_is_slower_than_the_vendors(
    phase: Phase, torch: float, vendor: float
) -> None:
    """MI355X at 8k causal, 16 sequences of 16 heads: AOTriton's backward has a fifth of AITER's rate (HazyResearch/HipKittens)."""
    work = attention(queries=8192, keys=8192, sequences=16, phase=phase)
    flops = 4.0 * 16 * 16 * 8192**2 * 128 / 2 * (1.0 if phase is Phase.FORWARD else 2.5)
    rates = [flops / time(work, "mi355x", kernel) / 1e12 for kernel in ("flash2", "cudnn")]
    assert rates == pytest.approx([torch, vendor], rel=0.06)


def test_narrow_attention_is_a_kernel_that_a_recipe_asks_for() -> None:
    """FP8 attention on GB200 is 1.28 x as fast forward at 4k (1805 against 1408); Hopper has no table, so it is refused there."""
    work = attention(heads=64, sequences=1)
    ratio = time(work, "gb200", "cudnn") / time(work, "gb200", "cudnn-fp8")
    assert ratio == pytest.approx(1805 / 1364, rel=0.02)
    with pytest.raises(HardwareError, match="attention_cudnn-fp8"):
        time(work, "h100-sxm", "cudnn-fp8")
    assert time(work, "h100-sxm", "cudnn-2025") == time(work, "h100-sxm", "cudnn")


def test_sustained_products_of_blackwell_follow_the_power_of_their_board() -> None:
    """One draw for boards of 1,000, 1,200 and 1,400 W: 0.79, 0.89 and 0.94 of the burst; a higher limit never makes a product slower."""
    kept = [
        KernelModel(accelerator(chip), "bf16").peak_fraction("bf16")
        / KernelModel(accelerator(chip), "bf16", clocks="burst").peak_fraction("bf16")
        for chip in ("b200-sxm", "gb200", "gb300")
    ]
    assert kept == pytest.approx([0.79, 0.89, 0.94], abs=0.005)
