"""Charts of studies: the lettered front of a search, the curve of scaling, the explained point of goodput."""

import dataclasses

import numpy as np
import pytest
from matplotlib.text import Text

from mpsim.plot import Scored, agreement_chart, goodput_chart, scaling_chart, search_chart
from mpsim.study.goodput import GoodputCurve
from mpsim.study.search import Found, Search


def _search(count: int = 12) -> Search:
    """Layouts each slower and smaller than the one before; memory falls most at places 4 and 7."""
    falls = np.array([0, 1, 1, 1, 9, 1, 1, 8, 1, 1, 1, 1], dtype=float)
    memory = 1e9 * (60.0 - np.cumsum(falls))
    rows = tuple(
        Found({"parallelism.tp": place}, time, time, held, 1, 1, None)
        for place, (time, held) in enumerate(zip(np.linspace(1.0, 2.0, 12), memory, strict=True))
    )
    return Search("by hand", "time", 2, rows[:count], {"simulated": count}, complete=True)


def test_the_front_of_a_search_is_labelled_by_layout() -> None:
    """Both ends and the steepest falls have letters, and under the picture stands what each letter is."""
    display = search_chart(_search()).plot()
    letters = [text.get_text() for text in display.ax_.texts if len(text.get_text()) == 1]
    assert sorted(letters) == list("ABCDEFGH")
    notes = [note for note in display.chart.notes if note[0] in "ABCDEFGH"]
    assert notes[0].startswith("A  1 s, 60 GB: ")
    assert notes[-1].startswith("H  2 s, 34 GB: ")
    front = display.chart.series[1]
    assert {0, 4, 7, 11} <= set(front.written)


def test_a_search_says_how_many_layouts_lie_beyond_the_edge() -> None:
    """A layout ten times slower than the best would squeeze all others into a corner."""
    rows = [Found({}, time, time, 1e9, 1, 1, None) for time in (1.0, 1.1, 10.0)]
    far = search_chart(dataclasses.replace(_search(), rows=tuple(rows)))
    near = search_chart(dataclasses.replace(_search(), rows=tuple(rows[:2])))
    assert far.series[0].name == "simulated (1 slower one not shown)"
    assert near.series[0].name == "simulated"


@dataclasses.dataclass
class _Size:
    mode: str
    accelerators: int
    rate: float
    shares: dict[str, float]

    def figure(self, name: str) -> float:
        return self.rate


class _Scale:
    rows = tuple(
        _Size("strong", size, rate, {"forward": 0.5, "bubble": 0.5})
        for size, rate in ((8, 100.0), (16, 90.0), (32, 80.0))
    )

    def of(self, mode: str):
        return self.rows


def test_scaling_is_drawn_against_the_straight_line() -> None:
    """Throughput over accelerators on logarithmic scales; the dashed line goes on from the smallest size."""
    chart = scaling_chart(_Scale())
    curve, parts = chart.charts
    straight, strong = curve.series
    assert straight.y.tolist() == [800, 1600, 3200]
    assert strong.y.tolist() == [800, 1440, 2560]
    assert (curve.x.log, curve.y.log) == (2, 10)
    assert parts.title.startswith("strong scaling")
    assert parts.line.y.tolist() == pytest.approx([1.0, 0.9, 0.8])
    assert len(chart.plot().figure_.axes) == 2


def test_titles_of_panels_stand_over_their_legends() -> None:
    """No legend covers the title of its panel, and plain numbers stand along a logarithmic axis."""
    figure = scaling_chart(_Scale()).plot().figure_
    figure.draw_without_rendering()
    for ax in figure.axes:
        (title,) = (each for each in ax.findobj(Text) if each.get_text() == ax.get_title("left"))
        title, legend = title.get_window_extent(), ax.get_legend().get_window_extent()
        assert title.width > 0
        assert not title.overlaps(legend)
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels(which="both")]
    assert "1,000" in labels
    assert not any("e+" in label for label in labels)


@dataclasses.dataclass
class _Goodput:
    daly: float
    interval: float = 100.0
    effective: float = 0.9
    confidence: tuple[float, float] = (0.89, 0.91)
    days: float = 30.0
    shares: tuple[float, ...] = (0.9, 0.9)

    def curve(self) -> GoodputCurve:
        marks = {"Young": 100.0, "Daly": self.daly}
        return GoodputCurve(np.geomspace(10, 1000, 5), np.full(5, 0.9), marks)


@pytest.mark.parametrize(("daly", "lines"), [(101.0, 1), (150.0, 2)])
def test_goodput_explains_curve_and_point_and_draws_alike_lines_once(
    daly: float, lines: int
) -> None:
    """Young's and Daly's interval are one entry where nobody could tell them apart."""
    display = goodput_chart(_Goodput(daly)).plot()
    entries = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert len([entry for entry in entries if entry.startswith("best interval by")]) == lines
    assert entries[:2] == ["expected by formula", "simulated, 95 % confidence"]
    assert display.chart.notes[0].startswith("curve: ")
    assert any("curve: " in text.get_text() for text in display.ax_.texts)


def test_the_largest_families_have_marks_of_their_own() -> None:
    """Of fifteen the twelve with most points are named, the rest are one series."""
    points = [Scored(f"family {i:02}", 1.0, 1.1, 8.0) for i in range(15) for _ in range(i + 1)]
    names = [series.name for series in agreement_chart(points, unit="s").series]
    assert len(names) == 1 + 12 + 1
    assert "other families" in names
    assert "family 00" not in names
