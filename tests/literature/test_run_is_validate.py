"""A user's file gets what a published row gets: `mpsim run` of a row's configuration is the prediction that `mpsim validate` scores."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from bench import validate_files
from bench.runs import read_run
from bench.training import MEASURED
from mpsim.formats.tables import Cells
from tests.nightly import NIGHTLY

ROWS = 30 if NIGHTLY else 10


@pytest.fixture(scope="module")
def rows(pytestconfig):
    """Ten rows, at night thirty, that leave nothing open, spread over the file, names of family and source blanked."""
    path = pytestconfig.rootpath / "validation" / "data" / "published-runs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        known = [row for row in csv.DictReader(file) if row["complete"] == "yes"]
    chosen = known[:: len(known) // (2 * ROWS)]
    return [{**row, "family": "", "source": ""} for row in chosen]


def test_a_file_of_a_row_runs_in_the_time_that_validate_predicts(rows, mpsim_cli, tmp_path):
    """The scenario is written as a file and run by the command; their steps are those of validate, to the last digit."""
    table = tmp_path / "rows.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    records = {
        record.id: record
        for record in validate_files([table]).records
        if record.kind == "training" and record.predicted is not None
    }
    compared = 0
    for row in rows:
        cells = Cells({name: text for name, text in row.items() if name not in MEASURED})
        if row["id"] not in records or compared == ROWS:
            continue
        rule, run = read_run(cells)
        if rule.get("measures") == "layer":
            continue
        file = tmp_path / f"{compared}.yaml"
        file.write_text(yaml.safe_dump(run.scenario), encoding="utf-8")
        step = json.loads(mpsim_cli("run", file, "--json").out)["step_time_s"]
        assert step == records[row["id"]].predicted, row["id"]
        compared += 1
    assert compared == ROWS
