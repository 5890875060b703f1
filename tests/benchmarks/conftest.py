"""What benchmarks share: their unit, a quiet heap, and figures beside their bars."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.benchmarks.timing import bare_timeout


@pytest.fixture(scope="module")
def bare() -> float:
    """The unit, best of five."""
    return min(bare_timeout() for _ in range(5))


@pytest.fixture(scope="module")
def heap_of_a_user():
    """What the test runner holds is none of the garbage collector's business."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def clear(benchmark):
    """Note a figure beside its bar, and fail if it does not clear it."""

    def note(figure: float, *, at_most: float | None = None, at_least: float | None = None) -> None:
        benchmark.extra_info.update(figure=round(figure, 3), at_most=at_most, at_least=at_least)
        benchmark.pedantic(lambda: None, rounds=1)
        sys.stdout.write(f"{benchmark.name}: {figure:.4g} (bar {at_most or at_least:g})\n")
        assert at_most is None or figure <= at_most
        assert at_least is None or figure >= at_least

    return note
