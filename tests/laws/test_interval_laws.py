"""Laws of intervals: they hold the prediction, scale with it, and are never narrower farther from what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsim
from mpsim.result.residuals import FIGURES, Setting, residuals

figures = st.sampled_from(FIGURES)
values = st.floats(1e-9, 1e15)
sizes = st.floats(1, 1e6)


@st.composite
def settings(draw: st.DrawFn, figure: str) -> Setting:
    """Labels that some measured runs of the figure have, mixed, or names that nobody measured."""
    known = residuals(figure)
    labels = {}
    for name, levels in known.attributes.items():
        measured = sorted({run.labels[name] for run in known.runs})
        labels[name] = draw(st.sampled_from([*measured, ("nobody's",) * len(levels)]))
    return Setting(labels, draw(sizes))


@given(st.data(), figures, values)
def test_an_interval_holds_its_prediction_and_scales_with_it(
    data: st.DataObject, figure: str, value: float
) -> None:
    """Both ends are the prediction times factors that do not depend on it."""
    known, setting = residuals(figure), data.draw(settings(figure))
    one, two = known.interval(value, setting), known.interval(2 * value, setting)
    assert value in one
    assert (two.low, two.high) == pytest.approx((2 * one.low, 2 * one.high))


@given(st.data(), figures)
def test_farther_is_never_narrower(data: st.DataObject, figure: str) -> None:
    """A name that nobody measured in place of any, and a size beyond all, widen the interval or leave it."""
    known, setting = residuals(figure), data.draw(settings(figure))
    sigma = known.sigma(setting)
    for name, levels in known.attributes.items():
        away = Setting({**setting.labels, name: ("nobody's",) * len(levels)}, setting.size)
        assert known.sigma(away) >= sigma * (1 - 1e-12)
    largest = max(run.largest for run in known.runs)
    spreads = [known.sigma(Setting(setting.labels, largest * more)) for more in (1, 2, 8, 100)]
    assert spreads == sorted(spreads)


@given(st.data(), figures)
def test_leaving_a_family_out_never_narrows(data: st.DataObject, figure: str) -> None:
    """Fewer measured runs are no nearer."""
    known, setting = residuals(figure), data.draw(settings(figure))
    family = data.draw(st.sampled_from(sorted({run.family for run in known.runs})))
    assert known.without(family).sigma(setting) >= known.sigma(setting) * (1 - 1e-12)


@pytest.mark.parametrize(("times", "is_another"), [(1.1, False), (0.9, False), (2.0, True)])
def test_a_chip_of_other_rates_is_one_that_nobody_measured(times, is_another):
    """Twice the memory rate under a known name has a wider interval than the chip of that name, and a price that is not its own; a tenth more has neither."""
    data = {"preset": "h100-sxm", "memory_bandwidth": f"{3.35 * times} TB/s"}
    scenario = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "model": {"preset": "llama2-7b", "layers": 2},
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "training": {"global_batch": 8, "sequence_length": 2048},
        }
    )
    known, changed = (
        mpsim.simulate(each).summary
        for each in (scenario, scenario.with_values({"cluster.accelerator": data}))
    )
    widths = [s["interval"]["step_time_s"][1] / s["step_time_s"] for s in (known, changed)]
    assert (widths[1] > widths[0] * 1.01) == is_another
    told = [text for text in changed["warnings"] if "h100-sxm, whose price counts" in text]
    assert bool(told) == is_another
    own = {"cluster.accelerator": data, "cluster.price_per_hour": "9 USD/h"}
    assert "price" not in str(mpsim.simulate(scenario.with_values(own)).summary["warnings"])
