"""Narayanan et al., SC'21 (arXiv 2104.04473), Table 1: ten measured runs from 1.7 to 1,008 billion parameters."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sc21", ROOT / "validation" / "sc21.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_is_within_15_percent_and_the_mean_within_8() -> None:
    """The bar of the project; the committed report shows the figures of this very code."""
    script = _script()
    rows = script.predictions()
    assert len(rows) == 10
    errors = {row["model"]: row["error"] for row in rows}
    assert all(abs(error) < 0.15 for error in errors.values()), errors
    assert statistics.fmean(abs(error) for error in errors.values()) < 0.08, errors
    assert script.report(rows) == (ROOT / "validation" / "sc21.md").read_text(encoding="utf-8")
