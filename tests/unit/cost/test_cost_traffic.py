"""All-to-all with unequal parts: the busiest link decides."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.cost import CollectiveModel
from mpsim.cost.traffic import equal_share, rail_bytes
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import system
from mpsim.parallel.crossing import GroupShape

NODE, TWO = GroupShape(4, 4, 1), GroupShape(8, 4, 2)
MODEL = CollectiveModel(system("dgx-h100", nodes=4))


@pytest.mark.parametrize("pxn", [True, False])
@pytest.mark.parametrize("group", [NODE, TWO, GroupShape(8, 1, 8)])
def test_equal_parts_are_an_all_to_all(group: GroupShape, pxn: bool) -> None:
    """Every pair S/n: the same S; what a rank keeps costs nothing."""
    pairs = np.full((group.ranks, group.ranks), 1e6)
    assert equal_share(pairs, group, pxn=pxn) == pytest.approx(group.ranks * 1e6)
    np.fill_diagonal(pairs, 1e12)
    assert equal_share(pairs, group, pxn=pxn) == pytest.approx(group.ranks * 1e6)
    even = MODEL.seconds("all_to_all", group.ranks * 1e6, group)
    assert MODEL.uneven_all_to_all(pairs, group) == pytest.approx(even)


def test_the_slowest_rank_sets_the_time() -> None:
    """One of four sends twice as much to each: twice the time of the bytes, whoever receives."""
    pairs = np.full((4, 4), 1e9)
    pairs[2] *= 2
    assert equal_share(pairs, NODE) == pytest.approx(8e9)
    assert equal_share(pairs.T, NODE) == pytest.approx(8e9)


def test_pxn_evens_out_what_the_ranks_of_a_node_send() -> None:
    """Rank 0 alone sends, to all of the other node: through four NICs with PXN, through one without."""
    pairs = np.zeros((8, 8))
    pairs[0, 4:] = 1e9
    sent, received = rail_bytes(pairs, TWO)
    assert sent.tolist() == [1e9, 1e9, 1e9, 1e9, 0, 0, 0, 0]
    assert received.tolist() == [0, 0, 0, 0, 1e9, 1e9, 1e9, 1e9]
    assert rail_bytes(pairs, TWO, pxn=False)[0].tolist() == [4e9, 0, 0, 0, 0, 0, 0, 0]
    with_pxn, without = (equal_share(pairs, TWO, pxn=pxn) for pxn in (True, False))
    assert with_pxn == pytest.approx(3e9 * 4 / 3)  # rank 0 hands 3 of 4 GB over, of S 3/4
    assert without == pytest.approx(4e9 * 8 / 4)


def test_a_matrix_that_does_not_fit_is_refused() -> None:
    """Wrong shape, negative numbers, uneven domains."""
    with pytest.raises(HardwareError, match=r"shape \(3, 3\), needed \(4, 4\)"):
        equal_share(np.ones((3, 3)), NODE)
    with pytest.raises(HardwareError, match="negative or not finite"):
        equal_share(-np.ones((4, 4)), NODE)
    with pytest.raises(HardwareError, match="do not fill"):
        equal_share(np.ones((7, 7)), GroupShape(7, 3, 2))


def test_one_rank_is_free() -> None:
    """Nothing to exchange."""
    assert MODEL.uneven_all_to_all([[5.0]], GroupShape(1, 1, 1)) == 0.0
