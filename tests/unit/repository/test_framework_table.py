"""The table of stacks in docs/explanation/frameworks.md."""

from __future__ import annotations

import runpy

import pytest


def _table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_is_what_the_code_gives_today(pytestconfig):
    """Regenerate it with: python scripts/framework_table.py. Constants may move a step by 3 % before it has to be."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "framework_table.py"))
    page = module["PAGE"].read_text(encoding="utf-8")
    shown, now = _table(page), [list(row) for row in module["rows"]()]
    assert [row[:2] for row in shown] == [row[:2] for row in now]
    assert len(now) == len(module["LAYOUTS"])
    for was, row in zip(shown, now, strict=True):
        assert float(was[2]) == pytest.approx(float(row[2]), rel=0.03)
