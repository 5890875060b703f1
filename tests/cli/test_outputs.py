"""Where commands write: refused before any work if it cannot be written, with one message and exit code 2."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import answer_chart

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "quickstart.yaml")
SCHEDULE = ("schedule", "1f1b", "--pp", 2, "--microbatches", 2)
PICTURES = [
    ("sweep", SCENARIO),
    ("search", SCENARIO),
    ("goodput", SCENARIO),
    SCHEDULE,
    ("show", "fabric", "dgx-h100", "--nodes", 2),
]
TABLES = [("sweep", SCENARIO), ("search", SCENARIO), SCHEDULE]
FOLDERS = [
    ("run", SCENARIO),
    ("calibrate", "measured.jsonl"),
    ("validate", "runs.csv"),
]
FILES = [
    *((*command, "--csv") for command in TABLES),
    *((*command, "--plot") for command in PICTURES),
    *((command, SCENARIO, "--resume") for command in ("sweep", "search")),
    ("run", SCENARIO, "--trace"),
    ("calibrate", "measured.jsonl", "--out"),
    ("new",),
]


@pytest.fixture
def idle(monkeypatch):
    """Whoever simulates, times or reads a scenario fails."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    for name in ("mpsim.scenario.load", "mpsim.study.time_schedule", "mpsim.study.sweep"):
        monkeypatch.setattr(name, fail)
    monkeypatch.setattr("mpsim.measured.sources.read_source", fail)
    monkeypatch.setattr(importlib.import_module("mpsim.validate"), "validate_files", fail)


def refused(outcome, *words):
    """Exit code 2, nothing on stdout, one message that holds `words`."""
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    assert "Traceback" not in outcome.err
    assert "internal" not in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.mark.parametrize("command", PICTURES, ids=lambda one: one[0])
@pytest.mark.parametrize("name", ["picture.foo", "picture", "picture.png.txt"])
def test_a_picture_of_another_format_is_refused_at_once(mpsim_cli, idle, tmp_path, command, name):
    """The message says what was got and which formats there are."""
    refused(mpsim_cli(*command, "--plot", tmp_path / name), "--plot", name, ".png", ".svg", ".pdf")


def test_a_trace_of_another_format_is_refused_at_once(mpsim_cli, idle, tmp_path):
    """Perfetto reads JSON, gzipped or not."""
    refused(mpsim_cli("run", SCENARIO, "--trace", tmp_path / "t.txt"), "--trace", ".json.gz")


@pytest.mark.parametrize("command", FILES, ids=lambda one: f"{one[0]} {one[-1]}")
def test_a_missing_folder_is_named_before_any_work(mpsim_cli, idle, tmp_path, command):
    """Nobody waits an hour for a table that cannot be written."""
    suffix = {"--trace": ".json", "--plot": ".png"}.get(str(command[-1]), ".any")
    file = tmp_path / "none" / f"file{suffix}"
    refused(mpsim_cli(*command, file), str(file), f"no folder '{file.parent}'")


@pytest.mark.parametrize("command", FILES, ids=lambda one: f"{one[0]} {one[-1]}")
def test_a_folder_is_no_file(mpsim_cli, idle, tmp_path, command):
    """Even one whose name ends like a file's."""
    suffix = {"--trace": ".json", "--plot": ".png"}.get(str(command[-1]), ".any")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    refused(mpsim_cli(*command, folder), "which is a folder")


@pytest.mark.parametrize("command", FOLDERS, ids=lambda one: one[0])
@pytest.mark.parametrize("inside", ["", "below"])
def test_a_file_is_no_folder(mpsim_cli, idle, tmp_path, command, inside):
    """Nor is anything below a file."""
    file = tmp_path / "file"
    file.write_text("")
    refused(mpsim_cli(*command, "--plots", file / inside), "--plots", f"'{file}' is a file")


def test_a_file_that_is_write_protected_is_refused_before_any_work(
    mpsim_cli, idle, tmp_path, monkeypatch
):
    """The message names what is not writable: the file, or the folder it would be in."""
    old = tmp_path / "old.csv"
    old.write_text("")
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    refused(mpsim_cli("sweep", SCENARIO, "--csv", old), f"'{old}' is not writable")
    new = tmp_path / "new.csv"
    refused(mpsim_cli("sweep", SCENARIO, "--csv", new), f"'{tmp_path}' is not writable")
    refused(mpsim_cli("run", SCENARIO, "--plots", tmp_path / "p"), f"'{tmp_path}' is not writable")


@pytest.mark.parametrize("name", ["a" * 300, "nul\0l"])
def test_a_name_that_no_file_can_have_is_refused(mpsim_cli, idle, tmp_path, name):
    """Too long, or with a null character."""
    refused(mpsim_cli("sweep", SCENARIO, "--csv", tmp_path / name), "--csv")
    refused(mpsim_cli("run", SCENARIO, "--plots", tmp_path / name), "--plots")


def test_a_measurement_makes_the_folder_it_needs_but_not_below_a_file(mpsim_cli, tmp_path):
    """Every node of a job is given the same line, and only one of them writes."""
    file = tmp_path / "file"
    file.write_text("")
    refused(mpsim_cli("measure", "--out", file / "m.jsonl"), "--out", "is a file")
    refused(mpsim_cli("measure", "--out", tmp_path), "--out", "is a folder")


def test_saving_a_picture_of_another_format_is_refused(tmp_path):
    """In Python too, and nothing is left behind; capitals are the same format."""
    display = answer_chart(["pp 0"], {"": [0.5]}, ylabel="", answer="")
    with pytest.raises(ScenarioError, match=r"needed the name of a picture that ends in \.png"):
        display.save(tmp_path / "picture.foo")
    assert not list(tmp_path.iterdir())
    assert display.save(tmp_path / "picture.PNG").stat().st_size > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
@pytest.mark.parametrize(
    "command", ["--version", "show", "schedule 1f1b --pp 2 --microbatches 2 --json"]
)
def test_a_full_disk_has_failed_and_is_said_to_be_full(command):
    """Exit code 1, for nothing was wrong with the input; no traceback."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mpsim", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "mpsim: standard output: No space left on device\n",
    )


@pytest.mark.parametrize(
    "command", ["show", "schedule 1f1b --pp 2 --microbatches 2", "schedule all --pp 2 --microbatches 2"]
)  # fmt: skip
def test_a_closed_standard_output_is_said_to_be_closed(mpsim_cli, monkeypatch, command):
    """Whatever is printed first."""
    monkeypatch.setattr("sys.stdout", None)
    outcome = mpsim_cli(*command.split())
    assert outcome.code == 1
    assert "standard output: it is closed" in outcome.err


def test_a_standard_output_with_few_letters_gets_what_it_has(tmp_path):
    """Tables have dashes for rules, JSON its escapes: the same data."""
    file = tmp_path / "sch\u00e9ma.yaml"
    text = Path(SCENARIO).read_text(encoding="utf-8").replace("name: quickstart", "")
    file.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    both = "from mpsim.cli import main; import sys; main(['check', sys.argv[1], '--json']); main(sys.argv[2:])"
    done = subprocess.run(
        [sys.executable, "-c", both, str(file), *map(str, SCHEDULE)],
        capture_output=True,
        check=True,
        env=environment,
    )
    checked, _, table = done.stdout.decode("ascii").partition("\n")
    assert json.loads(checked)["scenario"] == "sch\u00e9ma"
    assert "-----" in table
