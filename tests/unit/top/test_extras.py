"""Extras: each package that one brings is used, and nothing else is asked of a user."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_USERS = ("validate", "calibrate", "data", "chakra", "cluster")
IN_TESTS = ("notebook",)
MODULES = {"pyyaml": "yaml", "protobuf": "google.protobuf"}


def packages(wanted):
    """Names of the packages of a list of requirements, other extras of mpsim left out."""
    names = (re.match(r"[A-Za-z0-9_-]+", requirement)[0].lower() for requirement in wanted)
    return [MODULES.get(name, name) for name in names if name != "mpsim"]


def imports(folder, module):
    """Whether a file below `folder` imports a module, or opens its data."""
    pattern = re.compile(
        rf"^\s*(import|from) {module}\b|resources\.files\(\"{module}\"\)|(importorskip|import_module)\(\s*\"{module}\"",
        re.MULTILINE,
    )
    return any(pattern.search(file.read_text(encoding="utf-8")) for file in folder.rglob("*.py"))


@pytest.mark.parametrize("module", packages(PROJECT["dependencies"]))
def test_every_dependency_is_imported(module):
    """Nobody installs what nothing uses."""
    assert imports(ROOT / "mpsim", module)


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        (extra, module)
        for extra in (*FOR_USERS, *IN_TESTS)
        for module in packages(PROJECT["optional-dependencies"][extra])
    ],
)
def test_every_package_of_an_extra_is_imported(extra, module):
    """An extra for users by the package, one for readers of notebooks by the tests that run them."""
    folder = ROOT / ("tests" if extra in IN_TESTS else "mpsim")
    assert imports(folder, module)
