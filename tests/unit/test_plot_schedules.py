"""The scatter of schedules: marks, front, and names that make room for each other."""

import itertools

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import SchedulesDisplay
from mpsim.study import Times, compare_schedules


@pytest.fixture(scope="module")
def display() -> SchedulesDisplay:
    """Every schedule of 4 ranks and 8 microbatches, five activations fit."""
    choices = compare_schedules(pp=4, microbatches=8, times=Times.of(1, 1, 1), memory=5)
    return SchedulesDisplay.from_choices(choices, memory=5).plot()


def test_the_front_is_what_no_other_beats(display: SchedulesDisplay) -> None:
    """Each of it fits, and whoever holds no more has a larger bubble, or is itself."""
    for place in display.front.tolist():
        assert display.fits[place]
        others = display.fits & (display.activations <= display.activations[place])
        assert display.bubble[others].min() == display.bubble[place]
    assert (np.diff(display.bubble[display.front]) < 0).all()


def test_every_schedule_is_named_once(display: SchedulesDisplay) -> None:
    """Those in one place share a mark and a line of words."""
    words = ", ".join(text.get_text() for text in display.ax_.texts).split(", ")
    assert sorted(words) == sorted(display.names)


def test_names_do_not_cover_each_other(display: SchedulesDisplay) -> None:
    """No two of the names overlap, and all lie in the axes."""
    display.figure_.draw_without_rendering()
    # boxes of the text alone, without leaders
    boxes = [super(type(text), text).get_window_extent() for text in display.ax_.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    frame = display.ax_.get_window_extent()
    assert all(box.x0 >= frame.x0 - 1 and box.x1 <= frame.x1 + 1 for box in boxes)


def test_legend_entries_are_those_drawn(display: SchedulesDisplay) -> None:
    """Hollow marks only where something does not fit, the line of memory only where one was given."""
    entries = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert "weights x1, does not fit" in entries
    assert entries[-1] == "memory for 5"
    plain = SchedulesDisplay(["a"], [0.1], [2.0]).plot()
    assert [text.get_text() for text in plain.ax_.get_legend().get_texts()] == [
        "Pareto front: no other is better in both",
        "weights x1",
    ]
    with pytest.raises(ScenarioError, match="nothing to draw"):
        SchedulesDisplay([], [], [])
