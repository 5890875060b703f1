"""Intervals hold what they promise on families that had no part in them: read from the committed residuals, which `python validation/intervals.py` rewrites."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.files import opened
from bench.training import as_published
from intervals import FASTEST, Fit, Residual, differences, fastest_yaml, few
from mpsim.formats.tables import Cells
from mpsim.result.residuals import FASTEST_BY, FIGURES, Setting, fastest_measured, residuals
from mpsim.shipped import read_shipped

TABLE = Path(__file__).resolve().parents[2] / "validation" / "residuals.csv"
LARGE = 20
READ = Setting({**dict.fromkeys(("framework", "accelerator", "format", "model"), ("x", "y"))}, 8)
LESS = {"dgxc-2411-jax": 0.55}
"""XLA on GPUs: FP8 and 70B are 6 to 20 % slow beside gathers since its stacks are copied, and the two kindred families agree within 4 %, so that widths from these are narrow."""


def rows() -> list[dict[str, str]]:
    """Every residual of a training run."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def coverage(chosen: Sequence[dict[str, str]]) -> float:
    """Share of measured figures inside the interval that the other families give."""
    inside = [
        float(row["low"]) <= math.exp(-float(row["log_error"])) <= float(row["high"])
        for row in chosen
    ]
    return sum(inside) / len(inside)


def steps() -> list[dict[str, str]]:
    """Residuals of step times, dense models and mixtures of experts."""
    return [row for row in rows() if row["figure"].startswith("step")]


def test_a_kind_of_reading_that_two_families_have_widens_more_than_one_of_four() -> None:
    """Left out, none of their own counts: of a kind two are few(2) and then few(1), of another four few(4)."""
    rows = [
        Residual(name, name, "memory", dataclasses.replace(READ, labels={**READ.labels, "seen": (seen,)}), 0.1, math.nan, "", Cells({}))
        for name, seen in zip("abcdef", ["memory"] * 2 + ["allocated"] * 4, strict=True)
    ]  # fmt: skip
    fit = Fit("memory", rows)
    assert dict(zip(fit.kinds, fit.wider(), strict=True)) == {"allocated": few(4), "memory": few(2)}
    assert fit.wider(["a"])[fit.kinds.index("memory")] == few(1)
    sigmas = np.sqrt(fit.variances(fit.start))
    assert (fit.spread(fit.start) / sigmas)[0].tolist() == pytest.approx(
        [few(2)] * 2 + [few(4)] * 4
    )


def test_four_of_five_step_times_lie_in_their_interval() -> None:
    """75 to 87 % of all step times, each from the other families alone."""
    assert 0.75 <= coverage(steps()) <= 0.87


def test_no_large_family_is_forgotten() -> None:
    """65 % of every family of 20 rows or more, but for what `LESS` says."""
    families: dict[str, list[dict[str, str]]] = {}
    for row in steps():
        families.setdefault(row["family"], []).append(row)
    short = {
        name: share
        for name, chosen in families.items()
        if len(chosen) >= LARGE and (share := coverage(chosen)) < LESS.get(name, 0.65)
    }
    assert not short


def test_differences_hold_four_of_five_measured_pairs_of_other_families() -> None:
    """Of pairs of one family, model and machine, by what they differ in, with the family left out; what ships is what these give."""
    errors = {row["id"]: row for row in steps()}
    chosen = []
    for name in ("published-runs", "single-node-runs"):
        kind, runs = opened(TABLE.parent / "data" / f"{name}.csv")
        for run in runs:
            record = kind.blank(run)[0]
            if error := errors.get(record.id):
                figures = error["family"], error["figure"], Setting({}, 0.0)
                log, group = float(error["log_error"]), f"{error['family']}: {record.group}"
                cells = as_published(run.configuration)
                chosen.append(Residual(record.id, *figures, log, math.nan, group, cells))
    assert len(chosen) > 1400
    for figure, found in differences(chosen).items():
        assert sum(found.held) / len(found.held) >= 0.75
        shipped = residuals(figure).pairs
        for kind, half in found.known.items():
            assert shipped[kind] == pytest.approx(half, abs=0.005)


def test_the_fastest_measured_runs_are_those_of_the_tables() -> None:
    """One row a kind, read back by the setting of such a run."""
    assert fastest_yaml() == FASTEST.read_text("utf-8")
    for *kind, rate, _ in read_shipped("mpsim.result.data", "fastest.yaml")["rows"]:
        labels = {name: (value,) for name, value in zip(FASTEST_BY, kind, strict=True)}
        assert fastest_measured(Setting(labels, 8)) == pytest.approx(1e12 * rate)
    assert fastest_measured(Setting({**labels, "accelerator": ("abacus",)}, 8)) is None


@pytest.mark.parametrize("figure", FIGURES)
def test_what_is_shipped_was_fitted_on_what_is_committed(figure: str) -> None:
    """The digest in every shipped file is that of residuals.csv."""
    digest = hashlib.sha256(TABLE.read_bytes()).hexdigest()[:16]
    assert read_shipped("mpsim.result.data", f"{figure}.yaml")["digest"] == digest
