"""Options of commands, as docstrings describe them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mpsim.cli.options import taken


def _command(file: Path, size: float | None = None, dry: bool = False) -> None:
    """Do something.

    FILE: Scenario file.
    --size -s BYTES: Size of a checkpoint, which may be
        anything.
    --dry/--wet: Leave it.
    """


def test_a_docstring_names_options_and_is_their_help():
    """A line of it has the names, what the option takes, and what it is for; types say the rest."""
    infos = {
        name: parameter.annotation.__metadata__[0] for name, parameter in taken(_command).items()
    }
    assert [(info.help, info.metavar) for info in infos.values()] == [
        ("Scenario file.", "FILE"),
        ("Size of a checkpoint, which may be anything.", "BYTES"),
        ("Leave it.", None),
    ]
    assert infos["size"].param_decls == ["--size", "-s"]
    assert infos["dry"].param_decls == ["--dry/--wet"]


def test_without_docstrings_there_is_one_line_and_no_traceback():
    """``python -OO`` leaves out what options are made of."""
    command = [
        sys.executable,
        "-OO",
        "-c",
        "from mpsim.cli import main; raise SystemExit(main([]))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mpsim: ")
    assert done.stderr.count("\n") == 1
