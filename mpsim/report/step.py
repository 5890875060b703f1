"""Sections of a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpsim.errors import MpsimError
from mpsim.plot import attribution_chart, bubble_chart, sensitivity_chart
from mpsim.plot.chart import Axis, Bars, Part
from mpsim.report.assumed import assumed_section, constants_section, warnings_section
from mpsim.report.blocks import Block, Column, Figure, Figures, Note, Section, Table
from mpsim.report.lanes import lanes_of
from mpsim.report.machine import (
    energy_section,
    kernels_section,
    links_section,
    memory_section,
)
from mpsim.result import Result
from mpsim.units import Dimension, format_quantity

__all__ = ["HEADLINE", "headline", "step_sections"]

HEADLINE = (
    Figure("step time", "step_time_s", "s", "interval.step_time_s"),
    Figure(
        "tokens/s per accelerator",
        "tokens_per_s_per_accelerator",
        "",
        "interval.tokens_per_s_per_accelerator",
    ),
    Figure("MFU", "mfu", "share", "interval.mfu"),
    Figure(
        "memory of the fullest rank",
        "peak_memory_bytes",
        "B",
        "interval.peak_memory_bytes",
    ),
    Figure("pipeline bubble", "bubble_fraction", "share", note="of all rank time"),
    Figure("tokens/s", "tokens_per_s", "", "interval.tokens_per_s"),
    Figure("HFU", "hfu", "share", "interval.hfu"),
    Figure("energy of a step", "energy_j_per_step", "J"),
    Figure("price of a step", "cost_per_step", "USD"),
)
"""Headline figures of a step."""


def step_sections(result: Result, *, whole: bool = True) -> list[Section]:
    """Every section of one result, the headline first.

    Parameters
    ----------
    result : Result
    whole : bool
        False leaves out what takes longer than an answer to a slider may: the timeline, bubbles, memory over time, kernels, links and the sensitivity.
    """
    summary = result.summary
    sections = [
        headline(summary),
        _time(result),
        *([_timeline(result)] if whole else []),
        *([_bubbles(result)] if whole else []),
        memory_section(result, whole=whole),
        *([kernels_section(result), links_section(result)] if whole else []),
        energy_section(result),
        *(_sensitivity(result) if whole else ()),
        _variation(summary),
        assumed_section(result.scenario),
        constants_section(summary),
        warnings_section(summary),
    ]
    return [section for section in sections if section.blocks]


def headline(summary: Mapping[str, Any]) -> Section:
    """The figures that a reader wants first, and how far to trust them."""
    memory = summary["memory"]
    of = f"of {format_quantity(memory['capacity'], Dimension.BYTES)}, rank {memory['rank']}"
    shown = [
        dataclasses.replace(item, note=of) if item.key == "peak_memory_bytes" else item
        for item in HEADLINE
        if summary.get(item.key) is not None
    ]
    return Section(
        "headline",
        "Headline",
        f"One training step on {summary['accelerators']:,} accelerators.",
        [Figures(shown), *_trust(summary)],
    )


def _trust(summary: Mapping[str, Any]) -> Iterator[Note]:
    """How far the figures can be trusted."""
    if not summary["fits_memory"]:
        yield Note("This does not fit into memory: it cannot run as it is.", "warning")
    ranges = summary.get("interval")
    if ranges:
        yield Note(
            f"The ranges hold the measured value in {100 * ranges['level']:.0f} cases of 100 (basis: {ranges['basis']})."
        )
    nearest = summary.get("validated")
    if nearest:
        sizes = dict.fromkeys((nearest["smallest"], nearest["largest"]))
        other = f"; they differ in {', '.join(nearest['differs'])}" if nearest["differs"] else ""
        yield Note(
            f"Nearest measured: {nearest['rows']} runs of {nearest['framework']} on {' to '.join(map(str, sizes))} "
            f"{nearest['accelerator']}, predicted without knowing which paper they came from; mean error {100 * nearest['mean_abs_error']:.1f} %{other}.",
            "good",
        )
    elif "validated" in summary:
        yield Note("Nothing like it was measured: trust differences, not times.", "warning")


def _time(result: Result) -> Section:
    """Where the time goes, in the mean and on each rank."""
    return Section(
        "time",
        "Where the time goes",
        "Every second of every rank is counted once; the parts of a bar sum to the step.",
        [attribution_chart(result), *_communication(result.summary["communication_s"])],
    )


def _communication(times: Mapping[str, Mapping[str, float]]) -> Iterator[Bars]:
    """Transfers of each axis: beside kernels, and not."""
    used = [axis for axis, each in times.items() if each["hidden"] + each["exposed"] > 0]
    if not used:
        return
    hidden, exposed = ([times[axis][key] for axis in used] for key in ("hidden", "exposed"))
    worst = max(used, key=lambda axis: times[axis]["exposed"])
    yield Bars(
        title="Communication by axis",
        alt=f"Most exposed is {worst} with {format_quantity(times[worst]['exposed'], Dimension.TIME)} of a mean rank's step.",
        names=used,
        parts=[
            Part("exposed", exposed, "exposed", hatched=True),
            Part("hidden beside kernels", hidden, "hidden"),
        ],
        value=Axis(name="time in which transfers run", unit="s"),
    )


def _timeline(result: Result) -> Section:
    return Section(
        "timeline",
        "Timeline",
        "Drag to zoom, double-click to see all again; with the keyboard, arrows step from bar to bar, + and - zoom.",
        [lanes_of(result)],
    )


def _bubbles(result: Result) -> Section:
    """Why ranks wait for the pipeline; nothing where none does."""
    chart = bubble_chart(result)
    return Section(
        "bubbles",
        "Bubble by cause",
        "Warm-up and drain: the pipeline fills and empties. Imbalance: another stage computes longer. Message: a transfer held up the stage that is waited for.",
        [chart] if chart.parts else [],
    )


def _variation(summary: Mapping[str, Any]) -> Section:
    """Steps under the scenario's variation, which the figures above leave out; nothing where none is given."""
    varied = summary.get("variation")
    blocks: list[Block] = []
    if varied:
        times = [(f"{each['percent']:g} %", each["seconds"]) for each in varied["percentiles"]]
        caused = {name: time for name, time in varied["blame"]["caused_rank_s"].items() if time > 0}
        columns = (Column("of the steps take at most"), Column("step", "s"))
        blocks.append(Table(f"Drawn steps ({varied['samples']})", columns, times))
        if caused:
            order = sorted(caused, key=lambda name: -caused[name])
            blocks.append(
                Bars(
                    title="Waiting by who caused it",
                    alt=f"Most of the waiting is for {order[0]}.",
                    names=order,
                    parts=[Part("caused", [caused[name] for name in order], "bubble")],
                    value=Axis(name="time of ranks in a step", unit="s"),
                )
            )
    lead = (
        f"Mean {format_quantity(varied['mean_s'], Dimension.TIME)}, {varied['slowdown']:.4f} of the undisturbed step above."
        if varied
        else ""
    )
    return Section("variation", "With variation", lead, blocks)


def _sensitivity(result: Result) -> Sequence[Section]:
    """How the step answers to hardware and software; nothing where that cannot be studied."""
    try:
        answer = result.sensitivity()
    except MpsimError:
        return ()
    known = dataclasses.replace(answer, rows=tuple(row for row in answer.rows if row.elasticity))
    if not known.rows:
        return ()
    lead = "By how many per cent the step gets longer for one per cent more of each; bars to the left shorten it."
    return (Section("sensitivity", "Sensitivity", lead, [sensitivity_chart(known)]),)
