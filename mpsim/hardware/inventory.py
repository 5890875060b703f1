"""Inventory: what a fabric is built of, what passes its middle, and what it costs."""

from __future__ import annotations

import math

from mpsim import structs
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.fabric import FabricKind, Tier
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent

_HALF = 2


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Switches, cables and cut of the fabric that joins the nodes of a cluster."""

    tiers: tuple[Tier, ...]  # lowest first; empty without switches
    switches: int
    cables: int
    bisection: float  # what one half of the nodes can send to the other at once [B/s]
    full_bisection: float  # what their NICs could [B/s]
    hops: float  # switches (torus: links) between far nodes
    # price, power_w: of switches and cables [USD], of switches [W]; None where not given
    price: float | None
    power_w: float | None

    def describe(self) -> str:
        """Parts, bisection, price and power, a line each; without what is not known."""
        parts = (
            plural(self.switches, "switch", "switches"),
            plural(self.cables, "cable"),
            f"{self.hops:.3g} hop{'s' * (self.hops != 1)} between far nodes",
        )
        middle = format_quantity(self.bisection, Dimension.BANDWIDTH) if self.bisection else "none"
        if self.full_bisection:
            middle += (
                f" ({percent(self.bisection / self.full_bisection, digits=0)} of what NICs send)"
            )
        lines = [", ".join(parts), f"bisection {middle}"]
        if self.price is not None:
            lines.append(f"price of switches and cables {self.price:,.0f} USD")
        if self.power_w is not None:
            lines.append(f"power of switches {format_quantity(self.power_w, Dimension.POWER)}")
        return "\n".join(lines)


def inventory_of(cluster: Cluster) -> Inventory:
    """Count what the fabric of `cluster` is built of.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture: 127 to 2,048 nodes of 8 NICs take as many cables of
    each kind (node to leaf, leaf to spine, spine to core) as there are NICs.

    Examples
    --------
    >>> from mpsim.hardware import system
    >>> superpod = inventory_of(system("dgx-h100", nodes=256))
    >>> [(tier.name, tier.switches, tier.cables) for tier in superpod.tiers]
    [('leaf', 64, 2048), ('spine', 32, 2048)]
    """
    switches = sum(tier.switches for tier in cluster.tiers)
    cables = sum(tier.cables for tier in cluster.tiers)
    if cluster.fabric.kind is FabricKind.GRAPH:
        switches, cables = _drawn(cluster)
    if cluster.fabric.kind is FabricKind.TORUS:
        cables = _torus_cables(cluster)
    fabric = cluster.fabric
    unpriced = fabric.switch_price is None and fabric.cable_price is None
    price = switches * (fabric.switch_price or 0.0) + cables * (fabric.cable_price or 0.0)
    return Inventory(
        tiers=cluster.tiers,
        switches=switches,
        cables=cables,
        bisection=_bisection(cluster),
        full_bisection=cluster.nodes // _HALF * cluster.node.nic_bandwidth,
        hops=cluster.hops(cluster.nodes),
        price=None if unpriced else price,
        power_w=None if fabric.switch_power_w is None else switches * fabric.switch_power_w,
    )


def _drawn(cluster: Cluster) -> tuple[int, int]:
    ends = {name for start, end, _ in cluster.fabric.links for name in (start, end)}
    nodes = {f"node {node}" for node in range(cluster.nodes)}
    return len(ends - nodes), len(cluster.fabric.links)


def _torus_cables(cluster: Cluster) -> int:
    """A ring of k has k cables, of two nodes one."""
    shape = cluster.fabric.lengths(cluster.nodes)
    return sum(cluster.nodes // side * (side if side > _HALF else side - 1) for side in shape)


def _bisection(cluster: Cluster) -> float:
    node, nodes = cluster.node, cluster.nodes
    if nodes < _HALF or not node.nics:
        return 0.0
    if cluster.fabric.kind is FabricKind.GRAPH:
        return _cut(cluster)
    if cluster.fabric.kind is FabricKind.TORUS:
        return _torus_bisection(cluster)
    thinned = [tier.oversubscription for tier in cluster.tiers if tier.units > 1]
    return nodes // _HALF * node.nic_bandwidth / (thinned[-1] if thinned else 1.0)


def _torus_bisection(cluster: Cluster) -> float:
    """Two cuts through rings, along the axis where that takes least."""
    fabric, shape = cluster.fabric, cluster.fabric.lengths(cluster.nodes)
    widths = fabric.widths or (1.0,) * len(shape)
    whole = math.fsum(width for width, length in zip(widths, shape, strict=True) if length > 1)
    one_way = cluster.node.nic_bandwidth / (2 * whole)
    return min(
        2 * cluster.nodes / length * width * one_way
        for width, length in zip(widths, shape, strict=True)
        if length > 1
    )


def _cut(cluster: Cluster) -> float:
    """Maximum flow from the first half of the nodes to the second."""
    import networkx as nx

    from mpsim.hardware.graph import cluster_graph

    graph = cluster_graph(cluster, scale_up=False)
    for node in range(cluster.nodes):
        first = node < cluster.nodes // _HALF
        ends = (("all", 0), ("node", node)) if first else (("node", node), ("all", 1))
        graph.add_edge(*ends, capacity=math.inf)
    return float(nx.maximum_flow_value(graph, ("all", 0), ("all", 1)))
