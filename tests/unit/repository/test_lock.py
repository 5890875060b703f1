"""What CI installs is locked file by file."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def locked(pytestconfig):
    """Names in the lock, each with its hashes."""
    text = (pytestconfig.rootpath / "ci" / "lock.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    return {entry.split("==")[0].lower(): entry.count("--hash=sha256:") for entry in entries}


def test_every_dependency_of_ci_is_in_the_lock(pytestconfig, locked):
    """Core, test and dev; a new one needs a new lock (see CONTRIBUTING.md)."""
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["test"], *extras["dev"]]
    names = {re.match(r"[\w.-]+", each)[0].lower() for each in wanted} - {"mpsim"}
    assert names <= set(locked)


def test_every_entry_of_the_lock_has_hashes(locked):
    """pip refuses a file that none of them names."""
    assert locked
    assert all(hashes > 0 for hashes in locked.values())
