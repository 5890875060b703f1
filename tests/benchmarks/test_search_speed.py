"""How fast layouts are searched and points swept: ``pytest tests/benchmarks/test_search_speed.py --benchmark-only``.

The unit is **bare**: processor time of one ``yield env.timeout(1)`` in one simpy process, measured in the same run. On a quiet core of the
machine where these bars were set a bare timeout takes 0.55 us, so a thousand layouts a second are 1,800 bare timeouts a layout.
"""

from __future__ import annotations

import sys
import time

import pytest

import mpsim
from mpsim.study.search.bound import Bounder, _flight
from mpsim.study.search.layouts import Layouts
from mpsim.study.search.trainings import Timer
from mpsim.training.planning import make_plan, step_orders

pytestmark = pytest.mark.benchmark(group="search")

LAYOUT = 1_800
"""Bare timeouts that a layout of a search may take, enumeration, memory rule, front and results of the best included."""
EXACT = 25_000
"""Bare timeouts that a simulated layout may take: program built, structure found, replayed."""
POINT = 45_000
"""Bare timeouts that a point of a sweep may take, its whole result included."""


@pytest.fixture
def clear(benchmark, bare):
    """Note a figure in bare timeouts beside its bar, and fail if it does not clear it."""

    def note(seconds: float, bar: float, what: str) -> None:
        figure = seconds / bare
        benchmark.extra_info.update(
            figure=round(figure), at_most=bar, per_second=round(1 / seconds)
        )
        benchmark.pedantic(lambda: None, rounds=1)
        sys.stdout.write(
            f"{what}: {figure:,.0f} bare timeouts (bar {bar:,}), {1 / seconds:,.0f} a second\n"
        )
        assert figure <= bar

    return note


@pytest.fixture(scope="module")
def gpt3(request):
    return mpsim.load(request.config.rootpath / "scenarios" / "gpt3-175b-a100.yaml")


def _timed(work) -> tuple[float, object]:
    """Processor time [s] and what `work` gives, with nothing remembered from before."""
    _flight.cache_clear()
    step_orders.cache_clear()
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


@pytest.mark.parametrize("front", [True, False])
def test_gpt3_on_1024_accelerators(gpt3, clear, front):
    """Over five thousand legal layouts, all accounted for, the best ten with their results."""
    seconds, found = _timed(lambda: mpsim.search(gpt3, front=front))
    assert found.complete
    assert found.looked_at >= 5_000
    assert found.counts["simulated"] >= 10
    clear(seconds / found.looked_at, LAYOUT, f"search of {found.looked_at} layouts, front {front}")


def test_exact_step_times_of_the_most_promising(gpt3, clear):
    """Nothing is pruned here: every one is built and replayed."""
    space = Layouts(gpt3, {})
    layouts = [one for frame in space.frames() for one in space.layouts(frame)]
    bounder = Bounder(make_plan(gpt3.with_values(layouts[0].values())))
    timer = Timer(bounder, gpt3)
    chosen = [
        one
        for one in layouts
        if one.frame.pp == 8 and one.frame.virtual_stages == 3 and one.micro_batch <= 2
    ][:64]
    timer.seconds(chosen[:4])
    seconds, _ = _timed(lambda: timer.seconds(chosen))
    clear(seconds / len(chosen), EXACT, f"exact times of {len(chosen)} layouts")


def test_points_of_a_sweep(request, clear):
    """Links and microbatches of the quickstart: points of one structure go together."""
    scenario = mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")
    over = {
        "parallelism.tp": [1, 2, 4],
        "parallelism.pp": [2, 4],
        "training.micro_batch": [1, 2],
        "training.recompute": ["none", "selective", "full"],
        "parallelism.zero": [0, 1],
    }
    seconds, rows = _timed(lambda: mpsim.sweep(scenario, over))
    clear(seconds / len(rows), POINT, f"{len(rows)} points of a sweep")
