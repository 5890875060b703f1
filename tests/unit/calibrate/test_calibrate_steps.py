"""A machine from a table of one's own steps: levels of kernels and links, what to expect of other rows, and tables that are refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

import mpsim
from mpsim.calibrate import Run, calibrate_runs
from mpsim.calibrate.machine import document_of
from mpsim.calibrate.recorded import known_machine, simulated_on
from mpsim.cli.app import execute
from mpsim.errors import CalibrationError
from mpsim.hardware.machine import machine_of
from mpsim.result import Result
from mpsim.result.residuals import residuals
from mpsim.training.intervals import told

BASE = {
    "schema": 1, "name": "own", "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"tp": 1}, "training": {"global_batch": 32, "sequence_length": 2048}, "framework": "megatron-lm",
}  # fmt: skip
LAYOUTS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2))  # tp, micro batch


def step(tp: int, micro_batch: int) -> Result:
    """A layout as it is predicted."""
    values = {"parallelism.tp": tp, "training.micro_batch": micro_batch}
    return mpsim.simulate(mpsim.Scenario.from_mapping(BASE).with_values(values))


def length(result: Result, kernels: float, exchange: float) -> float:
    """Its step with other kernels and links [s]."""
    exposed = sum(s for part, s in result.breakdown.items() if part.startswith("exposed"))
    return kernels * (result.timeline.step_time_s - exposed) + exchange * exposed


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Six layouts."""
    return [step(*layout) for layout in LAYOUTS]


def runs(results: list[Result], kernels: float, exchange: float, measured: int) -> list[Run]:
    """The first ones measured, the others open."""
    return [
        Run(
            f"tp{tp}-mb{mb}",
            told(result.headline),
            "s",
            result.timeline.step_time_s,
            length(result, kernels, exchange) if place < measured else None,
        )
        for place, ((tp, mb), result) in enumerate(zip(LAYOUTS, results, strict=True))
    ]


def test_slow_kernels_are_found_and_any_scenario_can_name_the_machine(
    results: list[Result],
) -> None:
    """Steps with kernels a tenth slower: the machine's are, as far as four runs say, and a step on it is nearer to what it takes."""
    found = calibrate_runs(results[0], runs(results, 1.1, 1.1, 4))
    after = mpsim.simulate(mpsim.Scenario.from_mapping({**BASE, "cluster": {"machine": found.document, "nodes": 1}}))  # fmt: skip
    before = results[0].timeline.step_time_s
    assert 1.05 < after.timeline.step_time_s / before < 1.1
    assert after.headline["interval"]["of"]["own"] == 4
    assert "kernels take 1.0" in found.warnings[0]


def test_runs_of_a_file_with_words_of_its_own_are_like_no_step(results: list[Result]) -> None:
    """A machine file is written by hand too."""
    found = calibrate_runs(results[0], runs(results, 1.0, 1.0, 2)).document
    machine = {**found, "runs": [{"colour": ["red"]}]}
    after = mpsim.simulate(mpsim.Scenario.from_mapping({**BASE, "cluster": {"machine": machine, "nodes": 1}}))  # fmt: skip
    assert "own" not in after.headline["interval"]["of"]


def test_slow_links_are_told_from_slow_kernels(results: list[Result]) -> None:
    """Layouts that exchange more are longer by more: the link is slower than the kernels are."""
    slow = machine_of(calibrate_runs(results[0], runs(results, 1.0, 1.6, 4)).document)
    usual = machine_of(calibrate_runs(results[0], runs(results, 1.0, 1.0, 4)).document)
    assert slow.node.scale_up.bandwidth < 0.95 * usual.node.scale_up.bandwidth
    fraction = "kernels.gemm.sustained_fraction"
    rates = [m.accelerator.calibration.value(fraction) for m in (slow, usual) if m.accelerator.calibration]  # fmt: skip
    assert rates[0] == pytest.approx(rates[1], rel=0.06)


def test_open_rows_are_told_what_to_expect_and_one_is_asked_for(results: list[Result]) -> None:
    """After four slow runs the other two are expected slower too, and one of them is named."""
    found = calibrate_runs(results[0], runs(results, 1.1, 1.1, 4))
    assert found.runs is not None
    assert [row[1] for row in found.runs.rows[4:]] == ["open", "open"]
    assert all(row[2] != row[4] for row in found.runs.rows[4:])
    assert "run next: tp" in found.warnings[-1]


def test_all_that_is_wrong_is_told_at_once(results: list[Result]) -> None:
    """A step in ms, one run written twice, and no step at all."""
    good = runs(results, 1.0, 1.0, 6)
    slow = Run("slow", good[0].setting, "s", good[0].predicted, 1000 * good[0].predicted)
    with pytest.raises(CalibrationError) as refused:
        calibrate_runs(results[0], [*good, slow, good[1]])
    assert "slow: its step takes 1e+03 times as long as predicted (" in str(refused.value)
    assert "tp2-mb1, tp2-mb1: are one run" in str(refused.value)
    with pytest.raises(CalibrationError, match="no step was measured"):
        calibrate_runs(results[0], runs(results, 1.0, 1.0, 0))


def test_own_runs_narrow_the_interval_of_steps_alone(results: list[Result]) -> None:
    """Each run of one's own of a stack that nobody measured makes its steps surer, as sure as beside measured runs at most; its peaks stay."""
    setting = told(results[0].headline)
    strange = dataclasses.replace(setting, labels={**setting.labels, "framework": ("own", "own")})
    settings = [dataclasses.replace(strange, own=count) for count in (0, 1, 5, 50)]
    spreads = [residuals("step").sigma(each) for each in settings]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[2] < 0.8 * spreads[0]
    assert len({residuals("memory").sigma(each) for each in settings}) == 1


def test_a_table_becomes_a_machine_on_the_command_line(
    tmp_path: Path, results: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps in ms with a run that ran out of memory; a table whose row cannot run is refused with its reason."""
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    rows = [f"r{tp},{tp},{1e3 * length(results[n], 1.1, 1.1):.4f}," for n, (tp, _) in enumerate(LAYOUTS[:3])]  # fmt: skip
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["id,parallelism.tp,step_time_ms,memory", *rows, "r8,8,,OOM"]))
    base, out = str(tmp_path / "base.yaml"), tmp_path / "box.yaml"
    assert execute(["calibrate", str(table), "--scenario", base, "-o", str(out)]) == 0
    assert out.exists()
    capsys.readouterr()
    asked = ["calibrate", str(table), "--scenario", base, "-o", str(out)]
    assert execute([*asked, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [each["run"] for each in steps] == ["r1", "r2", "r4"]
    assert all(each["low"] < each["now"] < each["high"] for each in steps)
    assert execute([*asked, "--plots", str(tmp_path)]) == 2
    table.write_text("id,parallelism.tp,step_time\nr1,1,1e4\nr3,3,1 s\nr0,1,0")
    capsys.readouterr()
    assert execute(["calibrate", str(table), "--scenario", base, "-o", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "r3: " in said
    assert "r1: its step takes" in said
    assert "r0: step_time: got '0'; needed a number above 0 in s" in said


@pytest.mark.parametrize("cluster", [
    {"preset": "dgx-h100"}, {"preset": "gb200-nvl72"}, {"preset": "aws-trn1n"}, {"preset": "aws-p5"},
    {"preset": "dgx-h100", "nics_per_node": 2, "fabric": {"kind": "fat-tree", "oversubscription": [4, 2], "hop_latency": "5 us", "routing": "static"}},
])  # fmt: skip
def test_a_machine_about_which_nothing_is_learnt_is_the_scenarios_own(cluster: dict[str, object]) -> None:  # fmt: skip
    """A machine file without a constant of its own has the scenario's links, domains, NICs and fabric, so the same step."""
    values = {"training": {"global_batch": 64, "sequence_length": 2048}, "parallelism": {"tp": 4, "pp": 2}}  # fmt: skip
    scenario = mpsim.Scenario.from_mapping({**BASE, **values, "cluster": {**cluster, "nodes": 4}})
    document = document_of(*known_machine(scenario.hardware, ""), ())
    steps = [
        each.timeline.step_time_s
        for each in (mpsim.simulate(scenario), simulated_on(scenario, document))
    ]
    assert steps[0] == pytest.approx(steps[1], rel=3e-5)


def test_a_machine_of_own_runs_is_not_calibrated_again(results: list[Result]) -> None:
    """The same rows told twice would count twice: all of them are told at once, on the machine before; a recording keeps the runs."""
    document = calibrate_runs(results[0], runs(results, 1.1, 1.1, 4)).document
    again = simulated_on(results[0].scenario, document)
    with pytest.raises(CalibrationError, match="calibrated with 4 runs already"):
        calibrate_runs(again, runs(results, 1.1, 1.1, 4))
    assert len(known_machine(again.scenario.hardware, "")[0].runs) == 4


def test_an_interrupted_table_makes_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the runs would make another machine than all of them."""
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    (tmp_path / "runs.csv").write_text("parallelism.tp,step_time\n1,0.7\n2,0.8\n")
    simulated: list[object] = []

    def interrupted(scenario: mpsim.Scenario) -> object:
        simulated.append(scenario)
        if len(simulated) > 1:
            raise KeyboardInterrupt
        return mpsim.simulate(scenario)

    monkeypatch.setattr(importlib.import_module("mpsim.validate.rows"), "simulate", interrupted)
    asked = [str(tmp_path / "runs.csv"), "--scenario", str(tmp_path / "base.yaml")]
    assert execute(["calibrate", *asked, "-o", str(tmp_path / "box.yaml")]) == 130
    assert not (tmp_path / "box.yaml").exists()
