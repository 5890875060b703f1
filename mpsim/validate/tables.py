"""Tables of what families of published rows mean and leave unsaid."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import CalibrationError
from mpsim.importers import words
from mpsim.importers.cells import Cells

__all__ = ["lookup", "on_top", "rule_of", "table"]

_DATA = "mpsim.validate.data"
table = functools.partial(words.table, _DATA)
lookup = functools.partial(words.lookup, _DATA)

_WORDS = "words"  # stands for family and framework together


def rule_of(cells: Cells) -> Mapping[str, Any]:
    """The first family of the table whose words all occur in the row, with what it says of such rows besides.

    Raises
    ------
    CalibrationError
        If there is none.
    """
    for entry in table("training")["families"]:
        if _fits(cells, entry):
            rule: dict[str, Any] = dict(entry)
            for more in entry.get("also", ()):
                if _fits(cells, more):
                    rule = on_top(rule, more)
            return rule
    raise CalibrationError("no family fits the row")


def on_top(rule: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A rule with another on top of it, mappings key by key."""
    merged = {
        key: {**rule.get(key, {}), **value} if isinstance(value, Mapping) else value
        for key, value in more.items()
        if key not in ("where", "also")
    }
    return {**rule, **merged}


def _fits(cells: Cells, entry: Mapping[str, Any]) -> bool:
    return all(
        re.search(pattern, _text(cells, column), flags=re.IGNORECASE)
        for column, pattern in entry["where"].items()
    )


def _text(cells: Cells, column: str) -> str:
    if column == _WORDS:
        return f"{cells.text('family')} | {cells.text('framework')}"
    return cells.text(column)
