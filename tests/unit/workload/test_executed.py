"""Executed FLOPs and the share of matrix units, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

import mpsim
from mpsim.cost import KernelModel
from mpsim.hardware import accelerator
from mpsim.scenario import Scenario
from mpsim.workload import Operator
from mpsim.workload.builders import make_attention, make_gemm
from mpsim.workload.operators import Phase, Role

# 8 queries and keys of 2 sequences with 4 heads of 64: all pairs are 2 x 4 x 64 = 512
S, SEQUENCES, HEADS, HEAD = 8, 2, 4, 64
FULL = 2 * SEQUENCES * HEADS * S * S * (HEAD + HEAD)  # 131,072 FLOP forward
GEMM = 2 * 128 * 256 * 512  # 33,554,432 FLOP


def _product() -> Operator:
    return make_gemm(Role.UP, Phase.FORWARD, m=128, n=256, k=512)


def _attention(phase: Phase = Phase.FORWARD, window: int = 0) -> Operator:
    kernel = make_attention(
        phase, sequences=SEQUENCES, queries=S, keys=S, heads=HEADS, kv_heads=HEADS, head_dim=HEAD
    )
    assert kernel.causal
    return dataclasses.replace(kernel, window=window)


def test_a_causal_kernel_executes_s_plus_1_over_2s_of_the_square_and_a_product_all_of_it() -> None:
    """Query i sees i keys: 36 of 64 pairs, 9/16; backward does 2.5 times as much, of the same pairs."""
    model = KernelModel(accelerator("h100-sxm"), "bf16")
    forward, backward = _attention(), _attention(Phase.INPUT_GRADIENT)
    assert (forward.flops, backward.flops) == (FULL, 2.5 * FULL)  # counted in full
    assert model.work([_product()])[0] == GEMM
    assert model.work([forward])[0] == pytest.approx(FULL * 9 / 16, rel=1e-12)
    assert model.work([backward])[0] == pytest.approx(2.5 * FULL * 9 / 16, rel=1e-12)
    # a window of 3: 1 + 2 + 6 x 3 = 21 of 64 pairs
    assert model.work([_attention(window=3)])[0] == pytest.approx(FULL * 21 / 64, rel=1e-12)


def test_every_format_counts_against_its_own_peak() -> None:
    """In fp8 the layer's product runs at twice the peak, the attention and the output projection at bf16's."""
    chip = accelerator("h100-sxm")
    model = KernelModel(chip, "fp8")
    logits = make_gemm(Role.LOGITS, Phase.FORWARD, m=128, n=256, k=512)
    flops, seconds, _ = model.work([_product(), logits, _attention()])
    attention = FULL * 9 / 16
    assert flops == pytest.approx(2 * GEMM + attention, rel=1e-12)
    narrow, wide = chip.peak("fp8"), chip.peak("bf16")
    assert seconds == pytest.approx(GEMM / narrow + (GEMM + attention) / wide, rel=1e-12)


def test_a_step_leaves_out_what_the_mask_skips_and_nothing_else() -> None:
    """One layer of hidden 1,024 on one GPU, two sequences of s = 8,192, where the fused core of full attention takes 4 s^2 h forward and 2.5 times that backward.

    A step therefore executes ``2 x 3.5 x 4 s^2 h x (1 - (s + 1) / 2s)`` less than papers count, and in bf16 throughout
    the share of matrix units is HFU times executed over counted FLOPs.
    """
    s, h = 8192, 1024
    summary = mpsim.simulate(
        Scenario.from_mapping(
            {
                "schema": 1,
                "model": {"layers": 1, "hidden": h, "heads": 16, "vocab": 32000},
                "cluster": {"preset": "dgx-a100-80gb", "nodes": 1, "accelerators_per_node": 1},
                "parallelism": {},
                "training": {"global_batch": 2, "sequence_length": s},
                "framework": {"preset": "megatron-core", "fused_attention": True},
            }
        )
    ).summary
    counted, executed = summary["hardware_flops_per_step"], summary["executed_flops_per_step"]
    skipped = 2 * 3.5 * 4 * s**2 * h * (1 - (s + 1) / (2 * s))
    assert counted - executed == pytest.approx(skipped, rel=1e-9)
    assert summary["tensor_utilisation"] == pytest.approx(
        summary["hfu"] * executed / counted, rel=1e-12
    )


def test_a_long_window_passes_100_percent_by_the_papers_count_and_stays_below_it_by_what_runs() -> (
    None
):
    """A window of 128 of 65,536 tokens: nearly all that HFU counts in attention never runs."""
    summary = mpsim.simulate(
        Scenario.from_mapping(
            {
                "schema": 1,
                "model": {
                    "layers": 2,
                    "hidden": 2048,
                    "heads": 16,
                    "vocab": 32000,
                    "attention": "sliding",
                    "window": 128,
                },
                "cluster": {"preset": "dgx-h100", "nodes": 1},
                "parallelism": {},
                "training": {"global_batch": 8, "sequence_length": 65536},
                "framework": {"preset": "megatron-core", "fused_attention": True},
            }
        )
    ).summary
    assert summary["hfu"] > 1 > summary["tensor_utilisation"]
