"""Sections that set several results side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpsim.plot.chart import Axis, Bars, Part
from mpsim.plot.palette import COMMUNICATION, EVENTS
from mpsim.report.blocks import Block, Cell, Column, Note, Quantity, Section, Table
from mpsim.study import compare

__all__ = ["comparison_section"]

_UNITS: Mapping[str, str] = {
    "mfu": "share",
    "hfu": "share",
    "tensor_utilisation": "share",
    "bubble_fraction": "share",
    "requests_within_slo": "share",
    "utilisation": "share",
    "accelerators": "count",
    "cost_per_step": "USD",
    "cost_per_million_output_tokens": "USD",
}
_ENDINGS: Mapping[str, str] = {"_s": "s", "_bytes": "B"}


def unit_of(name: str) -> str:
    """Unit of a figure of a summary by its name; 1 where it is a plain number."""
    if name in _UNITS:
        return _UNITS[name]
    if name.startswith(("energy_j", "accelerator_s")):
        return "J" if name.startswith("energy_j") else "s"
    if "_per_s" in name:
        return "1"
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "1")


def words_of(name: str) -> str:
    """A figure of a summary in words, without the unit that its name bears.

    Examples
    --------
    >>> words_of("tokens_per_s_per_accelerator"), words_of("energy_j_per_step")
    ('tokens/s per accelerator', 'energy per step')
    """
    short = re.sub(r"_per_s(?=_|$)", "/s", name).replace("accelerator_s_", "accelerator_time_")
    for ending in ("_s", "_bytes"):
        short = short.removesuffix(ending)
    return short.replace("_j_", "_").replace("_", " ")


def comparison_section(
    summaries: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[Section]:
    """Every result against the first; nothing for one result, or for results of two kinds of job.

    Parameters
    ----------
    summaries : sequence of mapping
        In the shape of ``mpsim run --json``.
    names : sequence of str
        One a result.
    """
    if len(summaries) < 2 or len({summary.get("job") for summary in summaries}) > 1:
        return []
    return [
        Section(
            "comparison",
            "Side by side",
            f"Everything is set against {names[0]}.",
            list(_blocks(summaries, names)),
        )
    ]


def _blocks(summaries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Block]:
    comparisons = [compare(summaries[0], other) for other in summaries[1:]]
    for comparison in comparisons:
        yield Note(f"{comparison.explanation}.")
    whole = comparisons[0].whole
    both = [{part.name: part for part in comparison.parts} for comparison in comparisons]
    order = list(dict.fromkeys(part for parts in both for part in parts))
    order.sort(key=_rank)
    values = {
        part: [
            next((each[part].a for each in both if part in each), 0.0) or 0.0,
            *((each[part].b if part in each else 0.0) or 0.0 for each in both),
        ]
        for part in order
    }
    yield Bars(
        title="Parts of the step"
        if whole == "step_time_s"
        else "Parts of an accelerator's time for an output token",
        alt="; ".join(
            f"{name} {sum(parts[i] for parts in values.values()):.4g} s"
            for i, name in enumerate(names)
        )
        + ".",
        names=names,
        parts=[
            Part(
                part.replace("_", " "),
                times,
                _colour(part),
                part.removeprefix("exposed_") in COMMUNICATION,
            )
            for part, times in values.items()
            if any(times)
        ],
        value=Axis(name="time", unit="s"),
    )
    rows: list[list[Cell]] = []
    for i, difference in enumerate(comparisons[0].figures):
        unit = unit_of(difference.name)
        values_of = [difference.a, *(comparison.figures[i].b for comparison in comparisons)]
        row: list[Cell] = [words_of(difference.name)]
        row += [Quantity(value, unit) for value in values_of]
        rows.append(row + [comparison.figures[i].relative for comparison in comparisons])
    yield Table(
        "Figures",
        [
            Column("quantity"),
            *(Column(name, "mixed") for name in names),
            *(Column(f"{name} against the first", "share") for name in names[1:]),
        ],
        rows,
    )


def _rank(part: str) -> int:
    """Place of a part of the account among the kinds of event."""
    event = _colour(part)
    return list(EVENTS).index(event) if event in EVENTS else len(EVENTS)


def _colour(part: str) -> str:
    event = part.removeprefix("exposed_")
    others = {
        "decode": "forward",
        "prefill": "backward",
        "kv": "cp",
        "down": "other",
        "idle_cache": "straggling",
        "idle": "bubble",
    }
    return event if event in EVENTS else others.get(event, "other")
