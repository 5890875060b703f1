"""The machine file: what was measured as entries of a catalog, with the fitted constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from mpsim import structs
from mpsim.calibrate.parts import Fit
from mpsim.calibrate.points import Point
from mpsim.cost import CollectiveModel
from mpsim.errors import CalibrationError
from mpsim.hardware import Accelerator, Cluster, Fabric, Link, MeasuredCurve, link
from mpsim.hardware.machine import MACHINE_SCHEMA
from mpsim.measured.records import Header
from mpsim.measured.sources import Source
from mpsim.shipped import say
from mpsim.units import Dimension, format_exact, format_quantity

Entry: TypeAlias = dict[str, object]  # what a machine file holds under one key
_DIGITS = 4
_LOOPBACK = "10 GB/s"
_WATTS = "10 W"
_IDLE = "1 W"


@structs.dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a machine, without its constants."""

    name: str
    source: str
    as_of: str
    datasheet: str  # the accelerator of the catalog that it has; empty for a CPU
    accelerator: Entry  # accelerator, scale_up: entries as a catalog holds them
    scale_up: Entry
    nic: Entry | None
    per_node: int
    nodes: int
    library: str
    inputs: Sequence[Entry]
    # of a cluster that is known; left out, a NIC for each accelerator on one switch
    wires: Mapping[str, object] = structs.field(default_factory=dict)
    runs: Sequence[Mapping[str, object]] = ()  # labels of measured steps


def known_machine(cluster: Cluster, name: str) -> tuple[Frame, Fit]:
    """The machine as it is known: of a machine file all that it holds, else the datasheets."""
    known, chip = cluster.calibration, cluster.accelerator
    document: Mapping[str, object] = known.document if known else {}
    accelerator, scale_up, nic = (document.get(key) for key in ("accelerator", "scale_up", "nic"))
    as_of, node, fabric = str(document.get("as_of", chip.year)), cluster.node, cluster.fabric
    frame = Frame(
        name=name or f"{chip.name}-recorded",
        source="recorded steps" + (f", beside what {known.source} said" if known else ""),
        as_of=as_of,
        datasheet=str(document.get("datasheet", "")) if known else chip.name,
        accelerator=_entry(accelerator) or sheet_entry(chip),
        scale_up=_entry(scale_up) or link_entry(node.scale_up, None, as_of),
        nic=_entry(nic) or (link_entry(node.nic, None, as_of) if node.nics else None),
        per_node=node.accelerators,
        nodes=cluster.nodes,
        library=CollectiveModel(cluster).library.name,
        inputs=[],
        wires={"nics_per_node": node.nics, "domain": node.domain, "fabric": fabric_entry(fabric)},
        runs=known.runs if known else (),
    )
    if known is None:
        return frame, Fit()
    return frame, Fit(known.constants, known.kernels, known.collectives, known.framework)


def _entry(value: object) -> Entry | None:
    return dict(value) if isinstance(value, Mapping) else None


def cpu_entry(header: Header, points: Sequence[Point], as_of: str) -> Entry:
    """A rank of a CPU as an accelerator: its peaks are the fastest products that were measured.

    CalibrationError if no product and no copy was measured, so that there is nothing to measure
    against.
    """
    rank = header.ranks[0]
    peaks: dict[str, float] = {}
    for point in points:
        if point.operator is not None and point.operator.m and point.phase == "burst":
            rate = point.operator.flops / point.seconds
            peaks[point.precision] = max(peaks.get(point.precision, 0.0), rate)
    streams = list(_largest_streams(points))
    if not peaks or not streams:
        raise CalibrationError(say("calibrate.no_cpu_rates"))
    sharing = sum(record.host == rank.host for record in header.ranks)
    return {
        "title": f"{rank.device_name}, {rank.threads} thread(s) a rank",
        "vendor": "CPU",
        "family": "cpu",
        "year": int(as_of[:4]),
        "compute_units": max(rank.threads, 1),
        "peak_flops": {
            name: format_quantity(peak, Dimension.FLOP_RATE, digits=_DIGITS)
            for name, peak in sorted(peaks.items())
        },
        "memory": format_quantity(rank.memory_bytes / sharing, Dimension.BYTES, digits=_DIGITS),
        "memory_bandwidth": format_quantity(
            max(stream.size / stream.seconds for stream in streams),
            Dimension.BANDWIDTH,
            digits=_DIGITS,
        ),
        "tdp": _WATTS,
        "idle": _IDLE,
        "recalled": ["tdp", "idle"],
        "source": (
            "measured: the fastest product; the largest copy or optimizer step, the faster of both"
        ),
        "as_of": as_of,
    }


def _largest_streams(points: Sequence[Point]) -> Iterator[Point]:
    """The largest copy and the largest optimizer step.

    A copy reads what it will overwrite into the cache first, an optimizer does not: only the faster
    of both says what the memory can do.
    """
    for op in ("copy/", "adam/"):
        mine = [point for point in points if point.series.startswith(op) and point.phase == "burst"]
        if mine:
            yield max(mine, key=lambda point: point.size)


def sheet_entry(chip: Accelerator) -> Entry:
    """An accelerator by its datasheet: fractions of it are what was measured."""
    peaks = chip.peak_flops.items()
    entry: Entry = {
        **structs.named(chip, "title", "vendor", "family", "year", "compute_units"),
        "peak_flops": {name: format_exact(peak, Dimension.FLOP_RATE) for name, peak in peaks},
        "memory": format_exact(chip.memory_bytes, Dimension.BYTES),
        "memory_bandwidth": format_exact(chip.memory_bandwidth, Dimension.BANDWIDTH),
        "tdp": format_exact(chip.tdp_w, Dimension.POWER),
        "idle": format_exact(chip.idle_w, Dimension.POWER),
        "source": f"datasheet, as {chip.name} of the catalog",
        "as_of": str(chip.year),
    }
    if chip.scale_up is not None:
        entry["scale_up"] = chip.scale_up
    if chip.price_per_hour is not None:
        entry["price_per_hour"] = format_exact(chip.price_per_hour, Dimension.PRICE_RATE)
    if chip.boost_clock_hz is not None:
        entry["boost_clock"] = format_exact(chip.boost_clock_hz, Dimension.FREQUENCY)
    return entry


def link_entry(joined: Link | None, bandwidth: float | None, as_of: str) -> Entry:
    """The link between accelerators of a node, at the rate that was measured."""
    if joined is None:
        rate = _LOOPBACK if bandwidth is None else _rate(bandwidth)
        entry: Entry = {
            "title": "loopback of the host",
            "shape": "host",
            "bandwidth": rate,
            "latency": "0 s",
            "source": "measured: no collective was faster; latency lies in the library's constants",
            "as_of": as_of,
        }
        if bandwidth is None:
            entry |= {"recalled": ["bandwidth"], "source": "nothing was measured"}
        return entry
    entry = {
        "title": joined.title,
        "shape": joined.shape.value,
        "bandwidth": format_exact(joined.bandwidth, Dimension.BANDWIDTH),
        "latency": format_exact(joined.latency, Dimension.TIME),
        **structs.named(joined, "links", "in_network_reduction", "efficiency"),
        **(_switch(joined) if joined.switch_latency or joined.switch_ports else {}),
        "source": f"datasheet, as {joined.name} of the catalog",
        "as_of": as_of,
    }
    if bandwidth is not None:
        entry["bandwidth"] = _rate(max(bandwidth, joined.bandwidth))
    return entry


def _switch(joined: Link) -> Entry:
    latency = format_exact(joined.switch_latency, Dimension.TIME)
    return {"switch_latency": latency, "switch_ports": joined.switch_ports}


def _rate(bandwidth: float) -> str:
    return format_quantity(bandwidth, Dimension.BANDWIDTH, digits=_DIGITS)


def fabric_entry(fabric: Fabric) -> Entry:
    """A network between nodes, as far as it is not the usual one."""
    usual = Fabric(kind=fabric.kind)
    names = (field.name for field in structs.fields(fabric))
    own = {n: getattr(fabric, n) for n in names if getattr(fabric, n) != getattr(usual, n)}
    plain = {n: list(each) if isinstance(each, tuple) else each for n, each in own.items()}
    told = {"hop_latency": format_exact(fabric.hop_latency, Dimension.TIME)}
    return {"kind": f"{fabric.kind}", **plain, **told, "routing": f"{fabric.routing}"}


def nic_entry(as_of: str) -> Entry:
    """Between nodes: a generic NIC, whose share the library's measured constants replace."""
    generic = link("generic-nic")
    return {
        "title": "network between the measured nodes",
        "shape": "network",
        "bandwidth": format_exact(generic.bandwidth, Dimension.BANDWIDTH),
        "latency": format_exact(generic.latency, Dimension.TIME),
        "recalled": ["bandwidth", "latency"],
        "source": "assumed; what was measured lies in curves and constants",
        "as_of": as_of,
    }


def document_of(frame: Frame, fit: Fit, warnings: Sequence[str]) -> Entry:
    """The machine file as plain data."""
    document: Entry = {
        "schema": MACHINE_SCHEMA,
        "machine": frame.name,
        **structs.named(frame, "source", "as_of", "datasheet"),
        "accelerator": dict(frame.accelerator),
        "scale_up": dict(frame.scale_up),
        "accelerators_per_node": frame.per_node,
        "nodes": frame.nodes,
        "nics_per_node": 0 if frame.nic is None else frame.per_node,
        **frame.wires,
        "library": frame.library,
        "framework": dict(fit.framework),
        "constants": {
            name: {key: getattr(constant, key) for key in ("value", "low", "high", "unit")}
            for name, constant in sorted(fit.constants.items())
        },
        "kernel_curves": [_curve(curve, "kind", "phase") for curve in fit.kernels],
        "collective_curves": [_curve(own, "kind", "ranks", "domains") for own in fit.collectives],
        "fits": list(_fits(fit)),
        "warnings": list(warnings),
        "inputs": [dict(entry) for entry in frame.inputs],
        "runs": [dict(entry) for entry in frame.runs],
    }
    if frame.nic is not None:
        document["nic"] = dict(frame.nic)
    return {key: value for key, value in document.items() if value not in ("", [], {})}


def _curve(curve: MeasuredCurve, *keys: str) -> Entry:
    named = {key: getattr(curve, key) for key in keys}
    return {**named, "bytes": list(curve.sizes), "seconds": list(curve.times)}


def _fits(fit: Fit) -> Iterator[Entry]:
    for score in fit.scores:
        held = score.errors(held_out=True)
        entry: Entry = {
            "what": score.what,
            "form": score.form,
            "points": len(score.ids),
            "held_out": len(held),
            "median_error": _share(score.median(held_out=False)),
        }
        if len(held):
            entry["held_out_median_error"] = _share(score.median(held_out=True))
            entry["held_out_worst_error"] = _share(float(held[np.argmax(np.abs(held))]))
        entry["noise"] = _share(score.noise)
        yield entry


def _share(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def others_of(source: Source) -> float:
    """Share of the machine that other processes used while a file was measured."""
    others = np.median([measurement.others for measurement in source.measurements])
    return round(float(others), _DIGITS)


def input_of(source: Source, digest: str) -> Entry:
    """A file that went in, by name and content, and what else ran on its machine meanwhile."""
    return {
        "others": others_of(source),
        "file": source.file.rpartition("/")[2],
        "tool": source.tool,
        "measurements": len(source.measurements),
        "sha256": digest,
    }
