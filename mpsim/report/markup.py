"""A document as one HTML file that opens offline: figures, notes, tables, charts, their numbers.

The page is whole before any script runs. Text reaches it escaped, never as markup, and the document
is data between tags that it cannot close; numbers stand beside what is written of them, to the last
digit. The policy of the page forbids every request; its own script is allowed by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Final, TypeAlias

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.memo import remembered
from mpsim.plot.chart import Axis, Bars, Chart, Heat, Lines
from mpsim.report.blocks import chart_of
from mpsim.report.lanes import unpacked
from mpsim.report.pen import lanes_svg, legend, svg
from mpsim.result.words import Figures
from mpsim.shipped import read_shipped, say
from mpsim.study.rows import figure_of
from mpsim.units import Dimension, format_quantity, percent

Plain: TypeAlias = Mapping[str, Any]

_ROWS, _POINTS = 500, 60  # of a table, and of a line in it
_DIMENSIONS = {dimension.value: dimension for dimension in Dimension}


def article(part: Plain, *, several: bool) -> str:
    """A part of a document."""
    heading = f'<h2 class="part">{_text(part["title"])}</h2>' if several else ""
    inside = "".join(section(each, part) for each in part["sections"])
    return (
        f'<article id="{part["id"]}" aria-label="{_text(part["title"])}">{heading}'
        f'<p class="quiet about">{_text(part["about"])}</p>{inside}</article>'
    )


def section(plain: Plain, part: Plain) -> str:
    """A section of a part, or one of all parts, whose id is ``shared``."""
    name = f"{part['id']}-{plain['id']}"
    lead = f'<p class="lead">{_text(plain["lead"])}</p>' if plain["lead"] else ""
    blocks = "".join(_block(block, part, f"{name}/{i}") for i, block in enumerate(plain["blocks"]))
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2'
        f' id="{name}-title">{_text(plain["title"])}</h2>{lead}{blocks}</section>'
    )


def contents(parts: Sequence[Plain], shared: Sequence[Plain]) -> str:
    """Links to every section."""

    def links(sections: Sequence[Plain], name: str) -> str:
        return "".join(
            f'<li><a href="#{name}-{each["id"]}">{_text(each["title"])}</a></li>'
            for each in sections
        )

    inside = [
        (
            f'<li><a href="#{part["id"]}">{_text(part["title"])}</a>'
            f"<ul>{links(part['sections'], part['id'])}</ul></li>"
            if len(parts) > 1
            else links(part["sections"], part["id"])
        )
        for part in parts
    ]
    return f"<ul>{links(shared, 'shared')}{''.join(inside)}</ul>"


def _text(text: object) -> str:
    return html.escape(str(text))


def _block(block: Plain, part: Plain, place: str) -> str:
    kinds: Mapping[str, Callable[[], str]] = {
        "figures": lambda: _figures(block["items"], part["summary"]),
        "note": lambda: _note(block["text"], block["mood"]),
        "table": lambda: _folding(block),
        "choices": lambda: (
            f'<figure class="chart choices" data-block="{place}">{_caption(block)}</figure>'
        ),
        "timeline": lambda: _timeline(block, place),
    }
    return kinds.get(block["block"], lambda: _chart(chart_of(block), place))()


def _figures(items: Sequence[Plain], summary: Plain) -> str:
    """Headline figures, each read from the summary by its key: the number of the JSON."""
    return f'<dl class="figures">{"".join(_figure(item, summary) for item in items)}</dl>'


def _figure(item: Plain, summary: Plain) -> str:
    value, unit = figure_of(summary, item["key"]), item["unit"]
    range_ = figure_of(summary, item["range_key"])
    extent = note = ""
    if range_:
        low, high = (_written(each, unit) for each in range_)
        extent = f'<dd class="range">{low} to {high}</dd>'
    if item["note"]:
        note = f'<dd class="quiet">{_text(item["note"])}</dd>'
    shown = _written(value, unit)
    return (
        f'<div><dt>{_text(item["label"])}</dt><dd class="value" data-key="{item["key"]}"'
        f' data-value="{value!r}" title="{value!r}">{shown}</dd>{extent}{note}</div>'
    )


def _note(text: str, mood: str) -> str:
    strong = "<strong>Note: </strong>" if mood == "warning" else ""
    return f'<p class="note {mood}">{strong}{_text(text)}</p>'


def _folding(block: Plain) -> str:
    table = _table(block["columns"], block["rows"], block["title"])
    if not block["folded"]:
        return table
    return f'<details class="fold"><summary>{_text(block["title"])}</summary>{table}</details>'


def _table(columns: Sequence[Plain], rows: Sequence[Sequence[object]], caption: str) -> str:
    head = "".join(
        f'<th scope="col"{_number(column["unit"])}>{_text(column["name"])}</th>'
        for column in columns
    )
    units = [column["unit"] for column in columns]
    body = "".join(f"<tr>{''.join(_cells(row, units))}</tr>" for row in rows[:_ROWS])
    more = len(rows) - _ROWS
    rest = f'<p class="quiet">and {more:,} more rows</p>' if more > 0 else ""
    return (
        '<div class="scroll" tabindex="0" role="region"'
        f' aria-label="{_text(caption)}"><table><caption>{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{rest}"
    )


def _cells(row: Sequence[object], units: Sequence[str]) -> Iterator[str]:
    for i, (cell, unit) in enumerate(zip(row, units, strict=True)):
        value, own = (cell["value"], cell["unit"]) if isinstance(cell, Mapping) else (cell, unit)
        if not i and not unit:
            yield f'<th scope="row">{_text(value)}</th>'
            continue
        exact = f' data-value="{value!r}"' if _is_number(value) else ""
        yield f"<td{_number(unit)}{exact}>{_written(value, '' if own == '1' else own)}</td>"


def _number(unit: str) -> str:
    return ' class="number"' if unit else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: Any, unit: str) -> str:
    """A cell or figure as a person writes it, with the command line's digits."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_number(value):
        return _text(value)
    plain = {
        "share": lambda: percent(value),
        "%": lambda: f"{value:.3g} %",
        "count": lambda: f"{value:,.0f}",
    }
    if unit in plain:
        return plain[unit]()
    if unit in _DIMENSIONS:
        return format_quantity(value, _DIMENSIONS[unit])
    number = f"{value:.4g}"
    if abs(value) >= 1000:
        number = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.1f}"
    return f"{number} {_text(unit)}".rstrip()


def _caption(block: Plain) -> str:
    lines = filter(None, [block["alt"], *block.get("notes", ()), block.get("left_out")])
    below = "".join(f'<p class="quiet">{_text(line)}</p>' for line in lines)
    return f"<figcaption><h3>{_text(block['title'])}</h3>{below}</figcaption>"


def _folded(table: str) -> str:
    return f"<details><summary>These numbers as a table</summary>{table}</details>"


def _chart(chart: Chart, place: str) -> str:
    columns, rows = _numbers(chart)
    drawn = svg(chart, f"{chart.title}. {chart.alt}")
    caption = _caption({"title": chart.title, "alt": chart.alt, "notes": chart.notes})
    return (
        f'<figure class="chart {chart.block}" data-block="{place}">{caption}{legend(chart)}<div'
        f' class="plot">{drawn}</div>{_folded(_table(columns, rows, chart.title))}</figure>'
    )


def _named(name: str, unit: str = "") -> Plain:
    return {"name": name, "unit": unit}


def _column(axis: Axis, name: str = "") -> Plain:
    return _named(name or axis.name, axis.unit or "1")


def _numbers(chart: Chart) -> tuple[list[Plain], list[list[object]]]:
    """Columns and rows of the table of a chart."""
    if isinstance(chart, Bars):
        rows = [[name, *chart.table[:, i].tolist()] for i, name in enumerate(chart.names)]
        return [_named(""), *(_column(chart.value, part.name) for part in chart.parts)], rows
    if isinstance(chart, Heat):
        values, width = np.asarray(chart.values, dtype=np.float64), np.diff(np.asarray(chart.edges))
        mean = values @ width / (width.sum() or 1.0)
        rows = [
            [name, float(mean[i]), float(values[i].max())] for i, name in enumerate(chart.names)
        ]
        return [_named(""), _column(chart.z, "mean"), _column(chart.z, "most")], rows
    assert isinstance(chart, Lines)
    points = [
        [
            series.labels[i] if len(series.labels) else series.name,
            series.name,
            float(series.x[i]),
            float(series.y[i]),
        ]
        for series in chart.series
        for i in _thinned(len(series.x), whole=bool(len(series.labels)))
    ]
    return [_named("point"), _named("of"), _column(chart.x), _column(chart.y)], points


def _thinned(count: int, *, whole: bool) -> list[int]:
    step = 1 if whole else max(1, -(-count // _POINTS))
    return [i for i in range(count) if i % step == 0 or i == count - 1]


_TOOLS = read_shipped("mpsim.report.data", "page.yaml")["tools"]


def _timeline(block: Plain, place: str) -> str:
    columns = {name: unpacked(block["columns"][name]) for name in "lane start length event".split()}
    drawn = lanes_svg(f"{block['title']}. {block['alt']}", block, columns)
    busy = np.bincount(columns["lane"], columns["length"], len(block["names"])) * block["unit_s"]
    bars = np.bincount(columns["lane"], minlength=len(block["names"]))
    rows = [
        [name, int(bars[i]), float(busy[i]), float(busy[i]) / (block["end_s"] or 1.0)]
        for i, name in enumerate(block["names"])
    ]
    heads = ("lane", ""), ("bars", "count"), ("busy", "s"), ("of the time", "share")
    table = _table([_named(*head) for head in heads], rows, "Lanes")
    tools = "".join(
        f'<button type="button" aria-label="{name}" title="{name}">{sign}</button>'
        for sign, name in _TOOLS
    )
    return (
        f'<figure class="chart timeline" data-block="{place}">{_caption(block)}<div'
        f' class="tools">{tools}</div><ul class="legend"></ul><div class="plot lanes" tabindex="0"'
        f' role="application" aria-label="{_text(block["title"])}.'
        f' {_text(block["alt"])}">{drawn}</div><p class="readout" aria-live="polite">Point at a'
        f" bar, or step through them with the arrow keys.</p>{_folded(table)}</figure>"
    )


LARGEST: Final = 5_000_000
"""Bytes that a page may have."""

_SCRIPTS = ("format.js", "charts.js", "timeline.js", "choices.js", "explore.js", "page.js")


def page(document: Figures, *, live: bool = False) -> str:
    """The page of a document.

    `document`: plain data, see `mpsim.report.document`. `live`: whether it is served by the
    explorer and may ask that server; a file may ask nobody. ScenarioError if it is larger than
    `LARGEST`.

    Returns: HTML.
    """
    script = _script()
    parts, shared = document["parts"], document["shared"]
    together = {"id": "shared", "summary": {}}
    made = [
        f"{part['title']}: scenario {part['digest'][:12]}" if part["digest"] else part["title"]
        for part in parts
    ]
    text = Template(_file("page.html")).substitute(
        title=html.escape(str(document["title"])),
        policy=html.escape(policy(_digest(script), live=live)),
        style=_colours(document["palette"]) + _file("page.css"),
        contents=contents(parts, shared),
        body="".join(section(each, together) for each in shared)
        + "".join(article(part, several=len(parts) > 1) for part in parts),
        made=html.escape(f"mpsim {document['mpsim']}; {'; '.join(made)}"),
        data=_inert(json.dumps(document, allow_nan=False, separators=(",", ":"))),
        script=script,
    )
    if (size := len(text.encode())) > LARGEST:
        raise ScenarioError(say("report.large_page", size=size / 1e6, largest=LARGEST / 1e6))
    return text


def policy(digest: str, *, live: bool) -> str:
    """The content security policy: this script, and where `live` requests to the page's host."""
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src"
        f" data: blob:; connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def _inert(text: str) -> str:
    """JSON that no tag around it can be closed by: without < and a script's line ends."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@remembered(32)
def _file(name: str) -> str:
    return (resources.files("mpsim.report") / "page" / name).read_text(encoding="utf-8")


@remembered(1)
def _script() -> str:
    return "\n".join(['"use strict";', *map(_file, _SCRIPTS)])


def _colours(palette: Figures) -> str:
    """Variables of the style, for light pages and for dark ones."""
    every = {
        f"--{word.replace('.', '-').replace('_', '-')}": pair
        for word, pair in palette["colours"].items()
    }
    every |= {f"--series-{i}": pair for i, pair in enumerate(palette["series"])}
    light, dark = (" ".join(f"{name}: {pair[i]};" for name, pair in every.items()) for i in (0, 1))
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{"
        f' :root:not([data-theme="light"]) {{ {dark} }} }}\n:root[data-theme="dark"] {{ {dark} }}\n'
    )
