"""Routes: which links of the fabric traffic between nodes takes, and how much each.

Of switches in tiers, only links that could be too thin are counted: the up-links of each unit of an
oversubscribed tier, out and in, all of them together where flows are spread evenly (ECMP), each by
itself where routes are static. Of a torus or a graph every link is counted.

Shapes: F flows, L links.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.fabric import Fabric, FabricKind, Routing, Tier
from mpsim.memo import Memo

if TYPE_CHECKING:
    import networkx as nx

    from mpsim.hardware.graph_file import Vertex


_PAIRS = 1 << 16  # of nodes whose shortest ways are remembered


class Routes:
    """Links of a fabric and the way of every flow over them.

    `names`: of links, such as ``leaf 0 up``. `capacity` (float64[L]): [B/s]. `route`: nodes that
    send and that receive and the weight of each flow (int64[F], int64[F], float64[F]) to the load
    of every link. `tiers`: tier that each link belongs to, or the kind of the fabric.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        capacity: Floats,
        route: Callable[[Ints, Ints, Floats], Floats],
        tiers: tuple[str, ...] = (),
    ) -> None:
        self.names, self.tiers = names, tiers
        self.capacity = capacity
        self._route = route

    def load(self, source: Ints, target: Ints, weight: Floats) -> Floats:
        """Amount that each link carries of flows between nodes; none of what stays [L]."""
        leaves = source != target
        if not len(self.names) or not leaves.any():
            return np.zeros(len(self.names))
        return self._route(source[leaves], target[leaves], weight[leaves])


def routes_of(cluster: Cluster) -> Routes:
    """Routes of the fabric of `cluster`, without links where none can be too thin."""
    node = cluster.node
    key = (cluster.fabric, cluster.nodes, node.nics, node.nic.bandwidth)
    return _KNOWN.get_or(key, functools.partial(_made, cluster))


_KNOWN = Memo[tuple[Fabric, int, int, float], Routes](256)
"""Routes by all that decides them: finding them takes longer than using them."""


def _made(cluster: Cluster) -> Routes:
    if cluster.nodes < 2 or not cluster.node.nics:
        return Routes((), np.zeros(0), lambda *_: np.zeros(0))
    if cluster.fabric.kind in (FabricKind.TORUS, FabricKind.GRAPH):
        return _graph_routes(cluster)
    return _tier_routes(cluster)


def _tier_routes(cluster: Cluster) -> Routes:
    static = cluster.fabric.routing is Routing.STATIC
    tiers = [
        tier
        for tier in cluster.tiers
        if tier.up_bandwidth > 0 and (tier.oversubscription > 1 or static)
    ]
    ways = [_ways(tier, cluster) if static else 1 for tier in tiers]
    names: list[str] = []
    of_tier: list[str] = []
    capacity: list[Floats] = []
    for tier, count in zip(tiers, ways, strict=True):
        links = [(unit, way) for unit in range(tier.units) for way in range(count)]
        for end in ("up", "down"):
            names += [
                f"{tier.name} {unit} {end}" + (f" way {way}" if count > 1 else "")
                for unit, way in links
            ]
        of_tier += [tier.name] * (2 * len(links))
        capacity.append(np.full(2 * len(links), tier.up_bandwidth / count))

    def route(source: Ints, target: Ints, weight: Floats) -> Floats:
        loads = []
        for tier, count in zip(tiers, ways, strict=True):
            here, there = source // tier.nodes, target // tier.nodes
            climbs, way = here != there, target % count
            size = tier.units * count
            for unit in (here, there):
                link = (unit * count + way)[climbs]
                loads.append(np.bincount(link, weights=weight[climbs], minlength=size))
        return np.concatenate(loads).astype(np.float64)

    return Routes(tuple(names), np.concatenate([np.zeros(0), *capacity]), route, tuple(of_tier))


def _ways(tier: Tier, cluster: Cluster) -> int:
    """Ways up from a unit that a node's traffic chooses one of, all its NICs alike."""
    node = cluster.node
    return max(1, round(tier.up_bandwidth / node.nic_bandwidth))


def _graph_routes(cluster: Cluster) -> Routes:
    from mpsim.hardware.graph import cluster_graph  # networkx is slow to import

    graph = cluster_graph(cluster, scale_up=False)
    number = {edge: index for index, edge in enumerate(graph.edges)}
    capacity = np.array([graph.edges[edge]["capacity"] for edge in number], dtype=np.float64)
    names = tuple(f"{_name(here)} > {_name(there)}" for here, there in number)
    static = cluster.fabric.routing is Routing.STATIC
    spread = _static if static else _evenly

    known = Memo[tuple[int, int], tuple[Ints, Floats]](_PAIRS)

    def shares(source: int, target: int) -> tuple[Ints, Floats]:
        """Links between two nodes and the share of the flow on each."""
        flow = spread(graph, ("node", source), ("node", target))
        links = np.array([number[edge] for edge in flow], dtype=np.int64)
        return links, np.array(list(flow.values()), dtype=np.float64)

    def route(source: Ints, target: Ints, weight: Floats) -> Floats:
        load = np.zeros(len(names))
        pairs, index = np.unique(np.stack([source, target]), axis=1, return_inverse=True)
        total = np.bincount(index.reshape(-1), weights=weight)
        for (here, there), amount in zip(pairs.T.tolist(), total.tolist(), strict=True):
            links, part = known.get_or((here, there), functools.partial(shares, here, there))
            load[links] += amount * part
        return load

    return Routes(names, capacity, route, (cluster.fabric.kind.value,) * len(names))


def _name(vertex: Vertex) -> str:
    return " ".join(map(str, vertex))


def _static(
    graph: nx.DiGraph, source: Vertex, target: Vertex
) -> dict[tuple[Vertex, Vertex], float]:
    """One shortest way: towards a target, every vertex has one next hop, the first by name."""
    distance = _distances(graph, target)
    ways: dict[tuple[Vertex, Vertex], float] = {}
    here = source
    while here != target:
        there = min(
            (hop for hop in graph.successors(here) if distance[hop] == distance[here] - 1), key=str
        )
        ways[here, there] = 1.0
        here = there
    return ways


def _evenly(
    graph: nx.DiGraph, source: Vertex, target: Vertex
) -> dict[tuple[Vertex, Vertex], float]:
    """All shortest ways: vertices spread what they get over next hops by capacity."""
    distance = _distances(graph, target)
    share: dict[Vertex, float] = {source: 1.0}
    ways: dict[tuple[Vertex, Vertex], float] = {}
    for left in range(distance[source], 0, -1):
        following: dict[Vertex, float] = {}
        for here, amount in share.items():
            next_hops = [hop for hop in graph.successors(here) if distance.get(hop) == left - 1]
            room = math.fsum(graph[here][hop]["capacity"] for hop in next_hops)
            for there in next_hops:
                part = amount * graph[here][there]["capacity"] / room
                ways[here, there] = ways.get((here, there), 0.0) + part
                following[there] = following.get(there, 0.0) + part
        share = following
    return ways


def _distances(graph: nx.DiGraph, target: Vertex) -> dict[Vertex, int]:
    """Hops from every vertex to `target`; kept with the graph."""
    import networkx as nx

    known: dict[Vertex, dict[Vertex, int]] = graph.graph.setdefault("distances", {})
    if target not in known:
        known[target] = dict(nx.single_target_shortest_path_length(graph, target))
    return known[target]
