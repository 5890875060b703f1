"""Tables of what families of published rows mean and leave unsaid."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import CalibrationError
from mpsim.formats import words
from mpsim.formats.tables import Cells
from mpsim.result.residuals import Setting

__all__ = [
    "affirmed",
    "lookup",
    "named",
    "of_stack",
    "on_top",
    "rule_of",
    "said",
    "sharding_of",
    "stands_in",
    "table",
    "words_of",
]

_DATA = "bench.data"
table = functools.partial(words.table, _DATA)
lookup = functools.partial(words.lookup, _DATA)

# Words that deny what follows them in a clause, or what stands before them; what is like a software is another one
_DENIED = re.compile(
    r"(?<!\w)(?:no|not|non|without|w/o|never|lacks?|disabled?)(?=[\s-])[^,;|()]*?(?=[,;|()]|\sbut\s|\swith\s|$)"
    r"|[^,;|()]*[\s=:](?:off|disabled|false|unavailable|unused|not (?:used|enabled|available|supported|overlapped|fused|compiled))(?!\w)"
    r"|[^,;|()]*[=:]\s*(?:no|none|0)(?=\s*(?:[,;|()]|$))"
    r"|[\w.]+-like(?!\w)",
    re.IGNORECASE,
)
_WORDS = "words"  # stands for family and framework together
_DATED = "dated"  # stands for family, framework and date together
_SAID = "said"  # stands for model, framework, schedule, overlap and sharding together
_ANYWHERE = "anywhere"  # stands for the same and the notes, without paths of files in them
_SAYING = ("model", "framework", "schedule", "overlap_notes")
_MEANT = {
    "precision": ("training", "precisions", "precision"),
    "zero_stage": ("training", "sharding", "zero"),
    "sharding": ("training", "sharding", "zero"),
    "method": ("peaks", "methods", "method"),
}
_PATH = r"\S*\w/\S*\.\w+"
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
                    rule = on_top(rule, _spelt(more, cells))
                elif "off" in more and _fits(cells, more, denied=True):
                    rule = on_top(rule, more["off"])
            for kind in table(name).get("names", ()):
                rule = on_top(rule, named(kind, _text(cells, _ANYWHERE)) or {})
            return rule
    raise CalibrationError("no family fits the row")


def named(kind: str, text: str) -> Mapping[str, Any] | None:
    """What the words of a kind in a text name, all together; None where there are none."""
    found: dict[str, Any] | None = None
    for entry in table("training")["names"][kind]:
        if _found(entry["pattern"], text):
            found = on_top(found or {}, entry)
    return found


def stands_in(rule: Mapping[str, Any]) -> bool:
    """Whether a rule's framework stands in for software that nothing is known of, so that a run under it is no measurement of that framework."""
    return any(why != _BY_NAME for why in rule.get("assumed", ()))


def of_stack(setting: Setting, rule: Mapping[str, Any]) -> Setting:
    """The setting of a run under a rule: of software that nothing is known of, whatever stands in for it."""
    if not stands_in(rule):
        return setting
    return dataclasses.replace(setting, labels={**setting.labels, "framework": ("", "")})


def seen_as(setting: Setting, seen: str) -> Setting:
    """The setting of a peak read as ``memory`` of the device, ``reserved`` or ``allocated``."""
    return dataclasses.replace(setting, labels={**setting.labels, "seen": (seen,)})


def _spelt(entry: Mapping[str, Any], cells: Cells) -> Mapping[str, Any]:
    """An entry whose framework takes a word of the row, such as the version in the name of a kernel."""
    framework: Mapping[str, Any] = entry.get("framework", {})
    if not any("\\" in str(value) for value in framework.values()):
        return entry
    found = _found(entry["where"][_SAID], _text(cells, _SAID))
    assert found is not None, "an entry that takes a word fits"
    spelt = {
        key: found.expand(value) if isinstance(value, str) else value
        for key, value in framework.items()
    }
    return {**entry, "framework": spelt}


def on_top(rule: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A rule with another on top of it, mappings key by key."""
    merged = {
        key: {**rule.get(key, {}), **value} if isinstance(value, Mapping) else value
        for key, value in more.items()
        if key not in ("where", "also", "off", "says", "pattern")
    }
    return {**rule, **merged}


def _fits(cells: Cells, entry: Mapping[str, Any], *, denied: bool = False) -> bool:
    """Whether all words of an entry occur in the row, none of them denied; or those about software all denied."""
    return all(
        _found(pattern, _text(cells, column, denied=denied))
        for column, pattern in entry["where"].items()
    )


def _found(pattern: str, text: str) -> re.Match[str] | None:
    """Where a pattern occurs in a text; one that knows of no underscore takes words that underscores join as words apart."""
    return re.search(pattern, text if "_" in pattern else text.replace("_", " "), re.IGNORECASE)


def _clauses(text: str, *, denied: bool) -> str:
    """What a text affirms, or what it denies, such as ``no overlap``, ``without Triton`` or ``compile off``."""
    for entry in table("training")["synonyms"]:
        text = re.sub(entry["pattern"], entry["means"], text, flags=re.IGNORECASE)
    if denied:
        return " | ".join(match[0] for match in _DENIED.finditer(text))
    return _DENIED.sub(" ", text)


def said(cells: Cells) -> str:
    """Words of a row about its model, software, schedule, overlap and sharding."""
    return " | ".join(cells.text(name) for name in (*_SAYING, "zero_stage"))


def _text(cells: Cells, column: str, *, denied: bool = False) -> str:
    if column == _ANYWHERE:
        text = f"{said(cells)} | {re.sub(_PATH, ' ', cells.text('notes'))}"
        return _clauses(text, denied=denied)
    if column == _SAID or column in _SAYING:
        return _clauses(said(cells) if column == _SAID else cells.text(column), denied=denied)
    if column in (_WORDS, _DATED):
        date = f" | {cells.text('measured_date')}" if column == _DATED else ""
        return f"{cells.text('family')} | {_clauses(cells.text('framework'), denied=False)}{date}"
    return words_of(cells, column)


def sharding_of(cells: Cells) -> str:
    """Words for what replicas share: those of the column, or else the first that stand elsewhere in the row, such as ``ZeRO-3``."""
    if text := cells.text("zero_stage"):
        return text
    text = _clauses(said(cells), denied=False)
    match = re.search(table("training")["sharded"], text, flags=re.IGNORECASE)
    return match[0] if match else ""


def affirmed(text: str) -> str:
    """What a text says beside what it denies; the text itself where that is nothing."""
    return _clauses(text, denied=False).strip() or text


def words_of(cells: Cells, column: str) -> str:
    """Words of a column as rules read them: what is meant before what is said of a number format, without what is denied, of a sharding and of a method; an accelerator without its maker.

    Examples
    --------
    >>> words_of(Cells({"zero_stage": "DeepSpeed stage 3"}), "zero_stage")
    '3 DeepSpeed stage 3'
    >>> words_of(Cells({"precision": "bf16 (FP8 off)"}), "precision")
    'bf16 bf16 ( )'
    """
    text = sharding_of(cells) if column == "zero_stage" else cells.text(column)
    if column == "accelerator":
        return re.sub(table("hardware")["makers"], "", text, flags=re.IGNORECASE)
    if column == "precision":
        text = affirmed(text)
    if column not in _MEANT or not text or text.isdigit():
        return text
    name, section, key = _MEANT[column]
    try:
        return f"{lookup(name, section, text)[key]} {text}"
    except (CalibrationError, KeyError):
        return text  # what is refused says so where the scenario is made
