"""Words of packages: each warning or refusal has a row, and each row somebody who says it."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpsim
from mpsim.shipped import read_shipped, say

ROOT = Path(mpsim.__file__).parent
PACKAGES = sorted(file.parent.parent.name for file in ROOT.glob("*/data/said.yaml"))
# what names a row: the function, the package it is in, and the figures that it gives by itself
CALLS = {"say": ("", ()), "mistake": ("scenario.", ("s",)), "contradiction": ("scenario.", ("s",))}


def _calls() -> Iterator[tuple[str, set[str] | None]]:
    """Rows that are named, and the figures given to each; None where a mapping holds more."""
    for file in sorted(ROOT.rglob("*.py")):
        source = file.read_text("utf-8")
        if not any(f"{name}(" in source for name in CALLS):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))  # of a module, or alone
            if name in CALLS and isinstance(node.args[0], ast.Constant):
                package, own = CALLS[name]
                given = {keyword.arg for keyword in node.keywords}
                yield f"{package}{node.args[0].value}", None if None in given else given | {*own}


def _figures(row: object) -> set[str]:
    """Names in the braces of a row."""
    texts = row.values() if isinstance(row, dict) else (row,)
    fields = (field for text in texts for _, field, _, _ in string.Formatter().parse(text) if field)
    return {field.partition(".")[0].partition("[")[0] for field in fields}


def test_every_name_has_a_row_whose_figures_are_given() -> None:
    """A name without a row, or a figure nobody gives, would fail only once somebody is told."""
    for name, given in _calls():
        package, _, row = name.partition(".")
        words = read_shipped(f"mpsim.{package}.data", "said.yaml")[row]
        assert given is None or _figures(words) | {"s"} == given | {"s"}, name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_row_is_said_by_somebody(package: str) -> None:
    """A row that nobody names would say nothing."""
    sources = "".join(file.read_text("utf-8") for file in sorted((ROOT / package).rglob("*.py")))
    rows = read_shipped(f"mpsim.{package}.data", "said.yaml")
    named = ('"{}"', '"{package}.{}"') if package == "scenario" else ('"{package}.{}"',)
    unsaid = {
        row for row in rows if not any(f.format(row, package=package) in sources for f in named)
    }
    assert unsaid == set()


def test_a_row_of_parts_says_one_of_them() -> None:
    """The key that a mistake is blamed on stands beside what is said of it."""
    assert say("scenario.points", "key", section="sweep", total=9, most=8) == "sweep"
    assert say("scenario.points", section="sweep", total=9, most=8).startswith("makes 9 points")
