"""``--version``: what a report of a mistake must say."""

import importlib.metadata
import re

import mpsim
from mpsim.stamp import stamp


def test_one_line_says_the_version(mpsim_cli):
    """Nothing else is printed."""
    assert mpsim_cli("--version").out == f"mpsim {mpsim.__version__}\n"


def test_verbose_says_digest_dependencies_and_dates(mpsim_cli):
    """The digest is the one in every output; versions are those installed; each folder of data has its newest date."""
    done = mpsim_cli("--version", "--verbose")
    assert done.code == 0
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines() if " " in line)
    assert lines["digest"] == stamp().split("+")[1]
    assert lines["numpy"] == importlib.metadata.version("numpy")
    for folder in ("hardware", "framework", "cost", "study"):
        newest, oldest = lines[folder].split()
        assert re.fullmatch(r"\d{4}(-\d\d){0,2}", newest)
        assert newest >= oldest


def test_verbose_alone_is_a_mistake_of_usage(mpsim_cli):
    """It says what it goes with."""
    done = mpsim_cli("--verbose")
    assert (done.code, done.out) == (2, "")
    assert "--verbose: goes with --version" in done.err


def test_no_command_is_a_mistake_of_usage(mpsim_cli):
    """Options of the application alone are no question."""
    done = mpsim_cli("--debug")
    assert done.code == 2
    assert "Missing command" in done.err
