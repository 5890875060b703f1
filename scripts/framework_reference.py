"""Write docs/reference/frameworks.md from the code and the catalog: ``python scripts/framework_reference.py``.

A test holds the page to both, so nobody edits it by hand.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from mpsim.framework import (
    AREAS,
    Framework,
    framework,
    framework_aliases,
    framework_names,
    mark_of,
)
from mpsim.nouns import Quantity
from mpsim.units import Dimension

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "frameworks.md"
HEAD = """\
# Framework presets

`framework:` of a scenario names a [preset](#presets); every field can be replaced beside it:

    framework: {preset: torch-fsdp2, reduced_bytes: 2, launch_cost: 8 us}

`mpsim show framework NAME` prints all fields of one with the source that they were read in, the layout it was written for (which the scenario decides) and what sources leave open. What presets do to a
step: [frameworks](../explanation/frameworks.md). This page is generated from the code and the catalog.

## Fields
"""


def render() -> str:
    """The page as text."""
    hints = typing.get_type_hints(Framework)
    lines = [HEAD]
    for area in framework("megatron-lm").groups():
        lines += [f"### {AREAS[area]}\n", *_fields(hints[area]), ""]
    return "\n".join([*lines, *_presets()]) + "\n"


def described(noun: type) -> Mapping[str, str]:
    """The texts under the fields of a noun, by field."""
    config: Any = {**getattr(noun, "__pydantic_config__", {}), "use_attribute_docstrings": True}
    noun.__pydantic_config__ = config  # type: ignore[attr-defined] # where pydantic looks for it
    schema = pydantic.TypeAdapter(noun).json_schema()
    return {
        name: " ".join(entry.get("description", "").split())
        for name, entry in schema["properties"].items()
    }


def _fields(group: Any) -> Iterator[str]:
    """A table of the fields of a group, with the texts under them."""
    meaning, kinds = described(group), typing.get_type_hints(group)
    yield "| field | value | meaning |\n| --- | --- | --- |"
    for field in dataclasses.fields(group):
        default = (
            "" if field.default is dataclasses.MISSING else f" (default {_text(field.default)})"
        )
        words = meaning[field.name] or _members(kinds[field.name])
        words = re.sub(r" \[[^]]+\](?=\.$)", "", words)  # the unit stands beside it
        yield f"| `{field.name}` | {_values(field.name, kinds[field.name])}{default} | {words} |"


def _members(kind: Any) -> str:
    """What the class of a choice says of itself."""
    return (inspect.getdoc(kind) or "").splitlines()[0] if isinstance(kind, type) else ""


def _values(field: str, kind: Any) -> str:
    if choices := typing.get_args(kind):
        return ", ".join(f"`{choice}`" for choice in choices)
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    mark = mark_of(field)
    if isinstance(mark, Quantity):
        return {Dimension.TIME: "quantity [s]", Dimension.BYTES: "quantity [B]"}[mark.dimension]
    plain = {bool: "boolean", int: "integer", float: "number"}[kind]
    return f"{plain} [{mark.unit}]" if mark is not None and mark.unit else plain


def _text(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _presets() -> Iterator[str]:
    """All presets, with their aliases in brackets; ``mpsim show frameworks`` prints their titles."""
    aliases = framework_aliases()
    yield "## Presets\n\n`mpsim show frameworks` says which software and years each stands for.\n"
    called = {name: [f"`{name}`"] for name in framework_names() if name not in aliases}
    for alias, name in aliases.items():
        called[name].append(f"`{alias}`")
    yield ", ".join(
        f"{name} ({', '.join(others)})" if others else name for name, *others in called.values()
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
