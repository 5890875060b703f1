"""Laws of intervals: they hold the prediction, scale with it, and are never narrower farther from what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
