"""Calibration of serving: points that were made with other constants give these back, and a machine file carries them into runs and validation."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

import mpsim
from bench import served_points, validate_files
from mpsim.calibrate import calibrate_serving
from mpsim.calibrate.serving import fit_serving, on_machine
from mpsim.errors import CalibrationError, ScenarioError
from mpsim.hardware import build_cluster
from mpsim.hardware.machine import read_machine
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.result import ServedPoint, measurable
from mpsim.workload import model

TRUE = {
    "serving.product_rate.*": 0.8,
    "serving.rates.attention_bandwidth": 0.62,
    "serving.engines.vllm-v1.step_time": 3e-3,
    "serving.engines.vllm-v1.first_token_time": 50e-3,
}


def _plan(users, prompt, output, *, tp=1, chip="h100-sxm"):
    return ServicePlan(
        name="point",
        model=model("llama3-8b"),
        cluster=build_cluster(accelerator=chip, accelerators_per_node=8, nodes=1),
        engine=engine("vllm-v1"),
        workload=Workload(
            arrival="closed",
            concurrency=users,
            requests=3 * users,
            prompt=LengthChoice(tokens=prompt),
            output=LengthChoice(tokens=output),
        ),
        slo=ServiceLevel(),
        tp=tp,
    )


@pytest.fixture(scope="module")
def points():
    """Few and many users, short and long contexts, one accelerator and two, all as fast as `TRUE` makes them."""
    plans = [
        _plan(users, prompt, output, tp=tp)
        for users, prompt, output, tp in (
            *((1, 128, 60, 1), (1, 128, 60, 2), (8, 1000, 60, 1), (64, 500, 200, 1)),
            *((16, 8000, 400, 1), (4, 16000, 300, 1), (24, 4000, 500, 1)),
        )
    ]
    return [
        ServedPoint(f"row {number}", plan, _tpot_and_ttft(on_machine(plan, TRUE)))
        for number, plan in enumerate(plans)
    ]


def _tpot_and_ttft(plan):
    figures = measurable(plan)
    return {name: figures[name] for name in ("ttft", "tpot")}


def test_constants_that_made_the_points_are_found(points):
    """They start at what the presets have; each comes back within 6 %."""
    fit = fit_serving(points)
    for name, value in TRUE.items():
        assert fit.constants[name].value == pytest.approx(value, rel=0.06), name
    for score in fit.scores:
        assert score.median(held_out=False) < 0.01


def test_points_of_two_accelerators_are_refused(points):
    other = ServedPoint("other", _plan(1, 128, 8, chip="h200-sxm"), {"tpot": 0.01})
    with pytest.raises(CalibrationError, match="--only accelerator"):
        fit_serving([*points[:1], other])


def test_a_machine_file_carries_the_constants(points, tmp_path):
    """Written, read, named by a scenario: the service runs with them; one of the scenario's own fields wins, and a pool of another chip, which nobody measured, keeps the engine's."""
    path = tmp_path / "machine.yaml"
    calibrate_serving(points[:4], files=[], name="ours").write(path)
    found = read_machine(path).accelerator.calibration.constants
    plan = _planned(tmp_path, path, "vllm-v1")
    assert plan.engine.step_time == found["serving.engines.vllm-v1.step_time"].value
    assert plan.rates.attention_bandwidth == found["serving.rates.attention_bandwidth"].value
    own = _planned(tmp_path, path, "{preset: vllm-v1, step_time: 7 ms}")
    assert own.engine.step_time == pytest.approx(7e-3)
    pool = "{tp: 1, accelerator: h200-sxm}"
    engine_text = f"vllm-v1\n  disaggregated: {{prefill: {pool}, decode: {pool}}}"
    other = _planned(tmp_path, path, engine_text)
    assert other.engine.step_time == engine("vllm-v1").step_time


def test_a_warm_up_longer_than_the_run_is_refused():
    """Nothing was measured then: a sentence in place of a division by zero."""
    plan = _plan(1, 128, 8)
    late = dataclasses.replace(plan, workload=plan.workload.model_copy(update={"warmup": 1e4}))
    with pytest.raises(ScenarioError, match="got a warm-up of 10000 s, and no request came after"):
        measurable(late)


def _planned(folder, machine, engine_text):
    file = folder / "scenario.yaml"
    cluster = f"{{preset: {machine}, nodes: 1}}"
    file.write_text(_SCENARIO.format(cluster=cluster, engine=engine_text), encoding="utf-8")
    return make_service(mpsim.load(file))


_SCENARIO = """
schema: 1
name: calibrated
cluster: {cluster}
model: llama3-8b
serving:
  engine: {engine}
  workload: {{rate: 2, requests: 20}}
"""
DATA = Path(__file__).resolve().parents[3] / "validation" / "data" / "inference-runs.csv"


@pytest.mark.skipif(not DATA.is_file(), reason="data is not shipped with the package")
def test_rows_of_a_table_become_points_and_a_machine_counts_for_its_accelerator(tmp_path):
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["id"] in ("aicsil-1493", "aicsil-0095")]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    only = {"accelerator": next(r["accelerator"] for r in rows if r["id"] == "aicsil-1493")}
    found = served_points(path, only=only)
    assert found is not None
    points, skipped = found
    assert [point.id for point in points] == ["aicsil-1493"]
    assert not skipped
    machine = calibrate_serving(points, files=[path], name="h100s").cluster
    before, after = (
        {record.id: record for record in validate_files([path], machine=machine).records}
        for machine in (None, machine)
    )
    fitted, other = "aicsil-1493#tpot", "aicsil-0095#tpot"
    assert abs(after[fitted].error) < abs(before[fitted].error)
    assert after[other].predicted == before[other].predicted
    assert any("machine = h100s" in sentence for sentence in after[fitted].assumed)


def test_a_table_of_training_steps_is_told_what_it_is_for(tmp_path):
    """Steps are runs of a scenario: the refusal names the table and what is missing."""
    from mpsim.validate import served_points

    table = tmp_path / "runs.csv"
    table.write_text("model,parallelism.tp,step_time (ms)\nllama2-7b,1,950\n")
    with pytest.raises(CalibrationError, match=r"runs.csv: has training steps.*--scenario FILE"):
        served_points(table)
