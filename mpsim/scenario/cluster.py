"""The ``cluster:`` section: a system, one with changes, parts put together, unlike nodes; and the
network between nodes.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, TypeGuard, TypeVar, cast

from mpsim import structs
from mpsim.errors import HardwareError, Problem, ScenarioError, nearest
from mpsim.hardware import (
    GIVEN,
    Accelerator,
    Cluster,
    FabricKind,
    Link,
    Placement,
    Routing,
    accelerator,
    accelerator_names,
    build_cluster,
    is_machine_path,
    link,
    link_names,
    system,
    system_names,
    with_overrides,
)
from mpsim.scenario import fields
from mpsim.scenario.fields import Field, Read
from mpsim.shipped import say

T = TypeVar("T", Accelerator, Link)

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

KINDS: Final = tuple(kind.value for kind in FabricKind)
Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
Width = Annotated[float, Field(gt=0, le=1e6)]
GraphLink = Annotated[tuple[fields.Name, fields.Name, fields.Bandwidth], Field(strict=False)]


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
_NUMBERS = {"type": "array", "items": _NUMBER}
THINNINGS: Final = Read(
    _thinner, "plain", lambda *_: {"anyOf": [_NUMBER, _NUMBERS, {"type": "null"}]}
)


class FabricChoice(fields.Section):
    """The network between nodes."""

    kind: Annotated[str, fields.OneOf(KINDS.__contains__, lambda: KINDS)] | None = None
    """Topology; graph: that of the file in `graph`."""
    oversubscription: Annotated[float | tuple[float, ...] | None, THINNINGS] = None
    """Rate a leaf offers its nodes over its rate upwards; 1 is full bisection. A list by tier."""
    hop_latency: fields.Time | None = None
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
    graph: fields.Name | None = None
    """File of any networkx graph (.graphml, .gml, node-link .json): vertices 'node 0', 'node 1',
    ... and switches, edges with a bandwidth."""
    links: Annotated[tuple[GraphLink, ...], Field(strict=False, max_length=1_000_000)] | None = None
    """Content of that file, [vertex, vertex, bandwidth] each, as resolved scenarios hold it."""
    switch_price: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of one switch [USD]."""
    cable_price: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of one cable with its transceivers [USD]."""
    switch_power: fields.Power | None = None
    """Power of one switch."""


PerNode = Annotated[int, Field(ge=1, le=4096)]


def _where(value: object) -> str | tuple[int, ...] | None:
    """A rule of placement, or the accelerator of each rank."""
    if value is None or value in RULES:
        return None if value is None else str(value)
    listed = isinstance(value, list | tuple) and 0 < len(value) <= fields.SAFE_COUNT
    if listed and all(
        type(node) is int and 0 <= node < fields.SAFE_COUNT for node in cast("list[int]", value)
    ):
        return tuple(cast("list[int]", value))
    message = (
        nearest(value, RULES) if isinstance(value, str) else f"needed one of {', '.join(RULES)}"
    )
    raise ValueError(say("scenario.no_graph", got=str(value)[:60], message=message))


RULES: Final = tuple(rule.value for rule in Placement)
_RANKS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}}
PLACED: Final = Read(
    _where, "plain", lambda *_: {"anyOf": [{"enum": [*RULES]}, _RANKS, {"type": "null"}]}
)


class AcceleratorChoice(fields.Section):
    """An accelerator of the catalog, and the values of it to replace."""

    preset: fields.Name | None = None
    """An accelerator by name (see 'mpsim show hardware'), or the path of a machine file of 'mpsim
    calibrate'; left out, the one the cluster has."""
    machine: dict[str, object] | None = None
    """Content of that machine file; resolved scenarios hold it, a person writes the path."""
    peak_flops: dict[str, fields.FlopRate] | None = None
    """Dense peak of matrix products by precision; those left out stay."""
    memory: fields.Bytes | None = None
    """Device memory."""
    memory_bandwidth: fields.Bandwidth | None = None
    """Rate of the device memory."""
    compute_units: fields.Count | None = None
    """SMs, CUs or cores."""
    tdp: fields.Power | None = None
    """Board power limit; below that of the catalog a cap, which slows kernels that draw more."""
    idle: fields.Power | None = None
    """Idle power."""
    boost_clock: fields.Frequency | None = None
    """Highest clock of its processors."""
    clock: fields.Frequency | None = None
    """Clock that its processors are locked to, at most the boost clock; left out, none."""


class LinkChoice(fields.Section):
    """A link: one of the catalog, or a bandwidth, and the values to replace."""

    preset: fields.Name | None = None
    """A link by name; left out, the one the cluster has, or a generic NIC."""
    bandwidth: fields.Bandwidth | None = None
    """Bandwidth in each direction."""
    latency: fields.Time | None = None
    """Latency of one hop."""
    links: fields.Count | None = None
    """Physical links that the bandwidth is the sum of."""
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the bandwidth that large messages reach."""
    in_network_reduction: bool | None = None
    """Whether its switches can reduce."""
    switch_latency: fields.Time | None = None
    """Latency that one switch adds."""
    switch_ports: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Ports of one switch; 0 where it does not matter."""


class PartChoice(fields.Section):
    """Some pipeline ranks or replicas in a row, and what their nodes have of their own."""

    count: fields.Count = 1
    """Pipeline ranks (under stages) or data-parallel replicas (under replicas) that it is for."""
    accelerator: Annotated[AcceleratorChoice, fields.Shorthand("cluster.accelerator")] | None = None
    """Their accelerator; it brings its own scale-up link and price unless these are given too."""
    scale_up: Annotated[LinkChoice, fields.Shorthand("cluster.scale_up")] | None = None
    """Link between the accelerators of a scale-up domain, such as nvlink4."""
    nics_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    """NICs of a node."""
    nic: Annotated[LinkChoice, fields.Shorthand("cluster.nic")] | None = None
    """NIC of a node."""
    node_power: fields.Power | None = None
    """Highest power that a whole node draws."""
    price_per_hour: fields.PriceRate | None = None
    """Price of one accelerator."""


_Named: TypeAlias = "ClusterChoice | AcceleratorChoice | LinkChoice"
Parts: TypeAlias = Annotated[fields.Some[PartChoice], Field(max_length=10_000)]


class ClusterChoice(fields.Section):
    """A system by name, the parts of it to exchange, or all the parts of a cluster."""

    preset: fields.Name | None = None
    """A system of the catalog ('mpsim show hardware'), or a machine file of 'mpsim calibrate'."""
    machine: dict[str, object] | None = None
    """Content of that machine file; resolved scenarios hold it, a person writes the path."""
    name: fields.Name | None = None
    """Name; left out, the preset's."""
    nodes: Nodes | None = None
    """Nodes; left out, the size the preset is known by."""
    accelerator: Annotated[AcceleratorChoice, fields.Shorthand("cluster.accelerator")] | None = None
    """The one kind of accelerator."""
    accelerators_per_node: PerNode | None = None
    """Accelerators that share a host."""
    scale_up: Annotated[LinkChoice, fields.Shorthand("cluster.scale_up")] | None = None
    """Link between the accelerators of a scale-up domain, such as nvlink4."""
    domain: fields.Count | None = None
    """Accelerators of a scale-up domain; left out, those of a node."""
    nics_per_node: Annotated[int, Field(ge=0, le=4096)] | None = None
    """NICs of a node; left out, one per accelerator."""
    nic: Annotated[LinkChoice, fields.Shorthand("cluster.nic")] | None = None
    """NIC: a link by name, or its bandwidth such as '200 Gb/s'."""
    fabric: Annotated[FabricChoice, fields.Shorthand("cluster.fabric")] | None = None
    """The network between nodes."""
    placement: Annotated[
        Literal["packed", "strided", "by-rail", "by-rack"] | tuple[int, ...] | None, PLACED
    ] = None
    """Order of ranks on nodes: packed (by node), strided (by turns), by-rail, by-rack, a list."""
    library: Literal["nccl", "rccl", "hccl", "gloo", "openmpi", "mpich"] | None = None
    """Communication library; left out, the one that the accelerators' vendor ships."""
    node_power: fields.Power | None = None
    """Highest power that a whole node draws."""
    price_per_hour: fields.PriceRate | None = None
    """Price of one accelerator."""
    stages: Parts | None = None
    """Nodes that differ from one pipeline rank to the next, such as [{count: 4}, {count: 4,
    accelerator: a100-sxm-80}]."""
    replicas: Parts | None = None
    """Nodes that differ from one data-parallel replica to the next, likewise."""

    def resolve(self, folder: Folder = lambda _key: Path()) -> Cluster:
        """The cluster meant; machine files are relative to the `folder` in which their key was
        written.

        ScenarioError if a name is unknown, parts are missing, or they do not make a cluster.
        """
        machine = _machine("cluster", self, folder)
        lent = _machine("cluster.accelerator", self.accelerator, folder)
        problems = [*_check_names(self, machine or lent), *_check_complete(self)]
        if problems:
            raise ScenarioError(problems)
        try:
            return _finished(_joined(self, machine, lent), self, folder)
        except HardwareError as error:
            key = "cluster.nodes" if ": nodes is " in str(error) else "cluster"
            raise ScenarioError([Problem(str(error), key=key)]) from error


def _machine(
    key: str, part: ClusterChoice | AcceleratorChoice | None, folder: Folder
) -> Cluster | None:
    """The machine file that a part of the section names or holds, or None."""
    if not _is_machine(part):
        return None
    from mpsim.hardware.machine import machine_of, read_machine

    try:
        if part.machine is not None:
            return machine_of(part.machine)
        return read_machine(folder(f"{key}.preset") / f"{part.preset}")
    except HardwareError as error:
        raise ScenarioError([Problem(str(error), key=f"{key}.preset")]) from error


def _check_names(choice: ClusterChoice, machine: Cluster | None) -> list[Problem]:
    parts: list[tuple[str, _Named | None, Callable[[], tuple[str, ...]], str]] = [
        ("cluster.preset", choice, system_names, "system"),
        ("cluster.accelerator.preset", choice.accelerator, accelerator_names, "accelerator"),
        ("cluster.scale_up.preset", choice.scale_up, link_names, "link"),
        ("cluster.nic.preset", choice.nic, link_names, "link"),
    ]
    node = machine.node if machine else None
    own = (node.accelerator.name, node.scale_up.name, node.nic.name) if node else ()
    return [
        Problem(
            f"unknown {kind} {part.preset[:60]!r}; {nearest(part.preset, names())} (for one that is"
            " not listed, give a near preset and its own values beside it)",
            key=key,
        )
        for key, part, names, kind in parts
        if part is not None and part.preset is not None and not _is_machine(part)
        if part.preset not in (*own, *names())
    ]


def _is_machine(part: object) -> TypeGuard[ClusterChoice | AcceleratorChoice]:
    machines = (ClusterChoice, AcceleratorChoice)
    return isinstance(part, machines) and (
        part.machine is not None or (part.preset is not None and is_machine_path(part.preset))
    )


def _check_complete(choice: ClusterChoice) -> list[Problem]:
    if choice.preset is not None or choice.machine is not None:
        return []
    parts = ("accelerator", "accelerators_per_node", "nodes")
    missing = [part for part in parts if getattr(choice, part) is None]
    if not missing:
        chip = choice.accelerator
        if chip is None or chip.preset is not None or chip.machine is not None:
            return []
        message = say("scenario.no_accelerator")
        return [Problem(message, key="cluster.accelerator.preset")]
    message = f"lacks {', '.join(missing)}; give them, or a preset such as 'preset: dgx-h100'"
    return [Problem(message, key="cluster")]


def _joined(choice: ClusterChoice, machine: Cluster | None, lent: Cluster | None) -> Cluster:
    """The cluster without what `build_cluster` and `with_overrides` have no word for."""
    fabric = choice.fabric or FabricChoice.model_construct()
    parts: fields.Fields = {
        "accelerators_per_node": choice.accelerators_per_node,
        "nodes": choice.nodes,
        "nics_per_node": choice.nics_per_node,
        "domain": choice.domain,
        "fabric_kind": None if fabric.kind == "graph" else fabric.kind,
        "oversubscription": thinnings_of(fabric)[0] if thinnings_of(fabric) else None,
        "price_per_hour": choice.price_per_hour,
        "name": choice.name,
    }
    base = machine
    if base is None and choice.preset is not None:
        base = system(choice.preset, nodes=choice.nodes)
    parts |= _parts(choice, base, lent)
    given = {key: part for key, part in parts.items() if part is not None}
    return build_cluster(**given) if base is None else with_overrides(base, **given)


def _parts(choice: ClusterChoice, base: Cluster | None, lent: Cluster | None) -> fields.Fields:
    """Accelerator and links as chosen; None for what was left out."""
    scale_up = choice.scale_up
    parts: fields.Fields = {}
    if choice.accelerator is not None:
        parts["accelerator"] = _accelerator(choice.accelerator, lent or base, base)
    if scale_up is not None:
        usual = base.node.scale_up if base else _usual_link(choice, lent)
        parts["scale_up"] = _link(scale_up, usual)
    elif lent and not base:
        parts["scale_up"] = lent.node.scale_up
    if choice.nic is not None:
        parts["nic"] = _link(choice.nic, base.node.nic if base else link("generic-nic"))
    return parts


def _usual_link(choice: ClusterChoice, lent: Cluster | None) -> Link | None:
    if lent is not None:
        return lent.node.scale_up
    named = choice.accelerator.preset if choice.accelerator else None
    chip = accelerator(named) if named else None
    return link(chip.scale_up) if chip and chip.scale_up else None


def _replaced(part: T, figures: fields.Fields) -> T:
    """`part` with the figures that are given and differ, which are marked as the user's."""
    changed = {
        name: figure
        for name, figure in figures.items()
        if figure is not None and figure != getattr(part, name)
    }
    if not changed:
        return part
    sources = {**part.sources, **dict.fromkeys(changed, GIVEN)}
    return structs.replace(part, **changed, sources=sources)


def _accelerator(
    choice: AcceleratorChoice, machine: Cluster | None, base: Cluster | None
) -> Accelerator:
    named = machine is not None and choice.preset == machine.accelerator.name
    measured = machine is not None and (named or _is_machine(choice))
    if choice.preset is None and not measured:
        assert base is not None, "a cluster without a preset names its accelerator"
        chip = base.accelerator
    else:
        assert measured or choice.preset is not None
        chip = machine.accelerator if machine and measured else accelerator(choice.preset or "")
    figures = _figures(choice)
    if choice.peak_flops is not None:
        figures["peak_flops"] = {**chip.peak_flops, **choice.peak_flops}
    return _replaced(chip, figures)


def _figures(choice: AcceleratorChoice | LinkChoice | FabricChoice) -> fields.Fields:
    """Fields of a part that were written."""
    keys = type(choice).model_fields.keys() - {"preset", "machine"}
    return {FIGURES.get(key, key): getattr(choice, key) for key in sorted(keys)}


def _link(choice: LinkChoice, usual: Link | None) -> Link:
    chosen = usual
    if choice.preset is not None and (usual is None or choice.preset != usual.name):
        chosen = link(choice.preset)
    if chosen is None:
        raise HardwareError("scale_up: the accelerator has no usual link; give scale_up.preset")
    return _replaced(chosen, _figures(choice))


def _finished(cluster: Cluster, choice: ClusterChoice, folder: Folder) -> Cluster:
    changed: fields.Fields = {}
    if network := network_of(choice.fabric or FabricChoice.model_construct(), folder):
        changed["fabric"] = structs.replace(cluster.fabric, **network)
    if choice.placement is not None:
        given = choice.placement
        changed["placement"] = Placement(given) if isinstance(given, str) else given
    if choice.library is not None:
        changed["library"] = choice.library
    if choice.node_power is not None:
        changed["node"] = structs.replace(cluster.node, power_w=choice.node_power)
    finished = structs.replace(cluster, **changed) if changed else cluster
    finished.node_of(0)  # a given placement is checked when it is first used
    return finished


def clusters_of(choice: ClusterChoice, key: str, folder: Folder) -> tuple[Cluster, ...] | None:
    """The cluster as every pipeline rank or replica has it (`key` is ``stages`` or ``replicas``).

    Those that are alike are the same object; None where the section does not say. ScenarioError if
    a name is unknown, at the place of the part.
    """
    parts: Sequence[PartChoice] | None = getattr(choice, key)
    if parts is None:
        return None
    known: list[Cluster] = []
    result: list[Cluster] = []
    for number, part in enumerate(parts):
        cluster = _part(choice, part, f"cluster.{key}.{number}", folder)
        same = next((earlier for earlier in known if alike(earlier, cluster)), None)
        if same is None:
            known.append(cluster)
        result += [same or cluster] * part.count
    return tuple(result)


def _part(choice: ClusterChoice, part: PartChoice, key: str, folder: Folder) -> Cluster:
    given = {name: getattr(part, name) for name in PartChoice.model_fields if name != "count"}
    changed = {name: value for name, value in given.items() if value is not None}
    if part.accelerator is not None:
        # another chip has its own link and price; the cluster's are those of the cluster's chip
        changed |= {name: given[name] for name in ("scale_up", "node_power", "price_per_hour")}
    merged = choice.model_copy(update={**changed, "stages": None, "replicas": None})
    try:
        return merged.resolve(lambda part_key: folder(_moved(part_key, key)))
    except ScenarioError as error:
        moved = [structs.replace(each, key=_moved(each.key, key)) for each in error.problems]
        raise ScenarioError(moved) from error


def _moved(key: str, part: str) -> str:
    """The key of a part in place of that of the whole cluster."""
    return part + key.removeprefix("cluster")


def alike(cluster: Cluster, other: Cluster) -> bool:
    """Whether two clusters differ in nothing that a simulation sees."""
    return _bare(cluster) == _bare(other)


def _bare(cluster: Cluster) -> Cluster:
    node = cluster.node
    bare = structs.replace(
        node,
        accelerator=_untold(node.accelerator),
        scale_up=_untold(node.scale_up),
        nic=_untold(node.nic),
    )
    return structs.replace(cluster, node=bare, sources={}, note="", max_nodes=None)


def _untold(part: T) -> T:
    """A part without where its figures come from."""
    return structs.replace(part, sources={}, note="", title="")


def thinnings_of(fabric: FabricChoice) -> tuple[float, ...]:
    """Oversubscription of leaves, spines, ...; none where it is not given."""
    given = fabric.oversubscription
    if given is None:
        return ()
    return given if isinstance(given, tuple) else (given,)


def network_of(fabric: FabricChoice, folder: Folder) -> fields.Fields:
    """Fields of a fabric that `build_cluster` has no word for."""
    apart = ("kind", "oversubscription", "routing", "graph", "links")
    figures = _figures(fabric).items()
    network = {name: value for name, value in figures if value is not None and name not in apart}
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
