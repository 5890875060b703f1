"""Published kernel times: a checked-in subset, one row in many of each accelerator, with its source columns.

GEMM rows: ai-dynamo/aiconfigurator (Apache-2.0), snapshot 2026-08-21, TensorRT-LLM collections. Attention rows: the charts of
Dao-AILab/flash-attention (FlashAttention 2), 16k tokens, hidden 2048. The GEMM constants were fitted on random points of the same
collections, so this guards the formula and the data files, not the fit's generality.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from mpsim.cost.kernels import KernelModel
from mpsim.hardware.library import accelerator
from mpsim.workload.operators import Operator, OperatorKind, Phase

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
FLASH2_SHARE = (
    0.69  # what the model keeps of the chart in real training; the chart itself has none of it
)


def rows(op: str) -> list[dict[str, str]]:
    with SUBSET.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["op"] == op]


def gemm_error(row: dict[str, str]) -> float:
    m, n, k = (int(row[field]) for field in "mnk")
    product = Operator(
        name="product",
        kind=OperatorKind.GEMM,
        phase=Phase.FORWARD,
        m=m,
        n=n,
        k=k,
        bytes=2.0 * (m * k + k * n + m * n),
    )
    model = KernelModel(accelerator(NAMES[row["gpu"]]), row["dtype"], clocks="burst")
    return float(model.seconds([product])[0]) / (float(row["time_us"]) * 1e-6) - 1.0


def attention_pass(row: dict[str, str], phase: Phase) -> Operator:
    sequence = int(row["seq"])
    dim = int(row["head_dim"])
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        phase=phase,
        heads=int(row["heads"]),
        kv_heads=int(row["heads"]),
        head_dim=dim,
        head_dim_v=dim,
        queries=sequence,
        keys=sequence,
        sequences=int(row["batch"]),
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
    product = Operator(
        name="product",
        kind=OperatorKind.GEMM,
        phase=Phase.FORWARD,
        m=size,
        n=size,
        k=size,
        bytes=6.0 * size**2,
    )
    h200 = accelerator("h200-sxm")
    burst, sustained = (
        2.0 * size**3 / KernelModel(h200, "bf16", clocks=clocks).seconds([product])[0]
        for clocks in ("burst", "sustained")
    )
    assert 740e12 <= burst <= 830e12
    assert 640e12 <= sustained <= 720e12  # 0.70-0.73 of peak at most (kernels above 10 ms)
