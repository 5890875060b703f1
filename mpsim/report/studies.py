"""Sections of studies from what the command line printed: sweeps, searches for layouts, searches for services."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpsim.errors import ScenarioError
from mpsim.formats.ledger import flat
from mpsim.plot.chart import Axis, Bars, Lines
from mpsim.plot.fronts import Point, layouts_chart, lowest, services_chart
from mpsim.plot.step import parts_of
from mpsim.report.blocks import Block, Cell, Column, Note, Section, Table, at
from mpsim.report.choices import MOST, what_if
from mpsim.study.search.found import Found
from mpsim.study.search.outcome import REASONS
from mpsim.study.search.service_outcome import SERVICE_REASONS
from mpsim.units import Dimension, format_quantity

__all__ = ["is_study", "study_page"]

_PRINTED = "what 'mpsim sweep --json' or 'mpsim search --json' printed"
_SHOWN = 30  # rows of a table that stand open, and bars of parts
_LAYOUT = ("values", "step_time_s", "memory_bytes", "accelerators", "tokens")
_STEPS_SHOW = "The shortest steps, and what less memory costs."
_SERVICES_SHOW = "What a user gets, and what an accelerator gives."
_STEP_COLUMNS = {
    "step_time_s": Column("step", "s"),
    "tokens_per_s_per_accelerator": Column("tokens/s per accelerator", "1"),
    "mfu": Column("MFU", "share"),
    "bubble_fraction": Column("bubble", "share"),
    "peak_memory_bytes": Column("memory", "B"),
    "cost_per_step": Column("price", "USD"),
}
_SERVICE_COLUMNS = {
    "ttft_s.p99": Column("TTFT p99", "s"),
    "tpot_s.p99": Column("TPOT p99", "s"),
    "output_tokens_per_s": Column("tokens/s", "1"),
    "output_tokens_per_s_per_accelerator": Column("tokens/s per accelerator", "1"),
    "goodput_per_s": Column("goodput (requests/s)", "1"),
}


class _Row(NamedTuple):
    """Something that a study simulated, or could not: its name, values by dotted key, and the figures that are known of it."""

    name: str
    values: Mapping[str, object]
    figures: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    reason: str = ""

    def point(self, x: str, y: str) -> Point:
        """Where two of its figures put it."""
        return Point(self.name, *(float(self.figures.get(key) or 0.0) for key in (x, y)))


class _Study(NamedTuple):
    """A study on a page: words, its rows, the charts and tables of them."""

    word: str
    about: str
    lead: str
    notes: Sequence[Block]
    chart: Lines | None
    shows: str
    table: Table
    rows: Sequence[_Row]
    sliders: str


def is_study(data: object) -> bool:
    """Whether plain data is a study that a page can show."""
    return isinstance(data, Mapping) and _reader_of(data) is not None


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
    reader = _reader_of(data)
    if reader is None:
        raise ScenarioError(f"is no study; give {_PRINTED}")
    study = reader(data)
    title = f"{study.word} of {data['scenario']}"
    best = study.rows[0].summary if study.word == "search" and study.rows else None
    return {
        "id": f"part-{number}",
        "title": title,
        "about": study.about,
        "digest": "",
        "summary": dict(best or {}),
        "sections": [each.to_json() for each in _sections(study) if each.blocks],
    }


def _sections(study: _Study) -> Iterator[Section]:
    done = [row for row in study.rows if row.summary is not None]
    shown = [study.chart] if study.chart else []
    yield Section("headline", "Headline", study.lead, study.notes)
    yield Section(
        "best", study.table.title, study.shows, [*shown, study.table] if study.rows else []
    )
    yield Section("time", "Where the time goes", "Why the best are the best.", list(_parts(done)))
    if done and 1 < len(study.rows) <= MOST:
        rows = [row for row in study.rows if row.summary is not None or row.reason]
        answers = ((row.values, row.summary, row.reason) for row in rows)
        yield what_if(answers, lead=study.sliders)


def _parts(rows: Sequence[_Row]) -> Iterator[Bars]:
    """Where the time of the best steps goes; nothing of services."""
    known = [row for row in rows if at(row.summary, "breakdown_s") and not row.reason][:_SHOWN]
    times: dict[str, list[float]] = {}
    for place, row in enumerate(known):
        for part, seconds in at(row.summary, "breakdown_s").items():
            times.setdefault(part, [0.0] * len(known))[place] = float(seconds)
    if known:
        yield Bars(
            title="Parts of the step",
            alt=f"{len(known)} layouts, in the order of the table.",
            names=[f"{place}. {row.name}" for place, row in enumerate(known, start=1)],
            parts=parts_of(times),
            value=Axis(name="time", unit="s"),
        )


def _search(data: Mapping[str, Any]) -> _Study:
    """A search for layouts of a training step."""
    rows, front = (list(map(_layout, _checked(data[key], _LAYOUT))) for key in ("rows", "front"))
    points, own = ([_step(row) for row in each] for each in (rows, front))
    notes: list[Block] = []
    if rows:
        step = format_quantity(points[0].x, Dimension.TIME)
        memory = format_quantity(points[0].y, Dimension.BYTES)
        best = f"The best: {rows[0].name}: {step} a step, {memory} on the fullest rank."
        notes.append(Note(best, "good"))
    if data.get("ties"):
        notes.append(
            Note(
                f"No clear winner: {data['ties']} other layouts tie with the best within the error of such differences."
            )
        )
    notes.append(Note(_proof(data), "plain" if data["complete"] else "warning"))
    return _Study(
        "search",
        f"{data['legal']:,} legal layouts of {data['scenario']}, ranked by {data['objective']}.",
        f"{data['legal']:,} legal layouts.",
        [*notes, _tally(data["counts"], REASONS)],
        layouts_chart(list(dict.fromkeys([*points, *own])), own, points) if rows else None,
        _STEPS_SHOW,
        _table("The best layouts", ["layout"], rows, _STEP_COLUMNS),
        rows,
        "Layouts that the search kept a whole result of; the numbers are those of 'mpsim run --json'.",
    )


def _layout(row: Mapping[str, Any]) -> _Row:
    """A layout that a search simulated; only of the best there is a whole summary."""
    summary = row.get("summary")
    found = Found(
        values=row["values"],
        step_time_s=float(row["step_time_s"]),
        bound_s=0.0,
        memory_bytes=float(row["memory_bytes"]),
        accelerators=int(row["accelerators"]),
        tokens=int(row["tokens"]),
        price_per_hour=row.get("price_per_hour"),
    )
    figures = {
        **(summary or {}),
        "step_time_s": found.step_time_s,
        "peak_memory_bytes": found.memory_bytes,
        "tokens_per_s_per_accelerator": found.tokens_per_s_per_accelerator,
        "cost_per_step": found.cost_per_step,
    }
    return _Row(found.name, found.values, figures, summary)


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


def _services(data: Mapping[str, Any]) -> _Study:
    """A search for services: the best, their latencies and throughput."""
    rows = [_printed(row) for row in _checked(data["rows"])]
    notes: list[Block] = [Note(f"The best: {rows[0].name}.", "good")] if rows else []
    if data["complete"]:
        notes.append(Note("Every other one was simulated or ruled out by a bound."))
    else:
        notes.append(Note("The search ended before all were looked at.", "warning"))
    front = [_Row(str(row["layout"]), {}, row, None) for row in data["front"]]
    return _Study(
        "search",
        f"Ranked by {data['objective']}.",
        f"{data['layouts']:,} layouts.",
        [*notes, _tally(data["counts"], SERVICE_REASONS)],
        _services_chart(data["rows"], rows, front) if rows else None,
        _SERVICES_SHOW,
        _table("The best", ["layout"], rows, _SERVICE_COLUMNS),
        rows,
        "The services that the search found best.",
    )


def _sweep(data: Mapping[str, Any]) -> _Study:
    """A sweep: its rows as points, as a table and under sliders."""
    rows, keys = [_printed(row) for row in _checked(data["rows"])], list(map(str, data["keys"]))
    usable = [row for row in rows if row.summary is not None and not row.reason]
    serves = any(row.figures.get("job") == "serving" for row in rows)
    notes: list[Block] = []
    chart = None
    if usable:
        each = f"{'output_' * serves}tokens_per_s_per_accelerator"
        best = max(usable, key=lambda row: float(row.figures[each]))
        tokens = "output tokens/s" if serves else "tokens/s"
        notes.append(Note(f"Most {tokens} of an accelerator: {best.name}.", "good"))
        points = [_step(row) for row in usable]
        chart = (
            services_chart({"rows": [_user(row) for row in usable]})
            if serves
            else layouts_chart(points, lowest(points))
        )
    columns = _SERVICE_COLUMNS if serves else _STEP_COLUMNS
    return _Study(
        "sweep",
        f"{len(rows):,} rows over {', '.join(keys)}.",
        f"{len(usable)} of {len(rows)} rows could be simulated and fit.",
        notes,
        chart,
        _SERVICES_SHOW if serves else _STEPS_SHOW,
        _table(f"Rows ({len(rows)})", keys, rows, columns),
        rows,
        "Each row of the sweep, as 'mpsim run --json' prints it.",
    )


_READERS: Mapping[tuple[str, ...], Callable[[Mapping[str, Any]], _Study]] = {
    ("scenario", "objective", "rows", "front", "counts", "legal", "complete"): _search,
    ("scenario", "objective", "rows", "front", "counts", "layouts", "complete"): _services,
    ("scenario", "keys", "rows", "ties"): _sweep,
}
"""What reads a study, by the keys that it has."""


def _reader_of(data: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], _Study] | None:
    known = (reader for keys, reader in _READERS.items() if all(key in data for key in keys))
    return next(known, None)


def _checked(rows: Any, keys: Sequence[str] = ("values", "summary")) -> list[Mapping[str, Any]]:
    """Rows of a study that have what a row has."""
    if not isinstance(rows, list) or not all(_is_row(row, keys) for row in rows):
        raise ScenarioError(f"a row of the study lacks one of {', '.join(keys)}; give {_PRINTED}")
    return rows


def _is_row(row: Any, keys: Sequence[str]) -> bool:
    known = isinstance(row, Mapping) and all(key in row for key in keys)
    return (
        known
        and isinstance(row["values"], Mapping)
        and isinstance(at(row, "summary"), Mapping | None)
    )


def _printed(row: Mapping[str, Any]) -> _Row:
    """A row as sweeps and searches for services print it."""
    values = flat(row["values"])
    words = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())
    summary = row["summary"]
    return _Row(row.get("name") or words, values, summary or {}, summary, row.get("reason") or "")


def _step(row: _Row) -> Point:
    return row.point("step_time_s", "peak_memory_bytes")


def _user(row: _Row) -> Point:
    return row.point("output_tokens_per_s_per_user", "output_tokens_per_s_per_accelerator")


def _services_chart(
    data: Sequence[Mapping[str, Any]], rows: Sequence[_Row], front: Sequence[_Row]
) -> Lines:
    """Services by whether they keep the limits."""
    kept = [bool(row.get("meets_slo", True)) for row in data]
    groups = {
        name: [_user(row) for row, own in zip(rows, kept, strict=True) if own is keeps]
        for name, keeps in (("keeps the limits", True), ("misses the limits", False))
    }
    return services_chart(groups, [_user(row) for row in front])


def _tally(counts: Mapping[str, int], words: Mapping[str, str]) -> Table:
    columns = (Column("what became of them"), Column("layouts", "count"))
    rows = [(words.get(name, name), count) for name, count in counts.items()]
    return Table("Layouts by what became of them", columns, rows)


def _table(
    title: str, keys: Sequence[str], rows: Sequence[_Row], figures: Mapping[str, Column]
) -> Table:
    """Rows by their values at `keys`, or by their names where those are no keys, with figures and reasons."""
    noted = any(row.reason for row in rows)
    cells = [
        [
            *(_cell(row.values[key]) if key in row.values else row.name for key in keys),
            *(_number(row.figures, name) for name in figures),
            *([row.reason] if noted else ()),
        ]
        for row in rows
    ]
    columns = [*map(Column, keys), *figures.values(), *([Column("note")] if noted else ())]
    return Table(title, columns, cells, folded=len(rows) > _SHOWN)


def _number(figures: Mapping[str, Any], key: str) -> Cell:
    """A figure by its dotted key; None where there is none."""
    value = figures[key] if key in figures else at(figures, key)
    return value if isinstance(value, int | float) else None


def _cell(value: object) -> Cell:
    return value if isinstance(value, bool | int | float | str) else "none"
