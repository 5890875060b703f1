"""The commented scenarios that ``mpsim new`` copies."""

from __future__ import annotations

from importlib import resources

from mpsim.errors import ScenarioError, nearest

__all__ = ["template_names", "template_text"]

PACKAGE = "mpsim.scenario"


def template_names() -> tuple[str, ...]:
    """Every template, sorted."""
    folder = resources.files(PACKAGE) / "templates"
    return tuple(
        sorted(
            entry.name.removesuffix(".yaml")
            for entry in folder.iterdir()
            if entry.name.endswith(".yaml")
        )
    )


def template_text(name: str) -> str:
    """The commented YAML of one template; ScenarioError with the nearest names if there is none."""
    if name not in template_names():
        raise ScenarioError(f"unknown template {name!r}; {nearest(name, template_names())}")
    return (resources.files(PACKAGE) / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
