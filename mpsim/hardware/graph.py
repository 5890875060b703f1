"""The links of a cluster as a directed graph: to draw it, and to ask a flow algorithm what fits through.

Vertices are tuples: ``("node", i)``, a leaf ``("leaf", group, rail)``, a unit of a higher tier
``("spine", unit)``, a switch domain ``("scale-up", d)``, an accelerator ``("accelerator", rank)`` where a
scale-up torus spans nodes. Every edge has a ``capacity`` [B/s, one direction], a ``network``
(``scale-out`` or ``scale-up``) and a ``tier``. Parallel switches of one tier unit are one vertex, which is
what perfect load balance makes of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import networkx as nx

from mpsim.hardware.components import Cluster, LinkShape
from mpsim.hardware.fabric import FabricKind, Tier, torus_shape

__all__ = ["Vertex", "cluster_graph"]

Vertex: TypeAlias = tuple[str, int] | tuple[str, int, int]
Edge: TypeAlias = tuple[Vertex, Vertex, float, str, str]


def cluster_graph(cluster: Cluster, *, scale_up: bool = True) -> nx.DiGraph:
    """Draw the network between the nodes of `cluster`.

    Parameters
    ----------
    cluster : Cluster
    scale_up : bool
        Whether to add scale-up links that leave a node (NVL72, ICI); those inside a node never appear.

    Returns
    -------
    nx.DiGraph
        Both directions of every link, each with its own ``capacity``.

    Examples
    --------
    >>> import networkx as nx
    >>> from mpsim.hardware import system
    >>> graph = system("dgx-h100", nodes=4).graph()
    >>> nx.maximum_flow_value(graph, ("node", 0), ("node", 3)) / 50e9
    8.0
    """
    graph: nx.DiGraph = nx.DiGraph(name=cluster.name)
    graph.add_nodes_from(("node", node) for node in range(cluster.nodes))
    edges = _scale_out(cluster)
    if scale_up and cluster.domain_size > cluster.node.accelerators:
        edges = itertools.chain(edges, _scale_up(cluster))
    for here, there, capacity, network, tier in edges:
        for one, other in ((here, there), (there, here)):
            if graph.has_edge(one, other):
                graph[one][other]["capacity"] += capacity
            else:
                graph.add_edge(one, other, capacity=capacity, network=network, tier=tier)
    return graph


def _scale_out(cluster: Cluster) -> Iterator[Edge]:
    if cluster.nodes < 2 or cluster.node.nics == 0:
        return iter(())
    if cluster.fabric.kind is FabricKind.TORUS:
        vertices: list[Vertex] = [("node", node) for node in range(cluster.nodes)]
        shape = torus_shape(cluster.nodes, cluster.fabric.axes)
        return _torus(vertices, shape, cluster.node.nic_bandwidth, "scale-out")
    return itertools.chain(_to_leaves(cluster, cluster.tiers[0]), _between_tiers(cluster))


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
    rail_optimized = cluster.fabric.kind is FabricKind.RAIL_OPTIMIZED
    return cluster.node.nics if rail_optimized and cluster.fabric.radix else 1


def _between_tiers(cluster: Cluster) -> Iterator[Edge]:
    for level, (lower, upper) in enumerate(itertools.pairwise(cluster.tiers)):
        rails = _rails(cluster) if level == 0 else 1
        for unit, rail in itertools.product(range(lower.units), range(rails)):
            below: Vertex = (lower.name, unit, rail) if level == 0 else (lower.name, unit)
            above: Vertex = (upper.name, unit * lower.nodes // upper.nodes)
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
    vertices: Sequence[Vertex], shape: Sequence[int], bandwidth: float, network: str
) -> Iterator[Edge]:
    """Edges of a torus whose members spread `bandwidth` evenly over the axes they have neighbours on."""
    active = [axis for axis, length in enumerate(shape) if length > 1]
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
                bandwidth / (2 * len(active)),
                network,
                f"axis-{axis}",
            )
