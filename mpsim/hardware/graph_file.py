"""Fabrics that a file gives as a graph: its links, and how far apart its nodes are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import networkx as nx

from mpsim.errors import HardwareError
from mpsim.memo import remembered
from mpsim.units import Dimension, parse_quantity

__all__ = ["Links", "Vertex", "mean_switches", "read_links", "vertex_of"]

Vertex: TypeAlias = tuple[str, int] | tuple[str, int, int] | tuple[str, str]
Links: TypeAlias = tuple[tuple[str, str, float], ...]
"""Two vertices and the bandwidth between them [B/s], for every link."""

_SAMPLE = 64
_READERS: Mapping[str, Callable[[Path], nx.Graph]] = MappingProxyType(
    {
        ".graphml": nx.read_graphml,
        ".gml": nx.read_gml,
        ".json": lambda path: nx.node_link_graph(
            json.loads(path.read_text(encoding="utf-8")), edges="links"
        ),
    }
)


def vertex_of(name: str) -> Vertex:
    """Vertex of a name in the file: ``node 3`` is a node, all others are switches."""
    kind, _, number = name.rpartition(" ")
    return ("node", int(number)) if kind == "node" and number.isdecimal() else ("switch", name)


@remembered(16)
def mean_switches(links: Links) -> float:
    """Switches between two nodes of a graph on average, over its first 64 nodes."""
    graph = nx.Graph((vertex_of(start), vertex_of(end)) for start, end, _ in links)
    nodes = [vertex for vertex in graph if vertex[0] == "node"][:_SAMPLE]
    hops = [
        distance[there] - 1
        for here in nodes
        for distance in [nx.single_source_shortest_path_length(graph, here)]
        for there in nodes
        if there != here and there in distance
    ]
    return sum(hops) / len(hops) if hops else 0.0


def read_links(path: str | Path) -> Links:
    """Links of any networkx graph.

    Parameters
    ----------
    path : str or Path
        GraphML (``.graphml``), GML (``.gml``) or node-link JSON with ``links`` (``.json``). Node i of the cluster is a vertex called
        ``node i``; all others are switches. Every edge has a ``bandwidth``, such as ``400 Gb/s``, in each direction; an edge of a
        directed graph counts for both, so give each link once.

    Returns
    -------
    tuple of (str, str, float)
        Two vertices and the bandwidth between them [B/s].

    Raises
    ------
    HardwareError
        If the file cannot be read, or an edge has no bandwidth.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise HardwareError(f"{path}: got a file {path.suffix!r}; needed {', '.join(_READERS)}")
    try:
        graph = reader(path)
    except Exception as error:  # readers raise whatever they trip over
        raise HardwareError(f"{path}: no graph can be read from it: {error}") from error
    links = []
    for start, end, data in graph.edges(data=True):
        if "bandwidth" not in data:
            raise HardwareError(f"{path}: the edge {start} - {end} has no bandwidth ('400 Gb/s')")
        bandwidth = parse_quantity(data["bandwidth"], Dimension.BANDWIDTH)
        if not (math.isfinite(bandwidth) and bandwidth > 0):
            raise HardwareError(
                f"{path}: the edge {start} - {end} has {bandwidth:g} B/s; needed more than 0"
            )
        links.append((str(start), str(end), bandwidth))
    if not links:
        raise HardwareError(f"{path}: got a graph without edges")
    return tuple(links)
