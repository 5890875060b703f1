"""Notebooks of the docs: each runs from its first cell to its last, and shows what it says it shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed: pip install mpsim[notebook]"
)
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST = 3000  # characters of text and of HTML of an output
BYTES = 20_000  # of a notebook as it is kept, without outputs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs(path, monkeypatch):
    """No cell fails, what values show is short, and each has a picture or tables to show."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"] for output in outputs if "data" in output]
    assert sum("text/html" in data for data in shown) >= 3
    for data in shown:
        if "<style" not in data.get("text/html", ""):  # a DataFrame's is pandas' own
            assert len(data.get("text/html", "")) < MOST
        assert len(data["text/plain"]) < MOST
    if path.stem != "how-many-users":
        assert any("image/png" in data for data in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    """Small, begins with the question it answers, and nothing in it is stale."""
    assert path.stat().st_size < BYTES
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["source"][0].startswith("# ")
    assert cells[0]["source"][0].rstrip().endswith("?")
    assert not any(cell.get("outputs") for cell in cells)


def test_there_are_three():
    """A step, a layout, a service."""
    assert len(NOTEBOOKS) == 3
