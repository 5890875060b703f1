"""How fast services are searched: ``pytest tests/benchmarks/test_serving_search_speed.py --benchmark-only``.

The unit is bare: processor time of one ``yield env.timeout(1)`` in one simpy process, measured in the same run; 0.55 us on a quiet core of the machine where the bar was set, on which 30
seconds are 55 million of them.
"""

from __future__ import annotations

import time

import pytest

import mpsim

pytestmark = pytest.mark.benchmark(group="search")

LAYOUTS = 200
"""Layouts that are looked at, at least, those that the checks refuse not counted."""
SEARCH = 55_000_000
"""Bare timeouts that such a search may take."""


def test_two_hundred_layouts_in_half_a_minute(benchmark, bare):
    """Llama 3 70B on four DGX H100 at 16 requests/s, one pool and two, two formats of the weights: the best ten by goodput."""
    scenario = mpsim.load("scenarios/serving/llama3-70b-h100.yaml").with_values(
        {"cluster.nodes": 4, "serving.workload.rate": 16.0, "serving.workload.requests": 300}
    )
    over = {"serving.weights": ["fp8", "bf16"]}

    def search():
        begin = time.process_time()
        found = search(scenario, over, pools=True, objective="goodput")
        return found, time.process_time() - begin

    found, took = benchmark.pedantic(search, rounds=1, iterations=1)
    legal = found.looked_at - found.counts.get("refused", 0)
    units = took / bare
    benchmark.extra_info |= {"layouts": legal, "bare": units, "simulated": len(found)}
    assert legal >= LAYOUTS
    assert found.best is not None
    assert units < SEARCH
