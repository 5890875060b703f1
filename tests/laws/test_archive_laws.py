"""Laws of archives: what is saved comes back, and a file decides nothing but values."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim import archive
from mpsim.cli import main
from mpsim.engine import Timeline, run
from mpsim.errors import ScenarioError
from mpsim.program import Program
from mpsim.scenario import Scenario
from mpsim.training import Plan, build_program

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
NAMES = [
    "quickstart",
    "mixtral-8x7b-h100",
    "what-if/mixed",
    "what-if/rails",
]


@pytest.fixture(scope="module", params=NAMES)
def result(request: pytest.FixtureRequest) -> mpsim.Result:
    """A dense pipeline, experts, two kinds of nodes, and links that are shared."""
    return mpsim.simulate(mpsim.load(SCENARIOS / f"{request.param}.yaml"))


def assert_same(one: Any, other: Any) -> None:
    """Both are the same, down to the bits of their arrays."""
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype
            assert np.array_equal(first, second), field.name
        elif dataclasses.is_dataclass(first):
            assert_same(first, second)
        elif isinstance(first, tuple) and first and dataclasses.is_dataclass(first[0]):
            for pair in zip(first, second, strict=True):
                assert_same(*pair)
        else:
            assert first == second, field.name


def test_a_plan_comes_back_and_builds_the_same_program(result: mpsim.Result, tmp_path: Path):
    """Cluster, model, framework, orders: nothing that decides an operation is lost."""
    plan: Plan = result.plan
    plan.save(tmp_path / "plan")
    again = Plan.load(tmp_path / "plan")
    assert again.layout == plan.layout
    assert_same(build_program(again), build_program(plan))


def test_a_program_comes_back_and_runs_the_same(result: mpsim.Result, tmp_path: Path):
    """Columns, lists and templates."""
    result.program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    assert_same(again, result.program)
    assert run(again, "replay").makespan == run(result.program, "replay").makespan


def test_a_timeline_comes_back_with_its_traffic(result: mpsim.Result, tmp_path: Path):
    """Starts, ends and what moved over shared links."""
    result.timeline.save(tmp_path / "timeline")
    assert_same(Timeline.load(tmp_path / "timeline"), result.timeline)


def test_a_scenario_comes_back_whole(result: mpsim.Result, tmp_path: Path):
    """With everything it includes or looks up."""
    result.scenario.save(tmp_path / "scenario")
    assert Scenario.load(tmp_path / "scenario").resolved() == result.scenario.resolved()


def test_a_result_comes_back_and_accounts_for_the_same(result: mpsim.Result, tmp_path: Path):
    """The summary that was saved, and the same one made anew from what came with it; saving twice gives the same bytes."""
    result.save(tmp_path / "result")
    again = mpsim.Result.load(tmp_path / "result")
    assert again.summary == result.summary
    assert dataclasses.replace(again, saved_summary=None).summary == result.summary
    assert repr(again) == repr(result)
    result.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "result").read_bytes()


def test_values_print_in_a_few_lines(result: mpsim.Result):
    """Nobody wants 36,000 operations in a notebook."""
    values = (
        *(result.plan, result.plan.layout, result.program, result.timeline, result.constants),
        *(result.summary, result, *result.program.templates),
    )
    for value in values:
        assert len(repr(value)) < (3000 if value is result else 1000), type(value)  # a page


def changed(path: Path, **document: Any) -> Path:
    """The archive with another document."""
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    content = {**json.loads(members["value.json"]), **document}
    with zipfile.ZipFile(path, "w") as whole:
        for name, data in members.items():
            whole.writestr(name, json.dumps(content) if name == "value.json" else data)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved result."""
    path = tmp_path / "saved"
    mpsim.simulate(mpsim.load(SCENARIOS / "quickstart.yaml")).save(path)
    return path


def test_another_version_opens_it_with_a_warning(saved: Path):
    """It shows the figures it was saved with, even where this version would give others."""
    with zipfile.ZipFile(saved) as whole:
        parts = json.loads(whole.read("value.json"))["parts"]
    pairs = parts["summary"]["pairs"]
    parts["summary"]["pairs"] = [
        [key, 7.0 if key == "step_time_s" else value] for key, value in pairs
    ]
    path = changed(saved, mpsim="0.0.1", parts=parts)
    with pytest.warns(UserWarning, match=r"saved by mpsim 0\.0\.1"):
        result = mpsim.Result.load(path)
    assert result.summary["step_time_s"] == 7.0
    assert result.timeline.step_time_s < 2.0


def test_fields_of_other_versions_are_left_out_or_usual(tmp_path: Path):
    """A field that is unknown is dropped, one that is missing takes its default, one without default is named."""
    plan = mpsim.prepare(mpsim.load(SCENARIOS / "quickstart.yaml")).plan
    plan.save(tmp_path / "plan")
    with zipfile.ZipFile(tmp_path / "plan") as whole:
        parts = json.loads(whole.read("value.json"))["parts"]
    fields = parts["value"]["Plan"]
    del fields["network"]
    fields["colour"] = "blue"
    assert Plan.load(changed(tmp_path / "plan", parts=parts)).network == "analytic"
    del fields["zero"]
    with pytest.raises(ScenarioError, match="zero"):
        Plan.load(changed(tmp_path / "plan", parts=parts))


def test_a_stored_result_is_compared(saved: Path, capsys: pytest.CaptureFixture[str]):
    """With a scenario or another stored result; nothing is simulated for it."""
    assert main(["compare", str(saved), str(saved), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "both take" in shown["explanation"]


def hostile(path: Path, member: bytes) -> Path:
    """An archive whose first array is what somebody made up."""
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w") as whole:
        for name, data in members.items():
            whole.writestr(name, data if name == "value.json" else member)
    return path


def pickled() -> bytes:
    """An array of objects, which numpy would unpickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def enormous() -> bytes:
    """A header that claims more than any machine has."""
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**60,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


@pytest.mark.parametrize("member", [pickled(), enormous(), b"", b"\x93NUMPY"])
def test_arrays_that_are_none_are_refused(saved: Path, member: bytes):
    """Nothing is unpickled, nothing ends in a traceback."""
    with pytest.raises(ScenarioError, match="not a saved value"):
        mpsim.Result.load(hostile(saved, member))


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "Popen"},
        {"format": 2},
        {"parts": {}},
        {"parts": {"scenario": {"Popen": {"args": ["true"]}}}},
        {"parts": []},
    ],
)
def test_a_document_that_is_none_is_refused(saved: Path, document: dict[str, Any]):
    """What a file may become is decided by the class that is asked for."""
    with pytest.raises(ScenarioError, match="not a saved value"):
        mpsim.Result.load(changed(saved, **document))


def test_a_class_that_is_not_declared_is_refused(saved: Path):
    """A job, a timeline or a constant of another name makes nothing."""
    with zipfile.ZipFile(saved) as whole:
        parts = json.loads(whole.read("value.json"))["parts"]
    for name, value in (("timeline", {"Popen": {}}), ("kind", "os.system"), ("plan", {"Path": {}})):
        with pytest.raises(ScenarioError):
            mpsim.Result.load(changed(saved, parts={**parts, name: value}))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"schema: 1\n"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes):
    """Neither an empty one, nor half a zip, nor a scenario."""
    path = tmp_path / "none"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match="not a saved value"):
        archive.Archive(path)
    with pytest.raises(ScenarioError):
        mpsim.Result.load(tmp_path / "nowhere")


def test_deep_nesting_is_refused(saved: Path):
    """A document may not exhaust the stack."""
    with zipfile.ZipFile(saved) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(saved, "w") as whole:
        for name, data in members.items():
            whole.writestr(name, b"[" * 10**6 if name == "value.json" else data)
    with pytest.raises(ScenarioError, match="nested too deeply"):
        mpsim.Result.load(saved)
