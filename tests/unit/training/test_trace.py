"""The Perfetto trace: names, slices, flows and counters, and the check that can fail."""

import gzip
import json

import numpy as np
import pytest

from mpsim.engine import Timeline, run
from mpsim.errors import ScenarioError
from mpsim.formats import trace_events, write_trace
from mpsim.program import Rows, Stream, Template
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.vocabulary import PARTS, TRAINING, Kind
from tests.trace_check import check_trace

US = 1e6  # ticks


def _timeline(
    name: str = "1f1b", pp: int = 2, microbatches: int = 2, send: float = US, **options
) -> Timeline:
    orders = make_orders(name, pp=pp, microbatches=microbatches, **options)
    return run(from_orders(orders, forward=US, backward=US, weight=US, send=send), "replay")


def _of(timeline: Timeline, phase: str, **options) -> list[dict]:
    return [event for event in trace_events(timeline, **options) if event["ph"] == phase]


def _template() -> Template:
    """Two kernels of 1 us with an all-gather of 1 us between them, then a third kernel over its tail."""
    start, duration = np.array([0.0, 1.0, 2.0, 2.5]) * US, np.array([1.0, 1.0, 0.5, 0.5]) * US
    part = [PARTS.index(one) for one in ("forward", "exposed_tp", "forward", "forward")]
    parts = np.zeros(len(PARTS))
    np.add.at(parts, part, duration)
    return Template(
        name="F",
        names=("norm", "all-gather", "gemm"),
        name_index=np.array([0, 1, 2, 2], np.int16),
        stream=np.array([Stream.COMPUTE, Stream.TP, Stream.COMPUTE, Stream.COMPUTE], np.int8),
        layer=np.array([0, 0, 0, -1], np.int32),
        part=np.array(part, np.int8),
        start=start,
        duration=duration,
        flops=np.array([0.0, 0.0, 5.0, 7.0]),
        up_bytes=np.array([0.0, 64.0, 0.0, 0.0]),
        out_bytes=np.zeros(4),
        collective=np.full(4, -1, np.int8),
        size=np.zeros(4),
        before_ptr=np.zeros(5, np.int32),
        before=np.zeros(0, np.int32),
        parts=parts,
    )


def _with_template(stretch: float = 1.0) -> Timeline:
    """One forward in two rows of the template, drawn out by `stretch`."""
    rows = Rows(TRAINING)
    for _ in range(2):
        rows.add(
            1,
            kind=Kind.FORWARD,
            stage=0,
            chunk=0,
            microbatch=3,
            template=0,
            duration=3 * US,
            up_bytes=64.0,
        )
    program = rows.finish(rank_name=("pp 0",), class_size=[4], templates=(_template(),))
    start = np.array([0.0, 3.0]) * US * stretch
    return Timeline(program, start, start + 3 * US * stretch, "simpy")


def test_actions_are_slices_on_the_compute_track() -> None:
    """Rank 1 of 1F1B runs F0 B0 F1 B1; names carry the microbatch, args the rest."""
    slices = [one for one in _of(_timeline(), "X") if (one["pid"], one["tid"]) == (2, 1)]
    # F0 arrives at 2 us and runs to 3, B0 to 5; F1 arrived at 3 and runs 5-6, B1 6-8.
    assert [(one["name"], one["ts"], one["dur"]) for one in slices] == [
        ("F 0", 2.0, 1.0),
        ("B 0", 3.0, 2.0),
        ("F 1", 5.0, 1.0),
        ("B 1", 6.0, 2.0),
    ]
    assert slices[2]["args"] == {"stage": 1, "chunk": 0, "microbatch": 1}


def test_processes_are_ranks_and_tracks_are_streams() -> None:
    """Every process and used track is named and sorted; nothing is numbered 0."""
    names = [
        (one["name"], one["pid"], one["tid"], *one["args"].values())
        for one in _of(_timeline(), "M")
    ]
    assert names[:4] == [
        ("process_name", 1, 1, "pp 0"),
        ("process_sort_index", 1, 1, 0),
        ("thread_name", 1, 1, "compute"),
        ("thread_sort_index", 1, 1, 0),
    ]
    used = {name for kind, pid, _, name in names if kind == "thread_name" and pid == 1}
    assert used == {"compute", "send next", "recv next"}


def test_a_process_says_how_many_ranks_it_stands_for() -> None:
    """A folded class is not mistaken for one rank."""
    assert _of(_with_template(), "M")[0]["args"] == {"name": "pp 0 (stands for 4 ranks)"}


def test_a_message_is_drawn_at_both_ends_with_a_flow_between() -> None:
    """Every SEND gives two slices and one flow from its start at the sender to its end at the receiver."""
    timeline = _timeline()
    slices = [one for one in _of(timeline, "X") if one["cat"] == "send"]
    assert len(slices) == 2 * 4
    starts, ends = _of(timeline, "s"), _of(timeline, "f")
    assert [one["id"] for one in starts] == [one["id"] for one in ends]
    assert len(starts) == 4
    # F0 of rank 0 ends at 1 us, its activation travels for 1 us.
    assert (starts[0]["pid"], starts[0]["ts"]) == (1, 1.0)
    assert (ends[0]["pid"], ends[0]["ts"]) == (2, 1.999)
    assert ends[0]["bp"] == "e"


def test_counters_follow_activations_and_computing() -> None:
    """The largest count of each rank is the peak of its order; computing is 0 in bubbles."""
    timeline = _timeline(pp=4, microbatches=8)
    peaks: dict[int, int] = {}
    last: dict[tuple[int, str], int] = {}
    for event in _of(timeline, "C"):
        (value,) = event["args"].values()
        last[event["pid"], event["name"]] = value
        if event["name"] == "activations in flight":
            peaks[event["pid"]] = max(value, peaks.get(event["pid"], 0))
        else:
            assert value in (0, 1)
    assert list(peaks.values()) == make_orders("1f1b", pp=4, microbatches=8).peak_inflight()
    assert set(last.values()) == {0}


def test_rows_of_one_action_are_one_slice() -> None:
    """Bytes and FLOPs of its rows are added up."""
    (action,) = _of(_with_template(), "X")
    assert (action["name"], action["ts"], action["dur"]) == ("F 3", 0.0, 6.0)
    assert action["args"] == {
        "stage": 0,
        "chunk": 0,
        "microbatch": 3,
        "up_bytes": 128.0,
        "flops": 24.0,
    }


def test_kernels_nest_in_their_action_and_collectives_have_their_track(tmp_path) -> None:
    """Detail 'kernel' expands both rows of the template."""
    timeline = _with_template()
    slices = _of(timeline, "X", detail="kernel")
    compute = [(one["name"], one["ts"], one["dur"]) for one in slices if one["tid"] == 1]
    assert compute == [
        ("F 3", 0.0, 6.0),
        *[("norm", 0.0, 1.0), ("gemm", 2.0, 0.5), ("gemm", 2.5, 0.5)],
        *[("norm", 3.0, 1.0), ("gemm", 5.0, 0.5), ("gemm", 5.5, 0.5)],
    ]
    gathers = [one for one in slices if one["tid"] == 1 + Stream.TP]
    assert [(one["name"], one["ts"]) for one in gathers] == [
        ("all-gather", 1.0),
        ("all-gather", 4.0),
    ]
    assert gathers[0]["args"] == {"layer": 0, "up_bytes": 64.0, "microbatch": 3}
    write_trace(timeline, tmp_path / "trace.json", detail="kernel")
    assert check_trace(tmp_path / "trace.json") == []


def test_kernels_stretch_with_their_row() -> None:
    """What slowed a row down slows its kernels down alike, and nothing sticks out."""
    slices = _of(_with_template(stretch=1.1), "X", detail="kernel")
    norms = [(one["ts"], one["dur"]) for one in slices if one["name"] == "norm"]
    assert norms == [(0.0, 1.1), (3.3, 1.1)]


@pytest.mark.parametrize(
    ("name", "options"),
    [("gpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"virtual_stages": 3})],
)
@pytest.mark.parametrize("send", [0.0, 1234.0, 0.3 * US, 2.7 * US])
def test_traces_of_every_schedule_are_sound(
    tmp_path, name: str, options: dict, send: float
) -> None:
    """No overlap on a track and all flows matched, for messages shorter than the resolution too."""
    timeline = _timeline(name, pp=4, microbatches=8, send=send, **options)
    write_trace(timeline, tmp_path / "trace.json")
    assert check_trace(tmp_path / "trace.json") == []
    assert len(_of(timeline, "s")) == int((timeline.program.kind == Kind.SEND).sum()) > 0


def test_gzip_is_chosen_by_name_and_equal_timelines_give_equal_bytes(tmp_path) -> None:
    """No time stamp and no file name is stored."""
    for name in ("a.json", "b.json.gz", "c.json.gz"):
        write_trace(_timeline(), tmp_path / name)
    plain, *zipped = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert zipped[0] == zipped[1]
    assert gzip.decompress(zipped[0]) == plain
    assert json.loads(plain)["displayTimeUnit"] == "ms"


def test_ranks_choose_what_is_written() -> None:
    """Flows need both of their ends; the default stops at 64 ranks."""
    timeline = _timeline(pp=3)
    assert {one["pid"] for one in trace_events(timeline, ranks=[0, 2])} == {1, 3}
    assert _of(timeline, "s", ranks=[0, 2]) == []
    assert len(_of(timeline, "s", ranks=[0, 1])) == 4
    many = _timeline("gpipe", pp=66, microbatches=1)
    assert len({one["pid"] for one in trace_events(many)}) == 64


def test_unknown_detail_and_ranks_are_refused() -> None:
    """Both messages say what would be accepted."""
    with pytest.raises(ScenarioError, match="got detail 'layer'; needed one of chunk, kernel"):
        list(trace_events(_timeline(), detail="layer"))
    with pytest.raises(ScenarioError, match=r"got ranks \[2\]; needed ranks from 0 to 1"):
        list(trace_events(_timeline(), ranks=[0, 2]))


def _slice(name: str, ts: float, dur: float, tid: int = 1) -> dict:
    return {"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}}


NAME = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "compute"}}
START = {"ph": "s", "name": "m", "id": 7, "pid": 1, "tid": 1, "ts": 0.5}
END = {"ph": "f", "name": "m", "id": 7, "pid": 1, "tid": 1, "ts": 1.5}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (
            [NAME, _slice("a", 0, 2), _slice("b", 1, 2)],
            "'b' at 1000 ns overlaps 'a' on track (1, 1)",
        ),
        (
            [NAME, _slice("a", 0, 4), _slice("b", 1, 1), _slice("c", 1.5, 1)],
            "'c' at 1500 ns overlaps 'b'",
        ),
        ([_slice("a", 0, 2)], "track (1, 1) has no name"),
        ([NAME, _slice("a", 0, 2), START], "flow 7 has ['s']; needed one s, then one f"),
        ([NAME, _slice("a", 0, 2), END, START], "flow 7 has ['f', 's']"),
        ([NAME, _slice("a", 0, 2), {**START, "ts": 1.8}, END], "flow 7 ends before it starts"),
        ([NAME, _slice("a", 0, 1), START, END], "flow 7 touches no slice on track (1, 1)"),
        (
            [NAME, {"ph": "C", "name": "n", "pid": 1, "ts": 3, "args": {"v": -1}}],
            "counter 'n' of process 1 is below zero",
        ),
        (
            [
                NAME,
                {"ph": "C", "name": "n", "pid": 1, "ts": 3, "args": {"v": 1}},
                {"ph": "C", "name": "n", "pid": 1, "ts": 4, "args": {"w": 1}},
            ],
            "counter 'n' of process 1 changes its series at 4 us",
        ),
        ([NAME, _slice("a", 3, -1)], "slice 'a' at 3 us lasts -1 us"),
        ([NAME, NAME, _slice("a", 0, 2)], "track (1, 1) has two names"),
    ],
)
def test_the_check_finds_what_is_wrong(tmp_path, events: list[dict], problem: str) -> None:
    """Each kind of mistake is named, and nothing else is complained about."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (found,) = check_trace(path)
    assert problem in found


def test_the_check_accepts_slices_that_nest_or_meet(tmp_path) -> None:
    """A slice inside another, and one that starts where another ends, are no overlap."""
    events = [
        NAME,
        _slice("a", 0, 2),
        _slice("b", 0, 1),
        _slice("c", 1, 1),
        _slice("d", 2, 1),
        START,
        END,
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert check_trace(tmp_path / "trace.json") == []
