"""Small multiples: every row of a sweep of many keys is in one panel, or below the best of its place."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import Lines, Panels, sweep_chart


@dataclasses.dataclass
class _Row:
    values: dict[str, object]
    figure: float
    usable: bool = True

    def number(self, column: str) -> float:
        return self.figure


class _Sweep(list):
    """Rows of a sweep with the keys of the first."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self[0].values)


def _sweep(**choices: int) -> _Sweep:
    """A row a combination of so many values of each key; its figure counts them."""
    numbers = itertools.product(*(range(count) for count in choices.values()))
    return _Sweep(
        _Row(dict(zip(choices, values, strict=True)), float(place))
        for place, values in enumerate(numbers)
    )


def _line(chart: Lines, name: str) -> np.ndarray:
    return next(np.asarray(series.y) for series in chart.series if series.name == name)


def test_five_keys_are_a_page_of_panels_with_few_lines() -> None:
    """4 x 3 x 4 x 4 x 3 = 576 points: four lines in each of 4 x 3 panels, the best over the fifth key."""
    chart = sweep_chart(_sweep(a=4, b=3, c=4, d=4, e=3))
    assert isinstance(chart, Panels)
    assert len(chart.charts) == 4 * 3
    assert {len(panel.series) for panel in chart.charts} == {4}
    # a = 3, b = 2, c = d = 3: of e = 0, 1, 2 the best is the last row of all
    assert _line(chart.charts[-1], "c 3")[3] == 4 * 3 * 4 * 4 * 3 - 1
    display = chart.plot()
    assert len(display.figure_.legends[0].get_texts()) == 4
    assert len(display.figure_.axes) == 12
    assert chart.notes == ["each point: the best over e"]


def test_of_a_figure_where_less_is_better_the_least_counts() -> None:
    """And a point that fits counts before one that does not, however good."""
    rows = _sweep(a=1, b=7, c=7, d=7)
    for row in rows:
        row.usable = row.values["d"] == 3
    chart = sweep_chart(rows, metric="step_time_s")
    assert chart.notes
    hollow = [series.hollow for panel in chart.charts for series in panel.series if series.line]
    assert not np.concatenate(hollow).all()
    free = sweep_chart(_sweep(a=1, b=7, c=7, d=7), metric="step_time_s")
    assert min(series.y[0] for panel in free.charts for series in panel.series) == 0.0


def test_points_that_could_not_be_simulated_are_left_out() -> None:
    """A panel without any keeps its place."""
    rows = _sweep(a=2, b=2, c=2)
    for row in rows:
        if row.values["c"] == 0:
            row.figure = math.nan
    chart = sweep_chart(rows)
    assert np.isnan([series.y for series in chart.charts[0].series]).all()
    assert len(chart.plot().figure_.axes) == 2


def test_two_keys_stay_one_panel_and_other_keys_are_refused() -> None:
    """Lines suffice for two; a horizontal key must have been varied."""
    assert isinstance(sweep_chart(_sweep(a=2, b=2)), Lines)
    with pytest.raises(ScenarioError, match="got key 'z', which was not varied"):
        sweep_chart(_sweep(a=2, b=2, c=2), key="z")
    with pytest.raises(ScenarioError, match="got metric 'mffu'"):
        sweep_chart(_sweep(a=2, b=2, c=2), metric="mffu")


def test_all_panels_share_their_heights() -> None:
    """What is twice as high in one panel is so in another."""
    display = sweep_chart(_sweep(a=3, b=3, c=2, d=2)).plot()
    assert len({panel.get_ylim() for panel in display.figure_.axes}) == 1
