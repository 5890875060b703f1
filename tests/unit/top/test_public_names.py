"""The package's front door."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import mpsim


def test_all_is_sorted_without_repeats():
    """A short, sorted list is read; a long, unsorted one is not."""
    assert list(mpsim.__all__) == sorted(set(mpsim.__all__))


@pytest.mark.parametrize("name", mpsim.__all__)
def test_every_public_name_resolves(name):
    """Lazy names exist where the table says they live, also once a module of that name was imported."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"mpsim.{name}")
    value = getattr(mpsim, name)
    assert value.__name__ == mpsim._AT_HOME.get(name, name)
    assert not isinstance(value, types.ModuleType)


def test_every_name_is_listed():
    """The reference names all of them, and nothing else."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "python.md").read_text()
    assert re.findall(r"^\| `mpsim\.(\w+)", page, re.MULTILINE) == list(mpsim.__all__)


def test_every_command_of_one_question_has_a_name():
    """What `mpsim NAME` does, ``mpsim.NAME`` does."""
    commands = {
        "plan", "scale", "goodput", "schedule", "validate", "calibrate", "export", "report",
        "sweep", "search", "compare", "check",
    }  # fmt: skip
    assert commands <= set(mpsim.__all__)


def test_public_names_are_documented():
    """Whoever types help(mpsim.name) gets an answer."""
    assert [name for name in mpsim.__all__ if not getattr(mpsim, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    """A typo is not an import error from somewhere inside."""
    with pytest.raises(AttributeError, match="simulat"):
        mpsim.simulat  # noqa: B018


def test_dir_lists_the_public_names():
    """Completion in a notebook finds them before their first use."""
    assert set(mpsim.__all__) <= set(dir(mpsim))


def test_importing_the_package_imports_no_library():
    """``import mpsim`` is free until something is used."""
    code = "import mpsim, sys; sys.exit(' '.join({'numpy', 'yaml', 'pydantic'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
