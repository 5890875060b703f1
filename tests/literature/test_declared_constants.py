"""Every constant that was set with measured rows in view says which, in validation/constants.yaml."""

from __future__ import annotations

import csv
import fnmatch
import re
from pathlib import Path
from typing import Any

import yaml

from bench.tables import table
from mpsim.cost.constants import Status, constant_groups
from mpsim.framework import framework, framework_names
from mpsim.shipped import read_shipped

FOLDER = Path(__file__).resolve().parents[2] / "validation"
LISTS: dict[str, Any] = yaml.safe_load((FOLDER / "constants.yaml").read_text("utf-8"))
FILES = ("kernels", "collectives", "interference", "straggling", "nccl", "libraries")
PATTERNS = [entry["at"] for name in ("constants", "declared", "measured") for entry in LISTS[name]]
RELEASE = ("framework", "words", "dated", "measured_date")
RECIPE = r"\w+/\S+\.(py|sh|ya?ml|json|toml) at [0-9a-f]{7,40}$"
ON_NODE = {"vtrain", "simumax"}  # labels of single-node-runs.csv, whose rows name software instead


def constants() -> dict[str, Status]:
    """Status of every constant of the cost models, by file, group and leaf."""
    return {
        f"{file}/{name}/{leaf}": constant.status
        for file in FILES
        for name, group in constant_groups(file).items()
        for leaf, constant in group.constants.items()
    }


def families() -> set[str]:
    """Families of all tables of measured runs."""
    named = set(ON_NODE)
    for name in ("published-runs", "inference-runs"):
        with (FOLDER / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            named |= {row["family"] for row in csv.DictReader(file)}
    return named


def test_no_calibrated_constant_is_undeclared() -> None:
    """Who calibrates a constant says on what."""
    undeclared = [
        at
        for at, status in constants().items()
        if status is Status.CALIBRATED
        and not any(fnmatch.fnmatch(at, pattern) for pattern in PATTERNS)
    ]
    assert not undeclared


def test_no_declaration_is_stale() -> None:
    """Each pattern finds a constant; each field of a framework has its value in a preset or a rule."""
    known = constants()
    stale = [
        pattern
        for pattern in PATTERNS
        if pattern.partition("/")[0] in FILES and not fnmatch.filter(known, pattern)
    ]
    held = fields()
    for entry in LISTS["declared"]:
        kind, _, field = entry["at"].partition("/")
        if kind == "framework" and plain(field, entry["value"]) not in held[field]:
            stale.append(f"{entry['at']} {entry['value']}")
    assert not stale


def fields() -> dict[str, set[object]]:
    """Values that each field has in some preset, or that some rule sets."""
    held: dict[str, set[object]] = {}
    for name in framework_names():
        for field, value in framework(name).fields().items():
            if isinstance(value, int | float):
                held.setdefault(field, set()).add(float(value))
    rules = table("training")
    for rule in (*rules["families"], *rules["everywhere"]):
        for entry in (rule, *rule.get("also", ())):
            for field, value in entry.get("framework", {}).items():
                if field in held:
                    held[field].add(plain(field, value))
    return held


def plain(field: str, value: object) -> object:
    """A value as a framework holds it."""
    return framework("torch-ddp", {field: value}).fields()[field]


def test_rows_in_view_are_rows_that_exist() -> None:
    """Each declaration names families of the measured tables."""
    named = {
        family for entry in (*LISTS["declared"], *LISTS["serving"]) for family in entry["rows"]
    } | {family for entry in LISTS["constants"] for family in entry["families"]}
    assert named <= families()


def test_what_is_chosen_differs_from_the_literature_or_says_why() -> None:
    """Every entry has a reason; a number of the literature resets it."""
    for entry in LISTS["declared"]:
        assert entry["why"]
        assert entry["rows"]
        assert "literature" in entry


def test_calibrated_services_are_declared() -> None:
    """Rates and engines of the status `calibrated` rest on rows of measured services."""
    rates = read_shipped("mpsim.serving.data", "rates.yaml")["groups"]
    engines = read_shipped("mpsim.serving.catalog", "engines.yaml")["engines"].values()
    declared = {entry["at"] for entry in LISTS["serving"]}
    for at, groups in (("rates", rates), ("engines", engines)):
        if any(group["status"] == "calibrated" for group in groups):
            assert at in declared


def test_rules_of_a_chip_a_model_and_a_release_cite_a_recipe() -> None:
    """Such a rule is a name in other clothes, unless a file at a commit says so."""
    whole = table("training")
    entries = [
        entry
        for rule in (*whole["families"], *whole["everywhere"])
        for entry in (rule, *rule.get("also", ()))
    ]
    model = {"model", "params_billion", "said"}
    bare = [
        entry["where"]
        for entry in entries
        if "accelerator" in entry["where"]
        and model & entry["where"].keys()
        and any(re.search(r"\d", entry["where"].get(name, "")) for name in RELEASE)
        and not re.search(RECIPE, entry.get("recipe", ""))
    ]
    assert not bare
    cited = [entry for entry in entries if "recipe" in entry]
    assert all(re.search(RECIPE, entry["recipe"]) for entry in cited)
