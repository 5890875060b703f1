"""The ``cluster.fabric:`` section: the network between nodes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from mpsim.errors import HardwareError
from mpsim.hardware import FabricKind, Routing
from mpsim.scenario.fields import Bandwidth, Fields, Name, Power, Section, Time
from mpsim.shipped import say

Folder = Callable[[str], Path]  # where the file lies in which a dotted key was written

FIGURES: Final = {
    "preset": "name",
    "memory": "memory_bytes",
    "tdp": "tdp_w",
    "idle": "idle_w",
    "boost_clock": "boost_clock_hz",
    "clock": "clock_hz",
    "switch_power": "switch_power_w",
}
"""Fields of accelerators, links and fabrics whose keys in a scenario have another name."""

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
Width = Annotated[float, Field(gt=0, le=1e6)]
GraphLink = Annotated[tuple[Name, Name, Bandwidth], Field(strict=False)]


def _thinner(value: object) -> float | tuple[float, ...] | None:
    """Oversubscription: one number, or one for each tier."""
    for ratio in value if isinstance(value, list | tuple) and value else (value,):
        if value is None:
            return None
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise ValueError(say("scenario.ratio", got=str(ratio)[:60]))
        if isinstance(ratio, float) and not math.isfinite(ratio):
            raise ValueError(f"got {ratio}; needed a finite number")
        if not 1 <= ratio <= MOST_THINNED:
            raise ValueError(
                f"got {str(ratio)[:60]}; needed a number from 1 (full bisection) to {MOST_THINNED}"
            )
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(str(value))


MOST_THINNED: Final = 1000
_NUMBER = {"type": "number", "minimum": 1, "maximum": MOST_THINNED}
THINNINGS: Final = (
    PlainValidator(_thinner),
    WithJsonSchema({"anyOf": [_NUMBER, {"type": "array", "items": _NUMBER}, {"type": "null"}]}),
)


class FabricChoice(Section):
    """The network between nodes."""

    kind: (
        Literal[
            "rail-optimized",
            "rail-only",
            "dual-plane",
            "fat-tree",
            "dragonfly+",
            "torus",
            "single-switch",
            "graph",
        ]
        | None
    ) = None
    """Topology; graph: that of the file in `graph`."""
    oversubscription: Annotated[float | tuple[float, ...] | None, *THINNINGS] = None
    """Rate a leaf offers its nodes over its rate upwards; 1 is full bisection. A list by tier."""
    hop_latency: Time | None = None
    """Latency that one switch adds."""
    radix: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Ports of a switch; 0 for as many as it takes."""
    axes: Annotated[int, Field(ge=1, le=6)] | None = None
    """Dimensions of a torus."""
    shape: Annotated[tuple[Nodes, ...], Field(strict=False, max_length=6)] | None = None
    """Nodes along each axis of a torus, such as [8, 4, 2]; left out, as cubic as it gets."""
    widths: Annotated[tuple[Width, ...], Field(strict=False, max_length=6)] | None = None
    """Relative bandwidth of the axes of a torus; left out, all alike."""
    planes: Annotated[int, Field(ge=1, le=16)] | None = None
    """Networks that the ports of every NIC are split over; a dual-plane fabric has 2."""
    routing: Literal["ecmp", "static"] | None = None
    """Whether flows spread evenly over ways of equal length, or take one a destination."""
    graph: Name | None = None
    """File of any networkx graph (.graphml, .gml, node-link .json): vertices 'node 0', 'node 1',
    ... and switches, edges with a bandwidth."""
    links: Annotated[tuple[GraphLink, ...], Field(strict=False, max_length=1_000_000)] | None = None
    """Content of that file, [vertex, vertex, bandwidth] each, as resolved scenarios hold it."""
    switch_price: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of one switch [USD]."""
    cable_price: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of one cable with its transceivers [USD]."""
    switch_power: Power | None = None
    """Power of one switch."""


def thinnings_of(fabric: FabricChoice) -> tuple[float, ...]:
    """Oversubscription of leaves, spines, ...; none where it is not given."""
    given = fabric.oversubscription
    if given is None:
        return ()
    return given if isinstance(given, tuple) else (given,)


def network_of(fabric: FabricChoice, folder: Folder) -> Fields:
    """Fields of a fabric that `build_cluster` has no word for."""
    names = (
        "hop_latency radix axes shape widths planes switch_price cable_price switch_power".split()
    )
    network: Fields = {
        FIGURES.get(name, name): value
        for name in names
        if (value := getattr(fabric, name)) is not None
    }
    if fabric.routing is not None:
        network["routing"] = Routing(fabric.routing)
    if thinnings_of(fabric):
        network["above"] = thinnings_of(fabric)[1:]
    if fabric.shape is not None:
        network["axes"] = len(fabric.shape)
    if fabric.kind == "graph":
        network |= {"kind": FabricKind.GRAPH, "links": _graph(fabric, folder)}
    elif fabric.graph is not None or fabric.links is not None:
        raise HardwareError("fabric: a graph is given, but kind is not graph; set kind: graph")
    return network


def _graph(fabric: FabricChoice, folder: Folder) -> tuple[tuple[str, str, float], ...]:
    if fabric.links is not None:
        if fabric.graph is not None:
            raise HardwareError("fabric: got graph and links; needed one of them: leave one out")
        return fabric.links
    if fabric.graph is None:
        raise HardwareError("fabric: kind graph needs a file; give graph: FILE.graphml")
    from mpsim.hardware.graph_file import read_links

    return read_links(folder("cluster.fabric.graph") / fabric.graph)
