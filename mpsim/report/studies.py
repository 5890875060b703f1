"""Sections of studies from what the command line printed: sweeps, searches for layouts, searches for services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpsim.errors import ScenarioError
from mpsim.plot.chart import Axis, Lines, scattered
from mpsim.report.blocks import Cell, Column, Note, Section, Table, at
from mpsim.report.choices import MOST, what_if
from mpsim.report.search import is_search, search_page
from mpsim.study.search.service_outcome import SERVICE_REASONS

__all__ = ["is_study", "study_page"]

_SWEEP = ("scenario", "keys", "rows", "ties")
_SERVICES = ("scenario", "objective", "rows", "front", "counts", "layouts", "complete")
_ROW = ("values", "summary")
_PRINTED = "what 'mpsim sweep --json' or 'mpsim search --json' printed"


def is_study(data: object) -> bool:
    """Whether plain data is a study that a page can show."""
    return isinstance(data, Mapping) and _page_for(data) is not None


def study_page(data: Mapping[str, Any], *, number: int = 0) -> dict[str, Any]:
    """One study as a part of a document.

    Parameters
    ----------
    data : mapping
        An object that ``mpsim sweep --json`` or ``mpsim search --json`` printed.
    number : int
        Its place among the parts.

    Raises
    ------
    ScenarioError
        If it is another object.
    """
    page = _page_for(data)
    if page is None:
        raise ScenarioError(f"is no study; give {_PRINTED}")
    return page(data, number)


def _page_for(data: Mapping[str, Any]) -> Callable[[Mapping[str, Any], int], dict[str, Any]] | None:
    if is_search(data):
        return lambda given, number: search_page(given, number=number)
    if all(key in data for key in _SERVICES) and data.get("job") == "serving":
        return _services_page
    return _sweep_page if all(key in data for key in _SWEEP) else None


def _rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows of a study, checked."""
    rows: Any = data["rows"]
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ScenarioError(f"a row of the study lacks values or a summary; give {_PRINTED}")
    return rows


def _is_row(row: Any) -> bool:
    known = isinstance(row, Mapping) and all(key in row for key in _ROW)
    return (
        known and isinstance(row["values"], Mapping) and isinstance(row["summary"], Mapping | None)
    )


def _part(
    data: Mapping[str, Any], number: int, title: str, about: str, sections: Sequence[Section]
) -> dict[str, Any]:
    return {
        "id": f"part-{number}",
        "title": f"{title} of {data['scenario']}",
        "about": about,
        "digest": "",
        "summary": {},
        "sections": [section.to_json() for section in sections if section.blocks],
    }


def _sweep_page(data: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A sweep: its rows as points, as a table and under sliders."""
    rows, keys = _rows(data), [str(key) for key in data["keys"]]
    done = [row for row in rows if row["summary"] is not None]
    serves = any(row["summary"].get("job") == "serving" for row in done)
    each = "output_tokens_per_s_per_accelerator" if serves else "tokens_per_s_per_accelerator"
    usable = [row for row in done if row.get("reason") is None]
    blocks: list[object] = []
    if usable:
        best = max(usable, key=lambda row: float(row["summary"][each]))
        blocks.append(
            Note(
                f"Most {'output ' if serves else ''}tokens/s of an accelerator: {_words(best)}.",
                "good",
            )
        )
        blocks.append((_service_points if serves else _step_points)(usable))
    figures = _SERVICE_COLUMNS if serves else _STEP_COLUMNS
    table = Table(
        f"Rows ({len(rows)})",
        [*map(Column, keys), *figures.values(), Column("note")],
        [
            [
                *(_cell(row["values"].get(key)) for key in keys),
                *(_figure(row["summary"], name) for name in figures),
                str(row.get("reason") or ""),
            ]
            for row in rows
        ],
        folded=len(rows) > _SHOWN,
    )
    lead = f"{len(usable)} of {len(rows)} rows could be simulated and fit."
    sections = [Section("headline", "Headline", lead, [*blocks, table])]
    if 1 < len(rows) <= MOST and done:
        answers = ((row["values"], row["summary"], str(row.get("reason") or "")) for row in rows)
        told = "Each row of the sweep, as 'mpsim run --json' prints it."
        sections.append(what_if(answers, lead=told))
    return _part(data, number, "sweep", f"{len(rows):,} rows over {', '.join(keys)}.", sections)


def _services_page(data: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A search for services: the best, their latencies and throughput, under sliders."""
    rows = _rows(data)
    blocks: list[object] = []
    if rows:
        blocks.append(Note(f"The best: {rows[0].get('name') or _words(rows[0])}.", "good"))
    proof = "Every other one was simulated or ruled out by a bound." if data["complete"] else ""
    blocks.append(
        Note(
            proof or "The search ended before all were looked at.", "plain" if proof else "warning"
        )
    )
    counts = [(SERVICE_REASONS.get(name, name), count) for name, count in data["counts"].items()]
    columns = (Column("what became of them"), Column("layouts", "count"))
    blocks.append(Table("Layouts by what became of them", columns, counts))
    sections = [Section("headline", "Headline", f"{data['layouts']:,} layouts.", blocks)]
    if rows:
        table = Table(
            "The best",
            [Column("layout"), *_SERVICE_COLUMNS.values()],
            [
                [
                    str(row.get("name") or _words(row)),
                    *(_figure(row["summary"], name) for name in _SERVICE_COLUMNS),
                ]
                for row in rows
            ],
        )
        told = "What a user gets, and what an accelerator gives."
        sections.append(Section("best", "The best", told, [_service_points(rows), table]))
    if len(rows) > 1:
        answers = ((_flat(row["values"]), row["summary"], "") for row in rows)
        sections.append(what_if(answers, lead="The services that the search found best."))
    return _part(data, number, "search", f"Ranked by {data['objective']}.", sections)


_SHOWN = 30  # rows of a table that stand open
_STEP_COLUMNS = {
    "step_time_s": Column("step", "s"),
    "tokens_per_s_per_accelerator": Column("tokens/s per accelerator", "1"),
    "mfu": Column("MFU", "share"),
    "bubble_fraction": Column("bubble", "share"),
    "peak_memory_bytes": Column("memory", "B"),
}
_SERVICE_COLUMNS = {
    "ttft_s.p99": Column("TTFT p99", "s"),
    "tpot_s.p99": Column("TPOT p99", "s"),
    "output_tokens_per_s": Column("tokens/s", "1"),
    "output_tokens_per_s_per_accelerator": Column("tokens/s per accelerator", "1"),
    "goodput_per_s": Column("goodput (requests/s)", "1"),
}


def _step_points(rows: Sequence[Mapping[str, Any]]) -> Lines:
    """Step time against memory."""
    return _points(
        rows,
        "Step time and memory",
        ("step_time_s", Axis(name="step time", unit="s")),
        ("peak_memory_bytes", Axis(name="memory of the fullest rank", unit="B")),
    )


def _service_points(rows: Sequence[Mapping[str, Any]]) -> Lines:
    """Throughput of an accelerator against that of a user."""
    return _points(
        rows,
        "Users and accelerators",
        ("output_tokens_per_s_per_user", Axis(name="tokens/s of a user")),
        ("output_tokens_per_s_per_accelerator", Axis(name="tokens/s of an accelerator")),
    )


def _points(
    rows: Sequence[Mapping[str, Any]], title: str, x: tuple[str, Axis], y: tuple[str, Axis]
) -> Lines:
    points = [
        (
            str(row.get("name") or _words(row)),
            float(row["summary"].get(x[0]) or 0.0),
            float(row["summary"].get(y[0]) or 0.0),
        )
        for row in rows
    ]
    alt = f"{len(points)} rows by {x[1].name} and {y[1].name}; the table has their names."
    return Lines(title=title, alt=alt, series=scattered({"rows": points}), x=x[1], y=y[1])


def _figure(summary: Mapping[str, Any] | None, key: str) -> Cell:
    """A figure of a summary by its dotted key; None where there is none."""
    value = at(summary, key)
    return value if isinstance(value, int | float) else None


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, object]:
    """Values by dotted key, those of pools too."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{before}.{key}" if before else str(key)
        flat |= _flat(value, name) if isinstance(value, Mapping) else {name: value}
    return flat


def _words(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in row["values"].items())


def _cell(value: object) -> Cell:
    return "none" if value is None else str(value)
