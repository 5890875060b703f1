"""Write docs/reference/frameworks.md from the code and the catalog: ``python scripts/framework_reference.py``.

A test holds the page to both, so nobody edits it by hand.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
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

`framework:` of a scenario names a preset of the second table; every field of the first can be replaced beside it:

    framework: {preset: torch-fsdp2, reduced_bytes: 2, launch_cost: 8 us}

`mpsim show framework NAME` prints all fields of one with what they were read in, the layout it was written for (which it does not set: the
scenario decides) and what could not be decided from sources. What the presets do to a step is explained in
[explanation/frameworks](../explanation/frameworks.md). This page is generated from the code and the catalog.

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
    yield "| field | values | when not stated | meaning |"
    yield "| --- | --- | --- | --- |"
    for field in dataclasses.fields(group):
        default = "" if field.default is dataclasses.MISSING else _text(field.default)
        words = meaning[field.name] or _members(kinds[field.name])
        yield f"| `{field.name}` | {_values(field.name, kinds[field.name])} | {default} | {words} |"


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
        return {Dimension.TIME: "time", Dimension.BYTES: "bytes, with unit"}[mark.dimension]
    plain = {bool: "true, false", int: "whole number", float: "number"}[kind]
    return f"{plain} [{mark.unit}]" if mark is not None and mark.unit else plain


def _text(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _presets() -> Iterator[str]:
    """A table of presets and aliases."""
    aliases = framework_aliases()
    yield "## Presets\n"
    yield "| preset | stack and era | also called | read in |"
    yield "| --- | --- | --- | --- |"
    for name in framework_names():
        if name in aliases:
            continue
        one = framework(name)
        others = ", ".join(f"`{alias}`" for alias, meant in aliases.items() if meant == name)
        yield f"| `{name}` | {one.title} | {others} | {one.source} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
