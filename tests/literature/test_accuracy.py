"""Published runs stay as well predicted as validation/accuracy.json says: `python validation/accuracy.py` rewrites it."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import pytest

from bench import validate_files
from mpsim.validate import Validation
from mpsim.validate.records import told_apart
from tests.nightly import NIGHTLY

FOLDER = Path(__file__).resolve().parents[2] / "validation"
COMMITTED = json.loads((FOLDER / "accuracy.json").read_text("utf-8"))
GROWTH = 0.005  # half a point
BY_NAME, BY_NAME_POOLED = 0.01, 0.005  # what names may be worth, in a family and altogether


EVERY = 1 if NIGHTLY else 12
"""CI predicts every twelfth row, the night all of them; what needs whole families is left to the night."""


def predict(folder: Path, *names: str, hidden: bool = False) -> Validation:
    """Predictions of every `EVERY`-th row of published files, with `family` and `source` blanked where names are hidden."""
    targets = []
    for name in names:
        with (FOLDER / "data" / name).open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            targets.append(folder / name)
            with targets[-1].open("w", encoding="utf-8", newline="") as out:
                writer = csv.DictWriter(out, rows.fieldnames or [])
                writer.writeheader()
                blank = {"family": "", "source": ""} if hidden else {}
                writer.writerows({**row, **blank} for row in list(rows)[::EVERY])
    return validate_files(targets)


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    """Published runs, predicted."""
    folder = tmp_path_factory.mktemp("named")
    names = ("published-runs.csv", "single-node-runs.csv") if NIGHTLY else ("published-runs.csv",)
    return predict(folder, *names)


@pytest.mark.nightly
def test_no_family_is_half_a_point_worse_than_committed(validation: Validation) -> None:
    """A change that makes a family worse has to commit the new accuracy.json with it; a family that gained rows since is compared when that is rewritten."""
    worse = {}
    for one in validation.families:
        known = COMMITTED["families"].get(one.family, {})
        before = known.get("mean") if known.get("all_rows") == one.rows else None
        now = one.mean_abs_error
        if one.kind == "training" and before is not None and (now is None or now > before + GROWTH):
            worse[one.family] = (before, now)
    assert not worse, f"run python validation/accuracy.py and say why: {worse}"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    """Published runs, predicted with `family` and `source` blanked."""
    return predict(tmp_path_factory.mktemp("hidden"), "published-runs.csv", hidden=True)


def test_intervals_rest_on_residuals_of_today(hidden: Validation) -> None:
    """Residuals of residuals.csv, from which intervals come, are those of today's predictions to half a point in the mean, and one in thirty may be two points off."""
    with (FOLDER / "residuals.csv").open(encoding="utf-8", newline="") as file:
        known = {
            row["id"]: float(row["log_error"]) - float(row["refit"] or 0.0)
            for row in csv.DictReader(file)
            if row["figure"].startswith("step")
        }
    moved = [
        abs(math.log1p(one.error) - known[one.id])
        for one in hidden.records
        if one.error is not None and one.id in known
    ]
    assert len(moved) > 700 // EVERY, "run python validation/intervals.py"
    assert statistics.fmean(moved) <= GROWTH, "run python validation/intervals.py"
    assert sum(each > 0.02 for each in moved) <= len(moved) / 30


def test_names_of_families_are_worth_nothing(validation: Validation, hidden: Validation) -> None:
    """With `family` and `source` blanked all together are not half a point worse, and no family a point."""
    blind = {
        one.id: abs(one.error)
        for one in hidden.records
        if one.kind == "training" and one.error is not None
    }
    named: dict[str, list[tuple[float, float]]] = {}
    for one in validation.records:
        if one.kind == "training" and one.error is not None and one.id in blind:
            named.setdefault(one.family, []).append((abs(one.error), blind[one.id]))
    worth = {
        family: statistics.fmean(blank - known for known, blank in errors)
        for family, errors in named.items()
    }
    if NIGHTLY:  # of a part of its rows a family shows little
        assert {family: gain for family, gain in worth.items() if gain > BY_NAME} == {}
    pairs = [pair for errors in named.values() for pair in errors]
    assert len(pairs) > 700 // EVERY
    assert statistics.fmean(blank - known for known, blank in pairs) <= BY_NAME_POOLED


@pytest.mark.nightly
def test_no_family_lost_rows(validation: Validation) -> None:
    """Rows that were predicted still are."""
    now = {one.family: one.predicted for one in validation.families if one.kind == "training"}
    lost = {
        name: (entry["rows"], now.get(name, 0))
        for name, entry in COMMITTED["families"].items()
        if now.get(name, 0) < entry["rows"]
    }
    assert not lost


@pytest.mark.nightly
def test_chosen_layouts_stay_good(validation: Validation) -> None:
    """Mean regret of no family grows by more than half a point."""
    before = {one["family"]: one["mean_regret"] for one in COMMITTED["decisions"]}
    worse = {
        one.family: (before[one.family], one.mean_regret)
        for one in validation.decisions
        if one.family in before and one.mean_regret > before[one.family] + GROWTH
    }
    assert not worse


@pytest.mark.nightly
def test_the_record_of_decisions_is_that_of_today(validation: Validation) -> None:
    """Pairs by what they differ in are those of decisions.md, and as often told apart, in the measured order and in their intervals, to two points."""
    lines = (FOLDER / "decisions.md").read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.count(" | ") == 4]
    committed = {row[0]: row[1:] for row in rows[2:]}
    gated = [one for one in validation.records if one.family in COMMITTED["families"]]
    today = {told.kind: told for told in told_apart(gated)}
    assert committed.keys() == today.keys()
    for kind, (pairs, *shares) in committed.items():
        told = today[kind]
        assert int(pairs) == told.pairs
        now = told.held / told.pairs, told.told / told.pairs, told.right / max(told.told, 1)
        for share, known in zip(now, shares, strict=True):
            assert known == "-" or share == pytest.approx(float(known[:-1]) / 100, abs=0.02), kind


@pytest.mark.nightly
def test_every_prediction_of_a_partial_row_says_what_it_assumes(validation: Validation) -> None:
    """Rows without a network between nodes list the one that was assumed."""
    rows = [one for one in validation.records if one.id.startswith("mpt-70b-s2048-h10080gb")]
    assert rows
    assert all(any("nic_gbit_s" in text for text in one.assumed) for one in rows)


@pytest.mark.nightly
def test_committed_figures_are_of_these_rows(validation: Validation) -> None:
    """The mean over families of the committed table is a figure of today's data: every family of it exists; those without a gate yet are told."""
    today = {one.family for one in validation.families if one.kind == "training"}
    assert set(COMMITTED["families"]) <= today
    means = [one["mean"] for one in COMMITTED["families"].values() if "mean" in one]
    assert 0 < statistics.fmean(means) < 1
    if ungated := sorted(today - set(COMMITTED["families"])):
        pytest.skip(f"no gate yet, run python validation/accuracy.py: {', '.join(ungated)}")
