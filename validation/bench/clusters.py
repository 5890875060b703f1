"""Clusters: what the hardware columns of a training table describe, as a scenario holds it."""

from __future__ import annotations

import math
import re
from typing import Any

from bench.assumptions import instance_of, slices_of, system_of
from bench.machines import links_of, nic_named, per_node, rack_of
from mpsim.errors import CalibrationError
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells
from mpsim.formats.words import gpu
from mpsim.hardware import Accelerator, Link, LinkShape, system
from mpsim.hardware.lookup import GENERIC_NIC

__all__ = ["cluster_of"]

_BOTH_WAYS = 2  # directions in which a link's rate is often added up
_GIGA = 1e9
_SAME = 0.05  # rates this close are one figure, rounded


def cluster_of(cells: Cells) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """The cluster of a row.

    Parameters
    ----------
    cells : Cells
        Configuration columns of published runs.

    Returns
    -------
    dict
        The section `cluster` of its scenario.
    tuple of Assumed

    Raises
    ------
    CalibrationError
        If the row does not say enough.
    """
    count, name = cells.required("num_accel"), cells.text("accelerator")
    chip = _chip_of(cells, name)
    each, assumed = _per_node(cells, count)
    if (tori := system_of(name)) and not cells.whole("nics_per_node"):
        return _torus(cells, tori, count, each), assumed
    joined, stated, link_told = _links(chip, cells.text("intra_node_link"))
    cluster: dict[str, Any] = {
        "accelerator": chip.name,
        "accelerators_per_node": each,
        "nodes": count // each,
        "scale_up": _scale_up(cells, joined),
    }
    domain, more = _domain(name, count, each, stated)
    if domain > each:
        cluster["domain"] = domain
    if count > domain:
        network, nic_told = _network(cells, each)
        cluster |= network
        more = (*more, *nic_told)
    return cluster, (*assumed, *link_told, *more)


def _chip_of(cells: Cells, name: str) -> Accelerator:
    """The accelerator of a name, of several memories that it leaves open the one that the row states."""
    if _counts_cores(cells):
        return gpu(f"{name} core")
    chip, stated = gpu(name), cells.number("accel_mem_gb")
    if not stated or re.search(r"\d ?GB?\b", name, re.IGNORECASE):
        return chip
    of_size = gpu(f"{name} {stated:g}GB")
    own, other = (abs(each.memory_bytes / _GIGA - stated) for each in (chip, of_size))
    return of_size if other < own else chip


def _counts_cores(cells: Cells) -> bool:
    """Whether a row counts the two NeuronCores of each Trainium 1, as its software does, 32 a node."""
    of_name = re.match(r"(AWS )?(Trainium ?1|Trn1)\b", cells.text("accelerator"), re.IGNORECASE)
    return of_name is not None and cells.whole("accel_per_node") == 2 * per_node("Trainium1")


def _links(chip: Accelerator, text: str) -> tuple[Link, int | None, tuple[Assumed, ...]]:
    """The links of a node; the accelerator's usual ones where the words are not known."""
    try:
        return *links_of(chip, text), ()
    except CalibrationError:
        joined, stated = links_of(chip, "")
        return joined, stated, (Assumed("scale_up", joined.name, f"{text!r} is not known"),)


def _per_node(cells: Cells, count: int) -> tuple[int, tuple[Assumed, ...]]:
    """Accelerators that share a host; those of a tray where the row counts a whole rack as one node."""
    each = min(count, cells.required("accel_per_node"))
    rack = rack_of(cells.text("accelerator"))
    if rack is not None and each > rack["tray"] and each % rack["tray"] == 0:
        each = int(rack["tray"])
    if count % each == 0:
        return each, ()
    fits = math.gcd(count, each)
    why = f"{count} accelerators do not fill nodes of {each}"
    return fits, (Assumed("accel_per_node", str(fits), why),)


def _domain(
    name: str, count: int, each: int, stated: int | None
) -> tuple[int, tuple[Assumed, ...]]:
    """Accelerators that scale-up links join: those of a node, or of a rack, or of the part of racks that a job takes."""
    rack = rack_of(name)
    most = stated or (int(rack["domain"]) if rack else each)
    if count <= most:
        return count, ()
    if rack is None or most != rack["domain"] or count % most == 0 or count % rack["used"]:
        return most, ()
    return int(rack["used"]), (Assumed("domain", str(rack["used"]), rack["why"]),)


def _scale_up(cells: Cells, joined: Link) -> str | dict[str, str]:
    """The link of a row, at the rate it states where that is another one."""
    rate = cells.number("intra_node_link_gbytes_s_per_accel_bidir")
    if not rate or joined.shape is not LinkShape.SWITCH:
        return joined.name
    stated, usual = rate / _BOTH_WAYS, joined.bandwidth / _GIGA
    if abs(stated - usual) <= _SAME * usual:
        return joined.name
    return {"preset": joined.name, "bandwidth": f"{stated:g} GB/s"}


def _torus(cells: Cells, name: str, count: int, each: int) -> dict[str, Any]:
    """Slices of a system whose accelerators are joined beyond the node, no larger than its links reach."""
    reach = system(name).node.scale_up.max_domain or count
    slices = max(slices_of(cells), math.ceil(count / reach))
    if count % (slices * each):
        raise CalibrationError(f"{count} accelerators do not divide into {slices} slices")
    nodes = {"preset": name, "nodes": count // each, "accelerators_per_node": each}
    return {**nodes, "domain": count // slices}


def _network(cells: Cells, each: int) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """NICs of a node; of no special technology where the words are not known, as the row states their rate."""
    ports, rate = cells.whole("nics_per_node"), cells.number("nic_gbit_s")
    if not ports or not rate:
        raise CalibrationError("the network between nodes is not stated")
    stated = cells.whole("accel_per_node") or each
    if ports > each and stated > each and ports * each % stated == 0:
        ports = ports * each // stated  # those of a rack, of which a tray has its part
    assumed: tuple[Assumed, ...] = ()
    try:
        nic = nic_named(cells.text("inter_node_link"), rate).name
    except CalibrationError as error:
        nic, assumed = GENERIC_NIC, (Assumed("nic", GENERIC_NIC, str(error)),)
    instance = instance_of(cells)
    unused = instance is not None and "nics_per_node" in instance
    if instance is not None and (unused or nic == GENERIC_NIC):
        nic, assumed = instance["nic"], (Assumed("nic", instance["nic"], instance["why"]),)
        if unused:
            return {"nics_per_node": instance["nics_per_node"], "nic": nic}, assumed
    return {"nics_per_node": ports, "nic": {"preset": nic, "bandwidth": f"{rate:g} Gb/s"}}, assumed
