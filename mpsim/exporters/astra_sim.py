"""ASTRA-sim's machine: the network and the system that a cluster is, beside the execution traces of its ranks."""

from __future__ import annotations

import json
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.exporters.outgoing import Exported, Outgoing, header
from mpsim.exporters.written import yaml_text
from mpsim.formats.words import table
from mpsim.hardware import Cluster, FabricKind, LinkShape
from mpsim.hardware.fabric import torus_shape
from mpsim.scenario import Scenario

__all__ = ["export_astra_network", "export_astra_system"]

_TABLE: Final = ("mpsim.formats.data", "astra-sim")
_GIB, _NANO, _TERA = 2**30, 1e-9, 1e12
_SECTIONS: Final = ("model", "parallelism", "schedule", "training")


def export_astra_network(scenario: Scenario) -> Exported:
    """Write the cluster of a scenario as a network of the analytical backend.

    Raises
    ------
    FormatError
        If its fabric has no counterpart, or it serves.
    """
    out = Outgoing(scenario)
    cluster = scenario.hardware
    node, domains = cluster.node, cluster.domains
    size = cluster.domain_size
    if cluster.accelerators % size:
        raise FormatError(
            f"cluster {cluster.name}: {cluster.accelerators} accelerators are no whole domains of {size}; dimensions of ASTRA-sim are full"
        )
    dimensions = _inner(cluster, size)
    out.hold("cluster.scale_up.latency", "latency")
    if len(dimensions) == 1:
        out.hold("cluster.scale_up.bandwidth", "bandwidth")
        out.hold("cluster.domain", "npus_count")
    if domains > 1:
        rate = node.nic.bandwidth * node.nics / node.accelerators
        delay = node.nic.latency + cluster.fabric.hop_latency
        dimensions += _outer(cluster, rate, delay, domains)
        if node.nics == node.accelerators == size:
            out.hold(["cluster.nic.bandwidth", "cluster.nics_per_node"], "bandwidth")
        out.hold("cluster.nic.latency", "latency")
        if cluster.fabric.hop_latency:
            out.force("cluster.nic.latency", "the latency of a dimension has the switch's in it")
    if node.accelerators == size:
        out.hold(["cluster.nodes", "cluster.accelerators_per_node"], "npus_count")
    keys = ("topology", "npus_count", "bandwidth", "latency")
    data: dict[str, Any] = {
        key: [dimension[place] for dimension in dimensions] for place, key in enumerate(keys)
    }
    data["bandwidth"] = [rate / _GIB for rate in data["bandwidth"]]
    data["latency"] = [round(delay / _NANO, 6) for delay in data["latency"]]
    out.notes.append(
        "GB of 2^30 B/s and ns, of one NPU in each dimension, as ASTRA-sim counts them"
    )
    _lose_rest(out, "the network says how NPUs are joined, and nothing of a run")
    text = "".join(f"# {line}\n" for line in header(scenario, "ASTRA-sim's analytical network"))
    return out.close("astra-network", tool="ASTRA-sim", text=text + yaml_text(data))


def _inner(cluster: Cluster, size: int) -> list[tuple[str, int, float, float]]:
    """Dimensions of a scale-up domain: the axes of a torus, or one."""
    link = cluster.node.scale_up
    kind = table(*_TABLE)["shapes"][link.shape.value]
    axes = max(1, link.links // 2) if link.shape is LinkShape.TORUS else 1
    shape = [count for count in torus_shape(size, axes) if count > 1] or [size]
    rate = link.bandwidth / len(shape)
    return [(kind, count, rate, link.latency) for count in shape]


def _outer(
    cluster: Cluster, rate: float, delay: float, domains: int
) -> list[tuple[str, int, float, float]]:
    """Dimensions between domains: one switch, two where the fabric thins out, or the axes of a torus."""
    fabric = cluster.fabric
    if fabric.kind is FabricKind.GRAPH:
        raise FormatError(
            f"cluster {cluster.name}: a fabric from a graph has no dimensions that ASTRA-sim could have"
        )
    if fabric.kind is FabricKind.TORUS or cluster.node.scale_up.shape is LinkShape.TORUS:
        shape = fabric.shape or (domains,)
        widths = fabric.widths or (1.0,) * len(shape)
        return [
            ("Ring", count, rate * width, delay) for count, width in zip(shape, widths, strict=True)
        ]
    if fabric.oversubscription > 1 and cluster.tiers:
        leaf = cluster.tiers[0].nodes * cluster.node.accelerators // cluster.domain_size
        if 1 < leaf < domains and domains % leaf == 0:
            slow = rate / fabric.oversubscription
            hop = delay + fabric.hop_latency
            return [("Switch", leaf, rate, delay), ("Switch", domains // leaf, slow, hop)]
    return [("Switch", domains, rate, delay)]


def export_astra_system(scenario: Scenario) -> Exported:
    """Write how fast an accelerator of a scenario is as a system of ASTRA-sim.

    Raises
    ------
    FormatError
        If it serves.
    """
    out = Outgoing(scenario)
    cluster = scenario.hardware
    chip = cluster.accelerator
    precision = scenario.training_step.precision
    peak = chip.peak_flops.get(
        precision, chip.peak_flops.get("bf16", max(chip.peak_flops.values()))
    )
    kinds = [table(*_TABLE)["shapes"][cluster.node.scale_up.shape.value]]
    kinds += ["Switch"] if cluster.domains > 1 else []
    by_kind = table(*_TABLE)["collectives"]
    algorithms = [by_kind[kind] for kind in kinds]
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    data: dict[str, Any] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **{f"{name}-implementation": algorithms for name in names},
        "collective-optimization": "localBWAware",
        "local-mem-bw": chip.memory_bandwidth / _GIB,
        "boost-mode": 0,
        "roofline-enabled": 1,
        "peak-perf": round(peak / _TERA, 9),
    }
    out.hold("cluster.accelerator.memory_bandwidth", "local-mem-bw")
    out.hold(f"cluster.accelerator.peak_flops.{precision}", "peak-perf")
    out.notes.append(
        "algorithms, chunks and the endpoint's delay are those of ASTRA-sim's examples"
    )
    _lose_rest(out, "the system says how fast an NPU is, and nothing of a run")
    return out.close("astra-system", tool="ASTRA-sim", text=json.dumps(data, indent=2) + "\n")


def _lose_rest(out: Outgoing, why: str) -> None:
    for section in _SECTIONS:
        out.lose_section(section, why)
    out.lose_framework(why)
    out.lose_parts("cluster", why)
