"""Every scenario that ships runs, and its result holds together."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import mpsim

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
FILES = sorted(FOLDER.rglob("*.yaml"))
TOO_BIG = {"palm-540b-tpu-v4"}
"""Scenarios that say in their comment that they do not fit."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_a_shipped_scenario_runs_and_its_parts_sum_to_the_step(file):
    """A scenario that ships is a promise; the breakdown accounts for every second."""
    summary = mpsim.simulate(mpsim.load(file)).summary
    assert math.fsum(summary["breakdown_s"].values()) == pytest.approx(
        summary["step_time_s"], rel=1e-9
    )
    assert 0 < summary["mfu"] <= summary["hfu"] <= 1
    assert summary["fits_memory"] is (summary["scenario"] not in TOO_BIG)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_a_shipped_scenario_says_which_question_it_answers(file):
    """Who lists the folder wants to know why a file is there."""
    assert file.read_text(encoding="utf-8").startswith("# Question: ")


def test_the_folder_has_the_ten_rows_of_sc21():
    """Table 1 has ten rows."""
    assert len(list((FOLDER / "sc21").glob("*.yaml"))) == 10
