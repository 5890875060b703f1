"""Sections on what the machine does in a training step: memory, kernels, links, energy.

Shapes: E moments, R rank classes, K kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.chart import Axis, Bars, Heat, Limit, Lines, Part, Series, scattered
from mpsim.plot.memory import MemoryCurveDisplay, MemoryDisplay
from mpsim.report.blocks import Block, Column, Section, Table
from mpsim.result import Result
from mpsim.result.links import LinkUse
from mpsim.training.job import plan_of
from mpsim.training.roofline import roofline
from mpsim.units import Dimension, format_quantity

__all__ = ["energy_section", "kernels_section", "links_section", "memory_section"]

_BUSIEST = 32  # links with a row of their own over time
_LABELLED = 5  # kernels whose names stand beside their points
_POINTS = 800  # of a line over time
_SHARE = Axis(name="share of the time", unit="share")
_TIME = Axis(name="time", unit="s")


def memory_section(result: Result, *, whole: bool = True) -> Section:
    """Memory of each rank at its fullest moment and, if `whole`, of some over the step by kind."""
    display = MemoryDisplay.from_result(result)
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
                value=Axis(name="memory", unit="B"),
                limits=[capacity],
            ),
            *(_memory_over_time(result, capacity) if whole else ()),
        ],
    )


def _memory_over_time(result: Result, capacity: Limit) -> Iterator[Lines]:
    """Everything that the first, the fullest and the last rank hold, by kind."""
    for name, curve in MemoryCurveDisplay.from_result(result).curves.items():
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
            y=Axis(name="memory held", unit="B"),
            limits=[capacity],
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


def kernels_section(result: Result) -> Section:
    """Kernels of forwards and backwards under the roofs of the accelerator."""
    roof = roofline(plan_of(result))
    works = np.flatnonzero(roof.flops > 0)
    if not len(works):
        return Section("kernels", "Kernels", "", [])
    labels = [
        f"{name}, {part.replace('_', ' ')}"
        for name, part in zip(roof.names, roof.parts, strict=True)
    ]
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for i in works.tolist():
        part = roof.parts[i].replace("_", " ")
        groups.setdefault(part, []).append(
            (labels[i], float(roof.intensity[i]), float(roof.achieved[i]))
        )
    x = np.array([roof.intensity[works].min() / 2, roof.intensity[works].max() * 2])
    lines: list[Series] = []
    for precision, peak in roof.peaks.items():
        knee = peak / roof.bandwidth
        along = np.array([min(x[0], knee / 2), knee, max(x[1], knee * 2)])
        lines.append(
            Series(
                f"peak of {precision} and of memory",
                along,
                np.minimum(peak, along * roof.bandwidth),
                "other",
                line=("-", "--", ":", "-.")[len(lines) % 4],
            )
        )
    longest = works[np.argsort(-roof.seconds[works], kind="stable")][:_LABELLED].tolist()
    lead = labels[longest[0]]
    return Section(
        "kernels",
        "Kernels under the roofline",
        "Each kernel by its work for a byte that it moves, and by the work it does a second; none can be over the lines.",
        [
            Lines(
                title="Roofline",
                alt=f"Most time goes to {lead}, at {format_quantity(float(roof.achieved[longest[0]]), Dimension.FLOP_RATE)}.",
                series=[*lines, *scattered(groups, [labels[i] for i in longest])],
                x=Axis(name="work for a byte", unit="FLOP/B", log=10),
                y=Axis(name="work a second", unit="FLOP/s", log=10),
            ),
            _kernel_table(result),
        ],
    )


def _kernel_table(result: Result) -> Table:
    roof = roofline(plan_of(result))
    order = np.argsort(-roof.seconds, kind="stable").tolist()
    rows = [
        (
            roof.names[i],
            roof.parts[i].replace("_", " "),
            float(roof.count[i]),
            float(roof.seconds[i]),
            float(roof.achieved[i]),
            float(roof.bandwidth_share[i]),
        )
        for i in order
    ]
    columns = (
        *(Column("kernel"), Column("part"), Column("launches of a rank", "count")),
        *(Column("time, alone", "s"), Column("work a second", "FLOP/s")),
        Column("of the memory's bandwidth", "share"),
    )
    return Table(f"Kernels of a mean rank ({len(rows)})", columns, rows, folded=True)


def links_section(result: Result) -> Section:
    """Use of kernels and links over time: ports of ranks, and links of the fabric."""
    use, series = result.links, result.utilisation.series
    middle = (series.edges_s[1:] + series.edges_s[:-1]) / 2
    shares = [
        Series(name.replace("_", "-"), middle, values, f"resource.{name}")
        for name, values in series.shares.items()
    ]
    blocks: list[Block] = [
        Lines(
            title="Compute and links over time",
            alt="In the mean "
            + ", ".join(
                f"{name.replace('_', '-')} works {100 * share:.1f} % of the time"
                for name, share in result.summary["utilisation"].items()
            )
            + ".",
            series=shares,
            x=_TIME,
            y=_SHARE,
        )
    ]
    blocks.append(_ranks(result))
    ports = np.arange(len(use.names)) < use.ports
    for title, tier in (("ports of ranks", ports), ("links of the fabric", ~ports)):
        blocks += _busiest(use, title, tier)
    if use.carried.any():
        blocks.append(_link_table(result))
    return Section(
        "links",
        "Links and fabric",
        "How much of its bandwidth each link carries: ports of the ranks, and links of the fabric where they could be too thin.",
        blocks,
    )


def _ranks(result: Result) -> Heat:
    """Share of the time in which kernels of each rank run."""
    use = result.utilisation
    means = use.kernels.mean(axis=1)
    least = int(np.argmin(means))
    names = result.program.rank_name
    return Heat(
        title="Kernels of each rank over time",
        alt=f"{names[least]} computes least: {100 * means[least]:.1f} % of the time.",
        names=names,
        edges=use.series.edges_s,
        values=use.kernels,
        x=_TIME,
        z=Axis(name="share of the time in which kernels run", unit="share"),
    )


def _busiest(use: LinkUse, title: str, tier: NDArray[np.bool_]) -> Iterator[Heat]:
    """The busiest links of one tier over time; nothing where none carries anything."""
    busy = [link for link in use.busiest(len(use.names)).tolist() if tier[link]][:_BUSIEST]
    if not busy:
        return
    rows = sorted(busy)  # neighbours in the list of links are neighbours in the picture
    some = "" if len(busy) < _BUSIEST else f"The {_BUSIEST} busiest "
    yield Heat(
        title=f"{some}{title} over time".capitalize(),
        alt=f"Busiest is {use.names[busy[0]]}, which carries {100 * use.mean[busy[0]]:.1f} % of what it could.",
        names=[use.names[link] for link in rows],
        edges=use.edges_s,
        values=use.share[rows],
        x=_TIME,
        z=Axis(name="share of the bandwidth", unit="share"),
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


def energy_section(result: Result) -> Section:
    """Energy of a step at the accelerators and at the meter, by part."""
    summary = result.summary
    known = [
        (name, summary.get(key))
        for name, key in (("accelerators", "energy_parts_j"), ("at the meter", "meter_parts_j"))
    ]
    bars = [
        Bars(
            title=f"Energy of a step, {name}",
            alt=f"{format_quantity(sum(parts.values()), Dimension.ENERGY)} a step, most of it {max(parts, key=lambda part: parts[part])}.",
            names=["a step"],
            parts=[Part(part, [joule]) for part, joule in parts.items() if joule],
            value=Axis(name="energy", unit="J"),
        )
        for name, parts in known
        if parts
    ]
    return Section("energy", "Energy", "By what the energy of a step goes into.", bars)
