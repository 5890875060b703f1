"""Sessions of the pages on importing and exporting, run line after line in one folder, with what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "docs" / "how-to" / name for name in ("import.md", "export.md")]


def session(page: Path) -> list[tuple[str, list[str]]]:
    """Every ``$ mpsim import|export`` of a page, and the lines that it shows below."""
    steps: list[tuple[str, list[str]]] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        command = re.match(r"    \$ mpsim ((?:import|export) .*)", line)
        if command:
            steps.append((command[1], []))
        elif steps and steps[-1][1] is not None and line.startswith("    ") and line.strip():
            steps[-1][1].append(line.strip())
        elif steps and not line.strip():
            steps.append(("", []))  # a shown output ends with its block
    return [step for step in steps if step[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_session_of_the_docs_runs_as_it_is_shown(page, tmp_path, monkeypatch, mpsim_cli):
    """Each command exits 0, and prints the lines that stand below it."""
    for name in ("scenarios", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    steps = session(page)
    assert len(steps) > 4
    for command, shown in steps:
        done = mpsim_cli(*shlex.split(command))
        assert done.code == 0, (command, done.err)
        printed = [line.strip() for line in (done.out + "\n" + done.err).splitlines()]
        assert [line for line in shown if line not in printed] == [], command
