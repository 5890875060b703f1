"""Plain data as YAML and TOML text, in the order in which it was put together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from mpsim.scalars import resolve

__all__ = ["scalar", "toml_text", "yaml_text"]


def yaml_text(data: Mapping[str, object], indent: str = "") -> str:
    """Nested mappings as YAML; lists stay on their line.

    Examples
    --------
    >>> print(yaml_text({"model": {"layers": 2, "tied": False}, "name": "a: b"}), end="")
    model:
      layers: 2
      tied: false
    name: "a: b"
    """
    return "".join(f"{line}\n" for line in _yaml(data, indent))


def _yaml(data: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _yaml(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {scalar(value)}"


def toml_text(data: Mapping[str, Mapping[str, object]]) -> str:
    """Sections of TOML.

    Examples
    --------
    >>> print(toml_text({"training": {"seq_len": 8192, "compile": True}}), end="")
    [training]
    seq_len = 8192
    compile = true
    """
    sections = (
        "\n".join(
            [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
        )
        for name, section in data.items()
        if section
    )
    return "\n\n".join(sections) + "\n"


def scalar(value: object) -> str:
    """A value as YAML reads it back."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        is_plain = re.fullmatch(r"[\w./ -]*\w[\w./ -]*", value, re.ASCII) is not None
        return (
            value
            if is_plain and value == value.strip() and resolve(value) == value
            else json.dumps(value)
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, Mapping):
        items = (f"{scalar(key)}: {scalar(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    return repr(value)
