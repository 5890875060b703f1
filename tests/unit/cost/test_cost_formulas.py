"""The kernel formulas at limits that are solved by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.cost import (
    GemmConstants,
    attention_pairs,
    attention_seconds,
    gemm_seconds,
    memory_seconds,
    update_seconds,
)

PEAK, BANDWIDTH = 100e12, 1e12


def constants(knee: float, launch: float = 0.0) -> GemmConstants:
    return GemmConstants(compute_fraction=0.5, memory_fraction=0.8, launch=launch, knee=knee)


def gemm(size: int, moved: float, c: GemmConstants) -> float:
    return float(gemm_seconds(size, size, size, 1, moved, peak=PEAK, bandwidth=BANDWIDTH, c=c))


def test_a_sharp_knee_is_the_roofline() -> None:
    """p -> infinity leaves the larger of compute and memory time."""
    # 2 * 1000^3 / (0.5 * 100e12) = 40 us; 8e6 B / (0.8 * 1e12) = 10 us; 80e6 B is 100 us
    assert gemm(1000, 8e6, constants(knee=1000.0)) == pytest.approx(40e-6)
    assert gemm(1000, 80e6, constants(knee=1000.0)) == pytest.approx(100e-6)


def test_a_knee_of_one_adds_compute_and_memory() -> None:
    """p = 1 is the sum: nothing overlaps."""
    assert gemm(1000, 8e6, constants(knee=1.0)) == pytest.approx(50e-6)


def test_a_knee_of_two_is_the_hypotenuse() -> None:
    """p = 2 with 40 us of compute and 30 us of memory is 50 us."""
    assert gemm(1000, 24e6, constants(knee=2.0)) == pytest.approx(50e-6)


def test_a_product_without_work_takes_the_launch_time() -> None:
    """No FLOPs and no bytes leave t0, without a division by zero."""
    assert gemm(0, 0.0, constants(knee=2.0, launch=3e-6)) == pytest.approx(3e-6)


def test_a_batch_multiplies_the_compute() -> None:
    """Four products without traffic take four times the compute of one."""
    c = constants(knee=2.0)
    one, four = (
        float(gemm_seconds(64, 64, 64, b, 0.0, peak=PEAK, bandwidth=BANDWIDTH, c=c)) for b in (1, 4)
    )
    assert four == pytest.approx(4 * one)


def test_an_array_of_shapes_equals_the_shapes_one_by_one() -> None:
    """Vector equals scalar."""
    m, moved = np.array([16.0, 1024.0, 8192.0]), np.array([1e3, 1e7, 1e9])
    c = constants(knee=1.47, launch=5e-6)
    together = gemm_seconds(m, 512, 2048, 1, moved, peak=PEAK, bandwidth=BANDWIDTH, c=c)
    alone = [
        float(gemm_seconds(a, 512, 2048, 1, b, peak=PEAK, bandwidth=BANDWIDTH, c=c))
        for a, b in zip(m, moved, strict=True)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("causal", "window", "share"),
    [
        (False, 0, 1.0),
        (True, 0, 0.5),
        (False, 25, 0.25),
        (True, 25, 0.25 - 0.25**2 / 2),  # w/s - w^2 / (2 s^2)
        (True, 1000, 0.5),  # a window wider than the sequence hides nothing
    ],
)
def test_masks_leave_the_share_of_pairs_that_is_worked_on(
    causal: bool, window: int, share: float
) -> None:
    """Causal halves the square; a window keeps a band of it."""
    assert float(attention_pairs(50, 100, causal=causal, window=window)) == pytest.approx(
        5000 * share
    )


def test_a_windowed_causal_mask_is_the_discrete_count_for_long_sequences() -> None:
    """Summing min(i, w) over the queries agrees within the diagonal's width."""
    s, w = 4096, 512
    counted = sum(min(i, w) for i in range(1, s + 1))
    assert float(attention_pairs(s, s, causal=True, window=w)) == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize(("s", "w"), [(1, 0), (7, 0), (7, 3), (7, 7), (64, 5)])
def test_with_the_diagonal_pairs_are_the_discrete_count(s: int, w: int) -> None:
    """Summing min(i, w) over the queries, exactly; w = 0 is no window."""
    counted = sum(min(i, w or s) for i in range(1, s + 1))
    pairs = attention_pairs(s, s, causal=True, window=w, diagonal=True)
    assert float(pairs) == pytest.approx(counted, rel=1e-12)


def test_attention_reaches_half_its_rate_at_the_half_sequence() -> None:
    """seq = s_half runs at T/2."""
    time = attention_seconds(1e12, 500, rate=100e12, half=500, share=1.0, launch=0.0)
    assert float(time) == pytest.approx(1e12 / 50e12)


def test_forward_and_backward_of_attention_add_up_to_three_and_a_half_forward() -> None:
    """Shares of 0.875 and 2.625 make 3.5 forward FLOPs at the rate."""
    parts = attention_seconds(
        1e12, 1e9, rate=1e14, half=0, share=np.array([0.875, 2.625]), launch=0.0
    )
    assert float(parts.sum()) == pytest.approx(3.5 * 1e12 / 1e14)


def test_memory_kernels_take_bytes_over_the_reached_rate_or_the_floor() -> None:
    """850 MB at 0.85 of 1 TB/s is 1 ms, times the slowdown; a few bytes take the floor."""
    times = memory_seconds(
        np.array([850e6, 10.0]), bandwidth=BANDWIDTH, fraction=0.85, slowdown=1.5, floor=3e-6
    )
    assert times == pytest.approx([1.5e-3, 3e-6])


def test_optimizer_moves_its_bytes_at_four_fifths_of_the_memory_rate() -> None:
    """1e9 parameters x 28 B at 0.8 of 2 TB/s: 17.5 ms."""
    assert update_seconds(28 * 1e9, 2e12) == pytest.approx(17.5e-3)
