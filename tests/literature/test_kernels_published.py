"""Published kernel times: a checked-in subset, one row in many of each accelerator, with its source columns.

GEMM rows: ai-dynamo/aiconfigurator (Apache-2.0), snapshot 2026-08-21, TensorRT-LLM collections. Attention rows: the charts of
Dao-AILab/flash-attention (FlashAttention 2), 16k tokens, hidden 2048. The GEMM constants were fitted on random points of the same
collections, so this guards the formula and the data files, not the fit's generality.
"""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import validate_files
from mpsim.cost.kernels import KernelModel
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Operator,
    Phase,
    Role,
    make_attention,
    make_gemm,
)

SUBSET = Path(__file__).parent / "data" / "kernel_subset.csv"
NAMES = {
    "A100 SXM 80GB": "a100-sxm-80",
    "H100 SXM 80GB": "h100-sxm",
    "H200 SXM": "h200-sxm",
    "B200 SXM": "b200-sxm",
    "B300 SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
}
PUBLISHED = Path(__file__).parents[2] / "validation" / "data" / "kernels.csv"
MISSED = {"GB200": 0.08, "L40S": 0.10}  # docs/explanation/kernels.md says why; 0.06 elsewhere


def rows(op: str) -> list[dict[str, str]]:
    with SUBSET.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["op"] == op]


def gemm_error(row: dict[str, str]) -> float:
    m, n, k = (int(row[field]) for field in "mnk")
    product = make_gemm(Role.KERNEL, Phase.FORWARD, m=m, n=n, k=k)
    model = KernelModel(accelerator(NAMES[row["gpu"]]), row["dtype"], clocks="burst")
    return float(model.seconds([product])[0]) / (float(row["time_us"]) * 1e-6) - 1.0


def attention_pass(row: dict[str, str], phase: Phase) -> Operator:
    sequence = int(row["seq"])
    dim = int(row["head_dim"])
    return make_attention(
        phase,
        sequences=int(row["batch"]),
        queries=sequence,
        keys=sequence,
        heads=int(row["heads"]),
        head_dim=dim,
        causal=row["causal"] == "yes",
    )


def test_gemm_times_are_within_ten_percent_of_published_ones_in_the_median() -> None:
    """Forty bf16 shapes on eight accelerators, burst clocks: median error at most 10 %."""
    errors = [gemm_error(row) for row in rows("gemm")]
    assert len(errors) >= 40
    assert statistics.median(abs(error) for error in errors) <= 0.10


@pytest.mark.parametrize("gpu", sorted(NAMES))
def test_gemm_times_are_not_biased_on_any_accelerator(gpu: str) -> None:
    """No accelerator's published shapes are missed by a common factor of more than a quarter."""
    errors = [gemm_error(row) for row in rows("gemm") if row["gpu"] == gpu]
    assert abs(statistics.median(errors)) <= 0.25


@pytest.mark.parametrize(
    "row",
    rows("flash attention 2"),
    ids=lambda r: "-".join(r[k] for k in ("gpu", "seq", "head_dim", "causal")),
)
def test_attention_rate_reproduces_the_flash_attention_2_chart(row: dict[str, str]) -> None:
    """Forward and backward together are within 3 % of every bar (causal FLOPs halved, backward 2.5 x forward)."""
    model = KernelModel(
        accelerator(NAMES[row["gpu"]]), "bf16", attention_kernel="flash2", clocks="burst"
    )
    both = [attention_pass(row, phase) for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)]
    first = both[0]
    square = first.sequences * first.heads * first.queries * first.keys * first.head_dim
    flops = 3.5 * 4.0 * square * (0.5 if first.causal else 1.0)
    chart = flops / (float(row["tflops"]) * 1e12)
    assert model.seconds(both).sum() == pytest.approx(chart, rel=0.03)


def test_h200_large_square_product_runs_at_the_measured_burst_rate() -> None:
    """8192^3 in bf16 on H200: 769-798 TFLOP/s were measured, the model must land in 740-830 (and below that sustained)."""
    size = 8192
    product = make_gemm(Role.KERNEL, Phase.FORWARD, m=size, n=size, k=size)
    h200 = accelerator("h200-sxm")
    burst, sustained = (
        2.0 * size**3 / KernelModel(h200, "bf16", clocks=clocks).seconds([product])[0]
        for clocks in ("burst", "sustained")
    )
    assert 740e12 <= burst <= 830e12
    assert 640e12 <= sustained <= 720e12  # 0.70-0.73 of peak at most (kernels above 10 ms)


@functools.cache
def published() -> list[tuple[dict[str, str], float]]:
    """Every row that is predicted, with its error."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    found = {record.id: record.error for record in validate_files([PUBLISHED]).records}
    errors = [(row, found[str(number)]) for number, row in enumerate(table, 1)]
    return [(row, error) for row, error in errors if error is not None]


def mean_error(which: Callable[[dict[str, str]], bool]) -> float:
    return statistics.fmean(abs(error) for row, error in published() if which(row))


def large(row: dict[str, str]) -> bool:
    return int(row["m"]) >= 1024 and min(int(row["n"]), int(row["k"])) >= 512


@pytest.mark.parametrize("gpu", sorted(NAMES))
def test_large_products_are_within_six_percent_in_the_mean(gpu: str) -> None:
    """bf16, M >= 1024, N and K >= 512: 6 % (GB200 misses it with 8 %, L40S is allowed 10 %); all sizes 10 %."""

    def mine(row: dict[str, str]) -> bool:
        return row["gpu"] == gpu and row["op"] == "gemm" and row["dtype"] == "bf16"

    assert mean_error(lambda row: mine(row) and large(row)) <= MISSED.get(gpu, 0.06)
    assert mean_error(mine) <= 0.10


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block", "nvfp4"])
def test_products_in_narrow_formats_are_within_twelve_percent_in_the_mean(dtype: str) -> None:
    """With the cast of the activations as a kernel of its own; over all GPUs."""
    assert mean_error(lambda row: row["dtype"] == dtype and "quantisation" in row["op"]) <= 0.12


def test_attention_of_every_kernel_is_within_eight_percent_in_the_mean() -> None:
    """FlashAttention 2 and 3, cuDNN, TensorRT-LLM, Transformer Engine; forward, backward, causal or full."""
    assert mean_error(lambda row: "attention" in row["op"]) <= 0.08


def test_memory_bound_kernels_are_within_twelve_percent_in_the_mean() -> None:
    """Copies, elementwise, softmax and layer norms, with the host's time where the benchmark has it."""
    kinds = ("copy", "elementwise", "softmax", "layernorm", "memory-bound")
    assert mean_error(lambda row: any(kind in row["op"] for kind in kinds)) <= 0.12
