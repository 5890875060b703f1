"""The budget of lines: a package above it is named, a ratchet turns one way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = "# why\n[lines]\nengine = { now = 120, aim = 100 }\nplot = { aim = 50 }\n"


@pytest.fixture(scope="module")
def budget():
    spec = importlib.util.spec_from_file_location("budget", ROOT / "scripts" / "budget.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ({"engine": 120, "plot": 50}, []),
        ({"engine": 121, "plot": 51}, ["engine: 121 lines, 120 allowed", "plot: 51 lines, 50"]),
        ({"engine": 1, "plot": 1, "new": 1}, ["new: stands in only one"]),
        ({"engine": 1}, ["plot: stands in only one"]),
    ],
)
def test_a_package_above_its_budget_is_named(budget, lines, named):
    faults = budget.find_faults(lines, budget.read_budget(TEXT))
    assert len(faults) == len(named)
    assert all(fault.startswith(start) for fault, start in zip(faults, named, strict=True))


@pytest.mark.parametrize(("lines", "left"), [(150, 120), (110, 110), (90, 100)])
def test_the_ratchet_only_goes_down(budget, lines, left):
    written = budget.write_budget(TEXT, {"engine": lines, "plot": 70})
    assert budget.read_budget(written) == {"engine": (left, 100), "plot": (50, 50)}
    assert written.startswith("# why\n")


def test_lines_are_those_of_every_file(budget, tmp_path):
    for name in ("a.py", "importers/b.py", "formats/deep/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\ny = 2\n")
    assert budget.count_lines(tmp_path) == {"top": 2, "formats": 4}
