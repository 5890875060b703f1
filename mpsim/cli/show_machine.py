"""``mpsim show system machine.yaml``: what was measured on a machine, beside what mpsim would assume of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsim.hardware import Cluster

__all__ = ["show_machine"]

HEADER = ("figure", "measured", "95 %", "otherwise", "unit")
_FITS = ("what", "form", "points", "median_error", "held_out_median_error", "noise")


def show_machine(path: str, *, as_json: bool) -> None:
    """Print a machine file as a table: constants with their intervals beside the shipped ones, and how well they fit."""
    from mpsim.cli.console import print_json, print_table, print_text
    from mpsim.hardware import read_machine

    cluster = read_machine(path)
    rows = list(_rows(cluster))
    assert cluster.calibration is not None, "a machine file"
    document = cluster.calibration.document
    if as_json:
        figures = [dict(zip(HEADER, row, strict=True)) for row in rows]
        print_json({"catalog": "machine", "name": cluster.name, "figures": figures, **document})
        return
    print_text(cluster.describe())
    print_text(f"\n{cluster.calibration.source} ({cluster.calibration.as_of})")
    title = f"measured, beside {document.get('datasheet', 'what mpsim assumes of a machine it does not know')}"
    print_table(rows, header=HEADER, title=title, right=(1, 3))
    fits = [[_cell(one.get(key)) for key in _FITS] for one in document.get("fits", ())]
    if fits:
        print_text(" ")
        header = ("fit", "form", "points", "error", "held-out error", "noise")
        print_table(fits, header=header, right=(2, 3, 4, 5))
    for warning in document.get("warnings", ()):
        print_text(f"warning: {warning}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return "" if value is None else str(value)


def _rows(cluster: Cluster) -> Iterator[tuple[str, str, str, str, str]]:
    from mpsim.hardware import accelerator
    from mpsim.units import Dimension, format_quantity

    measured = cluster.calibration
    assert measured is not None
    chip, sheet = cluster.accelerator, str(measured.document.get("datasheet", ""))
    other = accelerator(sheet) if sheet else None
    for precision, peak in chip.peak_flops.items():
        known = other.peak_flops.get(precision) if other else None
        text = "" if known is None else format_quantity(known, Dimension.FLOP_RATE)
        yield f"peak, {precision}", format_quantity(peak, Dimension.FLOP_RATE), "", text, ""
    rate = format_quantity(chip.memory_bandwidth, Dimension.BANDWIDTH)
    text = format_quantity(other.memory_bandwidth, Dimension.BANDWIDTH) if other else ""
    yield "memory", rate, "", text, ""
    joined = format_quantity(cluster.node.scale_up.bandwidth, Dimension.BANDWIDTH)
    yield "link inside a node", joined, "", "", ""
    for name, one in sorted(measured.constants.items()):
        shipped = _shipped(name, other.name if other else chip.name, chip.family)
        span = "" if one.low == one.high else f"{one.low:.3g} to {one.high:.3g}"
        known_text = "" if shipped is None else f"{shipped:.5g}"
        yield name, f"{one.value:.5g}", span, known_text, one.unit
    for field, value in measured.framework.items():
        yield f"framework.{field}", str(value), "", "", ""
    for curve in (*measured.kernels, *measured.collectives):
        what = curve.phase or f"{curve.ranks} ranks"
        yield f"curve of {curve.kind}, {what}", f"{len(curve.sizes)} points", "", "", ""


def _shipped(name: str, chip: str, family: str) -> float | None:
    """The constant that counts without a calibration; None where there is none."""
    from mpsim.cost.constants import choose_group, constant_groups
    from mpsim.errors import HardwareError

    stem, _, rest = name.partition(".")
    prefix, _, leaf = rest.rpartition(".")
    groups = constant_groups(stem)
    try:
        group = groups[prefix] if prefix in groups else choose_group(stem, prefix, chip, family)
    except HardwareError:
        return None
    return group.value(leaf) if leaf in group else None
