"""``mpsim show fabric`` and ``mpsim show system machine.yaml``: the network of a cluster, and the figures measured on a machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mpsim.hardware import Cluster
    from mpsim.hardware.inventory import Inventory

__all__ = ["show_fabric", "show_machine"]

FIGURES = ("figure", "measured", "95 %", "otherwise", "unit")
FITS = {
    "what": "fit",
    "form": "form",
    "points": "points",
    "median_error": "error",
    "held_out_median_error": "held-out error",
    "noise": "noise",
}
TIERS = (
    *("tier", "units", "nodes of a unit", "switches"),
    *("cables below", "unit up", "oversubscribed"),
)


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
        from mpsim.plot import fabric_chart

        wrote(fabric_chart(cluster).save(plot))


def _cluster(name: str, nodes: int | None) -> Cluster:
    from mpsim.hardware import system, system_names, with_overrides
    from mpsim.scenario import load

    if name in system_names() or not Path(name).exists():
        return system(name, nodes=nodes)
    cluster = load(name, checked=False).hardware
    return cluster if nodes is None else with_overrides(cluster, nodes=nodes)


def _print(cluster: Cluster, counted: Inventory) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.units import Dimension, format_quantity

    _print_parts(cluster)
    if counted.tiers:
        rows = [
            (tier.name, str(tier.units), str(min(tier.nodes, cluster.nodes)), str(tier.switches), str(tier.cables),
             format_quantity(tier.up_bandwidth, Dimension.BANDWIDTH) if tier.up_bandwidth else "", f"{tier.oversubscription:.3g}:1")
            for tier in counted.tiers
        ]  # fmt: skip
        print_table(rows, header=TIERS, right=range(1, len(TIERS)))
    print_text(counted.describe())


def _print_parts(cluster: Cluster) -> None:
    from mpsim.cli.console import print_table

    print_table(((f"  {name}", text) for name, text in cluster.parts.items()), title=cluster.size)


def show_machine(path: str, *, as_json: bool) -> None:
    """Print a machine file as a table: constants with their intervals beside the shipped ones, and how well they fit."""
    from mpsim.cli.console import print_json, print_table, print_text
    from mpsim.cost.calibrated import measured_figures
    from mpsim.hardware import read_machine

    cluster = read_machine(path)
    rows = list(measured_figures(cluster))
    assert cluster.calibration is not None, "a machine file"
    document = cluster.calibration.document
    if as_json:
        figures = [dict(zip(FIGURES, row, strict=True)) for row in rows]
        print_json({"catalog": "machine", "name": cluster.name, "figures": figures, **document})
        return
    _print_parts(cluster)
    print_text(f"\n{cluster.calibration.source} ({cluster.calibration.as_of})")
    title = f"measured, beside {document.get('datasheet', 'what mpsim assumes of a machine it does not know')}"
    print_table(rows, header=("constant", *FIGURES[1:]), title=title, right=(1, 3))
    fits = [[_cell(fit.get(key)) for key in FITS] for fit in document.get("fits", ())]
    if fits:
        print_text(" ")
        print_table(fits, header=tuple(FITS.values()), right=(2, 3, 4, 5))
    for warning in document.get("warnings", ()):
        print_text(f"warning: {warning}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return "" if value is None else str(value)
