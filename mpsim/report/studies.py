"""Sections of studies as the command line printed them: sweeps, searches, designs, explanations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.formats.ledger import flat
from mpsim.plot.chart import Axis, Bars, Chart
from mpsim.plot.fronts import Point, design_charts, layouts_chart, lowest, services_chart
from mpsim.plot.step import parts_of
from mpsim.report.blocks import Block, Column, Note, Section, Table, setting_text
from mpsim.report.choices import MOST, what_if
from mpsim.result.words import Figures
from mpsim.shipped import say
from mpsim.study.plan import changed
from mpsim.study.rows import Row, figure_of, times_of, title_of, unit_of
from mpsim.study.search.found import Found
from mpsim.study.search.outcome import REASONS, proof
from mpsim.study.search.service_outcome import SERVICE_REASONS, FoundService
from mpsim.units import Dimension, format_quantity, percent

_PRINTED = say("report.studies")
_SHOWN = 30  # rows of a table that stand open, and bars of parts
_STEPS_SHOW = "The shortest steps, and what less memory costs."
_SERVICES_SHOW = "What a user gets, and what an accelerator gives."
_STEP = (
    *("step_time_s", "tokens_per_s_per_accelerator", "mfu", "bubble_fraction"),
    *("peak_memory_bytes", "cost_per_step"),
)
_SERVICE = (
    *("ttft_p99_s", "tpot_p99_s", "output_tokens_per_s"),
    *("output_tokens_per_s_per_accelerator", "goodput_per_s"),
)


class _Row(NamedTuple):
    """Something that a study simulated, or could not: its values by dotted key, and its figures."""

    name: str
    values: Mapping[str, object]
    figures: Figures
    summary: Figures | None
    reason: str = ""

    def point(self, x: str, y: str) -> Point:
        """Where two of its figures put it."""
        return Point(self.name, *(float(self.figures.get(key) or 0.0) for key in (x, y)))

    @property
    def step(self) -> Point:
        """Step time and memory."""
        return self.point("step_time_s", "peak_memory_bytes")

    @property
    def user(self) -> Point:
        """Output tokens of a user and of an accelerator."""
        return self.point("output_tokens_per_s_per_user", "output_tokens_per_s_per_accelerator")


class _Study(NamedTuple):
    """A study on a page: words, its rows, the charts and tables of them."""

    word: str
    about: str
    lead: str
    notes: Sequence[Block]
    charts: Sequence[Chart]
    shows: str
    table: Table
    rows: Sequence[_Row] = ()  # simulated, or refused with a reason
    sliders: str = ""


def is_study(data: object) -> bool:
    """Whether plain data is a study that a page can show."""
    return isinstance(data, Mapping) and _reader_of(data) is not None


def study_page(data: Figures, *, number: int = 0) -> dict[str, Any]:
    """One study as a part of a document.

    `data`: an object that ``mpsim sweep --json``, ``mpsim search --json`` or ``mpsim design
    --json`` printed. `number`: its place among the parts. ScenarioError if it is another object.
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
    yield Section("headline", "Headline", study.lead, study.notes)
    best = [*study.charts, study.table] if study.table.rows else []
    yield Section("best", study.table.title, study.shows, best)
    yield Section("time", "Where the time goes", "Why the best are the best.", list(_parts(done)))
    if done and 1 < len(study.rows) <= MOST:
        rows = [row for row in study.rows if row.summary is not None or row.reason]
        answers = ((row.values, row.summary, row.reason) for row in rows)
        yield what_if(answers, lead=study.sliders)


def _parts(rows: Sequence[_Row]) -> Iterator[Bars]:
    """Where the time of the best steps goes; nothing of services."""
    steps = (row for row in rows if figure_of(row.summary, "breakdown_s") and not row.reason)
    known = list(itertools.islice(steps, _SHOWN))
    times = [times_of(row.summary) for row in known]
    parts = dict.fromkeys(part for each in times for part in each)
    if known:
        yield Bars(
            title="Parts of the step",
            alt=f"{len(known)} layouts, in the order of the table.",
            names=[f"{place}. {row.name}" for place, row in enumerate(known, start=1)],
            parts=parts_of({part: [each.get(part, 0.0) for each in times] for part in parts}),
            value=Axis("time", "s"),
        )


def _search(data: Figures) -> _Study:
    """A search for layouts of a training step."""
    rows, front = (_read(Found, data[key]) for key in ("rows", "front"))
    points, own = ([row.step for row in each] for each in (rows, front))
    notes: list[Block] = []
    if rows:
        step = format_quantity(points[0].x, Dimension.TIME)
        memory = format_quantity(points[0].y, Dimension.BYTES)
        best = f"The best: {rows[0].name}: {step} a step, {memory} on the fullest rank."
        notes.append(Note(best, "good"))
    if data.get("ties"):
        notes.append(Note(say("report.ties", ties=data["ties"])))
    proved = proof(complete=data["complete"], gap=data.get("gap"))
    mood = "plain" if data["complete"] else "warning"
    notes.append(Note(f"{proved[0].upper()}{proved[1:]}.", mood))
    return _Study(
        "search",
        f"{data['legal']:,} legal layouts of {data['scenario']}, ranked by {data['objective']}.",
        f"{data['legal']:,} legal layouts.",
        [*notes, _tally(data["counts"], REASONS)],
        [layouts_chart(list(dict.fromkeys([*points, *own])), own, points)] if rows else [],
        _STEPS_SHOW,
        _table("The best layouts", ["layout"], rows, _STEP),
        rows,
        say("report.whole_results"),
    )


def _services(data: Figures) -> _Study:
    """A search for services: the best, their latencies and throughput."""
    rows = _read(FoundService, data["rows"])
    notes: list[Block] = [Note(f"The best: {rows[0].name}.", "good")] if rows else []
    if data["complete"]:
        notes.append(Note("Every other one was simulated or ruled out by a bound."))
    else:
        notes.append(Note("The search ended before all were looked at.", "warning"))
    groups = {
        words: [row.user for row in rows if bool(row.figures["meets_slo"]) is kept]
        for words, kept in (("keeps the limits", True), ("misses the limits", False))
    }
    front = [_Row(str(row["layout"]), {}, row, None).user for row in data["front"]]
    return _Study(
        "search",
        f"Ranked by {data['objective']}.",
        f"{data['layouts']:,} layouts.",
        [*notes, _tally(data["counts"], SERVICE_REASONS)],
        [services_chart(groups, front)] if rows else [],
        _SERVICES_SHOW,
        _table("The best", ["layout"], rows, _SERVICE),
        rows,
        "The services that the search found best.",
    )


def _sweep(data: Figures) -> _Study:
    """A sweep: its rows as points, as a table and under sliders."""
    rows, keys = _read(Row, data["rows"]), list(map(str, data["keys"]))
    usable = [row for row in rows if row.summary is not None and not row.reason]
    serves = any(figure_of(row.summary, "job") == "serving" for row in rows)
    notes: list[Block] = []
    charts: list[Chart] = []
    if usable:
        each = f"{'output_' * serves}tokens_per_s_per_accelerator"
        best = max(usable, key=lambda row: float(row.figures[each]))
        notes.append(Note(f"Most {title_of(each)}: {best.name}.", "good"))
        points = [row.step for row in usable]
        charts.append(
            services_chart({"rows": [row.user for row in usable]})
            if serves
            else layouts_chart(points, lowest(points))
        )
    return _Study(
        "sweep",
        f"{len(rows):,} rows over {', '.join(keys)}.",
        f"{len(usable)} of {len(rows)} rows could be simulated and fit.",
        notes,
        charts,
        _SERVICES_SHOW if serves else _STEPS_SHOW,
        _table(f"Rows ({len(rows)})", keys, rows, _SERVICE if serves else _STEP),
        rows,
        "Each row of the sweep, as 'mpsim run --json' prints it.",
    )


def _design(data: Figures) -> _Study:
    """A design: the chosen cluster, the front, what would change the choice, every cluster."""
    chosen, money = data["chosen"], "capital_usd"
    notes: list[Block] = [Note("No cluster keeps every bound.", "warning")]
    if chosen is not None:
        odds = (
            "" if data["p_best"] is None else f"; the best with odds of {percent(data['p_best'])}"
        )
        notes = [Note(f"The best in {data['by']}: {changed(chosen['values'])}{odds}.", "good")]
    if data["rests_on"]:
        guesses = "; ".join(data["rests_on"])
        notes.append(Note(f"Rests on what nobody measured on this hardware: {guesses}."))
    cells = [
        [
            changed(row["values"]),
            row["days"],
            row["requests_per_s"],
            row.get("cost_usd", row.get("cost_usd_per_h")),
            row[money] or None,
            row["power_w"],
            row["reason"]
            or (f"misses {row['misses']}" if row["misses"] else "")
            or ", ".join(str(entry.get("name")) for entry in row["jobs"].values()),
        ]
        for row in data["rows"]
    ]
    trains = any(row["days"] is not None for row in data["rows"])
    columns = (
        Column("cluster"),
        *(Column("days", "d"), Column("requests/s", "count")),
        Column("cost", "USD" if trains else "USD/h"),
        *(Column("capital", "USD"), Column("at the meter", "W"), Column("layouts, or why not")),
    )
    return _Study(
        "design",
        f"{len(cells):,} clusters, each with the best layout of its own.",
        f"{len(cells):,} clusters and {data['ruled_out']:,} ruled out by a bound.",
        notes,
        design_charts(data),
        "What each costs, what flips the choice, and what upgrades buy.",
        Table("Clusters", columns, cells, folded=len(cells) > _SHOWN),
    )


def _explained(data: Figures) -> _Study:
    """Causes of a recorded step."""
    longer = data["measured_s"] - data["predicted_s"]
    rest = {"cause": "unexplained", "seconds": data["unexplained_s"]}
    cells = [
        [
            each["cause"].replace("_", " "),
            each["seconds"],
            ", ".join(map(str, each.get("ranks", ()))),
            *(each.get(key, "") for key in ("evidence", "mend")),
        ]
        for each in (*data["causes"], rest)
    ]
    columns = (
        Column("cause"),
        Column("step", "s"),
        *map(Column, ("ranks", "evidence", "what to do")),
    )
    return _Study(
        "explanation",
        say("report.recorded", longer=percent(longer / data["predicted_s"], signed=True)),
        "Why the recorded step differs from the simulated one.",
        [Note(f"The recording does not show {each}.", "warning") for each in data["unseen"]],
        [],
        "Causes add up to measured minus predicted; the rest is unexplained.",
        Table("Causes", columns, cells),
    )


_READERS: Mapping[tuple[str, ...], Callable[[Figures], _Study]] = {
    ("scenario", "objective", "rows", "front", "counts", "legal", "complete"): _search,
    ("scenario", "objective", "rows", "front", "counts", "layouts", "complete"): _services,
    ("scenario", "keys", "rows", "ties"): _sweep,
    ("scenario", "measured_s", "predicted_s", "causes", "unseen"): _explained,
    ("scenario", "chosen", "front", "flips", "upgrades", "rests_on", "rows"): _design,
}
"""What reads a study, by the keys that it has."""


def _reader_of(data: Figures) -> Callable[[Figures], _Study] | None:
    known = (reader for keys, reader in _READERS.items() if all(key in data for key in keys))
    return next(known, None)


def _read(kind: type[Found | FoundService | Row], rows: Any) -> list[_Row]:
    """Rows of a study, each read back as what it was printed of."""
    fields = [field.name for field in structs.fields(kind)]
    read = []
    try:
        for row in rows:
            own = {name: row[name] for name in fields if name in row}
            if own.get("bound", 0.0) is None:  # JSON has no infinity
                own["bound"] = math.inf
            each = kind(**own)
            figures, values = each.flat(), flat(each.values)
            figures |= {"peak_memory_bytes": figures.get("memory_bytes")} if kind is Found else {}
            words = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())
            name, reason = getattr(each, "name", words), getattr(each, "reason", None)
            read.append(_Row(name, values, figures, each.summary, reason or ""))
    except (TypeError, AttributeError, KeyError) as error:
        raise ScenarioError(f"a row of the study is none; give {_PRINTED}") from error
    return read


def _tally(counts: Mapping[str, int], words: Mapping[str, str]) -> Table:
    columns = (Column("what became of them"), Column("layouts", "count"))
    rows = [(words.get(name, name), count) for name, count in counts.items()]
    return Table("Layouts by what became of them", columns, rows)


def _table(title: str, keys: Sequence[str], rows: Sequence[_Row], figures: Sequence[str]) -> Table:
    """Rows by their values at `keys`, or their names, with figures and reasons."""
    noted = any(row.reason for row in rows)
    cells = [
        [
            *(setting_text(row.values[key]) if key in row.values else row.name for key in keys),
            *(row.figures.get(name) for name in figures),
            *([row.reason] if noted else ()),
        ]
        for row in rows
    ]
    columns = [
        *map(Column, keys),
        *(Column(title_of(name), unit_of(name)) for name in figures),
        *([Column("note")] if noted else ()),
    ]
    return Table(title, columns, cells, folded=len(rows) > _SHOWN)
