"""Communication in the timeline picture: lanes are as full as the axis communicates, bands as large as actions wait."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import PathPatch

from mpsim.parallel.axes import AXES, AXIS_NAMES
from mpsim.plot import Timeline, timeline_chart
from mpsim.plot.palette import EVENTS, LABELS, rgb
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"


@pytest.fixture(scope="module", params=["analytic", "flow"])
def result(request) -> Result:
    """A step with experts; under ``flow`` what happens inside actions is rows of its own."""
    scenario = load(SCENARIOS / "mixtral-8x7b-h100.yaml")
    few = {"training.global_batch": 64, "simulation.network": request.param}
    return simulate_step(scenario.with_values(few))


def _seconds(display: Timeline) -> float:
    return {"s": 1.0, "ms": 1e-3, "us": 1e-6}[display.unit]


def test_lanes_and_bands_hold_the_exposed_time(result: Result) -> None:
    """The filled part of lanes is the exposed time of the account; bands hold what of it lies inside actions."""
    display = timeline_chart(result)
    drawn, waits = display.lanes, display.lanes.waited
    unit = _seconds(display)
    filled = drawn.share[:, :, 0].sum(axis=2) * np.diff(drawn.edges)[0] * unit
    slices = result.communication_slices()
    assert filled == pytest.approx(slices.ticks() * TICK, rel=1e-6, abs=1e-9)
    bars = display.actions
    waited = (waits * (bars.end - bars.start)[:, None]).sum(axis=0) * unit
    tp, ep = AXIS_NAMES.index("tp"), AXIS_NAMES.index("ep")
    assert waited[[tp, ep]] == pytest.approx(slices.ticks().sum(axis=0)[[tp, ep]] * TICK, rel=1e-6)
    assert (waits.sum(axis=1) < 1).all()


def test_actions_cut_by_what_they_wait_for_are_one_bar(result: Result) -> None:
    """Under every network there are as many bars as actions, steps of the optimizer and the like."""
    counts = [
        len(set(zip(bars.rank, bars.event, bars.chunk, bars.microbatch, strict=True)))
        for bars in [timeline_chart(result).actions]
    ]
    actions = 2 * 4 * result.plan.orders.microbatches * 4  # F and B of 4 chunks on 4 ranks
    assert counts[0] >= actions
    assert (timeline_chart(result).actions.microbatch >= 0).sum() == actions


def test_a_window_shows_what_lies_in_it(result: Result) -> None:
    """Lanes of 30 ms of two ranks are as full as the slices of those ranks take of these 30 ms."""
    window = timeline_chart(result, ranks=[3, 0], window=(0.06, 0.09))
    assert window.names == ["pp 3", "pp 0"]
    slices = result.communication_slices([3])
    start, end = (np.clip(times * TICK, 0.06, 0.09) for times in (slices.start, slices.end))
    expected = [(end - start)[slices.exposed & (slices.axis == axis)].sum() for axis in range(5)]
    filled = window.lanes.share[0, :5, 0].mean(axis=1) * 0.03
    assert filled == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert sum(expected) > 0


def test_a_window_keeps_to_its_times(result: Result) -> None:
    """The axis ends where the window does, and legend entries of bars outside it are gone."""
    display = timeline_chart(result, window=(0.06, 0.09)).plot()
    assert display.ax_.get_xlim() == pytest.approx((60.0, 90.0))
    assert "optimizer" not in [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_every_axis_of_the_legend_is_drawn_and_every_drawn_one_in_the_legend(
    result: Result,
) -> None:
    """Colours of lanes in full strength and axes named agree, one colour each."""
    display = timeline_chart(result).plot()
    drawn = {
        patch.get_facecolor()[:3]
        for patch in display.ax_.artists + display.ax_.patches
        if isinstance(patch, PathPatch)
    }
    named = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    for axis in AXES:
        label = LABELS.get(axis.name, axis.name)
        assert (label in named) == (tuple(rgb(EVENTS[axis.name])) in drawn)
    handles = display.ax_.get_legend().legend_handles
    faces = [handle.get_facecolor() for handle in handles]
    assert len(set(faces)) == len(faces)
