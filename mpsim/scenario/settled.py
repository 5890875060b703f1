"""Keys that a framework settles: what a trainer always does, and its scenario need not say.

Most presets describe how a stack runs whatever it is told to run. A few are the whole recipe of one training, and their name promises
it; those settle the keys that a file leaves out. What is written always wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim.framework import settled_keys
from mpsim.scenario.paths import assign, expand_shorthand

__all__ = ["in_words", "settle", "settled_by"]


def settle(data: Any) -> Any:
    """`data` of a file with the keys that its framework settles; the same object where it settles none.

    Examples
    --------
    >>> settle({"training": {}, "framework": "deepseek-2024", "schedule": "1f1b"})["parallelism"]["zero"]
    1
    """
    found = settled_by(data)
    if not found:
        return data
    settled = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()
    }
    for key, value in found.items():
        assign(settled, tuple(key.split(".")), value)
    return settled


def settled_by(data: Any) -> dict[str, Any]:
    """Values by dotted key that the framework of a file settles: those of each of its groups of which the file writes no key."""
    if not isinstance(data, Mapping) or not isinstance(data.get("training"), Mapping):
        return {}
    chosen = expand_shorthand("framework", data.get("framework"))
    preset = chosen.get("preset") if isinstance(chosen, Mapping) else None
    groups = settled_keys(preset) if isinstance(preset, str) else ()
    return {
        key: value
        for group in groups
        if not any(_written(data, key) for key in group)
        for key, value in group.items()
    }


def in_words(values: Mapping[str, Any]) -> list[str]:
    """Keys with their values, as a file has them.

    Examples
    --------
    >>> in_words({"schedule": "dualpipe", "training.recompute_modules": ["layernorm", "moe_act"]})
    ['schedule: dualpipe', 'training.recompute_modules: [layernorm, moe_act]']
    """
    return [
        f"{key}: [{', '.join(map(str, value))}]" if isinstance(value, list) else f"{key}: {value}"
        for key, value in values.items()
    ]


def _written(data: Mapping[str, Any], key: str) -> bool:
    """Whether a file has a key; one that is no mapping where another key of it is needed counts too, for the schema to complain."""
    section, _, name = key.partition(".")
    if not name or section not in data:
        return section in data
    inner = data[section]
    return not isinstance(inner, Mapping) or name in inner
