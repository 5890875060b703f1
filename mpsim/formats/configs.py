"""Configuration files as plain data: JSON, YAML and TOML, bounded, with the line of every key; and
plain data as YAML and TOML text.

They are data: no class path is imported, no tag obeyed, no variable of the environment read.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mpsim.errors import FormatError, ScenarioError
from mpsim.formats.source import Head
from mpsim.inputs import DEEPEST, parse_json
from mpsim.shipped import resolve, say

LARGEST: Final = 4_000_000
"""Characters of a configuration: the longest that people keep hold a few thousand keys."""
# a quote that nothing closes takes the rest, or its end would be looked for again and again
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|[{}\[\],:]|\n', re.DOTALL)
_SECTION = re.compile(r"\s*\[\[?([^\]#]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+?)\s*=")


def json_config(head: Head) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    """A JSON object and the line of every dotted key. FormatError if it is none, or not sound."""
    text = _bounded(head, "a configuration in JSON")
    data = parse_json(text, head.path, error=FormatError)
    if not isinstance(data, dict):
        raise FormatError(f"{head.path}: got a {type(data).__name__}; needed a JSON object")
    return data, json_lines(text)


def json_lines(text: str) -> dict[str, int]:
    r"""Line of every dotted key of a JSON text; items of lists have none.

    Examples
    --------
    >>> json_lines('{"a": 1,\n "b": {"c": 2}}')
    {'a': 1, 'b': 2, 'b.c': 2}
    """
    lines: dict[str, int] = {}
    path: list[str | None] = []  # key of every open object, None for a list
    line, word, word_line = 1, "", 1
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if piece[0] == '"':
            word, word_line = piece[1:-1], line
            line += piece.count("\n")
        elif piece == "\n":
            line += 1
        elif piece == ":" and path and path[-1] is not None:
            path[-1] = word
            if None not in path:
                lines[".".join(str(part) for part in path)] = word_line
        elif piece in "{[":
            path.append("" if piece == "{" else None)
        elif piece in "}]" and path:
            path.pop()
    return lines


def yaml_config(head: Head) -> tuple[Mapping[str, object], Mapping[str, int]]:
    """A YAML mapping and the line of each key; tags are refused. FormatError: `json_config`."""
    from mpsim.document import parse_document

    text = _bounded(head, "a configuration in YAML")
    try:
        document = parse_document(text, str(head.path))
        if document.problems:
            raise ScenarioError(document.problems)
    except ScenarioError as error:
        raise FormatError(str(error)) from error
    except (RecursionError, ValueError) as error:
        raise FormatError(say("formats.long_yaml", path=head.path)) from error
    return document.data, {key: line for key, (line, _) in document.places.items()}


def toml_config(head: Head) -> tuple[Mapping[str, object], Mapping[str, int]]:
    """Content of a TOML file and the line of every dotted key. FormatError as `json_config`."""
    text = _bounded(head, "a configuration in TOML")
    if max(map(len, re.findall(r"[\[{]+", text)), default=0) > DEEPEST:
        raise FormatError(f"{head.path}: nested deeper than {DEEPEST} levels")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{head.path}: not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(say("formats.long_toml", path=head.path)) from error
    return data, dict(_toml_lines(text))


def _toml_lines(text: str) -> Iterator[tuple[str, int]]:
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _SECTION.match(line):
            section = header[1].replace('"', "").replace(" ", "") + "."
        elif key := _KEY.match(line):
            yield section + key[1].strip("\"'"), number


def _bounded(head: Head, needed: str) -> str:
    text = head.read(needed, LARGEST)
    if "\0" in text:
        raise FormatError(f"{head.path}: is a binary file; needed {needed}")
    return text


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
        is_same = is_plain and value == value.strip() and resolve(value) == value
        return value if is_same else json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, Mapping):
        items = (f"{scalar(key)}: {scalar(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    return repr(value)
