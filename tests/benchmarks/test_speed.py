"""How fast: ``pytest tests/benchmarks --benchmark-only``. Read the ratios inside one run, not the seconds."""

from __future__ import annotations

import pytest

import mpsim
from mpsim.engine import run
from mpsim.schedule import make_orders
from mpsim.training import from_orders

TIMES = {"forward": 1000.0, "backward": 1000.0, "weight": 1000.0, "send": 10.0}


@pytest.fixture(scope="module")
def pipeline():
    """32 ranks, 128 microbatches, two chunks: 16,384 actions and the transfers between them."""
    orders = make_orders("interleaved-1f1b", pp=32, microbatches=128, virtual_stages=2)
    return from_orders(orders, **TIMES)


@pytest.mark.benchmark(group="call: orders of a schedule")
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_orders_of_a_schedule(benchmark, name):
    """64 ranks, 256 microbatches."""
    orders = benchmark(make_orders, name, pp=64, microbatches=256)
    assert len(orders) == 64 * 256 * 2


@pytest.mark.benchmark(group="mechanism: engine")
@pytest.mark.parametrize("engine", ["simpy", "replay"])
def test_engine(benchmark, pipeline, engine):
    """The same program through both engines; the makespan proves that it ran."""
    timeline = benchmark(run, pipeline, engine)
    assert len(timeline.end) == len(pipeline)
    assert timeline.makespan == run(pipeline, "replay").makespan


@pytest.mark.benchmark(group="whole run")
@pytest.mark.parametrize("name", ["quickstart", "gpt3-175b-a100", "llama3-405b-h100-16k"])
def test_whole_run(benchmark, scenarios, name):
    """Load, plan, build, run, summarise; the number of operations is exact."""
    file = scenarios / f"{name}.yaml"
    result = benchmark(lambda: mpsim.simulate(mpsim.load(file)))
    again = mpsim.simulate(mpsim.load(file))
    assert len(result.timeline.end) == len(again.timeline.end) > 0
    assert result.to_json() == again.to_json()
