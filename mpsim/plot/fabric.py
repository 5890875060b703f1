"""The fabric of a cluster: tiers as rows of boxes, tori and graphs as points and lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mpsim.arrays import Floats
from mpsim.hardware import Cluster, FabricKind
from mpsim.plot.chart import Axis, Lines, Series, thin
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    import networkx as nx

    from mpsim.hardware.graph_file import Vertex

_MOST = 40  # boxes in a row; of more, so many stand for all
_COLOURS = ("other", "forward", "backward", "weight_gradient")


def fabric_chart(cluster: Cluster) -> Lines:
    """Fabric that joins the nodes of a cluster."""
    return _tiers_chart(cluster) if cluster.tiers else _graph_chart(cluster)


def _tiers_chart(cluster: Cluster) -> Lines:
    counts = [cluster.nodes, *(tier.units for tier in cluster.tiers)]
    reach = [1, *(tier.nodes for tier in cluster.tiers)]
    places = [_middles(n, size, cluster.nodes) for n, size in zip(counts, reach, strict=True)]
    wires, boxes = [], []
    for level, (count, place) in enumerate(zip(counts, places, strict=True)):
        shown, height = np.array(thin(count, _MOST)), float(level)
        colour = _COLOURS[min(level, len(_COLOURS) - 1)]
        row = np.full(len(shown), height)
        boxes.append(Series("", place[shown], row, colour, line="", mark="s", size=9.5))
        if level + 1 < len(counts):
            above = np.minimum(shown * reach[level] // reach[level + 1], counts[level + 1] - 1)
            thinner = level > 0 and cluster.tiers[level - 1].oversubscription > 1
            ends = places[level + 1][above]
            wires.append(_edges(place[shown], row, ends, row + 1, "--" if thinner else "-"))
    return Lines(
        series=[*wires, *boxes],
        x=Axis(ticks=[(float(places[0].mean()), "")]),
        y=Axis(ticks=list(enumerate(_labels(cluster))), limits=(-0.5, len(counts) - 0.5)),
        grid="",
        size=(10.0, 1.4 + 1.1 * len(counts)),
    )


def _edges(
    x0: Floats, y0: Floats, x1: Floats, y1: Floats, line: str = "-", colour: str = "other"
) -> Series:
    """Many lines as one, with gaps between them."""
    gaps = np.full(len(x0), np.nan)
    x, y = (np.stack([start, end, gaps], axis=1).ravel() for start, end in ((x0, x1), (y0, y1)))
    return Series("", x, y, colour, line=line, width=0.6)


def _labels(cluster: Cluster) -> Iterator[str]:
    rate = format_quantity(cluster.node.nic.bandwidth, Dimension.BANDWIDTH)
    yield f"{cluster.nodes} nodes{_drawn(cluster.nodes)}\n{cluster.node.nics} NICs, {rate} each"
    for tier in cluster.tiers:
        kind = "" if tier.name == "switch" else f"{tier.name} "
        many = f"{kind}switch{'es' * (tier.switches > 1)}"
        of = f"{tier.switches} {many}" if tier.switches else tier.name
        up = format_quantity(tier.up_bandwidth, Dimension.BANDWIDTH)
        more = f"\nunit: {up} up, {tier.oversubscription:.3g}:1" if tier.up_bandwidth else ""
        yield f"{of} in {tier.units} unit{'s' * (tier.units > 1)}{_drawn(tier.units)}{more}"


def _graph_chart(cluster: Cluster) -> Lines:
    from mpsim.hardware.graph import cluster_graph

    graph = cluster_graph(cluster, scale_up=False)
    vertices: list[Vertex] = list(graph)
    where = _positions(cluster, vertices, graph)
    edges = sorted({tuple(sorted(edge, key=str)) for edge in graph.edges}, key=str)
    number = {vertex: place for place, vertex in enumerate(vertices)}
    ends = np.array([[number[start], number[end]] for start, end in edges]).T
    (x0, y0), (x1, y1) = (where[end].T for end in ends)
    series = [_edges(x0, y0, x1, y1, colour="ep")]
    for kind, colour in zip((True, False), _COLOURS, strict=False):
        mine = np.array([(vertex[0] == "node") == kind for vertex in vertices])
        if mine.any():
            series.append(
                Series("", where[mine, 0], where[mine, 1], colour, line="", mark="o", size=5.5)
            )
    shape = ""
    if cluster.fabric.kind is FabricKind.TORUS:
        shape = f"torus of {'x'.join(map(str, cluster.fabric.lengths(cluster.nodes)))} nodes"
    middle = where.mean(axis=0)
    x, y = Axis(shape, ticks=[(float(middle[0]), "")]), Axis(ticks=[(float(middle[1]), "")])
    return Lines(series=series, x=x, y=y, grid="", size=(7.0, 7.0))


def _positions(cluster: Cluster, vertices: list[Vertex], graph: nx.DiGraph) -> Floats:
    if cluster.fabric.kind is not FabricKind.TORUS:
        import networkx as nx

        laid = nx.kamada_kawai_layout(graph.to_undirected())
        return np.array([laid[vertex] for vertex in vertices], dtype=np.float64)
    shape = cluster.fabric.lengths(cluster.nodes)
    place = np.stack(np.unravel_index(np.arange(cluster.nodes), shape), axis=1)
    angle = np.linspace(0.0, np.pi / 2, len(shape)) + 0.12
    steps = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    steps[1:-1] *= 0.35  # the middle axes go into the picture
    return np.asarray(place @ steps, dtype=np.float64)


def _middles(count: int, reach: int, nodes: int) -> Floats:
    """Middles of the nodes of each unit."""
    first = np.arange(count) * reach
    return np.asarray((first + np.minimum(first + reach, nodes) - 1) / 2, dtype=np.float64)


def _drawn(count: int) -> str:
    """Words added where not every box is drawn."""
    stride = -(-count // len(thin(count, _MOST)))
    return f", one in {stride} drawn" if stride > 1 else ""
