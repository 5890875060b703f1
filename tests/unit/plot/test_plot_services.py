"""Charts of services: long runs are binned without loss of their mean and their highest, lives of requests are in order."""

from __future__ import annotations

import numpy as np
import pytest

import mpsim
from mpsim.plot.chart import Axis
from mpsim.plot.palette import EVENTS
from mpsim.plot.service import latency_chart, lives_chart, occupancy_chart
from mpsim.scenario import Scenario


def test_many_iterations_are_binned_by_time():
    """The mean of the bins is that over time, and the highest is the highest."""
    random = np.random.default_rng(0)
    start = np.cumsum(random.exponential(1.0, 5000))
    values = random.integers(0, 100, 5000).astype(float)
    chart = occupancy_chart("batch", Axis(name="sequences"), {"engine 0": (start, values)})
    mean, highest = chart.series
    assert len(mean.x) < 1000
    weights = np.diff(start)
    assert np.mean(mean.y) == pytest.approx(np.average(values[:-1], weights=weights), rel=1e-9)
    assert max(highest.y) == 99.0
    assert (np.asarray(highest.y) >= np.asarray(mean.y)).all()


def test_few_iterations_are_drawn_one_by_one():
    """A short run keeps every step."""
    start, values = np.arange(10.0), np.arange(10.0)
    (line,) = occupancy_chart("batch", Axis(), {"engine 0": (start, values)}).series
    assert (line.y == values).all()


@pytest.fixture(scope="module")
def served():
    """Two pools that are busy enough for requests to wait."""
    return mpsim.simulate(
        Scenario.from_mapping(
            {
                "schema": 1,
                "model": "llama3-8b",
                "cluster": {"preset": "dgx-h100", "nodes": 1},
                "serving": {
                    "disaggregated": {"prefill": {"tp": 1}, "decode": {"tp": 1}},
                    "slo": {"ttft": "100 ms", "share": 0.8},
                    "workload": {"rate": 12, "requests": 60, "prompt": 1500, "output": 40},
                },
            }
        )
    )


def test_a_life_is_queue_prefill_transfer_and_decode_without_a_gap(served):
    """Parts of a request follow each other from its arrival to its last token."""
    chart = lives_chart(served, 20)
    bars, words = chart.actions, list(EVENTS)
    assert set(chart.labels.values()) == {"queue", "prefill", "transfer", "decode"}
    size = {"s": 1.0, "ms": 1e-3}[chart.unit]
    for row, name in enumerate(chart.names):
        mine = bars.rank == row
        assert bars.start[mine][0] * size == pytest.approx(served.served.arrival[int(name)])
        assert bars.end[mine][-1] * size == pytest.approx(served.served.last[int(name)])
        assert bars.start[mine][1:] == pytest.approx(bars.end[mine][:-1])
        told = [chart.labels[words[event]] for event in bars.event[mine]]
        assert told[-2:] == ["transfer", "decode"]
        assert "prefill" in told


def test_limits_are_drawn_across_the_spread(served):
    """The latency that was promised, and the share of the requests that has to keep it."""
    across = {(limit.value, limit.along) for limit in latency_chart(served, "ttft").limits}
    assert across == {(0.1, True), (0.8, False)}
