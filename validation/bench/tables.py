"""Tables of what families of published rows mean and leave unsaid."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import CalibrationError
from mpsim.formats import words
from mpsim.formats.cells import Cells
from mpsim.result.residuals import Setting

__all__ = ["lookup", "of_stack", "on_top", "rule_of", "said", "stands_in", "table"]

_DATA = "bench.data"
table = functools.partial(words.table, _DATA)
lookup = functools.partial(words.lookup, _DATA)

_WORDS = "words"  # stands for family and framework together
_DATED = "dated"  # stands for family, framework and date together
_SAID = "said"  # stands for model, framework, schedule and overlap together
_SAYING = ("model", "framework", "schedule", "overlap_notes")
_BY_NAME = "the software is read from the family's name"


def rule_of(cells: Cells, name: str = "training") -> Mapping[str, Any]:
    """The first family of a table whose words all occur in the row, with what it says of such rows besides.

    Raises
    ------
    CalibrationError
        If there is none.
    """
    for entry in table(name)["families"]:
        if _fits(cells, entry):
            rule: dict[str, Any] = dict(entry)
            if not _fits(Cells({**cells.values, "family": ""}), entry):
                rule["assumed"] = [*rule.get("assumed", ()), _BY_NAME]
            for more in (*entry.get("also", ()), *table(name)["everywhere"]):
                if _fits(cells, more):
                    rule = on_top(rule, more)
            return rule
    raise CalibrationError("no family fits the row")


def stands_in(rule: Mapping[str, Any]) -> bool:
    """Whether a rule's framework stands in for software that nothing is known of, so that a run under it is no measurement of that framework."""
    return any(why != _BY_NAME for why in rule.get("assumed", ()))


def of_stack(setting: Setting, rule: Mapping[str, Any]) -> Setting:
    """The setting of a run under a rule: of software that nothing is known of, whatever stands in for it."""
    if not stands_in(rule):
        return setting
    return dataclasses.replace(setting, labels={**setting.labels, "framework": ("", "")})


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


def said(cells: Cells) -> str:
    """Words of a row about its model, software, schedule and overlap."""
    return " | ".join(cells.text(name) for name in _SAYING)


def _text(cells: Cells, column: str) -> str:
    if column in (_WORDS, _DATED):
        date = f" | {cells.text('measured_date')}" if column == _DATED else ""
        return f"{cells.text('family')} | {cells.text('framework')}{date}"
    if column == _SAID:
        return said(cells)
    return cells.text(column)
