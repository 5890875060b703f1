"""A plain question gets what a published training gets: `mpsim plan` on a model, accelerators and tokens is the prediction that `plans.py` scores."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

from bench.files import opened, predict_row
from bench.plans import as_run, assumptions_of, hours_of
from bench.runs import described, opened_of
from bench.tables import rule_of
from tests.nightly import NIGHTLY

EACH = 1 if NIGHTLY else 12
DEFAULTS = {"recompute": "none", "zero": 0, "tp": 1, "pp": 1, "sequence_parallel": False, "ep": 1}


def question(cells):
    """The scenario of a row as somebody would ask it: what is a guess, and no more than mpsim's default, is left out."""
    run = described(cells, rule_of(cells))
    asked, guessed = copy.deepcopy(dict(run.scenario)), opened_of(run, cells)
    for key in guessed - {"schedule"}:
        section, _, name = key.partition(".")
        if name == "micro_batch" or asked[section].get(name) == DEFAULTS.get(name, ""):
            del asked[section][name]
    if "parallelism.tp" in guessed:
        del asked["parallelism"]["dp"]
    return {key: value for key, value in asked.items() if key not in guessed}


def test_a_plan_of_what_is_known_has_the_hours_that_are_scored(pytestconfig, mpsim_cli, tmp_path):
    """Every twelfth training, at night every one: the file has what its source states, the command line how often it failed; hours are those of validate, to the last digit."""
    kind, rows = opened(pytestconfig.rootpath / "validation" / "data" / "training-plans.csv", None)
    compared = 0
    for row in rows[::EACH]:
        (record,) = predict_row(kind, row)
        if record.predicted is None:
            continue
        cells, file = row.configuration, tmp_path / f"{row.id}.yaml"
        file.write_text(yaml.safe_dump(question(as_run(cells).cells)), encoding="utf-8")
        asked = assumptions_of(cells)
        words = ["--failures", f"{asked.failures}"]
        words += [] if asked.restart is None else ["--restart", f"{asked.restart} s"]
        words += [] if asked.background else ["--blocking"]
        tokens = f"{cells.required_number('tokens_b')}B"
        answer = json.loads(mpsim_cli("plan", file, "--tokens", tokens, *words, "--json").out)
        name = "computing_gpu_hours" if hours_of(cells) == "computing" else "gpu_hours"
        assert answer[name] == pytest.approx(record.predicted, rel=1e-12), row.id
        compared += 1
    assert compared > 40 // EACH
