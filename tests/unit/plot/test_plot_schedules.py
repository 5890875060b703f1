"""The scatter of schedules: marks, front, and names that make room for each other."""

import itertools

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import Display, schedules_chart
from mpsim.study import Times, compare_schedules


@pytest.fixture(scope="module")
def display() -> Display:
    """Every schedule of 4 ranks and 8 microbatches, five activations fit."""
    choices = compare_schedules(pp=4, microbatches=8, times=Times.of(1, 1, 1), memory=5)
    return schedules_chart(choices, memory=5).plot()


def _points(display: Display) -> list[tuple[float, float, str, bool]]:
    """Activations, bubble, name and whether it fits, of every schedule."""
    marks = [series for series in display.chart.series if series.mark]
    return [
        point
        for series in marks
        for point in zip(series.x, series.y, series.labels, ~np.array(series.hollow), strict=True)
    ]


def test_the_front_is_what_no_other_beats(display: Display) -> None:
    """Whoever fits and holds no more has a larger bubble, or is itself."""
    front = display.chart.series[0]
    fitting = [(x, y) for x, y, _, fits in _points(display) if fits]
    for held, bubble in zip(front.x, front.y, strict=True):
        assert min(y for x, y in fitting if x <= held) == bubble
    assert (np.diff(front.y) < 0).all()


def test_every_schedule_is_named_once(display: Display) -> None:
    """Those in one place share a mark and a line of words."""
    words = ", ".join(text.get_text() for text in display.ax_.texts).split(", ")
    assert sorted(words) == sorted(name for _, _, name, _ in _points(display))


def test_names_do_not_cover_each_other(display: Display) -> None:
    """No two of the names overlap, and all lie in the axes."""
    display.figure_.draw_without_rendering()
    # boxes of the text alone, without leaders
    boxes = [super(type(text), text).get_window_extent() for text in display.ax_.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    frame = display.ax_.get_window_extent()
    assert all(box.x0 >= frame.x0 - 1 and box.x1 <= frame.x1 + 1 for box in boxes)


def test_legend_entries_are_those_drawn(display: Display) -> None:
    """Hollow marks only where something does not fit, the line of memory only where one was given."""
    entries = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert "weights x1, does not fit" in entries
    assert entries[-1] == "memory for 5"
    with pytest.raises(ScenarioError, match="nothing to draw"):
        schedules_chart([])
