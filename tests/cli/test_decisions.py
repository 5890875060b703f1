"""The tutorial of decisions: every command runs, and prints what the page shows, its figures as far as they are worth.

A figure of a page that moved by more than a fifth is no figure of today; smaller moves are for who writes the page anew.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial-decisions.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```console\n\$ (mpsim .*)\n((?:.*\n)*?)^```", PAGE, re.MULTILINE)
FEWER = "--over parallelism.tp=1,2 --over parallelism.cp=1 --over training.micro_batch=1,2"
"""Layouts that a search looks at here, where `ci/optional docs` looks at all: it prints the same lines with other figures."""
FIGURE = re.compile(r"\S*\d\S*|[-+%]+|\b(?:[um]?s|[kM]?J|[kM]?W|[GM]?B|points|tie|slower|faster)\b")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def shape(line):
    """A line without its figures, their units, and which way a comparison goes."""
    return " ".join(FIGURE.sub(" ", line).split())


def figures(line):
    """Numbers of a line, in its order."""
    return [float(text.replace(",", "")) for text in NUMBER.findall(line)]


def test_every_question_has_its_command():
    """Search, emit, plan, a one-sided comparison, scale and power."""
    asked = " ".join(command for command, _ in COMMANDS)
    for word in ("search", "--emit", "plan", "--vs", "scale", "tdp"):
        assert word in asked


@pytest.mark.parametrize(("command", "shown"), COMMANDS)
def test_a_command_prints_what_its_page_shows(mpsim_cli, tmp_path, monkeypatch, command, shown):
    """Each line of the page is printed, in the order of the page; its figures to a fifth, or one, where all layouts are searched."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    fewer = "search" in command and os.environ.get("MPSIM_EVERY_LINE") != "1"
    told = mpsim_cli(*shlex.split(f"{command} {FEWER * fewer}")[1:])
    assert told.code == 0, told.err
    printed = iter(told.out.splitlines())
    for line in shown.splitlines():
        if line.strip() not in ("", "..."):
            found = next((text for text in printed if shape(text) == shape(line)), None)
            assert found is not None, line
            if not fewer:
                assert figures(found) == pytest.approx(figures(line), rel=0.2, abs=1.0), line
    for word in shlex.split(command):
        file = word.partition("=")[2]
        if file.endswith((".sh", ".toml")):
            assert Path(file).stat().st_size > 0
