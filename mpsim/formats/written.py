"""Plain data as YAML and TOML text, in the order in which it was put together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

__all__ = ["toml_text", "yaml_text"]


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
            yield f"{indent}{key}: {_scalar(value)}"


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


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        plain = value.replace("_", "").replace("-", "").replace(".", "")
        words = value.lower() in ("true", "false", "null", "yes", "no", "on", "off", "none")
        quoted = not plain.isalnum() or plain.isdigit() or value[0].isdigit() or words
        return json.dumps(value) if quoted else value
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return "{}"
