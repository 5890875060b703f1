"""Sections of a search, from what ``mpsim search --json`` printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpsim.errors import ScenarioError
from mpsim.plot.chart import Axis, Bars, Lines, scattered
from mpsim.plot.step import parts_of
from mpsim.report.blocks import Block, Column, Note, Section, Table
from mpsim.report.choices import what_if
from mpsim.study.search.found import Found
from mpsim.study.search.outcome import REASONS
from mpsim.units import Dimension, format_quantity

__all__ = ["is_search", "search_page"]

_NEEDED = ("scenario", "objective", "rows", "front", "counts", "legal", "complete")
_ROW = ("values", "step_time_s", "memory_bytes", "accelerators", "tokens")


def is_search(data: object) -> bool:
    """Whether plain data is the outcome of a search for layouts of a training step."""
    return isinstance(data, Mapping) and all(key in data for key in _NEEDED)


def search_page(data: Mapping[str, Any], *, number: int = 0) -> dict[str, Any]:
    """One search as a part of a document.

    Parameters
    ----------
    data : mapping
        An object that ``mpsim search --json`` printed.
    number : int
        Its place among the parts.

    Raises
    ------
    ScenarioError
        If it is another object.
    """
    if not is_search(data):
        raise ScenarioError(
            f"is not a search: it lacks {', '.join(key for key in _NEEDED if key not in data)}; give what 'mpsim search --json' printed"
        )
    leaders, front = ([_found(row) for row in data[key]] for key in ("rows", "front"))
    title = str(data["scenario"])
    sections = [
        _headline(data, leaders),
        *([_front(leaders, front)] if leaders else []),
        *([_parts(leaders)] if leaders else []),
        *(
            [
                what_if(
                    ((row.values, row.summary, "") for row in leaders if row.summary is not None),
                    lead="Layouts that the search kept a whole result of; the numbers are those of 'mpsim run --json'.",
                )
            ]
            if sum(row.summary is not None for row in leaders) > 1
            else []
        ),
    ]
    best = leaders[0].summary if leaders else None
    return {
        "id": f"part-{number}",
        "title": f"search of {title}",
        "about": f"{data['legal']:,} legal layouts of {title}, ranked by {data['objective']}.",
        "digest": "",
        "summary": dict(best or {}),
        "sections": [section.to_json() for section in sections],
    }


def _found(row: object) -> Found:
    """A row of the outcome, checked."""
    if not isinstance(row, Mapping) or any(key not in row for key in _ROW):
        raise ScenarioError(
            f"a row of the search lacks one of {', '.join(_ROW)}; give what 'mpsim search --json' printed"
        )
    summary = row.get("summary")
    return Found(
        values=dict(row["values"]),
        step_time_s=float(row["step_time_s"]),
        bound_s=float(row.get("bound_s") or 0.0),
        memory_bytes=float(row["memory_bytes"]),
        accelerators=int(row["accelerators"]),
        tokens=int(row["tokens"]),
        price_per_hour=row.get("price_per_hour"),
        summary=summary if isinstance(summary, Mapping) else None,
    )


def _headline(data: Mapping[str, Any], leaders: Sequence[Found]) -> Section:
    blocks: list[Block] = []
    if leaders:
        best = leaders[0]
        blocks.append(
            Note(
                f"The best: {best.name}: {format_quantity(best.step_time_s, Dimension.TIME)} a step, "
                f"{format_quantity(best.memory_bytes, Dimension.BYTES)} on the fullest rank.",
                "good",
            )
        )
    ties = data.get("ties")
    if ties:
        blocks.append(
            Note(
                f"No clear winner: {ties} other layouts tie with the best within the error of such differences."
            )
        )
    blocks.append(Note(_proof(data), "plain" if data["complete"] else "warning"))
    counts = [(REASONS.get(name, name), count) for name, count in data["counts"].items()]
    blocks.append(
        Table(
            "Layouts by what became of them",
            (Column("what became of them"), Column("layouts", "count")),
            counts,
        )
    )
    return Section("headline", "Headline", f"{data['legal']:,} legal layouts.", blocks)


def _proof(data: Mapping[str, Any]) -> str:
    """How far it is proved that nothing is better."""
    if data["complete"]:
        return (
            "Every other layout was simulated or ruled out by a bound: none can be among the best."
        )
    gap = data.get("gap")
    if gap is None:
        return "Not all layouts were looked at: a better one may be among the others."
    return f"Not all layouts were simulated: by its bound one of the others may be up to {100 * gap:.1f} % better."


def _front(leaders: Sequence[Found], front: Sequence[Found]) -> Section:
    """Step time against memory, and the best as a table."""

    def points(rows: Sequence[Found]) -> list[tuple[str, float, float]]:
        return [(row.name, row.step_time_s, row.memory_bytes) for row in rows]

    quickest = min([*leaders, *front], key=lambda row: row.step_time_s)
    smallest = min([*leaders, *front], key=lambda row: row.memory_bytes)
    rows = [
        (
            row.name,
            row.step_time_s,
            row.tokens_per_s_per_accelerator,
            (row.summary or {}).get("mfu"),
            row.memory_bytes,
            (row.summary or {}).get("bubble_fraction"),
            row.cost_per_step,
        )
        for row in leaders
    ]
    columns = (
        *(Column("layout"), Column("step", "s"), Column("tokens/s per accelerator", "1")),
        *(Column("MFU", "share"), Column("memory", "B"), Column("bubble", "share")),
        Column("price", "USD"),
    )
    return Section(
        "best",
        "Best layouts",
        "The shortest steps, and what less memory costs.",
        [
            Lines(
                title="Step time and memory",
                alt=f"Quickest: {quickest.name}; least memory: {smallest.name}.",
                series=scattered(
                    {
                        "Pareto front: no other is better in time, memory and price": points(front),
                        "among the best": points(leaders),
                    }
                ),
                x=Axis(name="step time", unit="s"),
                y=Axis(name="memory of the fullest rank", unit="B"),
            ),
            Table("The best layouts", columns, rows),  # type: ignore[arg-type] # figures are numbers or none
        ],
    )


def _parts(leaders: Sequence[Found]) -> Section:
    """Where the time of the best goes."""
    known = [row for row in leaders if isinstance((row.summary or {}).get("breakdown_s"), Mapping)]
    times: dict[str, list[float]] = {}
    for place, row in enumerate(known):
        parts: Any = (row.summary or {})["breakdown_s"]
        for part, seconds in parts.items():
            times.setdefault(part, [0.0] * len(known))[place] = float(seconds)
    bars = Bars(
        title="Parts of the step",
        alt=f"The {len(known)} best layouts, the best at the top.",
        names=[f"{place}. {row.name}" for place, row in enumerate(known, start=1)],
        parts=parts_of(times),
        value=Axis(name="time", unit="s"),
    )
    return Section(
        "time", "Where the time goes", "Why the best are the best.", [bars] if known else []
    )
