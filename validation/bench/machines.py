"""Machines of published rows: links, NICs, racks and clusters that their words mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bench.tables import lookup, table
from mpsim.errors import CalibrationError
from mpsim.formats import words
from mpsim.hardware import Accelerator, Cluster, Link, build_cluster, link
from mpsim.memo import remembered

__all__ = ["benchmark_cluster", "links_of", "nic_named", "per_node", "rack_of"]

_BITS = 8
_GIGA = 1e9
_KILO = 1000.0
_USUAL = "usual"
_CLOUD = ("efa-v2", 32, 100.0)  # ports of a node and the rate of each [Gb/s]: AWS p5.48xlarge


def per_node(name: str) -> int:
    """Accelerators in a usual node of this kind."""
    return int(words.lookup(words.DATA, "hardware", "gpus", name)["per_node"])


def links_of(chip: Accelerator, text: str) -> tuple[Link, int | None]:
    """The scale-up link that a row's words mean, and how many accelerators it joins where the words say so."""
    entry = lookup("hardware", "links", text)
    name = chip.scale_up if _is_usual(chip, entry["link"]) else entry["link"]
    if name is None or not name.startswith(entry.get("of", "")):
        raise CalibrationError(f"the scale-up link of {chip.name} is not stated")
    return link(name), entry.get("domain")


def _is_usual(chip: Accelerator, name: str) -> bool:
    """Whether words for a generation of links mean those of the accelerator itself, which may be a cut-down variant."""
    return name == _USUAL or (chip.scale_up or "").startswith(f"{name}-")


def rack_of(name: str) -> Mapping[str, Any] | None:
    """Trays and reach of the racks that an accelerator is sold in, None where nodes stand alone."""
    for entry in table("hardware")["racks"]:
        if re.fullmatch(entry["pattern"], name, flags=re.IGNORECASE):
            rack: Mapping[str, Any] = entry
            return rack
    return None


def nic_named(text: str, gbit: float) -> Link:
    """A NIC of the technology that a row names, at the rate it states [Gb/s per direction]."""
    nic = link(lookup("hardware", "nics", text.replace("\N{MULTIPLICATION SIGN}", "x"))["nic"])
    bandwidth = gbit * _GIGA / _BITS
    if bandwidth == nic.bandwidth:
        return nic
    return dataclasses.replace(
        nic, bandwidth=bandwidth, sources={**nic.sources, "bandwidth": "given by the user"}
    )


@remembered(1024)
def benchmark_cluster(
    gpu_name: str, link_text: str, nic_text: str, nodes: int, gpus: int
) -> Cluster:
    """The cluster of a benchmark.

    Parameters
    ----------
    gpu_name, link_text, nic_text : str
        As the row writes them, such as ``8x400G NDR IB`` or ``none``.
    nodes, gpus : int
        In all.

    Raises
    ------
    CalibrationError
        If a name is unknown, or the GPUs do not divide among the nodes.
    """
    if nodes < 1 or gpus % nodes:
        raise CalibrationError(f"{gpus} GPUs do not divide among {nodes} nodes")
    chip = words.gpu(gpu_name)
    joined, domain = links_of(chip, link_text)
    each = gpus // nodes if nodes > 1 else max(gpus, per_node(gpu_name))
    whole = domain is not None and gpus <= domain
    if nodes == 1 or whole:
        return build_cluster(
            accelerator=chip,
            accelerators_per_node=each,
            nodes=nodes,
            scale_up=joined,
            domain=each * nodes if whole else None,
        )
    ports, gbit = _ports(nic_text, each)
    return build_cluster(
        accelerator=chip,
        accelerators_per_node=each,
        nodes=nodes,
        scale_up=joined,
        nics_per_node=ports,
        nic=nic_named(nic_text, gbit),
    )


def _ports(text: str, accelerators: int) -> tuple[int, float]:
    """NICs of a node and the rate of each [Gb/s], of words such as ``EFA v4 8x400G``; where only a generation is named, such as ``HDR IB``, one of it an accelerator."""
    text = text.replace("\N{MULTIPLICATION SIGN}", "x")
    entry = lookup("hardware", "nics", text)  # what is refused says why
    for pattern in table("hardware")["ports"]:
        if match := re.search(pattern, text):
            found = {"number": str(accelerators), **match.groupdict()}
            total = float(found.get("total", "0").replace(",", ""))
            if total and entry["nic"] == _CLOUD[0]:
                return _CLOUD[1], _CLOUD[2]
            rate = total * (_KILO if total < _KILO else 1.0) / accelerators
            return int(found["number"]), rate or float(found["rate"])
    if not (named := re.search(r"(?:\b(\d+) ?x ?)?(?<![A-Z])[EHNX]DR\b", text)):
        raise CalibrationError(
            f"nic {text!r} does not state number and rate; needed such as '8x400G'"
        )
    return int(named[1] or accelerators), link(entry["nic"]).bandwidth * _BITS / _GIGA
