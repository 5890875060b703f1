"""The page's pen: what a reader of the drawing finds at the places that its axes give."""

import html
import json
import re

import numpy as np
import pytest

from mpsim.plot.chart import Axis, Bars, Heat, Limit, Lines, Part, Series
from mpsim.report.pen import lanes_svg, svg


class Drawing:
    """An SVG and its frame: where a number of each axis lies."""

    def __init__(self, text):
        self.text = text
        self.frame = json.loads(html.unescape(re.search(r"data-frame='([^']*)'", text)[1]))

    def place(self, axis, value):
        """Place of a number that the document has, whose axis the page reads in units of another size."""
        start, end, low, high, log, size = self.frame[axis]
        shown = value / size
        if log:
            low, high, shown = np.log10([low, high, shown])
        return start + (shown - low) / (high - low) * (end - start)

    def paths(self, which):
        """Attribute ``d`` of paths with a class, or with a colour."""
        return re.findall(rf'<path d="([^"]*)"[^>]*{which}', self.text)

    @property
    def marks(self):
        """Places of marks."""
        found = re.findall(r"translate\(([-.\d]+) ([-.\d]+)\)", self.text)
        return [(float(a), float(b)) for a, b in found]


def points(d):
    """Corners of a path that is written with M and L."""
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([-.\d]+) ([-.\d]+)", d)]


SIZES = [1e3, 1e5, 1e7]


@pytest.mark.parametrize("log", [0, 10])
def test_marks_stand_where_both_axes_say(log):
    """Decades are equally wide on a logarithmic axis; larger numbers stand further up."""
    chart = Lines(
        series=[Series("", SIZES, [0.001, 0.002, 0.004], line="", mark="o")],
        x=Axis(name="size", unit="B", log=log),
        y=Axis(name="time", unit="s"),
    )
    drawing = Drawing(svg(chart, "marks"))
    expected = [
        (drawing.place("x", size), drawing.place("y", time))
        for size, time in zip(SIZES, (0.001, 0.002, 0.004), strict=True)
    ]
    assert drawing.marks == [pytest.approx(each, abs=0.06) for each in expected]
    (first, low), (middle, _), (last, high) = drawing.marks
    assert low > high
    assert (middle - first == pytest.approx(last - middle, abs=0.2)) == bool(log)


def test_a_limit_stands_at_its_number_in_the_unit_of_the_axis():
    """Bars of milliseconds: each ends, and the limit stands, at its own number."""
    chart = Bars(
        names=["a", "b"],
        parts=[Part("forward", [0.1, 0.2]), Part("backward", [0.15, 0.3])],
        value=Axis(name="time", unit="s"),
        limits=[Limit(0.4, "limit")],
    )
    drawing = Drawing(svg(chart, "bars"))
    assert drawing.frame["x"][-1] == pytest.approx(1e-3)
    (limit,) = drawing.paths('class="limit"')
    assert points(limit)[0][0] == pytest.approx(drawing.place("x", 0.4), abs=0.06)
    ends = []
    for part in drawing.paths('class="part"'):
        boxes = re.findall(r"M([-.\d]+) [-.\d]+h([-.\d]+)v", part)
        ends.append([float(start) + float(wide) for start, wide in boxes])
    for found, values in zip(ends, ([0.1, 0.2], [0.25, 0.5]), strict=True):
        assert found == pytest.approx([drawing.place("x", value) for value in values], abs=0.12)


def test_stacked_areas_lie_on_each_other_up_to_their_sum():
    """Each area reaches from the sum of those before it to its own, and the axis holds the whole."""
    chart = Lines(
        series=[Series(name, [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) for name in "abc"],
        x=Axis(name="time"),
        y=Axis(name="memory"),
        stacked=True,
    )
    drawing = Drawing(svg(chart, "areas"))
    assert drawing.frame["y"][3] > 9.0
    areas = drawing.paths('fill="var')
    assert len(areas) == 3
    for number, area in enumerate(areas):
        corners = points(area)
        last = max(a for a, _ in corners)
        found = sorted(b for a, b in corners if a == last)
        edges = [drawing.place("y", 3.0 * each) for each in (number + 1, number)]
        assert found == pytest.approx(edges, abs=0.06)


def test_a_little_load_beside_a_large_one_is_seen_and_none_is_not():
    """A thousandth of the most has the lightest shade; a cell without anything is not drawn."""
    chart = Heat(
        names=["link"],
        edges=[0.0, 1.0, 2.0, 3.0],
        values=[[0.0, 0.001, 1.0]],
        x=Axis(name="time", unit="s"),
        z=Axis(name="used", unit="share"),
    )
    drawing = Drawing(svg(chart, "heat"))
    shades = [float(shade) for shade in re.findall(r'stroke-opacity="([.\d]+)"', drawing.text)]
    assert len(shades) == 2
    assert shades == sorted(shades)
    assert 0.1 < shades[0] < 0.2
    assert shades[1] == 1.0
    first, second = (points(each)[0][0] for each in drawing.paths('class="cell"'))
    assert (first, second) == pytest.approx(
        (drawing.place("x", 1.0), drawing.place("x", 2.0)), abs=0.06
    )


def test_a_lane_is_empty_between_its_bars():
    """Without a script: a bar of each end of the time, and nothing between them."""
    columns = {"lane": [0, 0], "start": [0, 75], "length": [25, 25], "event": [0, 0]}
    block = {"names": ["pp 0"], "events": ["forward"], "end_s": 1.0, "unit_s": 0.01}
    text = lanes_svg(
        "timeline", block, {name: np.array(values) for name, values in columns.items()}
    )
    drawing = Drawing(text)
    (cells,) = drawing.paths('class="lane"')
    runs = re.findall(r"M([-.\d]+) [-.\d]+H([-.\d]+)", cells)
    edges = [
        drawing.place("x", share)
        for begin, end in ((0.0, 0.25), (0.75, 1.0))
        for share in (begin, end)
    ]
    assert [float(each) for run in runs for each in run] == pytest.approx(edges, abs=2.5)


def test_bars_beside_each_other_hide_nothing():
    """Parts that stand beside each other have rows of their own, each from zero to its value."""
    parts = [Part("faster", [4.0, -2.0]), Part("dearer", [1.0, -1.0])]
    chart = Bars(names=["a", "b"], parts=parts, value=Axis(name="change"), beside=True)
    drawing = Drawing(svg(chart, "bars"))
    boxes = [
        [tuple(map(float, box)) for box in re.findall(r"M([-.\d]+) ([-.\d]+)h[-.\d]+v([-.\d]+)", d)]
        for d in drawing.paths('class="part"')
    ]
    for part, row in zip(parts, boxes, strict=True):
        starts = [drawing.place("x", min(value, 0.0)) for value in part.values]
        assert [start for start, _, _ in row] == pytest.approx(starts, abs=0.06)
    for (_, top, high), (_, below, _) in zip(*boxes, strict=True):
        assert below == pytest.approx(top + high, abs=0.11)


def test_ranges_of_points_are_drawn():
    """A range runs from its low end to its high end at the place of its point."""
    series = Series("", [1.0, 2.0], [2.0, 3.0], line="", mark="o", errors=[(1.0, 2.5), (2.5, 4.0)])
    drawing = Drawing(svg(Lines(series=[series], x=Axis(name="x"), y=Axis(name="y")), "ranges"))
    (d,) = drawing.paths('class="curve"')
    for x, (low, high), found in zip(
        series.x, series.errors, re.findall(r"M([-.\d]+) ([-.\d]+)V([-.\d]+)", d), strict=True
    ):
        wanted = [drawing.place("x", x), drawing.place("y", low), drawing.place("y", high)]
        assert [*map(float, found)] == pytest.approx(wanted, abs=0.06)
