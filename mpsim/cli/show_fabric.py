"""``mpsim show fabric``: what the network of a system or a scenario is built of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mpsim.hardware import Cluster
    from mpsim.hardware.inventory import Inventory

__all__ = ["show_fabric"]


def show_fabric(name: str | None, *, nodes: int | None, plot: Path | None, as_json: bool) -> None:
    """Print counts, bisection, price and power of a fabric, and draw it if asked to."""
    from mpsim.cli.console import print_json, wrote
    from mpsim.hardware.inventory import inventory_of

    if name is None:
        raise typer.BadParameter("needed a system such as dgx-h100, or a scenario file")
    cluster = _cluster(name, nodes)
    counted = inventory_of(cluster)
    if as_json:
        print_json(
            {
                "cluster": cluster.name,
                "nodes": cluster.nodes,
                "accelerators": cluster.accelerators,
                "kind": cluster.fabric.kind.value,
                **dataclasses.asdict(counted),
            }
        )
    else:
        _print(cluster, counted)
    if plot is not None:
        from mpsim.plot.fabric import FabricDisplay

        wrote(FabricDisplay(cluster).save(plot))


def _cluster(name: str, nodes: int | None) -> Cluster:
    from mpsim.hardware import system, system_names, with_overrides
    from mpsim.scenario import load

    if name in system_names() or not Path(name).exists():
        return system(name, nodes=nodes)
    cluster = load(name, checked=False).hardware
    return cluster if nodes is None else with_overrides(cluster, nodes=nodes)


def _counted(count: float, one: str, many: str = "") -> str:
    """A number and its noun."""
    number = count if isinstance(count, int) else f"{count:.3g}"
    return f"{number} {one if count == 1 else many or f'{one}s'}"


def _print(cluster: Cluster, counted: Inventory) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.units import Dimension, format_quantity

    def rate(value: float) -> str:
        return format_quantity(value, Dimension.BANDWIDTH) if value else ""

    print_text(cluster.describe())
    if counted.tiers:
        rows = [
            (one.name, str(one.units), str(min(one.nodes, cluster.nodes)), str(one.switches),
             str(one.cables), rate(one.up_bandwidth), f"{one.oversubscription:.3g}:1")
            for one in counted.tiers
        ]  # fmt: skip
        header = (
            "tier",
            "units",
            "nodes of a unit",
            "switches",
            "cables below",
            "unit up",
            "oversubscribed",
        )
        print_table(rows, header=header, right=(1, 2, 3, 4, 5, 6))
    share = (
        f" ({counted.bisection / counted.full_bisection:.0%} of what NICs send)"
        if counted.full_bisection
        else ""
    )
    parts = (
        _counted(counted.switches, "switch", "switches"),
        _counted(counted.cables, "cable"),
        f"{_counted(counted.hops, 'hop')} between far nodes",
    )
    lines = [
        ", ".join(parts),
        f"bisection {rate(counted.bisection) or 'none'}{share}",
    ]
    if counted.price is not None:
        lines.append(f"price of switches and cables {counted.price:,.0f} USD")
    if counted.power_w is not None:
        lines.append(f"power of switches {format_quantity(counted.power_w, Dimension.POWER)}")
    print_text("\n".join(lines))
