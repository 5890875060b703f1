"""Recorded steps: ranks on one clock, a timeline of one step, and the simulated step beside it."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.formats.recorded_step import clock_offsets, read_recordings, recorded_step
from mpsim.formats.spans import Span, Spans
from mpsim.plot import timeline_chart
from mpsim.program import TICK
from mpsim.study.recorded import compare_recorded

SAMPLES = Path(__file__).parent / "samples" / "torch"
MICRO = 1e-6


def event(name, start, length, category="user_annotation", **args):
    """A complete event of a trace, in microseconds."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": length,
        "args": args,
    }


def kernel(name, start, length, **args):
    """A kernel of device 0."""
    return event(name, start, length, "kernel", device=0, **args)


def call(start, length, elements=1024):
    """An all-reduce of NCCL over two ranks."""
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL()",
        start,
        length,
        **{
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Group size": 2,
            "Process Group Description": "default_pg",
        },
    )


def trace(folder, rank, events, base=1_790_857_026_000_000_000, packed=False):
    """A file of torch.profiler for one of two ranks."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }
    text = json.dumps(head).encode()
    file = folder / f"rank{rank}.json{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(text) if packed else text)
    return file


def step_of(*files):
    """The recorded step of some files."""
    return recorded_step([mpsim.read(file, spans=True) for file in files])


@pytest.mark.parametrize("packed", [False, True])
def test_time_is_accounted_once(tmp_path, packed):
    """Kernels from 0 to 10 and 20 to 30 us, a reduction from 5 to 25: 20 compute, 10 exposed, and nothing is idle."""
    file = trace(
        tmp_path, 0, [kernel("gemm", 0, 10), kernel("gemm", 20, 10), call(5, 20)], packed=packed
    )
    step = step_of(file)
    assert step.step_time_s == pytest.approx(30 * MICRO)
    assert step.parts == pytest.approx({"compute": 20 * MICRO, "exposed_dp": 10 * MICRO})


def test_the_step_of_median_length_is_taken(tmp_path):
    """Of steps of 100, 50 and 60 us the one of 60; what begins in another step is left out."""
    events = [
        event("ProfilerStep#1", 0, 100),
        event("ProfilerStep#2", 100, 50),
        event("ProfilerStep#3", 150, 60),
        kernel("gemm", 10, 80),
        kernel("gemm", 110, 30),
        kernel("gemm", 160, 40),
    ]
    step = step_of(trace(tmp_path, 0, events))
    assert step.steps == 3
    assert step.parts["compute"] == pytest.approx(40 * MICRO)


def spans(rank, ends, base_ns=0):
    """A rank that leaves collectives at these times."""
    return Spans(
        f"rank {rank}",
        rank,
        tuple(
            Span(end - 1, end, "collective", "all_reduce", axis="dp", size=8, ranks=2)
            for end in ends
        ),
        base_ns=base_ns,
    )


def test_clocks_are_laid_on_one_by_collectives():
    """Ranks leave a collective together: a clock that is 5 s ahead, of which 2 s are in the base of the file, is set back by 5 s."""
    first, second = (
        spans(0, [10.0, 20.0, 30.0]),
        spans(1, [13.0, 23.0, 33.0], base_ns=2_000_000_000),
    )
    assert clock_offsets([first, second]) == pytest.approx([0.0, 5.0])


def test_clocks_that_agree_within_the_noise_stay_as_they_are():
    """Ends that scatter by a second around each other show no difference of clocks."""
    assert clock_offsets(
        [spans(0, [10.0, 20.0, 30.0, 40.0]), spans(1, [11.0, 19.0, 31.0, 39.0])]
    ) == [0.0, 0.0]


def pipeline(ahead):
    """Two stages, two microbatches; the clock of the second is `ahead`."""

    def action(kind, stage, microbatch, start, shift=0.0):
        return Span(start + shift, start + 1 + shift, kind, "F", stage=stage, microbatch=microbatch)

    first = [
        action("forward", 0, 0, 0),
        action("forward", 0, 1, 1),
        action("backward", 0, 0, 3.5),
        action("backward", 0, 1, 5.5),
    ]
    second = [
        action("forward", 1, 0, 1.25, ahead),
        action("backward", 1, 0, 2.25, ahead),
        action("forward", 1, 1, 3.25, ahead),
        action("backward", 1, 1, 4.25, ahead),
    ]
    return [Spans("rank 0", 0, tuple(first)), Spans("rank 1", 1, tuple(second))]


def test_clocks_are_laid_on_one_by_messages_where_nothing_is_reduced_together():
    """Both ways the quickest result takes 1.25 s, so that half the difference of what the clocks show is their difference."""
    assert clock_offsets(pipeline(0.0)) == [0.0, 0.0]
    assert clock_offsets(pipeline(-3.0)) == pytest.approx([0.0, -3.0])
    assert clock_offsets(pipeline(100.0)) == pytest.approx([0.0, 100.0])


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interleaved_trace_is_in_the_order_that_torch_takes(rank):
    """The order of torch's own schedule code for two ranks, two chunks and four microbatches."""
    recorded = mpsim.read(SAMPLES / f"pp_interleaved_rank{rank}.json", spans=True)
    orders = Path(__file__).parent.parent / "against" / "data" / "schedule-orders.jsonl"
    wanted = next(
        line
        for line in map(json.loads, orders.read_text().splitlines())
        if line["schedule"] == "Interleaved1F1B"
        and (line["pp"], line["virtual_stages"], line["microbatches"]) == (2, 2, 4)
    )
    assert recorded.facts["actions"] == [token for token in wanted["orders"][rank] if token]
    assert [span.token for span in recorded.spans[0].actions] == recorded.facts["actions"]


def test_a_recorded_pipeline_is_drawn_like_a_simulated_one(tmp_path):
    """Bars of actions with their chunks and microbatches, messages under them."""
    step = step_of(*(SAMPLES / f"pp_interleaved_rank{rank}.json" for rank in (0, 1)))
    display = timeline_chart(step.timeline)
    assert list(display.names) == ["rank 0", "rank 1"]
    assert sorted(set(display.actions.chunk.tolist())) == [0, 1]
    assert {"forward", "backward", "pp"} <= display.actions.events | display.communication.events
    assert sum(step.parts.values()) == pytest.approx(step.step_time_s)


SCENARIO = {
    "schema": 1,
    "name": "small",
    "model": {"preset": "llama2-7b", "layers": 8},
    "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 2},
    "parallelism": {"pp": 2},
    "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2},
    "training": {"global_batch": 4, "sequence_length": 1024},
    "framework": "torch-ddp",
}


def recorded_from(result, folder, slower=1.0):
    """Traces that torch.profiler would write of a simulated step on a machine that is slower by a factor."""
    timeline = result.timeline
    program = timeline.program
    letters = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
    files = []
    for rank in range(program.ranks):
        events = []
        for row in timeline.rows(rank).tolist():
            kind = program.vocabulary.kinds[program.kind[row]]
            if kind in letters:
                name = f"PP:{program.stage[row]}{letters[kind]}{program.microbatch[row]}"
                start, end = (
                    float(time[row]) * TICK / MICRO * slower
                    for time in (timeline.start, timeline.end)
                )
                events.append(event(name, start, end - start))
        files.append(trace(folder, rank, events))
    return files


def test_a_simulated_step_recorded_is_itself(tmp_path):
    """Its own actions written as a trace agree in order and, but for the origin of time, in every start and duration."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(SCENARIO))
    comparison = compare_recorded(result, step_of(*recorded_from(result, tmp_path)))
    assert dict(comparison.same_order) == {"rank 0": True, "rank 1": True}
    assert len(comparison.actions) == 2 * 4 * 2 * 2
    begin = min(pair.simulated_start_s for pair in comparison.actions)
    for pair in comparison.actions:
        assert pair.recorded_s == pytest.approx(pair.simulated_s, abs=3e-9)
        assert pair.recorded_start_s == pytest.approx(pair.simulated_start_s - begin, abs=3e-9)


def test_a_slower_machine_shows_in_every_action(tmp_path):
    """Actions that take a quarter longer are a quarter longer in the table, and the sentence says so of the step."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(SCENARIO))
    comparison = compare_recorded(result, step_of(*recorded_from(result, tmp_path, slower=1.25)))
    for _, count, simulated, recorded in comparison.by_kind():
        assert count == 4
        assert recorded / simulated == pytest.approx(1.25, rel=1e-5)
    assert "recorded step" in comparison.explanation


def test_swapped_actions_are_another_order(tmp_path):
    """One rank that takes two forwards the other way round is told by name."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(SCENARIO))
    files = recorded_from(result, tmp_path)
    text = files[1].read_text()
    files[1].write_text(
        text.replace("PP:1F0", "PP:x").replace("PP:1F1", "PP:1F0").replace("PP:x", "PP:1F1")
    )
    comparison = compare_recorded(result, step_of(*files))
    assert dict(comparison.same_order) == {"rank 0": True, "rank 1": False}


def test_the_command_sets_a_folder_of_recordings_beside_a_scenario(mpsim_cli, tmp_path):
    """Table, JSON and picture; the folder holds a file a rank."""
    scenario, folder, picture = (
        tmp_path / "small.yaml",
        tmp_path / "recorded",
        tmp_path / "both.png",
    )
    scenario.write_text(json.dumps(SCENARIO))
    folder.mkdir()
    recorded_from(mpsim.simulate(mpsim.Scenario.from_mapping(SCENARIO)), folder)
    told = mpsim_cli("compare", str(scenario), str(folder), "--json", "--plot", str(picture))
    assert told.code == 0, told.err
    data = json.loads(told.out)
    assert data["same_order"] == {"rank 0": True, "rank 1": True}
    assert len(data["actions"]) == 32
    assert data["step_time_s"]["a"] > 0
    assert picture.stat().st_size > 10_000
    plain = mpsim_cli("compare", str(scenario), *map(str, sorted(folder.iterdir())))
    assert "actions in the same order" in plain.out


def test_the_import_command_draws_recordings(mpsim_cli, tmp_path):
    """Two ranks become one picture, and JSON of both together."""
    files = [str(SAMPLES / f"pp_interleaved_rank{rank}.json") for rank in (0, 1)]
    done = mpsim_cli("import", "auto", *files, "--plots", str(tmp_path / "out"), "--json")
    data = json.loads(done.out)
    assert [item["rank"] for item in data["recordings"]] == [0, 1]
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"])
    assert (tmp_path / "out" / "timeline.png").exists()


def nsys(file):
    """An export with two kernels, a reduction over both, and ranges."""
    with sqlite3.connect(file) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(1, "sm90_gemm"), (2, "ncclDevKernel_AllGather_RING_LL")],
        )
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, demangledName INTEGER)"
        )
        rows = [(1000, 2000, 0, 1), (3000, 4000, 0, 1), (1500, 3500, 0, 2), (1000, 1200, 1, 1)]
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", rows)
    return file


def test_nsight_systems_gives_a_lane_a_device(tmp_path):
    """Device 0 computes 2 us, gathers 1 us exposed; device 1 computes 0.2 us and idles for the rest of 3 us."""
    step = step_of(nsys(tmp_path / "a.sqlite"))
    assert step.timeline.program.rank_name == ("device 0", "device 1")
    assert step.step_time_s == pytest.approx(3e-6)
    assert step.parts == pytest.approx({"compute": 1.1e-6, "exposed_dp": 0.5e-6, "bubble": 1.4e-6})


def test_recordings_that_do_not_belong_together_are_refused(tmp_path):
    """Two files of one rank, a file that is no recording, a folder of nothing: each says which."""
    first = trace(tmp_path, 0, [kernel("gemm", 0, 10)])
    with pytest.raises(FormatError, match="two recordings are of rank 0"):
        step_of(first, first)
    with pytest.raises(FormatError, match="holds no action"):
        step_of(trace(tmp_path, 1, [event("other", 0, 1)]))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FormatError, match="0 files"):
        read_recordings(empty)
    (empty / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    with pytest.raises(FormatError):
        read_recordings(empty)


def test_times_of_a_long_clock_keep_their_nanoseconds(tmp_path):
    """Seconds since 1970 as a float would be off by a quarter of a microsecond."""
    step = step_of(
        trace(
            tmp_path,
            0,
            [kernel("gemm", 4_373_615_072_493.739, 0.125), kernel("gemm", 4_373_615_072_494.0, 1)],
        )
    )
    lengths = np.sort(step.timeline.end - step.timeline.start) * TICK
    assert lengths.tolist() == pytest.approx([0.125e-6, 1e-6], abs=2e-9)
