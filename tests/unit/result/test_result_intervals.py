"""Time covered by sets of intervals."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpsim.engine.cover import Cover

interval = st.tuples(st.integers(0, 40), st.integers(0, 10)).map(
    lambda one: (one[0], one[0] + one[1])
)


@given(st.lists(interval, max_size=8), st.lists(interval, min_size=1, max_size=4))
def test_cover_counts_each_instant_once(
    given_: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    """Against counting unit cells one by one."""
    start = np.array([a for a, _ in given_], dtype=float)
    end = np.array([b for _, b in given_], dtype=float)
    cells = {cell for a, b in given_ for cell in range(a, b)}
    expected = [float(len(cells & set(range(a, b)))) for a, b in windows]
    low = np.array([a for a, _ in windows], dtype=float)
    high = np.array([b for _, b in windows], dtype=float)
    assert Cover(start, end).within(low, high).tolist() == expected


def test_a_window_that_ends_before_it_starts_is_empty() -> None:
    """No negative time."""
    cover = Cover(np.array([0.0]), np.array([9.0]))
    assert cover.within(np.array([5.0]), np.array([3.0])).tolist() == [0.0]
