"""Pictures of studies: the lettered front of a search, the curve of scaling, the explained point of goodput."""

import numpy as np
import pytest

from mpsim.plot import ScalingDisplay, SearchDisplay
from mpsim.plot.goodput import GoodputDisplay


def _search() -> SearchDisplay:
    """Twelve layouts, each slower and smaller than the one before; memory falls most at places 4 and 7."""
    falls = np.array([0, 1, 1, 1, 9, 1, 1, 8, 1, 1, 1, 1], dtype=float)
    memory = 1e9 * (60.0 - np.cumsum(falls))
    time = np.linspace(1.0, 2.0, 12)
    names = [f"layout {place}" for place in range(12)]
    places = np.arange(12)
    return SearchDisplay(time, memory, places, places[:2], names[:2], names)


def test_the_front_of_a_search_is_labelled_by_layout() -> None:
    """Both ends and the steepest falls have letters, and under the picture stands what each letter is."""
    display = _search().plot()
    assert {0, 4, 7, 11} <= set(display.lettered)
    assert len(display.lettered) == 8
    letters = [text.get_text() for text in display.ax_.texts if len(text.get_text()) == 1]
    assert letters == list("ABCDEFGH")
    (key,) = [text.get_text() for text in display.ax_.texts if "layout 4" in text.get_text()]
    assert key.splitlines()[0] == "A  1 s, 60 GB: layout 0"
    assert key.splitlines()[-1] == "H  2 s, 34 GB: layout 11"
    assert key.count("\n") == 7


def test_a_search_without_names_of_its_front_has_no_letters() -> None:
    """Numbers alone are drawn as before."""
    places = np.array([0, 1])
    display = SearchDisplay(np.array([1.0, 2.0]), np.array([2e9, 1e9]), places, places).plot()
    assert display.lettered == []


def test_scaling_is_drawn_against_the_straight_line() -> None:
    """Throughput over accelerators on logarithmic scales; the dashed line goes on from the smallest size."""
    sizes = np.array([8, 16, 32])
    shares = {"forward": np.array([0.5, 0.5, 0.5]), "bubble": np.array([0.5, 0.5, 0.5])}
    efficiency = np.array([1.0, 0.9, 0.8])
    rate = 100.0 * sizes * efficiency
    display = ScalingDisplay(
        {"strong": sizes}, {"strong": shares}, {"strong": efficiency}, {"strong": rate}
    ).plot()
    curve, parts = display.ax_.child_axes
    straight, strong = curve.lines
    assert straight.get_ydata().tolist() == [800, 1600, 3200]
    assert strong.get_ydata().tolist() == rate.tolist()
    assert (curve.get_xscale(), curve.get_yscale()) == ("log", "log")
    assert parts.get_title(loc="left").startswith("strong scaling")
    plain = ScalingDisplay({"strong": sizes}, {"strong": shares}, {"strong": efficiency}).plot()
    assert len(plain.ax_.child_axes) == 1


@pytest.mark.parametrize(("daly", "lines"), [(101.0, 1), (150.0, 2)])
def test_goodput_explains_curve_and_point_and_draws_alike_lines_once(
    daly: float, lines: int
) -> None:
    """Young's and Daly's interval are one entry where nobody could tell them apart."""
    intervals = np.geomspace(10, 1000, 5)
    marks = {"Young": 100.0, "Daly": daly}
    display = GoodputDisplay(
        intervals, np.full(5, 0.9), marks, (100.0, 0.9, 0.89, 0.91), notes=["curve: why"]
    ).plot()
    entries = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert len([entry for entry in entries if entry.startswith("best interval by")]) == lines
    assert entries[0] == "expected by formula"
    assert entries[-1] == "simulated, 95 % confidence"
    assert [text.get_text() for text in display.ax_.texts] == ["curve: why"]
