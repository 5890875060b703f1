"""Dotted keys: shorthands spelled out, and values set inside plain nested data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Data: TypeAlias = dict[Any, Any]
"""A mapping of a file; its keys may be anything that YAML has, until the schema has seen them."""


def _as(key: str) -> Callable[[str], dict[str, str]]:
    return lambda word: {key: word}


def _link(word: str) -> dict[str, str]:
    return {"bandwidth" if word[:1].isdigit() else "preset": word}


def _schedule(word: str) -> dict[str, str]:
    return {"file" if word.endswith(".csv") else "name": word}


SHORTHANDS: Mapping[str, Callable[[str], dict[str, str]]] = MappingProxyType(
    {
        "model": _as("preset"),
        "cluster": _as("preset"),
        "cluster.accelerator": _as("preset"),
        "cluster.scale_up": _link,
        "cluster.nic": _link,
        "cluster.fabric": _as("kind"),
        "schedule": _schedule,
        "framework": _as("preset"),
        "serving.engine": _as("preset"),
    }
)


def expand_shorthand(key: str, value: object) -> object:
    """Spell `value` out as a mapping if `key` allows one word there and it is one.

    Examples
    --------
    >>> expand_shorthand("cluster.nic", "200 Gb/s"), expand_shorthand("model", "gpt3-175b")
    ({'bandwidth': '200 Gb/s'}, {'preset': 'gpt3-175b'})
    """
    if isinstance(value, str) and key in SHORTHANDS:
        return SHORTHANDS[key](value)
    return value


def join(*parts: object) -> str:
    """Parts of a dotted key as one; empty ones are left out."""
    return ".".join(str(part) for part in parts if part != "")


def copied(value: Any) -> Any:
    """A copy of plain data, for which `copy.deepcopy` takes four times as long."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def assign(data: Data, parts: tuple[object, ...], value: object) -> object:
    """Set the value at `parts` inside `data`, making mappings on the way; return the old one.

    Digits index a list. KeyError if something on the way is neither a mapping, a shorthand of one,
    nor a list long enough; its argument says what.
    """
    node: Any = data
    for depth, name in enumerate(parts):
        part: Any = name
        key = join(*parts[: depth + 1])
        if isinstance(node, list):
            if not (str(part).isdigit() and int(part) < len(node)):
                holder = join(*parts[:depth])
                raise KeyError(f"{holder} is a list of {len(node)}; it has no {part!r}")
            part = int(part)
        old = node[part] if isinstance(node, list) else node.get(part)
        if depth == len(parts) - 1:
            node[part] = value
            return old
        inner = {} if old is None else expand_shorthand(key, old)
        if not isinstance(inner, dict | list):
            raise KeyError(f"{key} is {inner!r}, not a mapping")
        node[part] = node = inner
    return None
