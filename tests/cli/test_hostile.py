"""Hostile names and files: what becomes of each is what hostile.md beside this file says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = importlib.util.spec_from_file_location("hostile", ROOT / "scripts" / "hostile.py")
hostile = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(hostile)
PAGE = hostile.PAGE.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """The script says nothing of progress; the environment is that of before."""
    monkeypatch.setenv("MPSIM_PROGRESS", "off")


@pytest.mark.parametrize("what", hostile.NAMES)
def test_a_hostile_name_becomes_what_the_page_says(what):
    """Its file is in its folder, its letters move no cursor and run no script; its pictures are left to the script."""
    row = hostile.name_row(what, pictures=False)
    assert row["Terminal"] == "no control character"
    assert row["HTML"] in ("escaped", "none")
    (written,) = (cells for cells in hostile.cells(PAGE, "names") if cells[0] == what)
    assert [row[column] for column in hostile.NAME_COLUMNS[:-1]] == written[:-1]


@pytest.mark.parametrize("what", hostile.FILES)
def test_a_hostile_file_is_refused_as_the_page_says(what):
    """One line, exit code 2, nothing written, no word of a foreign file."""
    row = hostile.file_row(what)
    assert row["Exit"] == "2"
    assert "root:" not in row["Printed"]
    (written,) = (cells for cells in hostile.cells(PAGE, "files") if cells[0] == what)
    assert [row[column] for column in hostile.FILE_COLUMNS] == written


def test_two_scenarios_never_draw_into_one_folder(tmp_path, mpsim_cli):
    """Names that become the same name of a folder are refused before anything is simulated."""
    for number, name in enumerate(("a/b", "a?b")):
        (tmp_path / f"{number}.yaml").write_text(
            hostile.json.dumps({**hostile.SMALL, "name": name})
        )
    done = mpsim_cli("run", tmp_path / "0.yaml", tmp_path / "1.yaml", "--plots", tmp_path / "out")
    assert (done.code, "both become the folder 'a-b'" in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()
