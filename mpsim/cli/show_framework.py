"""``mpsim show framework``: every habit of a software stack under the name it is overridden by, with what it was read in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsim.framework import Framework

__all__ = ["framework_titles", "show_framework"]

AREAS = {
    "lowering": "kernels of a layer",
    "kernels": "their speed",
    "tensor": "tensor and context parallelism",
    "pipeline": "pipeline",
    "data": "data parallelism",
    "optimizer": "model states",
    "host": "host",
    "experts": "mixture of experts",
}
"""Groups of fields in words."""


def framework_titles() -> dict[str, str]:
    """What to print beside the name of each preset and alias."""
    from mpsim.framework import framework, framework_aliases, framework_names

    aliases = framework_aliases()
    return {
        name: f"= {aliases[name]}" if name in aliases else framework(name).title
        for name in framework_names()
    }


def show_framework(name: str, *, as_json: bool) -> None:
    """Print one preset: fields by area, the scenario it suits, sources and open questions.

    Raises
    ------
    ScenarioError
        If the preset is unknown; it names the nearest.
    """
    from mpsim.cli.console import print_json, print_table, print_text
    from mpsim.framework import framework

    software = framework(name)
    if as_json:
        print_json(_plain(software))
        return
    print_table(
        [
            (AREAS[area] if place == 0 else "", field, _printed(field, value))
            for area, fields in software.groups().items()
            for place, (field, value) in enumerate(fields.items())
        ],
        header=("area", "field", "value"),
        title=f"framework {name}: {software.title}",
    )
    suits = [f"{key}: {_text(value)}" for key, value in software.suits.items()]
    print_text(f"\nread in {software.source} ({software.as_of})")
    if suits:
        print_text(f"written for {', '.join(suits)} (a description: the scenario decides)")
    for note in software.notes:
        print_text(f"- {note}")


def _plain(software: Framework) -> Mapping[str, object]:
    source = f"{software.source} ({software.as_of})"
    figures = {
        field: {"value": value, "area": area, "unit": _unit(field), "source": source}
        for area, fields in software.groups().items()
        for field, value in fields.items()
    }
    return {
        "catalog": "framework",
        "name": software.name,
        "title": software.title,
        "figures": figures,
        "suits": dict(software.suits),
        "notes": list(software.notes),
        "recalled": [],
    }


def _unit(field: str) -> str:
    """SI unit of a field; empty for a number or a word."""
    from mpsim.framework import DIMENSIONS, UNITS
    from mpsim.units import Dimension

    if field in DIMENSIONS:
        return "s" if DIMENSIONS[field] is Dimension.TIME else "B"
    return UNITS.get(field, "")


def _printed(field: str, value: object) -> str:
    """A value as a scenario would write it, with its unit."""
    from mpsim.framework import DIMENSIONS, UNITS
    from mpsim.units import format_quantity

    if field in DIMENSIONS and isinstance(value, float):
        return format_quantity(value, DIMENSIONS[field])
    return f"{_text(value)} {UNITS.get(field, '')}".rstrip()


def _text(value: object) -> str:
    """As YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
