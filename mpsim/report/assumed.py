"""Sections that say what stands behind the figures: what was assumed, constants with their sources, warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from mpsim.report.blocks import Column, Note, Section, Table
from mpsim.scenario import Scenario

__all__ = ["assumed_section", "constants_section", "settings_of", "warnings_section"]

_SECTIONS = ("model", "cluster", "parallelism", "schedule", "training", "serving", "simulation")
_NO_HABITS = ("name", "title", "source", "as_of")


def assumed_section(scenario: Scenario) -> Section:
    """Every setting that the scenario leaves open and what it is taken to be; then what was written."""
    written = dict(_leaves(scenario.source.data))
    filled = {
        key: value
        for key, value in _leaves({**scenario.resolved()})
        if key.partition(".")[0] in _SECTIONS and key not in written
    }
    habits = {
        f"framework.{key}": value
        for key, value in _leaves(dataclasses.asdict(scenario.software))
        if key.rpartition(".")[2] not in _NO_HABITS
    }
    preset = scenario.framework.preset
    open_keys = [(key, _text(value), _origin(key, written)) for key, value in filled.items()]
    assumed = [
        *((key, text, origin) for key, text, origin in open_keys if origin == "default"),
        *(
            (key, _text(value), f"habit of {preset}")
            for key, value in habits.items()
            if key not in written
        ),
    ]
    presets = [row for row in open_keys if row[2] != "default"]
    columns = (Column("setting"), Column("taken as"), Column("from"))
    stated = [(key, _text(value)) for key, value in written.items()]
    return Section(
        "assumed",
        "What was assumed",
        f"{len(stated)} settings are written in the scenario; {len(assumed)} were left open and taken as shown, {len(presets)} come from presets it names.",
        [
            Table(f"Left open ({len(assumed)})", columns, assumed, folded=True),
            Table(f"From presets ({len(presets)})", columns, presets, folded=True),
            Table(
                f"Written ({len(stated)})",
                (Column("setting"), Column("value")),
                stated,
                folded=True,
            ),
        ],
    )


def settings_of(scenario: Scenario) -> dict[str, object]:
    """Every setting by dotted key, as it was written, or else as it is resolved."""
    resolved = dict(_leaves(scenario.resolved()))
    return {**resolved, **dict(_leaves(scenario.source.data))}


def _origin(key: str, written: Mapping[str, object]) -> str:
    """Which preset gives a setting that nobody wrote; ``default`` where none does."""
    section = key.partition(".")[0]
    name = written.get(section, written.get(f"{section}.preset"))
    if section in ("model", "cluster") and isinstance(name, str):
        return f"preset {name}"
    return "default"


def _leaves(data: object, before: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of nested mappings; lists are values."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{before}.{key}" if before else str(key))
    elif before:
        yield before, data


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


def constants_section(summary: Mapping[str, Any]) -> Section:
    """Every constant behind the figures, with its source."""
    known = summary.get("calibration")
    if not known:
        return Section("constants", "Constants", "", [])
    counts = [
        f"{known[key]} {words}"
        for key, words in (
            ("calibrated", "fitted on measurements"),
            ("family_default", "taken over from like hardware"),
            ("datasheet", "of datasheets"),
        )
        if known[key]
    ]
    columns = [Column(name) for name in ("constant", "value", "unit", "status", "source", "as of")]
    rows = [
        (
            each["name"],
            "no limit" if each["value"] is None else f"{each['value']:.6g}",
            "" if each["unit"] == "1" else each["unit"],
            each["status"],
            each["source"],
            each["as_of"],
        )
        for each in known["constants"]
    ]
    return Section(
        "constants",
        "Constants and their sources",
        f"The results rest on {', '.join(counts)}.",
        [Table(f"Constants ({len(rows)})", columns, rows, folded=True)],
    )


def warnings_section(summary: Mapping[str, Any]) -> Section:
    """Everything that a reader should be warned of."""
    told = [Note(text, "warning") for text in summary["warnings"]]
    count = f"{len(told)} of them." if told else "There are none."
    return Section("warnings", "Warnings", count, told or [Note("No warnings.", "good")])
