"""Plain data as YAML and TOML text, in the order in which it was put together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from mpsim.scalars import resolve


def yaml_text(data: Mapping[str, object], comment: Callable[[str], str] = lambda _: "") -> str:
    """Nested mappings as YAML; lists stay on their line. `comment`: what stands behind the value of
    a dotted key.

    Examples
    --------
    >>> print(yaml_text({"model": {"layers": 2, "tied": False}, "name": "a: b"}), end="")
    model:
      layers: 2
      tied: false
    name: "a: b"
    """
    return "".join(f"{line}\n" for line in _yaml(data, comment, "", ""))


def _yaml(
    data: Mapping[str, object], comment: Callable[[str], str], indent: str, head: str
) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _yaml(value, comment, f"{indent}  ", f"{head}{key}.")
        else:
            text = f"{indent}{scalar(key)}: {scalar(value)}"
            why = comment(f"{head}{key}")
            yield f"{text:<40}  # {why}".rstrip() if why else text


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
