"""What every command has in common: exit codes, streams, no tracebacks, a quick start."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from mpsim.errors import DeadlockError, ScenarioError

HEAVY = ("numpy", "matplotlib", "pydantic", "simpy", "networkx", "yaml", "torch")


def test_help_loads_nothing_heavy():
    """The command line starts in a fraction of a second because it imports no library for help."""
    code = (
        "import sys; from mpsim.cli import main; assert main(['--help']) == 0;"
        f"sys.exit(' '.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_a_usage_error(mpsim_cli):
    """Exit 2, and nothing a program could take for a result."""
    outcome = mpsim_cli("frobnicate")
    assert (outcome.code, outcome.out) == (2, "")


def test_a_missing_file_is_bad_input(mpsim_cli, tmp_path):
    """The message names the file."""
    outcome = mpsim_cli("run", tmp_path / "none.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert "none.yaml" in outcome.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ScenarioError("a mistake"), 2, "a mistake"),
        (DeadlockError("a waits for b"), 1, "a waits for b"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("oops"), 1, "internal error"),
        (FileNotFoundError(2, "No such file or directory", "there"), 2, "there"),
    ],
)
def test_an_error_is_lines_and_an_exit_code(mpsim_cli, monkeypatch, error, code, text):
    """No error of any kind ends in a traceback; an interrupt says so in one line."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("mpsim.schedule"), "schedule_names", fail)
    outcome = mpsim_cli("show", "schedule")
    assert (outcome.code, outcome.out) == (code, "")
    assert text in outcome.err
    assert "Traceback" not in outcome.err


def test_debug_shows_the_traceback(mpsim_cli, monkeypatch):
    """Whoever reports a bug can say where."""

    def fail() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(importlib.import_module("mpsim.schedule"), "schedule_names", fail)
    assert "Traceback" in mpsim_cli("--debug", "show", "schedule").err
