"""Sections of what stands behind the figures: assumptions, constants, warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from mpsim.formats.ledger import flat
from mpsim.report.blocks import Block, Column, Note, Sections, Table, setting_text
from mpsim.result.result import JobResult
from mpsim.scenario import Scenario

_SECTIONS = ("model", "cluster", "parallelism", "schedule", "training", "serving", "simulation")
_NO_HABITS = ("name", "title", "source", "as_of")
_STATUS = {
    "calibrated": "fitted on measurements",
    "family_default": "taken over from like hardware",
    "datasheet": "of datasheets",
}

ASSUMED: Sections[JobResult] = Sections()  # sections that end the part of every result


def settings_of(scenario: Scenario) -> dict[str, object]:
    """Every setting by dotted key, as it was written, or else as it is resolved."""
    return flat(scenario.resolved()) | flat(scenario.source.data)


def _settings(scenario: Scenario) -> dict[str, list[tuple[str, ...]]]:
    """Every setting by where it comes from: key, value, and the origin of unwritten ones."""
    written = flat(scenario.source.data)
    filled = [
        (key, setting_text(value), _origin(key, written))
        for key, value in flat(scenario.resolved()).items()
        if key.partition(".")[0] in _SECTIONS and key not in written
    ]
    habits = [
        (f"framework.{key}", setting_text(value), f"habit of {scenario.framework.preset}")
        for key, value in flat(dataclasses.asdict(scenario.software)).items()
        if key.rpartition(".")[2] not in _NO_HABITS and f"framework.{key}" not in written
    ]
    return {
        "Left open": [*(row for row in filled if row[2] == "default"), *habits],
        "From presets": [row for row in filled if row[2] != "default"],
        "Written": [(key, setting_text(value)) for key, value in written.items()],
    }


def _origin(key: str, written: Mapping[str, object]) -> str:
    """Which preset gives a setting that nobody wrote; ``default`` where none does."""
    section = key.partition(".")[0]
    name = written.get(section, written.get(f"{section}.preset"))
    if section in ("model", "cluster") and isinstance(name, str):
        return f"preset {name}"
    return "default"


def _assumed_lead(result: JobResult) -> str:
    left_open, presets, stated = map(len, _settings(result.scenario).values())
    return (
        f"{stated} settings are written in the scenario; {left_open} were left open and taken as"
        f" shown, {presets} come from presets it names."
    )


@ASSUMED.add("assumed", "What was assumed", _assumed_lead)
def _assumed(result: JobResult) -> Iterator[Block]:
    for title, rows in _settings(result.scenario).items():
        names = ("setting", "value") if title == "Written" else ("setting", "taken as", "from")
        yield Table(f"{title} ({len(rows)})", list(map(Column, names)), rows, folded=True)


def _constants_lead(result: JobResult) -> str:
    known = result.summary["calibration"]
    counts = [f"{known[key]} {words}" for key, words in _STATUS.items() if known[key]]
    return f"The results rest on {', '.join(counts)}."


@ASSUMED.add("constants", "Constants and their sources", _constants_lead)
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


def _warnings_lead(result: JobResult) -> str:
    count = len(result.summary["warnings"])
    return f"{count} of them." if count else "There are none."


@ASSUMED.add("warnings", "Warnings", _warnings_lead)
def _warnings(result: JobResult) -> Sequence[Block]:
    warnings = [Note(text, "warning") for text in result.summary["warnings"]]
    return warnings or [Note("No warnings.", "good")]
