"""Sections on what the machine does in a training step: memory, kernels, links, energy.

Shapes: E moments, R rank classes, K kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.chart import Axis, Bars, Heat, Part
from mpsim.plot.step import (
    heat_chart,
    links_heat,
    memory_chart,
    memory_kinds_chart,
    roofline_chart,
    utilisation_chart,
)
from mpsim.report.blocks import Block, Column, Section, Table
from mpsim.result import Result
from mpsim.result.links import LinkUse
from mpsim.training.job import plan_of
from mpsim.training.roofline import roofline
from mpsim.units import Dimension, format_quantity

__all__ = ["energy_section", "kernels_section", "links_section", "memory_section"]

_BUSIEST = 32  # links with a row of their own over time


def memory_section(result: Result, *, whole: bool = True) -> Section:
    """Memory of each rank at its fullest moment and, if `whole`, of some over the step by kind."""
    memory = result.memory
    ranks = sorted({0, memory.fullest, len(memory.total) - 1}) if whole else []
    over_time = [memory_kinds_chart(result, rank=rank) for rank in ranks]
    return Section(
        "memory",
        "Memory",
        "What each rank holds when it is fullest, and over the step.",
        [memory_chart(result), *over_time],
    )


def kernels_section(result: Result) -> Section:
    """Kernels of forwards and backwards under the roofs of the accelerator."""
    if not (roofline(plan_of(result)).flops > 0).any():
        return Section("kernels", "Kernels", "", [])
    return Section(
        "kernels",
        "Kernels under the roofline",
        "Roofline: FLOPs per byte against achieved FLOP/s of each kernel; marks are as large as the time they take.",
        [roofline_chart(result), _kernel_table(result)],
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
    use = result.links
    blocks: list[Block] = [utilisation_chart(result), heat_chart(result)]
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


def _busiest(use: LinkUse, title: str, tier: NDArray[np.bool_]) -> Iterator[Heat]:
    """The busiest links of one tier over time; nothing where none carries anything."""
    busy = [link for link in use.busiest(len(use.names)).tolist() if tier[link]]
    if busy:
        yield links_heat(use, sorted(busy[:_BUSIEST]), title, len(busy))


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
