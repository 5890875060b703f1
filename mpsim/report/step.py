"""Sections of a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import MpsimError
from mpsim.plot.attribution import AttributionDisplay
from mpsim.plot.memory import MemoryCurveDisplay, MemoryDisplay
from mpsim.plot.palette import COMMUNICATION, LABELS, event_of_part
from mpsim.report.assumed import assumed_section, constants_section, warnings_section
from mpsim.report.blocks import (
    Bars,
    Block,
    Column,
    Figure,
    Figures,
    Heat,
    Limit,
    Lines,
    Note,
    Part,
    Section,
    Series,
    Table,
)
from mpsim.report.lanes import lanes_of
from mpsim.result import Result
from mpsim.units import Dimension, format_quantity

__all__ = ["HEADLINE", "headline", "step_sections"]

_BUSIEST = 32  # links with a row of their own over time
_POINTS = 800  # of a line over time
_SHARE = Column("share of the time", "share")
_TIME = Column("time", "s")


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
        False leaves out what takes longer than an answer to a slider may: the timeline, links and the sensitivity.
    """
    summary = result.summary
    sections = [
        headline(summary),
        _time(result),
        *([_timeline(result)] if whole else []),
        _memory(result),
        *([_links(result), *_sensitivity(result)] if whole else []),
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
            f"The ranges hold the measured figure in {100 * ranges['level']:.0f} cases of 100 (basis: {ranges['basis']})."
        )
    nearest = summary.get("validated")
    if nearest:
        sizes = dict.fromkeys((nearest["smallest"], nearest["largest"]))
        other = f"; they differ in {', '.join(nearest['differs'])}" if nearest["differs"] else ""
        yield Note(
            f"Nearest measured: {nearest['rows']} runs of {nearest['framework']} on {' to '.join(map(str, sizes))} "
            f"{nearest['accelerator']}, predicted with their names hidden with a mean error of {100 * nearest['mean_abs_error']:.1f} %{other}.",
            "good",
        )
    elif "validated" in summary:
        yield Note("Nothing like it was measured: trust differences more than figures.", "warning")


def _words(part: str) -> str:
    """A part of the step in words."""
    event = part.removeprefix("exposed_")
    if event != part:
        return f"exposed {event}"
    return LABELS.get(part, part.replace("_", " "))


def _time(result: Result) -> Section:
    """Where the time goes, in the mean and on each rank."""
    display = AttributionDisplay.from_result(result)
    mean = {part: float(times[0]) for part, times in display.seconds.items()}
    total = sum(mean.values())
    most = sorted(mean, key=lambda part: -mean[part])[:3]
    told = ", ".join(f"{_words(part)} {100 * mean[part] / total:.1f} %" for part in most)
    parts = [
        Part(_words(part), times, event_of_part(part), event_of_part(part) in COMMUNICATION)
        for part, times in display.seconds.items()
        if times.any()
    ]
    return Section(
        "time",
        "Where the time goes",
        "Every second of every rank is counted once; the parts of a bar sum to the step.",
        [
            Bars(
                title="Parts of the step",
                alt=f"Most of the time of the mean rank: {told}.",
                names=display.names,
                parts=parts,
                unit="s",
                axis="time",
            ),
            *_communication(result.summary["communication_s"]),
        ],
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
        unit="s",
        axis="time in which transfers run",
    )


def _timeline(result: Result) -> Section:
    return Section(
        "timeline",
        "Timeline",
        "Drag to zoom, double-click to see all again; with the keyboard, arrows step from bar to bar, + and - zoom.",
        [lanes_of(result)],
    )


def _memory(result: Result) -> Section:
    display, curves = MemoryDisplay.from_result(result), MemoryCurveDisplay.from_result(result)
    full = int(np.argmax(display.total))
    capacity = Limit(
        display.capacity, f"capacity {format_quantity(display.capacity, Dimension.BYTES)}"
    )
    return Section(
        "memory",
        "Memory",
        "What each rank holds when it is fullest, and over the step.",
        [
            Bars(
                title="Memory at its fullest",
                alt=f"{display.names[full]} is fullest with {format_quantity(float(display.total[full]), Dimension.BYTES)} "
                f"of {format_quantity(display.capacity, Dimension.BYTES)}.",
                names=display.names,
                parts=[
                    Part(name, sizes, f"memory.{name}")
                    for name, sizes in display.components.items()
                    if sizes.any()
                ],
                unit="B",
                axis="memory",
                limit=capacity,
            ),
            *_memory_over_time(curves, capacity),
        ],
    )


def _memory_over_time(curves: MemoryCurveDisplay, capacity: Limit) -> Iterator[Lines]:
    """Everything that the first, the fullest and the last rank hold, by kind."""
    for name, curve in curves.curves.items():
        kept = _thinned(curve.held)
        top = float(curve.held.max())
        yield Lines(
            title=f"Memory of {name} over time",
            alt=f"{name} holds {format_quantity(top, Dimension.BYTES)} at most, {format_quantity(curve.standing, Dimension.BYTES)} of it all the time.",
            series=[
                Series(kind, curve.time_s[kept], held[kept], f"memory.{kind}", step=True)
                for kind, held in curve.components.items()
                if held.any()
            ],
            x=_TIME,
            y=Column("memory held", "B"),
            limit=capacity,
            stacked=True,
        )


def _thinned(held: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of at most so many points as a screen shows, the fullest of neighbours among them."""
    if len(held) <= _POINTS:
        return np.arange(len(held))
    groups = np.array_split(np.arange(len(held)), _POINTS // 2)
    kept = {0, len(held) - 1}
    for group in groups:
        kept |= {int(group[np.argmax(held[group])]), int(group[np.argmin(held[group])])}
    return np.array(sorted(kept))


def _links(result: Result) -> Section:
    use, series = result.links, result.utilisation.series
    busy = use.busiest(_BUSIEST).tolist()
    rows = sorted(busy)  # neighbours in the list of links are neighbours in the picture
    means = use.mean
    middle = (series.edges_s[1:] + series.edges_s[:-1]) / 2
    shares = [
        Series(name.replace("_", "-"), middle, values, f"resource.{name}")
        for name, values in series.shares.items()
    ]
    blocks: list[Block] = [
        Lines(
            title="Compute and links over time",
            alt=", ".join(
                f"{name.replace('_', '-')} works {100 * share:.1f} % of the time in the mean"
                for name, share in result.summary["utilisation"].items()
            )
            + ".",
            series=shares,
            x=_TIME,
            y=_SHARE,
        )
    ]
    if busy:
        blocks.append(
            Heat(
                title=f"The {len(busy)} busiest links over time",
                alt=f"Busiest is {use.names[busy[0]]}, which carries {100 * means[busy[0]]:.1f} % of what it could.",
                names=[use.names[link] for link in rows],
                edges=use.edges_s,
                values=use.share[rows],
                x=_TIME,
                z=Column("share of the bandwidth", "share"),
            )
        )
        blocks.append(_link_table(result))
    return Section(
        "links",
        "Links and fabric",
        "How much of its bandwidth each link carries: ports of the ranks, and links of the fabric where they could be too thin.",
        blocks,
    )


def _link_table(result: Result) -> Table:
    use = result.links
    used = use.busiest(len(use.names)).tolist()
    rows = [
        (
            use.names[link],
            float(use.mean[link]),
            float(use.carried[link]),
            float(use.capacity[link]),
        )
        for link in used
    ]
    columns = (
        *(Column("link"), Column("mean use", "share")),
        *(Column("carried in a step", "B"), Column("bandwidth, one direction", "B/s")),
    )
    return Table(f"Links that carry anything ({len(used)})", columns, rows, folded=True)


def _sensitivity(result: Result) -> Sequence[Section]:
    """How the step answers to hardware and software; nothing where that cannot be studied."""
    try:
        answer = result.sensitivity()
    except MpsimError:
        return ()
    rows = [row for row in answer.rows if row.elasticity]
    if not rows:
        return ()
    best = rows[0]
    return (
        Section(
            "sensitivity",
            "Sensitivity",
            "By how many per cent the step gets longer for one per cent more of each; bars to the left shorten it.",
            [
                Bars(
                    title="Elasticity of the step time",
                    alt=f"The step answers most to {best.name}: {best.elasticity:+.3f} per cent for one per cent.",
                    names=[f"{row.name} ({row.value})" if row.value else row.name for row in rows],
                    parts=[Part("elasticity", [row.elasticity for row in rows], "forward")],
                    unit="",
                    axis="per cent of the step for one per cent more",
                )
            ],
        ),
    )
