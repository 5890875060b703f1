"""Displays by their data and what their axes say; not by their pixels."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from mpsim.engine import run
from mpsim.errors import ScenarioError
from mpsim.plot import (
    AgreementDisplay,
    AttributionDisplay,
    BubbleDisplay,
    ComparisonDisplay,
    ErrorDisplay,
    MemoryDisplay,
    SearchDisplay,
    SweepDisplay,
    UtilisationDisplay,
)
from mpsim.plot.display import thin
from mpsim.plot.memory import MemoryCurveDisplay
from mpsim.result import MemoryCurve
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.vocabulary import PARTS

MS = 1e9  # ticks


@pytest.fixture
def timeline():
    """GPipe of 2 x 3 with S = 3 ms: makespan (3 + 1) x 3 = 12 ms, each rank idle for 3 ms."""
    orders = make_orders("gpipe", pp=2, microbatches=3)
    return run(from_orders(orders, forward=MS, backward=MS, weight=MS), "replay")


def _legend(display) -> list[str]:
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def _texts(display) -> list[str]:
    return [text.get_text() for text in display.ax_.texts]


def test_bubbles_are_shares_of_the_step(timeline) -> None:
    """Each of two GPipe ranks waits a quarter of the step, and so does the mean."""
    display = BubbleDisplay.from_timeline(timeline).plot()
    assert display.fraction.tolist() == [0.25, 0.25]
    assert display.mean == 0.25
    heights = np.array([bar.get_height() for bar in display.ax_.patches]).reshape(-1, 2)
    assert heights.sum(axis=0).tolist() == pytest.approx([25, 25])
    assert display.ax_.get_ylabel() == "bubble (% of the step)"
    assert _legend(display) == ["warm-up", "drain", "mean over ranks 25.0 %"]


def test_the_mean_bubble_counts_ranks_not_classes() -> None:
    """A class of three ranks weighs three times as much."""
    causes = {"drain": np.array([0.0, 0.1]), "imbalance": np.array([0.0, 0.3])}
    display = BubbleDisplay(["a", "b"], sum(causes.values()), np.array([3, 1]), causes=causes)
    assert display.mean == pytest.approx(0.1)


def test_attribution_of_a_timeline_adds_up_to_the_step(timeline) -> None:
    """Mean and both ranks: 3 ms forward, 6 ms backward, 3 ms bubble of 12 ms."""
    display = AttributionDisplay.from_timeline(timeline).plot()
    assert display.names == ("mean", "pp 0", "pp 1")
    assert list(display.seconds) == list(PARTS)
    assert display.seconds["forward"] == pytest.approx([0.003] * 3)
    assert display.seconds["backward"] == pytest.approx([0.006] * 3)
    assert display.seconds["bubble"] == pytest.approx([0.003] * 3)
    assert sum(display.seconds.values()) == pytest.approx([0.012] * 3)
    assert display.ax_.get_xlabel() == "time (ms)"
    assert _legend(display) == ["forward", "backward", "bubble"]
    assert _texts(display).count("25.0 %") == 6
    assert _texts(display).count("50.0 %") == 3


def test_attribution_of_the_mean_alone_is_one_bar(timeline) -> None:
    """Without ranks there is one bar, over an axis in percent."""
    display = AttributionDisplay.from_timeline(timeline, ranks=False).plot()
    assert display.names == ("mean",)
    (top,) = display.ax_.child_axes
    assert top.get_xlabel() == "share of the step (%)"
    display.figure_.draw_without_rendering()
    assert top.get_xlim() == pytest.approx((0, 100))


def test_attribution_refuses_values_for_other_bars() -> None:
    """Two values cannot belong to one bar."""
    with pytest.raises(ScenarioError, match="forward: got 2 values; needed one for each of 1 bars"):
        AttributionDisplay(["mean"], {"forward": np.array([1.0, 2.0])})


def test_memory_stacks_components_and_marks_what_is_too_much() -> None:
    """Totals are written over the bars, in bold where they exceed the capacity."""
    display = MemoryDisplay(
        ["pp 0", "pp 1"],
        {"parameters": np.array([10e9, 10e9]), "activations": np.array([50e9, 80e9])},
        80e9,
    ).plot()
    assert display.total.tolist() == [60e9, 90e9]
    heights = [bar.get_height() for bar in display.ax_.patches]
    assert heights == [10, 10, 50, 80]
    assert [bar.get_y() for bar in display.ax_.patches] == [0, 0, 10, 10]
    assert _texts(display) == ["capacity 80.0 GB", "60", "90"]
    assert [text.get_weight() for text in display.ax_.texts[1:]] == ["normal", "bold"]
    assert display.ax_.get_ylabel() == "memory at its fullest (GB)"
    assert display.ax_.get_ylim()[1] > 90


def test_the_legend_of_few_ranks_stays_inside_the_picture() -> None:
    """Seven components over two bars take two rows; over sixteen one."""
    for count, rows in ((2, 2), (16, 1)):
        names = [f"pp {rank}" for rank in range(count)]
        parts = {f"component {number}": np.ones(count) for number in range(7)}
        display = MemoryDisplay(names, parts, 80e9).plot()
        display.figure_.draw_without_rendering()
        texts = display.ax_.get_legend().get_texts()
        boxes = [text.get_window_extent() for text in texts]
        assert len({round(box.y0) for box in boxes}) == rows
        assert max(box.x1 for box in boxes) <= display.figure_.bbox.x1


def test_memory_over_time_names_every_line() -> None:
    """One colour a rank, thin where it is there all the time, dashed for what there is."""
    curve = MemoryCurve(np.array([0.0, 1.0, 2.0]), np.array([20e9, 60e9, 20e9]), 20e9)
    display = MemoryCurveDisplay({"pp 0": curve}, 80e9).plot()
    assert _legend(display) == ["pp 0", "thin: there all the time"]
    assert _texts(display) == ["capacity 80.0 GB"]
    held, standing, capacity = display.ax_.lines
    assert held.get_ydata().tolist() == [20, 60, 20]
    assert list(standing.get_ydata()) == [20, 20]
    assert list(capacity.get_ydata()) == [80, 80]
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("time (s)", "memory held (GB)")


def test_a_search_says_how_many_layouts_lie_beyond_the_edge() -> None:
    """A layout ten times slower than the best would squeeze all others into a corner."""
    none = np.array([0], dtype=np.int64)
    memory = np.full(3, 1e9)
    far = SearchDisplay(np.array([1.0, 1.1, 10.0]), memory, none, none).plot()
    near = SearchDisplay(np.array([1.0, 1.1, 1.2]), memory, none, none).plot()
    assert _legend(far)[0] == "simulated (1 slower one not shown)"
    assert _legend(near)[0] == "simulated"


def test_few_sizes_are_named_and_logarithmic_axes_have_plain_numbers() -> None:
    """2, 4 and 8 accelerators, not powers of ten; bytes as GB."""
    records = [_Record("a", "memory", "B", 40e9, 44e9, float(count)) for count in (2, 4, 8)]
    errors = ErrorDisplay.from_records(records).plot()
    assert [tick.get_text() for tick in errors.ax_.get_xticklabels()] == ["2", "4", "8"]
    agreement = AgreementDisplay.from_records(records).plot()
    assert agreement.ax_.get_xlabel() == "measured (GB)"
    assert agreement.measured.tolist() == [40, 40, 40]
    agreement.figure_.draw_without_rendering()
    labels = [tick.get_text() for tick in agreement.ax_.get_xticklabels(which="both")]
    assert "40" in labels
    assert not any("10^" in label for label in labels)
    seconds = [_Record("a", "training", "s", took, took, 8.0) for took in (0.02, 1.0, 200.0)]
    wide = AgreementDisplay.from_records(seconds).plot()
    wide.figure_.draw_without_rendering()
    assert "0.1" in [tick.get_text() for tick in wide.ax_.get_xticklabels()]


@dataclasses.dataclass
class _Record:
    family: str
    kind: str
    unit: str
    measured: float
    predicted: float
    size: float


def test_memory_refuses_components_of_other_ranks() -> None:
    """A component has one size a rank."""
    with pytest.raises(ScenarioError, match="logits: got 1 sizes"):
        MemoryDisplay(["pp 0", "pp 1"], {"logits": np.array([1.0])}, 1.0)


def test_utilisation_draws_shares_in_percent_over_time() -> None:
    """Means weigh bins by their length; the legend gives them."""
    display = UtilisationDisplay(
        np.array([0.0, 1.0, 4.0]),
        {"compute": np.array([1.0, 0.6]), "scale_out": np.array([0.0, 0.2])},
    ).plot()
    assert display.means == pytest.approx({"compute": 0.7, "scale_out": 0.15})
    assert _legend(display) == ["compute (mean 70.0 %)", "scale-out links (mean 15.0 %)"]
    assert display.ax_.get_xlabel() == "time (s)"
    assert display.ax_.get_ylabel() == "in use, mean over ranks (%)"
    assert display.ax_.patches[0].get_data().values.tolist() == [100, 60]
    with pytest.raises(
        ScenarioError, match="compute: got 2 shares; needed one less than the 2 edges"
    ):
        UtilisationDisplay(np.array([0.0, 1.0]), {"compute": np.array([1.0, 0.6])})


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
    display = SweepDisplay.from_sweep(sweep, metric="mfu").plot()
    assert (display.key, display.choices) == ("parallelism.tp", ("1", "2"))
    assert display.lines["name gpipe"].tolist() == [0.3, 0.35]
    assert display.lines["name 1f1b"][0] == 0.4
    assert np.isnan(display.lines["name 1f1b"][1])
    assert display.ax_.get_xlabel() == "parallelism.tp"
    assert display.ax_.get_ylabel() == "model FLOP/s utilisation (%)"
    assert _legend(display) == ["name gpipe", "name 1f1b", "hollow: does not fit into memory"]
    drawn = display.ax_.lines[0].get_ydata()
    assert drawn == pytest.approx([30, 35])


def test_a_sweep_can_be_drawn_against_another_key(sweep: _Sweep) -> None:
    """Choosing the second key makes lines of the first."""
    display = SweepDisplay.from_sweep(sweep, metric="mfu", key="schedule.name").plot()
    assert display.choices == ("gpipe", "1f1b")
    assert list(display.lines) == ["tp 1", "tp 2"]


def test_a_sweep_refuses_what_it_does_not_have(sweep: _Sweep) -> None:
    """An unknown metric or key is refused with the nearest name."""
    with pytest.raises(ScenarioError, match="did you mean 'mfu'"):
        SweepDisplay.from_sweep(sweep, metric="mffu")
    with pytest.raises(
        ScenarioError, match=r"which was not varied; did you mean 'parallelism\.tp'"
    ):
        SweepDisplay.from_sweep(sweep, key="parallelism.pp")


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


def test_a_comparison_stacks_both_in_the_order_of_the_palette() -> None:
    """Parts come in palette order whatever order they are given in; totals are written."""
    parts = [_Part("bubble", 0.2, 0.1), _Part("forward", 0.5, 0.5), _Part("host", None, 0.1)]
    display = ComparisonDisplay.from_comparison(_Compared("slow", "fast", parts)).plot()
    assert list(display.seconds) == ["forward", "bubble", "host"]
    assert display.seconds["host"].tolist() == [0.0, 0.1]
    assert [tick.get_text() for tick in display.ax_.get_yticklabels()] == ["slow", "fast"]
    assert display.ax_.get_xlabel() == "time (ms), mean over ranks"
    assert " 700 ms" in _texts(display)


def test_a_display_draws_on_given_axes_and_returns_itself() -> None:
    """With an axes there is no new figure, and both are kept."""
    figure = Figure()
    ax = figure.add_subplot()
    display = BubbleDisplay(["pp 0"], np.array([0.5]))
    assert display.plot(ax) is display
    assert display.ax_ is ax
    assert display.figure_ is figure


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_saving_draws_and_gives_the_same_bytes_twice(tmp_path, suffix: str) -> None:
    """A file holds no date and no random name."""
    names = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in names:
        assert BubbleDisplay(["pp 0", "pp 1"], np.array([0.5, 0.2])).save(path) == path
    first, second = (path.read_bytes() for path in names)
    assert first == second
    assert len(first) > 1000


@pytest.mark.parametrize(
    ("count", "most", "step"), [(0, 8, 1), (8, 8, 1), (9, 8, 2), (64, 16, 4), (1, 16, 1)]
)
def test_labels_thin_out_by_powers_of_two(count: int, most: int, step: int) -> None:
    """At most `most` of `count` positions are labelled."""
    assert thin(count, most) == list(range(0, count, step))
