"""Charts by their numbers and what their axes say; not by their pixels."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

import mpsim
from mpsim.engine import run
from mpsim.errors import ScenarioError
from mpsim.plot import (
    Axis,
    Bars,
    Display,
    Part,
    Scored,
    agreement_chart,
    answer_chart,
    comparison_chart,
    error_chart,
    plan_chart,
    sweep_chart,
)
from mpsim.plot.chart import Lines, Series, placed_names, thin
from mpsim.plot.step import attribution_chart, bubble_chart, memory_areas, memory_bars
from mpsim.result import MemoryCurve
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.result import attribute, idle_waits

MS = 1e9  # ticks


def _result(pp: int) -> SimpleNamespace:
    orders = make_orders("gpipe", pp=pp, microbatches=3)
    timeline = run(from_orders(orders, forward=MS, backward=MS, weight=MS), "replay")
    parts, idle = attribute(timeline), idle_waits(timeline)
    return SimpleNamespace(timeline=timeline, parts=parts, idle=idle)


@pytest.fixture
def result():
    """GPipe of 2 x 3 with S = 3 ms: makespan (3 + 1) x 3 = 12 ms, each rank idle for 3 ms."""
    return _result(2)


def _legend(display) -> list[str]:
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def _texts(display) -> list[str]:
    return [text.get_text() for text in display.ax_.texts]


def test_bubbles_are_shares_of_the_step(result) -> None:
    """Each of two GPipe ranks waits a quarter of the step, and so does the mean."""
    display = bubble_chart(result).plot()
    assert display.chart.table.sum(axis=0) == pytest.approx([0.25, 0.25])
    assert display.chart.limits[0].value == pytest.approx(0.25)
    heights = np.array([bar.get_height() for bar in display.ax_.patches]).reshape(-1, 2)
    assert heights.sum(axis=0).tolist() == pytest.approx([25, 25])
    assert display.ax_.get_ylabel() == "bubble, share of the step (%)"
    assert _legend(display) == ["warm-up", "drain", "mean over ranks 25.0 %"]


def test_attribution_of_a_timeline_adds_up_to_the_step(result) -> None:
    """Mean and both ranks: 3 ms forward, 6 ms backward, 3 ms bubble of 12 ms."""
    display = attribution_chart(result).plot()
    assert display.chart.names == ["mean", "pp 0", "pp 1"]
    seconds = {part.name: part.values for part in display.chart.parts}
    assert seconds["forward"] == pytest.approx([0.003] * 3)
    assert seconds["backward"] == pytest.approx([0.006] * 3)
    assert seconds["bubble"] == pytest.approx([0.003] * 3)
    assert display.chart.table.sum(axis=0) == pytest.approx([0.012] * 3)
    assert display.ax_.get_xlabel() == "time (ms)"
    assert _legend(display) == ["forward", "backward", "bubble"]
    assert _texts(display).count("25.0 %") == 6
    assert _texts(display).count("50.0 %") == 3


def test_attribution_of_one_rank_is_one_bar() -> None:
    """The mean alone, under an axis in percent."""
    display = attribution_chart(_result(1)).plot()
    assert display.chart.names == ["mean"]
    (top,) = display.ax_.child_axes
    assert top.get_xlabel() == "share of the step (%)"
    display.figure_.draw_without_rendering()
    assert top.get_xlim() == pytest.approx((0, 100))


def test_a_title_is_text_and_no_mathematics(result, tmp_path) -> None:
    """A scenario may be called what it likes: what looks like TeX is drawn as it stands."""
    chart = attribution_chart(result).titled("$\\frac{ $x_{")
    assert Display(chart).save(tmp_path / "named.png").stat().st_size > 0


def test_bars_refuse_values_of_other_bars() -> None:
    """Two values cannot belong to one bar."""
    with pytest.raises(ScenarioError, match="forward: got 2 values; needed one for each of 1 bars"):
        Bars(names=["mean"], parts=[Part("forward", [1.0, 2.0])], value=Axis(unit="s"))


def test_memory_stacks_components_and_marks_what_is_too_much() -> None:
    """Totals are written over the bars, in bold where they exceed the capacity."""
    sizes = {"parameters": np.array([10e9, 10e9]), "activations": np.array([50e9, 80e9])}
    display = memory_bars(["pp 0", "pp 1"], sizes, 80e9).plot()
    assert [bar.get_height() for bar in display.ax_.patches] == [10, 10, 50, 80]
    assert [bar.get_y() for bar in display.ax_.patches] == [0, 0, 10, 10]
    assert _texts(display) == ["60", "90"]
    assert [text.get_weight() for text in display.ax_.texts] == ["normal", "bold"]
    assert _legend(display)[-1] == "capacity 80 GB"
    assert display.ax_.get_ylabel() == "memory at its fullest (GB)"
    assert display.ax_.get_ylim()[1] > 90
    assert display.chart.alt == "pp 1 is fullest with 90 GB of 80 GB."


@pytest.mark.parametrize("count", [2, 16])
def test_a_legend_stays_inside_the_picture(count: int) -> None:
    """Seven components over few bars take more rows than over many."""
    names = [f"pp {rank}" for rank in range(count)]
    parts = {f"component {number}": np.ones(count) for number in range(7)}
    display = memory_bars(names, parts, 80e9).plot()
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.ax_.get_legend().get_texts()]
    assert max(box.x1 for box in boxes) <= display.figure_.bbox.x1


def test_memory_over_time_stacks_kinds_under_the_capacity() -> None:
    """What changes stands on top."""
    kinds = {"activations": np.array([0.0, 40e9, 0.0]), "parameters": np.full(3, 20e9)}
    held = np.array([20e9, 60e9, 20e9])
    curve = MemoryCurve(np.array([0.0, 1.0, 2.0]), held, 20e9, kinds)
    display = memory_areas("pp 0", curve, 80e9).plot()
    assert _legend(display) == ["parameters", "activations", "capacity 80 GB"]
    assert display.ax_.get_xlabel() == "time (s)"
    assert display.ax_.get_ylabel() == "memory held by pp 0 (GB)"


def test_few_sizes_are_named_and_logarithmic_axes_have_plain_numbers() -> None:
    """2, 4 and 8 accelerators, not powers of ten."""
    points = [Scored("a", 40.0, 44.0, float(count)) for count in (2, 4, 8)]
    errors = error_chart(points, kind="memory").plot()
    assert [tick.get_text() for tick in errors.ax_.get_xticklabels()] == ["2", "4", "8"]
    assert errors.ax_.get_ylabel() == "error of the prediction (%)"
    agreement = agreement_chart(points, unit="GB").plot()
    assert agreement.ax_.get_xlabel() == "measured (GB)"
    agreement.figure_.draw_without_rendering()
    labels = [tick.get_text() for tick in agreement.ax_.get_xticklabels(which="both")]
    assert "40" in labels
    assert not any("10^" in label for label in labels)


@dataclasses.dataclass
class _Row:
    values: dict
    figures: dict
    usable: bool = True

    def number(self, column: str) -> float:
        return self.figures.get(column, float("nan"))


class _Sweep(list):
    keys = ("parallelism.tp", "schedule.name")


@pytest.fixture
def sweep() -> _Sweep:
    """Two schedules at three degrees: one row does not fit, one could not be simulated."""
    return _Sweep(
        [
            _Row({"parallelism.tp": 1, "schedule.name": "gpipe"}, {"mfu": 0.3}, usable=False),
            _Row({"parallelism.tp": 1, "schedule.name": "1f1b"}, {"mfu": 0.4}),
            _Row({"parallelism.tp": 2, "schedule.name": "gpipe"}, {"mfu": 0.35}),
            _Row({"parallelism.tp": 2, "schedule.name": "1f1b"}, {}, usable=False),
        ]
    )


def test_a_sweep_is_one_line_for_each_value_of_the_other_keys(sweep: _Sweep) -> None:
    """The first key is the axis; missing rows leave gaps."""
    display = sweep_chart(sweep, metric="mfu").plot()
    lines = {series.name: series.y for series in display.chart.series}
    assert [text for _, text in display.chart.x.ticks] == ["1", "2"]
    assert lines["name gpipe"].tolist() == [0.3, 0.35]
    assert lines["name 1f1b"][0] == 0.4
    assert np.isnan(lines["name 1f1b"][1])
    assert display.ax_.get_xlabel() == "parallelism.tp"
    assert display.ax_.get_ylabel() == "MFU (%)"
    assert _legend(display) == ["name gpipe", "name 1f1b", "hollow: does not fit into memory"]
    assert display.ax_.lines[0].get_ydata() == pytest.approx([30, 35])


def test_a_sweep_can_be_drawn_against_another_key(sweep: _Sweep) -> None:
    """Choosing the second key makes lines of the first."""
    chart = sweep_chart(sweep, metric="mfu", key="schedule.name")
    assert [text for _, text in chart.x.ticks] == ["gpipe", "1f1b"]
    assert [series.name for series in chart.series[:2]] == ["tp 1", "tp 2"]


def test_a_sweep_refuses_what_it_does_not_have(sweep: _Sweep) -> None:
    """An unknown metric or key is refused with the nearest name."""
    with pytest.raises(ScenarioError, match="did you mean 'mfu'"):
        sweep_chart(sweep, metric="mffu")
    with pytest.raises(ScenarioError, match=r"not varied; did you mean 'parallelism\.tp'"):
        sweep_chart(sweep, key="parallelism.pp")


@dataclasses.dataclass
class _Part:
    name: str
    a: float | None
    b: float | None


@dataclasses.dataclass
class _Compared:
    a: str
    b: str
    parts: list
    explanation: str = "the same"
    whole: str = "step_time_s"

    @property
    def variant(self) -> str:
        return self.b


def test_a_comparison_stacks_both_in_the_order_of_the_palette() -> None:
    """Parts come in palette order whatever order they are given in; totals are written."""
    parts = [_Part("bubble", 0.2, 0.1), _Part("forward", 0.5, 0.5), _Part("host", None, 0.1)]
    display = comparison_chart(_Compared("slow", "fast", parts)).plot()
    assert [part.name for part in display.chart.parts] == ["forward", "bubble", "host launch"]
    assert display.chart.parts[-1].values == [0.0, 0.1]
    assert [tick.get_text() for tick in display.ax_.get_yticklabels()] == ["slow", "fast"]
    assert display.ax_.get_xlabel() == "time, mean over ranks (ms)"
    assert " 700 ms " in _texts(display)


def test_variants_of_one_scenario_are_told_apart() -> None:
    """What `--vs` changes names the bar, where both scenarios have one name."""
    base = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": "run",
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "parallelism": {"tp": 4},
            "training": {"global_batch": 8, "sequence_length": 1024},
        }
    )
    other = base.with_values({"parallelism.tp": 8})
    compared = mpsim.compare(mpsim.simulate(base), mpsim.simulate(other))
    assert comparison_chart(compared).names == ["run", "parallelism.tp 4 to 8"]


def test_marks_that_are_all_alike_have_room_above() -> None:
    """The axis from zero ends above them, not through their middle."""
    flat = Series("", [0.0, 1.0, 2.0], [7434.0, 7467.0, 7425.0], mark="o")
    axis = Axis("rate", limits=(0.0, None))
    chart = Lines(title="flat", alt="", series=[flat], x=Axis("key"), y=axis)
    low, high = chart.plot().ax_.get_ylim()
    assert low == 0.0
    assert high > 1.03 * 7467.0


def test_a_front_of_every_plan_has_no_empty_legend() -> None:
    """Plans off the front are named where there are some."""
    plans = [SimpleNamespace(accelerators=64 * n, days=9 / n, cost=1e6 * n) for n in (1, 2, 3)]
    for front, names in ((plans, [""]), (plans[:2], ["plan"])):
        chart = plan_chart(SimpleNamespace(rows=plans, front=front, deadline=None))
        assert [series.name for series in chart.series[:1]] == names


def test_a_picture_is_drawn_on_given_axes() -> None:
    """With an axes there is no new figure, and both are kept."""
    figure = Figure()
    ax = figure.add_subplot()
    display = answer_chart(["pp 0"], {"": [0.5]}, ylabel="", answer="").plot(ax)
    assert display.ax_ is ax
    assert display.figure_ is figure


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_saving_draws_and_gives_the_same_bytes_twice(tmp_path, suffix: str) -> None:
    """A file holds no date and no random name."""
    names = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in names:
        chart = answer_chart(["pp 0", "pp 1"], {"": [0.5, 0.2]}, ylabel="", answer="")
        assert chart.save(path) == path
    first, second = (path.read_bytes() for path in names)
    assert first == second
    assert len(first) > 1000


@pytest.mark.parametrize(
    ("count", "most", "step"), [(0, 8, 1), (8, 8, 1), (9, 8, 2), (64, 16, 4), (1, 16, 1)]
)
def test_labels_thin_out_by_powers_of_two(count: int, most: int, step: int) -> None:
    """At most `most` of `count` positions are labelled."""
    assert thin(count, most) == list(range(0, count, step))


shares = st.floats(0.0, 1.0)


@given(st.lists(st.tuples(shares, shares), max_size=12, unique=True))
def test_names_beside_marks_do_not_cover_each_other(marks) -> None:
    """Of a dozen marks anywhere every name is written once, at places of its own, wherever there is one."""
    names = placed_names(marks, [f"name {i}" for i in range(len(marks))])
    written = ", ".join(name.text for name in names)
    assert sorted(filter(None, written.split(", "))) == sorted(
        f"name {i}" for i in range(len(marks))
    )
    places = [(name.left, name.middle) for name in names if 0 <= name.left <= 0.9]
    assert len(set(places)) == len(places)
