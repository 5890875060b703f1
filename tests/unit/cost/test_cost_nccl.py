"""Fixed times that NCCL's own tuner adds up inside a node: they say how a collective beyond the measured groups starts."""

from __future__ import annotations

import pytest

from mpsim.cost.nccl_curve import latency_growth
from mpsim.hardware.lookup import system


@pytest.mark.parametrize(
    ("name", "kind", "simple", "growth"),
    [
        # NVLink, all-gather: the ring's LL takes 6.6 + (n - 1) 0.6 us, its Simple 8.4 + (n - 1) 3.4
        ("dgx-a100-80gb", "all_gather", False, (6.6 + 71 * 0.6) / (6.6 + 7 * 0.6)),
        ("dgx-a100-80gb", "all_gather", True, (8.4 + 71 * 3.4) / (8.4 + 7 * 3.4)),
        # an all-reduce passes twice; without switches that sum LL's ring has the shorter base
        ("dgx-a100-80gb", "all_reduce", False, (6.6 + 142 * 0.6) / (6.6 + 14 * 0.6)),
        # the switches take 25 us for any number: Simple 8.4 + 14 x 3.4 of 8 is longer already, so nothing grows
        ("dgx-h100", "all_reduce", True, 1.0),
        ("dgx-h100", "all_reduce", False, 25.0 / (6.6 + 14 * 0.6)),
        # PCIe boards have no LL128 and longer hops
        ("l40s-pcie", "all_gather", False, (6.6 + 71 * 1.0) / (6.6 + 7 * 1.0)),
        ("l40s-pcie", "reduce_scatter", True, (8.4 + 71 * 5.7) / (8.4 + 7 * 5.7)),
    ],
)
def test_a_larger_group_starts_later_by_its_hops(
    name: str, kind: str, simple: bool, growth: float
) -> None:
    """72 ranks over 8, by hand from the constants of NCCL 2.30.7."""
    computed = latency_growth(system(name), kind, 72, 8, simple=simple)
    assert computed == pytest.approx(growth)


def test_nccl_says_nothing_of_other_chips_and_of_what_it_does_not_tune() -> None:
    """An all-to-all is sends; RCCL and a torus have rules of their own."""
    assert latency_growth(system("dgx-h100"), "all_to_all", 72, 8, simple=False) is None
    for name in ("mi300x-8", "tpu-v5p-pod"):
        assert latency_growth(system(name), "all_gather", 72, 8, simple=False) is None
