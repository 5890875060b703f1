"""Figures measured on a machine, beside those that ship with mpsim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpsim.cost.constants import choose_group, constant_groups
from mpsim.errors import HardwareError
from mpsim.hardware import Cluster, accelerator
from mpsim.units import Dimension, format_quantity


class MeasuredFigure(NamedTuple):
    """A figure of a machine file beside what counts without it, each as text."""

    name: str
    measured: str
    interval: str = ""
    shipped: str = ""
    unit: str = ""


def measured_figures(cluster: Cluster) -> Iterator[MeasuredFigure]:
    """Every figure of a machine file. `cluster`: of a machine file."""
    measured = cluster.calibration
    assert measured is not None
    chip, sheet = cluster.accelerator, str(measured.document.get("datasheet", ""))
    other = accelerator(sheet) if sheet else None
    for precision, peak in chip.peak_flops.items():
        known = other.peak_flops.get(precision) if other else None
        text = "" if known is None else format_quantity(known, Dimension.FLOP_RATE)
        rate = format_quantity(peak, Dimension.FLOP_RATE)
        yield MeasuredFigure(f"peak, {precision}", rate, shipped=text)
    rate = format_quantity(chip.memory_bandwidth, Dimension.BANDWIDTH)
    text = format_quantity(other.memory_bandwidth, Dimension.BANDWIDTH) if other else ""
    yield MeasuredFigure("memory", rate, shipped=text)
    joined = format_quantity(cluster.node.scale_up.bandwidth, Dimension.BANDWIDTH)
    yield MeasuredFigure("link inside a node", joined)
    for name, constant in sorted(measured.constants.items()):
        shipped = _shipped(name, other.name if other else chip.name, chip.family)
        span = "" if constant.low == constant.high else f"{constant.low:.3g} to {constant.high:.3g}"
        known_text = "" if shipped is None else f"{shipped:.5g}"
        yield MeasuredFigure(name, f"{constant.value:.5g}", span, known_text, constant.unit)
    for field, value in measured.framework.items():
        yield MeasuredFigure(f"framework.{field}", str(value))
    for curve in (*measured.kernels, *measured.collectives):
        what = curve.phase or f"{curve.ranks} ranks"
        yield MeasuredFigure(f"curve of {curve.kind}, {what}", f"{len(curve.sizes)} points")


def _shipped(name: str, chip: str, family: str) -> float | None:
    """The constant that counts without a calibration; None where there is none."""
    stem, _, rest = name.partition(".")
    prefix, _, leaf = rest.rpartition(".")
    groups = constant_groups(stem)
    try:
        group = groups[prefix] if prefix in groups else choose_group(stem, prefix, chip, family)
    except HardwareError:
        return None
    return group.value(leaf) if leaf in group else None
