"""Traces of simulated steps: communication inside actions, counters, and what the file says of itself."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpsim.formats import step_events, step_trace, write_step_trace
from mpsim.parallel.axes import AXES
from mpsim.result import Result
from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step
from mpsim.stamp import stamp
from mpsim.training.vocabulary import PARTS
from tests.trace_check import check_trace

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
NS_PER_US, TICKS_PER_NS = 1000, 1000


def _result(name: str, **values: object) -> Result:
    scenario = load(SCENARIOS / f"{name}.yaml")
    changes = {key.replace("__", "."): value for key, value in values.items()}
    return simulate_step(scenario.with_values(changes) if changes else scenario)


@pytest.fixture(scope="module")
def mixture() -> Result:
    """A step with experts, whose exchanges are exposed inside actions."""
    return _result("mixtral-8x7b-h100")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mixtral-8x7b-h100", {}),
        ("quickstart", {}),
        ("quickstart", {"simulation__network": "flow"}),
        ("quickstart", {"simulation__interference": True}),
        ("quickstart", {"framework__blocking_sends": "always"}),
    ],
)
def test_exposed_slices_of_a_trace_sum_to_the_account(tmp_path, name: str, values: dict) -> None:
    """Of every rank and axis, to a nanosecond a slice; and the trace is sound."""
    result = _result(name, **values)
    write_step_trace(result, tmp_path / "trace.json")
    assert check_trace(tmp_path / "trace.json") == []
    exposed: Counter[tuple[int, str]] = Counter()
    pieces: Counter[tuple[int, str]] = Counter()
    names: dict[tuple[int, int], str] = {}
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        if event.get("cat") == "exposed":
            axis = names[event["pid"], event["tid"]].split()[0]
            exposed[event["pid"] - 1, axis] += round(event["dur"] * NS_PER_US)
            pieces[event["pid"] - 1, axis] += 1
            assert event["name"].startswith("exposed: ")
    assert exposed
    for rank in range(result.timeline.program.ranks):
        for axis in AXES:
            ticks = result.parts[rank, PARTS.index(axis.part)]
            bound = 1 + pieces[rank, axis.name]
            assert exposed[rank, axis.name] == pytest.approx(ticks / TICKS_PER_NS, abs=bound)


def test_slices_inside_actions_say_where_they_belong(mixture: Result) -> None:
    """Each lies inside an action of its microbatch, and names layer and stage."""
    events = list(step_events(mixture, ranks=[1]))
    actions = [event for event in events if event.get("cat") in ("forward", "backward")]
    inside = [event for event in events if event.get("tid") == 4 and event["ph"] == "X"]
    assert {"hidden", "exposed"} >= {event["cat"] for event in inside} >= {"exposed"}
    starts = np.array([event["ts"] for event in actions])
    order = np.argsort(starts)
    for event in inside[:500]:
        at = order[np.searchsorted(starts[order], event["ts"] + 1e-6, side="right") - 1]
        action = actions[at]
        assert event["ts"] + event["dur"] <= action["ts"] + action["dur"] + 1e-3
        assert event["args"]["microbatch"] == action["args"]["microbatch"]
        assert event["args"]["layer"] >= 0


def test_counters_of_memory_reach_the_peak_by_kind(mixture: Result) -> None:
    """The highest sum of a rank's counter is its memory at its fullest, to a byte a kind."""
    highest: dict[int, float] = {}
    for event in step_events(mixture):
        if event["name"] == "memory (B)":
            assert set(event["args"]) == set(mixture.memory.components)
            rank = event["pid"] - 1
            highest[rank] = max(highest.get(rank, 0.0), sum(event["args"].values()))
    assert list(highest.values()) == pytest.approx(mixture.memory.total.tolist(), abs=8)


def test_counters_of_ports_are_the_use_of_links(mixture: Result) -> None:
    """The counter of a port has the use of its link, in percent and rounded to a tenth."""
    title, link = "NIC out (%)", "pp 0 NIC out"
    levels = [
        event["args"]["in use"]
        for event in step_events(mixture, ranks=[0])
        if event["name"] == title
    ]
    shares = 100 * mixture.links[link]
    assert max(levels) == pytest.approx(shares.max(), abs=0.05)
    assert levels[-1] == 0.0


def test_a_trace_says_what_it_shows(tmp_path, mixture: Result) -> None:
    """Scenario, digest and version stand in the file and on the first slice; equal results give equal bytes."""
    for name in ("a.json.gz", "b.json.gz"):
        write_step_trace(mixture, tmp_path / name)
    data = (tmp_path / "a.json.gz").read_bytes()
    assert data == (tmp_path / "b.json.gz").read_bytes()
    trace = json.loads(gzip.decompress(data))
    about = trace["otherData"]
    assert about["scenario"] == "mixtral-8x7b-h100"
    assert about["digest"] == mixture.scenario.digest
    assert about["mpsim"] == stamp()
    first = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    assert first["args"] == about
    assert first["dur"] == pytest.approx(1e6 * mixture.timeline.step_time_s, abs=1e-3)


def test_slices_are_bounded_and_the_trace_says_so(monkeypatch, mixture: Result) -> None:
    """With room for the slices of a rank and a half, two ranks have some, the second the earliest of its own."""
    each = len(mixture.communication_slices([0]))
    monkeypatch.setattr(step_trace, "MOST_SLICES", each + 100)
    events = list(step_events(mixture))
    about = next(event["args"] for event in events if event.get("cat") == "step")
    assert about["communication_slices"] == each + 100
    assert about["communication_of_ranks"] == 2
    inside = [event for event in events if event.get("cat") in ("hidden", "exposed")]
    assert {event["pid"] for event in inside} == {1, 2}
    assert len(inside) <= each + 100


def test_moments_of_memory_are_bounded_and_keep_the_peak() -> None:
    """Of 10,000 moments as many as there is room for remain, and the fullest of all among them."""
    rng = np.random.default_rng(1)
    time, held = np.arange(10_000), rng.random(10_000)
    chosen = step_trace._moments(time, held)
    assert len(chosen) == step_trace._MOST_MOMENTS
    assert int(np.argmax(held)) in chosen
    assert (np.diff(chosen) > 0).all()


def test_detail_kernel_adds_kernels_and_no_second_collective(mixture: Result) -> None:
    """Kernels appear on the compute track; communication inside is the same as without them."""
    coarse, fine = (
        [event for event in step_events(mixture, ranks=[0], detail=detail) if event["ph"] == "X"]
        for detail in ("chunk", "kernel")
    )
    assert {event["cat"] for event in fine} - {event["cat"] for event in coarse} == {"kernel"}
    inside = [
        [event for event in events if event["cat"] in ("hidden", "exposed")]
        for events in (coarse, fine)
    ]
    assert inside[0] == inside[1]
