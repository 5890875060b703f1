"""Experts placed by their load: copies lower the busiest rank's share and never raise it."""

from __future__ import annotations

import itertools

import pytest

from mpsim.serving.balance import balanced


@pytest.mark.parametrize("imbalance", [1.05, 1.3, 2.0])
@pytest.mark.parametrize(("experts", "ranks"), [(256, 32), (128, 8), (64, 64)])
def test_imbalance_falls_with_copies(imbalance, experts, ranks):
    """It lies between 1 and what neighbours show, and more copies leave less of it."""
    found = [balanced(imbalance, experts, ranks, ranks * number) for number in range(4)]
    assert all(1.0 <= value <= imbalance for value in found)
    assert all(later <= earlier + 0.02 for earlier, later in itertools.pairwise(found))
    assert found[-1] < 1.0 + 0.6 * (imbalance - 1.0)


def test_even_experts_and_one_rank_have_nothing_to_balance():
    """An imbalance of 1 stays, and one rank has all experts."""
    assert balanced(1.0, 256, 32, 32) == 1.0
    assert balanced(1.4, 8, 1, 0) == 1.4
