"""Every scenario that ships runs, and its result holds together."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import mpsim

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
FILES = sorted(FOLDER.rglob("*.yaml"))
SERVING = [file for file in FILES if file.parent.name == "serving"]
TRAINING = [file for file in FILES if file.parent.name != "serving"]


@pytest.mark.parametrize("file", SERVING, ids=lambda file: file.stem)
def test_a_shipped_service_runs_and_its_account_sums_to_the_duration(file):
    """Every request is served within the limits that the file states, and every accelerator-second is accounted for."""
    summary = mpsim.simulate(mpsim.load(file)).summary
    total = math.fsum(summary["account_s"].values())
    assert total == pytest.approx(summary["duration_s"], rel=1e-9)
    assert min(summary["account_s"].values()) >= 0
    assert summary["slo"]["met"]


@pytest.mark.parametrize("file", TRAINING, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_a_shipped_scenario_runs_and_its_parts_sum_to_the_step(file):
    """A scenario that ships is a promise; the breakdown accounts for every second."""
    summary = mpsim.simulate(mpsim.load(file)).summary
    assert math.fsum(summary["breakdown_s"].values()) == pytest.approx(
        summary["step_time_s"], rel=1e-9
    )
    assert 0 < summary["mfu"] <= summary["hfu"] <= 1
    assert summary["fits_memory"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_a_shipped_scenario_says_which_question_it_answers(file):
    """Who lists the folder wants to know why a file is there."""
    assert file.read_text(encoding="utf-8").startswith("# Question: ")


def test_the_folder_has_the_ten_rows_of_sc21():
    """Table 1 has ten rows."""
    assert len(list((FOLDER / "sc21").glob("*.yaml"))) == 10
