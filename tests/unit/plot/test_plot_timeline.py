"""The timeline picture: which bars it draws where, and what its axes say."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from mpsim.engine import Timeline, run
from mpsim.plot import Display, timeline_chart
from mpsim.plot.chart import readable
from mpsim.plot.palette import EVENTS
from mpsim.program import Rows, Stream
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.vocabulary import PARTS, TRAINING, Kind

MS = 1e9  # ticks
EVENT_NAMES = list(EVENTS)


def _timeline(
    name: str = "1f1b", pp: int = 2, microbatches: int = 2, send: float = 0.0, **options
) -> Timeline:
    orders = make_orders(name, pp=pp, microbatches=microbatches, **options)
    return run(from_orders(orders, forward=MS, backward=MS, weight=MS, send=send), "replay")


def _numbers(display: Display) -> list[str]:
    return [text.get_text() for text in display.ax_.texts]


def test_bars_are_the_actions_with_their_times() -> None:
    """1F1B of 2 x 2 with F = 1 ms, B = 2 ms: rank 0 runs F0 F1 . B0 . B1, rank 1 F0 B0 F1 B1."""
    bars = timeline_chart(_timeline()).actions
    assert bars.rank.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    # Rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7; rank 0 backwards follow them: 4-6 and 7-9.
    assert bars.start.tolist() == [0, 1, 4, 7, 1, 2, 4, 5]
    assert bars.end.tolist() == [1, 2, 6, 9, 2, 4, 5, 7]
    assert bars.microbatch.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
    kinds = [EVENT_NAMES[event] for event in bars.event]
    assert kinds[:4] == ["forward", "forward", "backward", "backward"]


def test_sends_are_communication_and_can_be_left_out() -> None:
    """A message is drawn at its sender, under the actions, unless asked not to."""
    timeline = _timeline(send=MS)
    display = timeline_chart(timeline)
    assert {EVENT_NAMES[event] for event in display.communication.event} == {"pp"}
    assert sorted(display.communication.rank.tolist()) == [0, 0, 1, 1]
    assert len(timeline_chart(timeline, communication=False).communication) == 0


def test_axes_say_time_with_its_unit_and_name_the_ranks() -> None:
    """The unit suits the length; rank 0 is on top."""
    display = timeline_chart(_timeline()).plot()
    assert display.ax_.get_xlabel() == "time (ms)"
    assert display.ax_.get_ylabel() == "rank"
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["pp 0", "pp 1"]
    assert display.ax_.get_ylim() == (1.5, -0.5)
    assert display.ax_.get_xlim() == (0, 9)


def test_ticks_of_another_unit_are_labelled_as_asked() -> None:
    """A schedule timed in its own unit is not drawn in seconds."""
    orders = make_orders("gpipe", pp=1, microbatches=1)
    timeline = run(from_orders(orders, forward=2, backward=4, weight=0), "replay")
    display = timeline_chart(timeline, tick=0.5, unit="unit of --times").plot()
    assert display.ax_.get_xlabel() == "time (unit of --times)"
    assert display.chart.actions.end.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(2, "s"), (0.5, "ms"), (5e-5, "us"), (1e-9, "ns"), (0, "s")]
)
def test_the_unit_suits_the_length(seconds: float, unit: str) -> None:
    """The largest unit that the time reaches."""
    assert readable("s", seconds).word == unit


def test_every_bar_is_numbered_where_there_is_room() -> None:
    """Eight ranks and eight microbatches: all numbers are written."""
    display = timeline_chart(_timeline(pp=8, microbatches=8)).plot()
    assert len(_numbers(display)) == len(display.chart.actions) == 128
    assert set(_numbers(display)) == set("01234567")


def test_numbers_are_left_out_where_they_do_not_fit() -> None:
    """With 512 microbatches a bar is narrower than a digit."""
    display = timeline_chart(_timeline(microbatches=512)).plot()
    assert _numbers(display) == []


def test_numbers_are_all_left_out_when_few_would_fit() -> None:
    """Numbers on one bar in five alone would mislead the eye."""
    display = timeline_chart(_timeline(pp=2, microbatches=96)).plot()
    assert _numbers(display) == []


def test_timelines_on_a_shared_axis_show_the_longest_whole() -> None:
    """A short timeline drawn last does not cut the long one off."""
    axes = Figure().subplots(2, 1, sharex=True)
    for ax, microbatches in zip(axes, (8, 2), strict=True):
        timeline_chart(_timeline(microbatches=microbatches)).plot(ax)
    # (8 + 1) x 3 ms
    assert axes[0].get_xlim() == axes[1].get_xlim() == (0, 27)


def test_64_ranks_thin_their_labels_out_and_stay_under_the_height() -> None:
    """Every second of 64 ranks is named, on a page of at most 13 inches."""
    display = timeline_chart(_timeline(pp=64, microbatches=4)).plot()
    assert [tick.get_text() for tick in display.ax_.get_yticklabels()] == [
        f"pp {r}" for r in range(0, 64, 2)
    ]
    assert display.figure_.get_size_inches()[1] <= 13


def test_chunks_are_shaded_and_the_legend_says_so() -> None:
    """Bars of later chunks are lighter, and the shade of each but the first, which has the event's own colour, is named."""
    timeline = _timeline("interleaved-1f1b", microbatches=2, virtual_stages=2)
    display = timeline_chart(timeline).plot()
    (drawn,) = [one for one in display.ax_.collections if isinstance(one, PolyCollection)]
    brightness = drawn.get_facecolors()[:, :3].sum(axis=1)
    forward = display.chart.actions.event == EVENT_NAMES.index("forward")
    chunk = display.chart.actions.chunk
    assert brightness[forward & (chunk == 1)].min() > brightness[forward & (chunk == 0)].max()
    legend = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert legend == ["forward", "backward", "chunk 1"]


def test_rows_of_one_action_that_follow_each_other_are_one_bar() -> None:
    """An action in three rows, the last after a pause, is two bars."""
    rows = Rows(TRAINING)
    for duration in (MS, MS, MS):
        rows.add(1, kind=Kind.FORWARD, stage=0, microbatch=0, duration=duration)
    program = rows.finish(rank_name=("pp 0",), class_size=[1])
    start = np.array([0, MS, 3 * MS])
    bars = timeline_chart(Timeline(program, start, start + MS, "replay")).actions
    assert bars.start.tolist() == [0, 3]
    assert bars.end.tolist() == [2, 4]


def test_ranks_stand_in_the_order_asked_for_in_any_window() -> None:
    """Rows of the picture are ranks 2, 0 and 1; a window drops what lies outside it."""
    timeline = _timeline(pp=3, microbatches=4)
    whole, turned = timeline_chart(timeline).actions, timeline_chart(timeline, ranks=[2, 0, 1])
    assert turned.names == ["pp 2", "pp 0", "pp 1"]
    for row, rank in enumerate((2, 0, 1)):
        mine = turned.actions.rank == row
        assert turned.actions.start[mine].tolist() == whole.start[whole.rank == rank].tolist()
    early = timeline_chart(timeline, window=(0.0, 0.002))
    assert early.actions.start.max() < 2
    assert early.window == (0, 2)


def test_rows_without_an_action_are_coloured_by_what_they_count_as() -> None:
    """Launch overhead is host, a gradient reduction is dp, an optimizer step is optimizer."""
    rows = Rows(TRAINING)
    for kind, stream, part in (
        (Kind.OPTIMIZER, Stream.COMPUTE, "host"),
        (Kind.OPTIMIZER, Stream.COMPUTE, "optimizer"),
        (Kind.COLLECTIVE, Stream.COMPUTE, "other"),
        (Kind.COLLECTIVE, Stream.DP, "exposed_dp"),
    ):
        rows.add(1, kind=kind, stream=stream, part=PARTS.index(part), duration=MS)
    program = rows.finish(rank_name=("pp 0",), class_size=[1])
    start = np.arange(4) * MS
    display = timeline_chart(Timeline(program, start, start + MS, "replay"))
    assert [EVENT_NAMES[one] for one in display.actions.event] == ["host", "optimizer", "other"]
    assert [EVENT_NAMES[one] for one in display.communication.event] == ["dp"]


def test_thousands_of_bars_are_drawn_as_pixels(tmp_path) -> None:
    """A step of 16 ranks, 128 microbatches and two chunks is no list of shapes."""
    timeline = _timeline("interleaved-1f1b", pp=16, microbatches=128, virtual_stages=2)
    display = timeline_chart(timeline).plot()
    assert len(display.chart.actions) == 8192
    display.save(tmp_path / "timeline.png")
    assert all(one.get_rasterized() for one in display.ax_.collections)
