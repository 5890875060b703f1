"""The commented scenarios that ``mpsim new`` copies."""

from __future__ import annotations

import re
from importlib import resources

from mpsim.errors import ScenarioError, nearest

PACKAGE = "mpsim.scenario"
_FILE = re.compile(r"\bFILE\b")  # of the command lines of a template


def template_names() -> tuple[str, ...]:
    """Every template, sorted."""
    files = (entry.name for entry in (resources.files(PACKAGE) / "templates").iterdir())
    return tuple(sorted(file.removesuffix(".yaml") for file in files if file.endswith(".yaml")))


def template_title(name: str) -> str:
    """The first line of one template: whom it is for."""
    return template_text(name).partition("\n")[0].removeprefix("#").strip()


def template_text(name: str, file: str = "FILE") -> str:
    """Commented YAML of a template, commands for `file`; ScenarioError names the nearest."""
    if name not in template_names():
        raise ScenarioError(f"unknown template {name!r}; {nearest(name, template_names())}")
    text = (resources.files(PACKAGE) / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
    return _FILE.sub(lambda _: file, text)
