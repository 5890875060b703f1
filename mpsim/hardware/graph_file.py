"""Fabrics that a file gives as a graph: its links, and how far apart its nodes are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import networkx as nx

from mpsim.errors import HardwareError, UnitError
from mpsim.inputs import Record, parse_json, read_text
from mpsim.memo import remembered
from mpsim.units import Dimension, parse_quantity

Vertex: TypeAlias = tuple[str, int] | tuple[str, int, int] | tuple[str, str]
Links: TypeAlias = tuple[tuple[str, str, float], ...]
"""Two vertices and the bandwidth between them [B/s], for every link."""
_Link: TypeAlias = tuple[str, str, object]  # two vertices and a bandwidth as written

_SAMPLE = 64
_LARGEST: Final = 1 << 25  # bytes: a link is about 100
_LONGEST: Final = 200  # characters of a vertex' name


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

    `path`: GraphML (``.graphml``), GML (``.gml``) or node-link JSON with ``links`` (``.json``).
    Node i of the cluster is a vertex called ``node i``; all others are switches. Every edge has a
    ``bandwidth``, such as ``400 Gb/s``, in each direction; an edge of a directed graph counts for
    both, so give each link once. HardwareError if the file cannot be read, or an edge has no
    bandwidth.

    Returns tuple of (str, str, float): two vertices and the bandwidth between them [B/s].
    """
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise HardwareError(f"{path}: got a file {path.suffix!r}; needed {', '.join(_READERS)}")
    text = read_text(path, needed="a graph", error=HardwareError, largest=_LARGEST)
    links: list[tuple[str, str, float]] = []
    for number, (start, end, value) in enumerate(reader(path, text)):
        place = f"{path}: link {number}"
        if value is None:
            raise HardwareError(f"{place} has no bandwidth ('400 Gb/s')")
        if max(len(start), len(end)) > _LONGEST:
            raise HardwareError(f"{place} has a name of over {_LONGEST} characters")
        try:
            bandwidth = parse_quantity(value, Dimension.BANDWIDTH)
        except UnitError as error:
            raise HardwareError(f"{place}: bandwidth {error}") from error
        if not (math.isfinite(bandwidth) and bandwidth > 0):
            raise HardwareError(f"{place} has {bandwidth:g} B/s; needed more than 0")
        links.append((start, end, bandwidth))
    if not links:
        raise HardwareError(f"{path}: got a graph without edges")
    return tuple(links)


def _json_links(path: Path, text: str) -> Iterator[_Link]:
    """Links of node-link JSON."""
    record = Record(parse_json(text, path, error=HardwareError), str(path), error=HardwareError)
    names = {_vertex(node, "id") for node in record.records("nodes", [])}
    seen: set[tuple[str, ...]] | None = None if record.value("multigraph") else set()
    for link in record.records("links"):
        ends = _vertex(link, "source"), _vertex(link, "target")
        if names and not names.issuperset(ends):
            raise HardwareError(f"{link.place}: joins a vertex that nodes do not list")
        if seen is not None:
            joined = ends if record.value("directed") else tuple(sorted(ends))
            if joined in seen:
                raise HardwareError(f"{link.place}: is given twice; set multigraph: true for two")
            seen.add(joined)
        yield (*ends, link.value("bandwidth"))


def _vertex(record: Record, key: str) -> str:
    """Name of a vertex, which may be written as a number."""
    value = record.value(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise record.wrong(key, "the name of a vertex")
    return str(value)


def _graph_links(path: Path, text: str) -> Iterator[_Link]:
    """Links of GraphML or GML, as networkx reads them."""
    if "<!" in text.replace("<!--", ""):
        raise HardwareError(f"{path}: declares a type or entities; needed plain GraphML")
    try:
        graph = nx.parse_graphml(text) if path.suffix == ".graphml" else nx.parse_gml(text)
    except Exception as error:  # readers of networkx raise whatever they trip over
        where = re.search(r"line \d+|at \(\d+, \d+\)", str(error))
        place = f", {where[0]}" if where else ""
        raise HardwareError(
            f"{path}: no graph can be read from it ({type(error).__name__}{place})"
        ) from error
    for start, end, data in graph.edges(data=True):
        yield str(start), str(end), data.get("bandwidth")


_READERS: Final[Mapping[str, Callable[[Path, str], Iterator[_Link]]]] = MappingProxyType(
    {".graphml": _graph_links, ".gml": _graph_links, ".json": _json_links}
)
