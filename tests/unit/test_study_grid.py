"""Sweeps."""

from __future__ import annotations

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.study.grid import combinations

AXES = {"parallelism.tp": [1, 2], "parallelism.pp": [2, 3, 4]}


@pytest.fixture(scope="module")
def scenario(request):
    return mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")


@pytest.fixture(scope="module")
def swept(scenario):
    return mpsim.sweep(scenario, AXES)


def test_rows_are_the_cartesian_product_with_the_last_key_fastest():
    """The order of a table does not depend on who computed what first."""
    rows = combinations(AXES)
    assert [tuple(row.values()) for row in rows] == [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4)]


@pytest.mark.parametrize("values", [{}, {"parallelism.tp": []}])
def test_nothing_to_sweep_over_is_refused(values):
    """An empty table would look like a result."""
    with pytest.raises(ScenarioError, match="sweep over"):
        combinations(values)


def test_a_row_equals_the_simulation_of_its_scenario(scenario, swept):
    """A sweep is nothing but simulations."""
    row = swept.rows[-1]
    assert row.summary == mpsim.simulate(scenario.with_values(row.values)).summary


def test_rows_that_do_not_divide_are_kept_with_their_reason(swept):
    """pp 3 does not divide 16 accelerators; the other rows do not suffer."""
    broken = [row for row in swept if row.values["parallelism.pp"] == 3]
    assert len(broken) == 2
    assert all(row.summary is None and row.reason for row in broken)
    assert all(row.summary for row in swept if row not in broken)


def test_a_row_that_does_not_fit_is_simulated_but_not_usable(scenario):
    """Ten times the layers are 65 billion parameters on tp 2 x pp 4: over 100 GB a rank of 80."""
    (row,) = mpsim.sweep(scenario, {"model.layers": [320]})
    assert row.summary is not None
    assert not row.usable
    assert "does not fit" in row.reason


def test_the_best_row_has_the_most_tokens_per_accelerator_of_those_usable(swept):
    """A row that does not fit never wins."""
    rates = [row.number("tokens_per_s_per_accelerator") for row in swept if row.usable]
    assert swept.best.number("tokens_per_s_per_accelerator") == max(rates)


def test_an_executor_gives_the_same_rows(scenario, swept):
    """How many compute is a matter of speed."""
    with ThreadPoolExecutor(2) as executor:
        assert mpsim.sweep(scenario, AXES, executor=executor).rows == swept.rows


def test_spawned_processes_give_the_same_rows(scenario, swept):
    """Scenarios survive the trip to another process."""
    few = {"parallelism.tp": [2], "parallelism.pp": [2, 4]}
    wanted = [row for row in swept if row.values["parallelism.tp"] == 2 and row.summary]
    assert list(mpsim.sweep(scenario, few, jobs=2)) == wanted


def test_an_interrupted_sweep_resumes_where_it_was(scenario, swept, tmp_path, monkeypatch):
    """Rows on disk are not computed again, and a line cut off in the middle is."""
    journal = tmp_path / "rows.jsonl"

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mpsim.sweep(scenario, AXES, resume=journal, progress=interrupt)
    assert len(journal.read_text().splitlines()) == 3
    with journal.open("a") as file:
        file.write('{"digest": "cut o')
    computed = []
    simulate = mpsim.study.grid.simulate
    monkeypatch.setattr(
        "mpsim.study.grid.simulate", lambda one: computed.append(one) or simulate(one)
    )
    resumed = mpsim.sweep(scenario, AXES, resume=journal)
    assert resumed.rows == swept.rows
    assert len(computed) <= 3
    assert len(journal.read_text().splitlines()) == 6


def test_rows_of_another_scenario_are_not_taken_for_ones_of_this(scenario, tmp_path):
    """The digest covers everything that a row depends on."""
    journal = tmp_path / "rows.jsonl"
    axes = {"parallelism.tp": [2]}
    mpsim.sweep(scenario, axes, resume=journal)
    changed = scenario.with_values({"training.recompute": "full"})
    (row,) = mpsim.sweep(changed, axes, resume=journal)
    assert row.summary == mpsim.simulate(changed).summary


def test_a_file_that_is_no_journal_is_refused(scenario, tmp_path):
    """Nobody's data are overwritten."""
    file = tmp_path / "notes.txt"
    file.write_text("dear diary\nno rows here\n")
    with pytest.raises(ScenarioError, match=r"notes\.txt:1"):
        mpsim.sweep(scenario, {"parallelism.tp": [2]}, resume=file)


def test_csv_has_one_line_a_row_and_units_in_its_header(swept, tmp_path):
    """What a spreadsheet opens."""
    text = swept.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(swept)
    assert {"parallelism.tp", "step_time_s", "peak_memory_bytes", "bubble_s", "reason"} <= set(
        rows[0]
    )


def test_json_is_plain_data(swept):
    """Everything that --json prints can be printed."""
    assert json.loads(json.dumps(swept.to_json()))["keys"] == list(AXES)
