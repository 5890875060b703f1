"""The document of a page: titles, summaries as ``run --json`` has them, their sections, last of all
those of what stands behind the figures: assumptions, constants, warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mpsim import structs
from mpsim.formats.ledger import flat
from mpsim.parallel import AXIS_NAMES
from mpsim.plot import palette
from mpsim.plot.studies import comparison_chart
from mpsim.report.blocks import (
    Block,
    Cell,
    Column,
    Note,
    Quantity,
    Section,
    Sections,
    Table,
    plain,
    setting_text,
)
from mpsim.report.choices import what_if
from mpsim.report.service import SERVICE
from mpsim.report.step import STEP
from mpsim.report.studies import study_page
from mpsim.result import Result
from mpsim.result.result import JobResult
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.scenario.settled import settled_by
from mpsim.serving import ServiceResult
from mpsim.shipped import say
from mpsim.stamp import stamp
from mpsim.study import Sweep, compare
from mpsim.study.rows import title_of, unit_of

AnyResult: TypeAlias = Result | ServiceResult
"""A result of any job."""
Page: TypeAlias = dict[str, Any]
"""Plain data of a page, or of a part of one."""


def page_of(result: AnyResult, *, whole: bool = True, number: int = 0) -> Page:
    """One result as a part of a document. `whole`: false leaves out what takes longer to work out
    than a slider may wait. `number`: its place among the parts.
    """
    sections = (
        SERVICE.of(result, whole=whole)
        if isinstance(result, ServiceResult)
        else STEP.of(result, whole=whole)
    )
    sections += ASSUMED.of(result)
    scenario = result.scenario
    return {
        "id": f"part-{number}",
        "title": str(result.summary["scenario"]),
        "about": str(scenario),
        "digest": scenario.digest,
        "summary": plain(result.summary),
        "sections": [section.to_json() for section in sections],
    }


def report(
    results: Sequence[AnyResult | Figures],
    *,
    title: str = "",
    sweeps: Sequence[tuple[Scenario, Sweep]] = (),
) -> Page:
    """The document of some results: several of a kind side by side, and each by itself.

    Parameters
    ----------
    results : sequence of Result, ServiceResult or mapping
        A mapping is what ``mpsim search --json`` or ``mpsim sweep --json`` printed.
    title : str
        Left out: their names.
    sweeps : sequence of (Scenario, Sweep)
        Scenarios and their sweeps, whose rows the page's sliders choose among.
    """
    parts = [
        study_page(result, number=number)
        if isinstance(result, Mapping)
        else page_of(result, number=number)
        for number, result in enumerate(results)
    ]
    single = [number for number, result in enumerate(results) if not isinstance(result, Mapping)]
    summaries = [parts[number]["summary"] for number in single]
    names = _distinct([str(parts[number]["title"]) for number in single])
    shared = [*_comparison(summaries, names), *(_what_if(*each) for each in sweeps)]
    return document(parts, title=title, shared=shared)


def _comparison(summaries: Sequence[Figures], names: Sequence[str]) -> list[Section]:
    """Every result against the first; nothing for one, or for two kinds of job."""
    if len(summaries) < 2 or len({summary.get("job") for summary in summaries}) > 1:
        return []
    comparisons = [compare(summaries[0], other) for other in summaries[1:]]
    rows: list[list[Cell]] = []
    for i, difference in enumerate(comparisons[0].figures):
        figures = [comparison.figures[i] for comparison in comparisons]
        unit = unit_of(difference.name)
        sizes = [difference.a, *(figure.b for figure in figures)]
        cells = [Quantity(size, unit) for size in sizes]
        rows.append([title_of(difference.name), *cells, *(figure.relative for figure in figures)])
    columns = [
        Column("quantity"),
        *(Column(name, "mixed") for name in names),
        *(Column(f"{name} against the first", "share") for name in names[1:]),
    ]
    blocks = [comparison_chart(*comparisons, names=names), Table("Results", columns, rows)]
    lead = f"Everything is set against {names[0]}."
    return [Section("comparison", "Side by side", lead, blocks)]


def _what_if(scenario: Scenario, sweep: Sweep) -> Section:
    """The sliders over the rows of a sweep, as the scenario has them at first."""
    known = settings_of(scenario)
    return what_if(
        ((row.values, row.summary, row.reason or "") for row in sweep),
        start={key: known[key] for key in sweep.keys if key in known},
        lead=say("report.simulated", scenario=sweep.scenario),
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, those that occur before with a number."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        result.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return result


def document(
    parts: Sequence[Page], *, title: str = "", shared: Sequence[Section] = (), **more: object
) -> Page:
    """The whole of a page as plain data.

    `parts`: of `page_of`. `title`: left out: the names of the parts. `shared`: sections about all
    parts together, shown before them. `**more`: further keys, which must be plain data.
    """
    names = dict.fromkeys(str(part["title"]) for part in parts)
    return {
        "mpsim": stamp(),
        "title": title or ", ".join(names),
        "palette": _palette(),
        "shared": [section.to_json() for section in shared],
        "parts": list(parts),
        **more,
    }


def _palette() -> dict[str, object]:
    """Colours by word, for light pages and for dark ones."""
    dark_of = {palette.colour_of(word): colour for word, colour in palette.DARK_PAGE.items()}
    light = {
        f"{table}.{name}".strip("."): colour
        for table, colours in palette.TABLES.items()
        for name, colour in colours.items()
    }
    return {
        "colours": {word: [colour, dark_of.get(colour, colour)] for word, colour in light.items()},
        "series": [[colour, dark_of.get(colour, colour)] for colour in palette.SERIES],
        "labels": dict(palette.LABELS),
        "serving": dict(palette.SERVING),
        "axes": list(AXIS_NAMES),
    }


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
    written, settled = flat(scenario.source.data), settled_by(scenario.source.data)
    filled = [
        (key, setting_text(value), _origin(key, written, settled))
        for key, value in flat(scenario.resolved()).items()
        if key.partition(".")[0] in _SECTIONS and key not in written
    ]
    habits = [
        (f"framework.{key}", setting_text(value), f"habit of {scenario.framework.preset}")
        for key, value in flat(structs.asdict(scenario.software)).items()
        if key.rpartition(".")[2] not in _NO_HABITS and f"framework.{key}" not in written
    ]
    return {
        "Left open": [*(row for row in filled if row[2] == "default"), *habits],
        "From presets": [row for row in filled if row[2] != "default"],
        "Written": [(key, setting_text(value)) for key, value in written.items()],
    }


def _origin(key: str, written: Mapping[str, object], settled: Mapping[str, object]) -> str:
    """Which preset gives a setting that nobody wrote; ``default`` where none does."""
    section = key.partition(".")[0]
    if key in settled:
        section = "model" if section == "serving" else "framework"
    name = written.get(section, written.get(f"{section}.preset"))
    given = section in ("model", "cluster", "framework") and isinstance(name, str)
    return f"preset {name}" if given else "default"


def _assumed_lead(result: JobResult) -> str:
    left_open, presets, stated = map(len, _settings(result.scenario).values())
    words = f"{stated} settings are written in the scenario; {left_open} were left open and taken"
    return f"{words} as shown, {presets} come from presets it names."


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
