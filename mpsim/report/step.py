"""Sections of a training step, in the order of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpsim import structs
from mpsim.errors import MpsimError
from mpsim.plot import step as charts
from mpsim.plot.chart import Axis, Bars, Part
from mpsim.plot.studies import sensitivity_chart
from mpsim.report.blocks import Block, Column, Figures, Note, Sections, Table, figure
from mpsim.report.lanes import lanes_of
from mpsim.result import Result
from mpsim.shipped import say
from mpsim.training.roofline import roofline
from mpsim.units import Dimension, format_quantity, percent

_BUSIEST = 48  # links with a row of their own over time, of all tiers

HEADLINE = (
    *map(figure, ("step_time_s", "tokens_per_s_per_accelerator", "mfu", "peak_memory_bytes")),
    figure("bubble_fraction", "of all rank time"),
    *map(figure, ("tokens_per_s", "hfu", "energy_j_per_step", "cost_per_step")),
)
"""Headline figures of a step."""

STEP: Sections[Result] = Sections()  # sections of a training step


def _time(seconds: float) -> str:
    return format_quantity(seconds, Dimension.TIME)


@STEP.add(
    "headline",
    "Headline",
    lambda result: f"One training step on {result.summary['accelerators']:,} accelerators.",
)
def _headline(result: Result) -> Iterator[Block]:
    """The figures that a reader wants first, and how far to trust them."""
    summary, memory = result.summary, result.summary["memory"]
    of = f"of {format_quantity(memory['capacity'], Dimension.BYTES)}, rank {memory['rank']}"
    yield Figures(
        [
            structs.replace(item, note=of) if item.key == "peak_memory_bytes" else item
            for item in HEADLINE
            if summary.get(item.key) is not None
        ]
    )
    if not summary["fits_memory"]:
        yield Note("This does not fit into memory: it cannot run as it is.", "warning")
    ranges = summary.get("interval")
    if ranges:
        yield Note(say("report.ranges", percent=100 * ranges["level"], basis=ranges["basis"]))
    if summary.get("validated"):
        yield Note(_nearest(summary["validated"]), "good")
    elif "validated" in summary:
        yield Note("Nothing like it was measured: trust differences, not times.", "warning")


def _nearest(nearest: Mapping[str, Any]) -> str:
    """The measured runs that are most like this one, and how well they are predicted."""
    sizes = dict.fromkeys((nearest["smallest"], nearest["largest"]))
    other = f"; they differ in {', '.join(nearest['differs'])}" if nearest["differs"] else ""
    told = "framework" not in nearest["differs"]  # of other software it were a false promise
    error = f"; mean error {percent(nearest['mean_abs_error'])}" if told else ""
    return (
        f"Nearest measured: {nearest['rows']} runs of {nearest['framework']} on"
        f" {' to '.join(map(str, sizes))} {nearest['accelerator']}, predicted without knowing which"
        f" paper they came from{error}{other}."
    )


@STEP.add("time", "Where the time goes")
def _parts(result: Result) -> Iterator[Block]:
    """Every second of every rank is counted once; the parts of a bar sum to the step."""
    yield charts.attribution_chart(result)
    times = result.summary["communication_s"]
    used = [axis for axis, each in times.items() if each["hidden"] + each["exposed"] > 0]
    if not used:
        return
    worst = max(used, key=lambda axis: times[axis]["exposed"])
    yield Bars(
        title="Communication by axis",
        alt=f"Most exposed is {worst} with {_time(times[worst]['exposed'])} of a mean rank's step.",
        names=used,
        parts=[
            Part("exposed", [times[axis]["exposed"] for axis in used], "other", hatched=True),
            Part("hidden beside kernels", [times[axis]["hidden"] for axis in used], "bubble"),
        ],
        value=Axis("time in which transfers run", "s"),
    )


@STEP.add("timeline", "Timeline", slow=True)
def _timeline(result: Result) -> Iterable[Block]:
    """Drag to zoom, double-click to reset; by keyboard arrows step, + and - zoom."""
    return [lanes_of(result)]


@STEP.add("bubbles", "Bubble by cause", slow=True)
def _bubbles(result: Result) -> Iterable[Block]:
    """Warm-up and drain: the pipeline fills and empties. Imbalance: another stage computes longer.
    Message: a transfer held up the stage that is waited for.
    """
    chart = charts.bubble_chart(result)
    return [chart] if chart.parts else []


@STEP.add("memory", "Memory")
def _memory(result: Result) -> Iterable[Block]:
    """Memory of each rank when it is fullest."""
    return [charts.memory_chart(result)]


@STEP.add("memory-over-time", "Memory over time", slow=True)
def _memory_over_time(result: Result) -> Iterable[Block]:
    """Memory of the first, the fullest and the last rank, by kind."""
    ranks = sorted({0, result.memory.fullest, len(result.memory.total) - 1})
    return [charts.memory_kinds_chart(result, rank=rank) for rank in ranks]


@STEP.add("kernels", "Kernels under the roofline", slow=True)
def _kernels(result: Result) -> Iterator[Block]:
    """Roofline: FLOPs per byte against achieved FLOP/s of kernels; marks by their time."""
    roof = roofline(result.plan)
    if not (roof.flops > 0).any():
        return
    yield charts.roofline_chart(result)
    rows = [
        (
            *(roof.names[i], roof.parts[i].replace("_", " "), float(roof.count[i])),
            *(float(roof.seconds[i]), float(roof.achieved[i]), float(roof.bandwidth_share[i])),
        )
        for i in np.argsort(-roof.seconds, kind="stable").tolist()
    ]
    columns = (
        *(Column("kernel"), Column("part"), Column("launches of a rank", "count")),
        *(Column("time, alone", "s"), Column("work a second", "FLOP/s")),
        Column("of the memory's bandwidth", "share"),
    )
    yield Table(f"Kernels of a mean rank ({len(rows)})", columns, rows, folded=True)


@STEP.add("links", "Links and fabric", slow=True)
def _links(result: Result) -> Iterator[Block]:
    """How much of its bandwidth each link carries: ports, and links that could be too thin."""
    use = result.links
    busy = use.busiest(len(use.names)).tolist()
    yield charts.utilisation_chart(result)
    yield charts.heat_chart(result)
    if busy:
        yield charts.links_chart(result, most=_BUSIEST)
        columns = (
            *(Column("link"), Column("mean use", "share"), Column("carried in a step", "B")),
            Column("bandwidth, one direction", "B/s"),
        )
        rows = [
            (use.names[i], *(float(each[i]) for each in (use.mean, use.carried, use.capacity)))
            for i in busy
        ]
        yield Table(f"Links that carry anything ({len(busy)})", columns, rows, folded=True)


@STEP.add("energy", "Energy")
def _energy(result: Result) -> Iterator[Block]:
    """Energy of a step by what it goes into."""
    for name, key in (("accelerators", "energy_parts_j"), ("at the meter", "meter_parts_j")):
        parts = {part: joule for part, joule in (result.summary.get(key) or {}).items() if joule}
        if parts:
            total = format_quantity(sum(parts.values()), Dimension.ENERGY)
            yield Bars(
                title=f"Energy of a step, {name}",
                alt=f"{total} a step, most of it {max(parts, key=lambda part: parts[part])}.",
                names=list(parts),
                parts=[Part("energy", list(parts.values()), "other")],
                value=Axis("energy", "J"),
            )


@STEP.add("sensitivity", "Sensitivity", slow=True)
def _sensitivity(result: Result) -> Sequence[Block]:
    """Per cent that the step gets longer for one more of each; bars to the left shorten it."""
    try:
        answer = result.sensitivity()
    except MpsimError:
        return ()
    known = structs.replace(answer, rows=tuple(row for row in answer.rows if row.elasticity))
    return [sensitivity_chart(known)] if known.rows else ()


def _varied(result: Result) -> str:
    varied = result.summary["variation"]
    return f"Mean {_time(varied['mean_s'])}, {varied['slowdown']:.4f} of the undisturbed step."


@STEP.add("variation", "With variation", _varied)
def _variation(result: Result) -> Iterator[Block]:
    """Steps under the scenario's variation; nothing where none is given."""
    varied = result.summary.get("variation")
    if not varied:
        return
    times = [(f"{each['percent']:g} %", each["seconds"]) for each in varied["percentiles"]]
    columns = (Column("of the steps take at most"), Column("step", "s"))
    yield Table(f"Drawn steps ({varied['samples']})", columns, times)
    caused = {name: time for name, time in varied["blame"]["caused_rank_s"].items() if time > 0}
    order = sorted(caused, key=lambda name: -caused[name])
    if order:
        yield Bars(
            title="Waiting by who caused it",
            alt=f"Most of the waiting is for {order[0]}.",
            names=order,
            parts=[Part("caused", [caused[name] for name in order], "bubble")],
            value=Axis("time of ranks in a step", "s"),
        )
