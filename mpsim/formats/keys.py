"""Table of keys: which word of a tool says which value of a scenario, written once for reading and writing.

Rows stand in the section ``keys`` of a format's data file. What a row cannot say (a count that follows from two others, a list in a spelling of its own) is worked out by
the format's reader and writer, and the row's note tells how.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mpsim.formats.words import table
from mpsim.memo import remembered

__all__ = ["TABLES", "Key", "key_to", "keys", "values_of"]

_PACKAGE = "mpsim.formats.data"
TABLES = ("megatron", "megatron-yaml", "torchtitan", "deepspeed", "huggingface")
"""Data files with a table of keys."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One key of a tool and the value of a scenario that it says.

    Parameters
    ----------
    name : str
        As the tool writes it; dotted where it is nested.
    to : str
        Dotted key of the scenario.
    values : mapping of str to object
        Value of the scenario by the tool's word; empty where both write the same. Of several words for one value the first is written.
    note : str
        What the row cannot say.
    """

    name: str
    to: str
    values: Mapping[str, Any]
    note: str = ""

    def word(self, value: object) -> str | None:
        """The tool's word for a value of the scenario; None where it has none."""
        return next((word for word, meant in self.values.items() if meant == value), None)


@remembered(16)
def keys(name: str) -> tuple[Key, ...]:
    """Every row of a format's table, in its order.

    Examples
    --------
    >>> [key.name for key in keys("megatron") if key.to == "parallelism.tp"]
    ['tensor-model-parallel-size', 'model-parallel-size']
    """
    return tuple(
        Key(row["key"], row["to"], row.get("values", {}), row.get("note", ""))
        for row in table(_PACKAGE, name)["keys"]
    )


def key_to(name: str, to: str) -> Key:
    """The first key of a format that says a value of the scenario."""
    return next(key for key in keys(name) if key.to == to)


def values_of(name: str, key: str) -> Mapping[str, Any]:
    """Values of the scenario by the words of one key of a format."""
    return next(row.values for row in keys(name) if row.name == key)
