"""Measured steps against predicted ones, on the recorded measurement of validation/measured."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from pathlib import Path

import pytest

from mpsim.calibrate import calibrate
from mpsim.cli.app import execute
from mpsim.errors import CalibrationError
from mpsim.hardware.machine import read_machine
from mpsim.measured.files import read_measured
from mpsim.measured.sources import read_source
from mpsim.shipped import read_shipped
from mpsim.validate import compare_runs
from mpsim.validate.actions import Slice, parts_of
from mpsim.validate.step_scenarios import family_of, step_of

HERE = Path(__file__).parents[3] / "validation" / "measured"
RECORDED, MACHINE = HERE / "cpu-2-ranks.jsonl", HERE / "cpu-2-ranks.yaml"
RECORDINGS = sorted(HERE.glob("cpu-2-ranks*.jsonl"))
TARGET = 0.15
"""Median error of training steps on a quiet CPU box with as many cores as ranks."""
ONCE = 0.25
"""The same in one recording among several: the machine is slower in some hours than in others, and nothing shows by how much."""
POINTS = 0.05
"""Of a step: how far the bubble of a pipeline may be off."""


@pytest.fixture(scope="module")
def comparison():
    return compare_runs(read_machine(MACHINE), [RECORDED])


@pytest.fixture(scope="module")
def comparisons():
    """All recordings, three of which calibrate never saw."""
    return [compare_runs(read_machine(MACHINE), [one]) for one in RECORDINGS]


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """The recording, as if other processes had used a fifth of the host."""
    path = tmp_path_factory.mktemp("busy") / "busy.jsonl"
    path.write_text(re.sub(r'"others":[0-9.]+', '"others":0.2', RECORDED.read_text()))
    return path


def test_the_recorded_machine_is_what_calibrate_makes_of_the_recording():
    """Constants and curves of the file in the repository are those of its measurements."""
    found = calibrate([read_source(RECORDED)], name="cpu-2-ranks").document
    kept = read_machine(MACHINE).calibration.document
    for name, one in found["constants"].items():
        assert kept["constants"][name]["value"] == pytest.approx(one["value"], rel=1e-3), name
    assert kept["collective_curves"] == found["collective_curves"]


def test_steps_are_predicted_without_their_times(comparisons):
    """Four recordings: every step is predicted, and in their median within the target for every way to divide a model."""
    assert len(comparisons) == 4
    found: dict[str, list[float]] = {}
    for each in comparisons:
        assert len(each.scored) == len(each.steps) >= 20
        assert each.tells
        assert each.median_error < TARGET
        for family in each.families:
            if family.kind == "step":
                found.setdefault(family.family, []).append(family.median_abs_error)
    assert {"data parallel", "tensor parallel", "pipeline zb-v", "fsdp2"} < set(found)
    for family, errors in found.items():
        assert statistics.median(errors) < TARGET, family
        assert max(errors) < ONCE, family


def test_bubbles_are_predicted_within_five_points(comparisons):
    """GPipe, 1F1B, interleaved 1F1B and ZBV: the share of the step between a rank's actions, in the median of the recordings."""
    found: dict[str, list[float]] = {}
    for one in (step for each in comparisons for step in each.scored):
        if one.same_order is not None:
            measured = one.measured_parts["waiting"] / one.measured
            predicted = one.predicted_parts["waiting"] / one.predicted
            found.setdefault(one.title, []).append(predicted - measured)
    assert len(found) >= 9
    for title, points in found.items():
        assert abs(statistics.median(points)) < POINTS, title


def test_torch_and_mpsim_order_the_actions_of_every_schedule_alike(comparison):
    """GPipe, 1F1B, interleaved 1F1B and ZBV, two sizes or three each."""
    orders = {one.title: one.same_order for one in comparison.steps if one.same_order is not None}
    assert len(orders) >= 8
    assert set(orders.values()) == {True}


def test_parts_sum_to_the_step(comparison):
    """Forward, backward, gradients, optimizer and waiting, of both timelines."""
    for one in comparison.scored:
        assert sum(one.predicted_parts.values()) == pytest.approx(one.predicted, rel=1e-6)
        assert min(one.predicted_parts.values()) > -1e-12
        assert sum(one.measured_parts.values()) == pytest.approx(one.measured, rel=0.35)


def test_a_busy_machine_is_said_to_tell_nothing(busy):
    """Other processes used a fifth of the host while the steps ran."""
    comparison = compare_runs(read_machine(MACHINE), [busy])
    assert comparison.busy == pytest.approx(0.2)
    assert not comparison.tells


def test_waiting_is_what_is_left_of_the_step():
    """Two ranks of a step of 10 s that act for 6 and 4 s wait for 5 s in the mean; a rank that stands for three counts three times."""
    slices = [Slice(0, "0F0", 0.0, 6.0), Slice(1, "1B0", 2.0, 6.0)]
    assert parts_of(slices, 10.0)["waiting"] == pytest.approx(5.0)
    assert parts_of(slices, 10.0, {0: 3, 1: 1})["waiting"] == pytest.approx(4.5)
    assert parts_of(slices, None)["waiting"] == pytest.approx(0.0)


def test_python_has_a_price_on_a_cpu(comparison):
    """In calls of an eager operator: more of them in hooks of FSDP2, in backwards of two halves, and around each action of a pipeline."""
    table = read_shipped("mpsim.validate.data", "stacks.yaml")["calls"]
    machine = read_machine(MACHINE)
    host = {}
    for one in read_measured(RECORDED).of("steps"):
        software = step_of(one, machine).build().software.host
        host[family_of(one)] = software
    each = host["one rank"].launch_cost
    plain, sharded, split = (host[name] for name in ("one rank", "fsdp2", "pipeline zb-v"))
    assert (
        sharded.layer_launches_forward - plain.layer_launches_forward == table["fsdp2"]["forward"]
    )
    assert split.layer_launches_backward > plain.layer_launches_backward
    assert split.synchronization_cost == pytest.approx(each * table["action"], rel=1e-3)
    assert plain.synchronization_cost == 0.0
    assert plain.step_overhead == pytest.approx(8 * each * table["layer"]["optimizer"], rel=1e-3)


def test_steps_of_another_device_are_refused(tmp_path):
    """A GPU's steps are not predicted on a CPU."""
    other = tmp_path / "other.jsonl"
    text = RECORDED.read_text().replace('"device_name":"AMD EPYC"', '"device_name":"Other CPU"')
    other.write_text(text)
    with pytest.raises(CalibrationError, match="Other CPU"):
        compare_runs(read_machine(MACHINE), [other])


def test_steps_in_another_torch_are_warned_of(tmp_path):
    """A kernel may be another one there."""
    other = tmp_path / "other.jsonl"
    text = RECORDED.read_text()
    other.write_text(text.replace('"torch":"2.13.0', '"torch":"2.9.1', 1))
    found = compare_runs(read_machine(MACHINE), [other])
    assert any("ran in torch 2.9.1" in one for one in found.warnings)
    assert not compare_runs(read_machine(MACHINE), [RECORDED]).warnings


def test_steps_that_nothing_can_predict_are_refused(tmp_path):
    """No table of empty rows: the reason of the first."""
    odd = tmp_path / "odd.jsonl"
    odd.write_text(
        re.sub(
            r'(train_step.*?"shape":\{"layers":8,"hidden":)[0-9]+',
            r"\g<1>130",
            RECORDED.read_text(),
        )
    )
    with pytest.raises(CalibrationError, match=r"none of 22 steps can be predicted.*hidden 130"):
        compare_runs(read_machine(MACHINE), [odd])


def test_the_command_writes_report_pictures_and_trace(tmp_path, capsys, busy):
    """Table, verdict, timelines of both; the trace has both processes of a rank."""
    trace = tmp_path / "both.json.gz"
    arguments = ["validate", str(MACHINE), "--runs", str(busy)]
    assert execute([*arguments, "--plots", str(tmp_path), "--trace", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert "explains most of the difference" in printed
    assert "too noisy to tell" in printed
    assert (tmp_path / "timelines.png").stat().st_size > 5000
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert {"rank 1 measured", "rank 1 simulated"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(MACHINE), str(MACHINE), "--runs", str(RECORDED)], "got 2 files"),
        ([str(MACHINE), "--runs", str(MACHINE)], "JSON"),
        ([str(RECORDED), "--runs", str(RECORDED)], "YAML"),
        (["nowhere.yaml", "--runs", str(RECORDED)], "mpsim calibrate"),
        ([str(RECORDED), "--trace", "x.json"], "needs --runs"),
    ],
)
def test_wrong_files_exit_with_2(arguments, message, capsys):
    """Two machines, a machine as runs, runs as a machine, no file, a trace of CSV."""
    assert execute(["validate", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
