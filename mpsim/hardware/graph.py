"""The links of a cluster as a directed graph: to draw, and to ask what fits through.

Vertices are tuples: ``("node", i)``, a leaf ``("leaf", group, rail)``, a unit of a higher tier
``("spine", unit)``, a switch domain ``("scale-up", d)``, an accelerator ``("accelerator", rank)``
where a scale-up torus spans nodes. Every edge has a ``capacity`` [B/s, one direction], a
``network`` (``scale-out`` or ``scale-up``) and a ``tier``. Parallel switches of one tier unit are
one vertex, which is what perfect load balance makes of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import networkx as nx

from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.hardware.fabric import FabricKind, Tier, torus_shape
from mpsim.hardware.graph_file import Vertex, vertex_of
from mpsim.shipped import say

Edge: TypeAlias = tuple[Vertex, Vertex, float, str, str]


def cluster_graph(cluster: Cluster, *, scale_up: bool = True) -> nx.DiGraph:
    """Draw the network between the nodes of `cluster`, every link in both directions.

    With `scale_up` also links of that kind that leave a node (NVL72, ICI), never those inside.

    Examples
    --------
    >>> import networkx as nx
    >>> from mpsim.hardware import system
    >>> graph = cluster_graph(system("dgx-h100", nodes=4))
    >>> nx.maximum_flow_value(graph, ("node", 0), ("node", 3)) / 50e9
    8.0
    """
    graph: nx.DiGraph = nx.DiGraph(name=cluster.name)
    graph.add_nodes_from(("node", node) for node in range(cluster.nodes))
    edges = _scale_out(cluster)
    if scale_up and cluster.domain_size > cluster.node.accelerators:
        edges = itertools.chain(edges, _scale_up(cluster))
    for here, there, capacity, network, tier in edges:
        for start, end in ((here, there), (there, here)):
            if graph.has_edge(start, end):
                graph[start][end]["capacity"] += capacity
            else:
                graph.add_edge(start, end, capacity=capacity, network=network, tier=tier)
    return graph


def _scale_out(cluster: Cluster) -> Iterator[Edge]:
    if cluster.nodes < 2 or cluster.node.nics == 0:
        return iter(())
    fabric = cluster.fabric
    if fabric.kind is FabricKind.GRAPH:
        return _given(cluster)
    if fabric.kind is FabricKind.TORUS:
        vertices: list[Vertex] = [("node", node) for node in range(cluster.nodes)]
        shape = fabric.lengths(cluster.nodes)
        bandwidth = cluster.node.nic_bandwidth
        return _torus(vertices, shape, bandwidth, "scale-out", widths=fabric.widths)
    return itertools.chain(_to_leaves(cluster, cluster.tiers[0]), _between_tiers(cluster))


def _given(cluster: Cluster) -> Iterator[Edge]:
    """Links of a graph that was read from a file."""
    links = cluster.fabric.links
    present = {name for start, end, _ in links for name in (start, end)}
    missing = [node for node in range(cluster.nodes) if f"node {node}" not in present]
    if missing:
        raise HardwareError(say("hardware.no_vertex", missing=missing[0], last=cluster.nodes - 1))
    joined: nx.Graph = nx.Graph((start, end) for start, end, _ in links)
    reached = nx.node_connected_component(joined, "node 0")
    apart = [node for node in range(cluster.nodes) if f"node {node}" not in reached]
    if apart:
        raise HardwareError(say("hardware.apart", apart=apart[0], nodes=cluster.nodes))
    for start, end, bandwidth in links:
        yield vertex_of(start), vertex_of(end), bandwidth, "scale-out", "link"


def _to_leaves(cluster: Cluster, leaf: Tier) -> Iterator[Edge]:
    rails = _rails(cluster)
    ports = cluster.node.nics // rails
    for node, rail in itertools.product(range(cluster.nodes), range(rails)):
        capacity = ports * cluster.node.nic.bandwidth
        yield (
            ("node", node),
            (leaf.name, node // leaf.nodes, rail),
            capacity,
            "scale-out",
            leaf.name,
        )


def _rails(cluster: Cluster) -> int:
    return cluster.node.nics if cluster.fabric.has_rails and cluster.fabric.radix else 1


def _between_tiers(cluster: Cluster) -> Iterator[Edge]:
    for level, (lower, upper) in enumerate(itertools.pairwise(cluster.tiers)):
        apart = cluster.fabric.kind is FabricKind.RAIL_ONLY
        rails = _rails(cluster) if level == 0 or apart else 1
        for unit, rail in itertools.product(range(lower.units), range(rails)):
            below: Vertex = (lower.name, unit, rail) if level == 0 or apart else (lower.name, unit)
            over = unit * lower.nodes // upper.nodes
            above: Vertex = (upper.name, over, rail) if apart else (upper.name, over)
            yield below, above, lower.up_bandwidth / rails, "scale-out", upper.name


def _scale_up(cluster: Cluster) -> Iterator[Edge]:
    node = cluster.node
    if node.scale_up.shape is LinkShape.TORUS:
        return _scale_up_torus(cluster)
    capacity = node.accelerators * node.scale_up.bandwidth
    return (
        (
            ("node", index),
            ("scale-up", index * node.accelerators // node.domain),
            capacity,
            "scale-up",
            node.scale_up.name,
        )
        for index in range(cluster.nodes)
    )


def _scale_up_torus(cluster: Cluster) -> Iterator[Edge]:
    node = cluster.node
    link = node.scale_up
    for rank in range(cluster.accelerators):
        holder: Vertex = ("node", rank // node.accelerators)
        yield holder, ("accelerator", rank), link.bandwidth, "scale-up", "host"
    for start in range(0, cluster.accelerators, node.domain):
        members = range(start, min(start + node.domain, cluster.accelerators))
        vertices: list[Vertex] = [("accelerator", rank) for rank in members]
        shape = torus_shape(len(vertices), max(link.links // 2, 1))
        yield from _torus(vertices, shape, link.bandwidth, "scale-up")


def _torus(
    vertices: Sequence[Vertex],
    shape: Sequence[int],
    bandwidth: float,
    network: str,
    *,
    widths: Sequence[float] = (),
) -> Iterator[Edge]:
    """Edges of a torus whose members spread `bandwidth` by `widths` over axes with neighbours."""
    active = [axis for axis, length in enumerate(shape) if length > 1]
    share = widths or (1.0,) * len(shape)
    whole = math.fsum(share[axis] for axis in active)
    for index, place in enumerate(itertools.product(*(range(length) for length in shape))):
        for axis in active:
            there = list(place)
            there[axis] = (place[axis] + 1) % shape[axis]
            other = 0
            for length, coordinate in zip(shape, there, strict=True):
                other = other * length + coordinate
            yield (
                vertices[index],
                vertices[other],
                bandwidth * share[axis] / (2 * whole),
                network,
                f"axis-{axis}",
            )
