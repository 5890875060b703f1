"""Sections that say what stands behind the figures: what was assumed, constants with their sources, warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsim.formats.ledger import flat
from mpsim.report.blocks import Block, Column, Entry, Note, Table
from mpsim.result.result import JobResult
from mpsim.scenario import Scenario

__all__ = ["ASSUMED", "settings_of"]

_SECTIONS = ("model", "cluster", "parallelism", "schedule", "training", "serving", "simulation")
_NO_HABITS = ("name", "title", "source", "as_of")
_STATUS = {
    "calibrated": "fitted on measurements",
    "family_default": "taken over from like hardware",
    "datasheet": "of datasheets",
}


def settings_of(scenario: Scenario) -> dict[str, object]:
    """Every setting by dotted key, as it was written, or else as it is resolved."""
    return flat(scenario.resolved()) | flat(scenario.source.data)


class _Settings(NamedTuple):
    """Settings by where they come from, each a row: key, value, and for what nobody wrote its origin."""

    left_open: Sequence[tuple[str, ...]]
    presets: Sequence[tuple[str, ...]]
    written: Sequence[tuple[str, ...]]


def _settings(scenario: Scenario) -> _Settings:
    """Every setting that the scenario leaves open and what it is taken to be; then what was written."""
    written = flat(scenario.source.data)
    filled = [
        (key, _text(value), _origin(key, written))
        for key, value in flat(scenario.resolved()).items()
        if key.partition(".")[0] in _SECTIONS and key not in written
    ]
    habits = [
        (f"framework.{key}", _text(value), f"habit of {scenario.framework.preset}")
        for key, value in flat(dataclasses.asdict(scenario.software)).items()
        if key.rpartition(".")[2] not in _NO_HABITS and f"framework.{key}" not in written
    ]
    return _Settings(
        [*(row for row in filled if row[2] == "default"), *habits],
        [row for row in filled if row[2] != "default"],
        [(key, _text(value)) for key, value in written.items()],
    )


def _origin(key: str, written: Mapping[str, object]) -> str:
    """Which preset gives a setting that nobody wrote; ``default`` where none does."""
    section = key.partition(".")[0]
    name = written.get(section, written.get(f"{section}.preset"))
    if section in ("model", "cluster") and isinstance(name, str):
        return f"preset {name}"
    return "default"


def _text(value: object) -> str:
    """A setting as a file would say it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def _assumed_lead(result: JobResult) -> str:
    of = _settings(result.scenario)
    return (
        f"{len(of.written)} settings are written in the scenario; {len(of.left_open)} were left open and taken as shown, "
        f"{len(of.presets)} come from presets it names."
    )


def _assumed(result: JobResult) -> Iterator[Block]:
    of, columns = (
        _settings(result.scenario),
        (Column("setting"), Column("taken as"), Column("from")),
    )
    yield Table(f"Left open ({len(of.left_open)})", columns, of.left_open, folded=True)
    yield Table(f"From presets ({len(of.presets)})", columns, of.presets, folded=True)
    stated = (Column("setting"), Column("value"))
    yield Table(f"Written ({len(of.written)})", stated, of.written, folded=True)


def _constants_lead(result: JobResult) -> str:
    known = result.summary["calibration"]
    counts = [f"{known[key]} {words}" for key, words in _STATUS.items() if known[key]]
    return f"The results rest on {', '.join(counts)}."


def _constants(result: JobResult) -> Iterator[Block]:
    """Every constant behind the figures, with its source; nothing where the summary has none."""
    known = result.summary.get("calibration")
    if known:
        rows = [
            (
                each["name"],
                "no limit" if each["value"] is None else f"{each['value']:.6g}",
                "" if each["unit"] == "1" else each["unit"],
                *(each[key] for key in ("status", "source", "as_of")),
            )
            for each in known["constants"]
        ]
        names = ("constant", "value", "unit", "status", "source", "as of")
        yield Table(f"Constants ({len(rows)})", [*map(Column, names)], rows, folded=True)


def _warnings(result: JobResult) -> Sequence[Block]:
    warnings = [Note(text, "warning") for text in result.summary["warnings"]]
    return warnings or [Note("No warnings.", "good")]


def _warnings_lead(result: JobResult) -> str:
    count = len(result.summary["warnings"])
    return f"{count} of them." if count else "There are none."


ASSUMED: tuple[Entry[JobResult], ...] = (
    Entry("assumed", "What was assumed", _assumed_lead, _assumed),
    Entry("constants", "Constants and their sources", _constants_lead, _constants),
    Entry("warnings", "Warnings", _warnings_lead, _warnings),
)
"""Sections that end the part of every result."""
