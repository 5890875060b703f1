"""Clusters: nodes of one kind joined by a fabric, and on which accelerator each rank runs.

Ranks are numbered as the parallel layout lays them; accelerators node by node. A rack is what sits
below one leaf unit of the fabric (all rails of it), or a scale-up domain where that is larger.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mpsim import structs
from mpsim.errors import HardwareError
from mpsim.hardware.components import Accelerator, Calibration, Node, Sourced
from mpsim.hardware.fabric import Fabric, FabricKind, Tier, tiers_of, torus_distance, torus_shape
from mpsim.memo import remembered
from mpsim.shipped import say
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity


class Placement(enum.StrEnum):
    """How ranks are dealt to accelerators."""

    PACKED = "packed"  # node after node
    STRIDED = "strided"  # one rank to every node in turn
    BY_RAIL = "by-rail"  # along one rail of a rack, then the next rail, then the next rack
    BY_RACK = "by-rack"  # nodes are filled, but one of every rack in turn


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Sourced):
    """Nodes of one kind joined by a fabric; accelerators are numbered node by node."""

    name: str
    node: Node
    nodes: int  # at least 1
    fabric: Fabric
    max_nodes: int | None = None  # most nodes it can have (a pod, a machine that exists once)
    sources: Mapping[str, str] = structs.field(default_factory=dict)
    note: str = ""
    # constants and curves of its collectives, where they were measured on it
    calibration: Calibration | None = None
    # on which accelerator each rank runs
    placement: Placement | tuple[int, ...] = Placement.PACKED
    # communication library of the job; empty for the one that the accelerators' vendor ships
    library: str = ""

    def __hash__(self) -> int:
        # its mappings have none; the figures that studies vary most keep equal hashes rare
        rates = self.node.scale_up.bandwidth, self.node.nic.bandwidth
        return hash((self.name, self.nodes, *rates))

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HardwareError(f"{self.name}: nodes is {self.nodes}, needed 1 or more")
        if self.max_nodes is not None and self.nodes > self.max_nodes:
            raise HardwareError(say("hardware.many_nodes", s=self))
        if self.domains > 1 and self.node.nics == 0:
            raise HardwareError(say("hardware.no_nic", s=self))

    @property
    def accelerators(self) -> int:
        """Number of accelerators."""
        return self.nodes * self.node.accelerators

    @property
    def accelerator(self) -> Accelerator:
        """The one kind of accelerator this cluster has."""
        return self.node.accelerator

    @property
    def domain_size(self) -> int:
        """Accelerators of the fullest scale-up domain, at most those of the cluster."""
        return min(self.node.domain, self.accelerators)

    @property
    def domains(self) -> int:
        """Scale-up domains; the last one may be partly filled."""
        return math.ceil(self.accelerators / self.node.domain)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Switch tiers between the nodes, lowest first; empty for one node and for a torus."""
        return tiers_of(
            self.fabric, nodes=self.nodes, nics=self.node.nics, bandwidth=self.node.nic.bandwidth
        )

    @property
    def at_any_rate(self) -> Cluster:
        """The cluster with links of one rate: equal for clusters that differ in these alone."""
        links = {name: getattr(self.node, name) for name in ("scale_up", "nic")}
        slow = {name: structs.replace(link, bandwidth=1.0) for name, link in links.items()}
        return structs.replace(self, node=structs.replace(self.node, **slow))

    @property
    def inside(self) -> Cluster:
        """The cluster without its NICs: equal for clusters whose scale-up domains are alike."""
        return structs.replace(self, node=structs.replace(self.node, nic=self.node.scale_up))

    def node_of(self, ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Index of the node each rank runs in; HardwareError for one that does not exist."""
        return self._accelerators(ranks) // self.node.accelerators

    def domain_of(self, ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Index of the scale-up domain each rank belongs to."""
        return self._accelerators(ranks) // self.node.domain

    def _accelerators(self, ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        given: npt.NDArray[np.int64] = np.asarray(ranks, dtype=np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.accelerators):
            wrong = given.min() if given.min() < 0 else given.max()
            raise HardwareError(
                f"{self.name} has no accelerator {wrong}; they are numbered 0 to"
                f" {self.accelerators - 1}"
            )
        if self.placement is Placement.PACKED:
            return given
        return self.slots[given]

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        """The accelerator on which each rank runs."""
        return slots_of(
            self.placement,
            nodes=self.nodes,
            per_node=self.node.accelerators,
            nodes_per_rack=self.nodes_per_rack,
        )

    @property
    def nodes_per_rack(self) -> int:
        """Nodes below one leaf unit of the fabric; without one, nodes of a scale-up domain."""
        domain = max(1, self.node.domain // self.node.accelerators)
        return max(domain, self.tiers[0].nodes) if self.tiers else domain

    def tier_between(self, span: int) -> Tier | None:
        """The lowest tier that spans `span` neighbouring nodes; None on a node or a torus."""
        return next((tier for tier in self.tiers if tier.nodes >= span), None) if span > 1 else None

    def node_bandwidth(self, span: int) -> float:
        """Bandwidth of a node to `span` others, less what tiers below the one crossed thin [B/s].

        All nodes from the start of a leaf send at once to nodes far away in the span.
        """
        crossed = self.tier_between(span)
        below = [tier for tier in self.tiers if crossed and tier.nodes < crossed.nodes]
        return self.node.nic_bandwidth / (below[-1].oversubscription if below else 1.0)

    def hops(self, span: int) -> float:
        """Most switches (torus: neighbours; torus, graph: mean) of a message in `span` nodes."""
        if span <= 1:
            return 0.0
        if self.fabric.kind is FabricKind.TORUS:
            whole = span == self.nodes
            shape = self.fabric.lengths(span) if whole else torus_shape(span, self.fabric.axes)
            return torus_distance(shape)
        if self.fabric.kind is FabricKind.GRAPH:
            from mpsim.hardware.graph_file import mean_switches  # networkx is slow to import

            return mean_switches(self.fabric.links)
        crossed = self.tier_between(span)
        return float(crossed.hops) if crossed else 0.0

    def network_latency(self, span: int) -> float:
        """Time a message between two of `span` nodes pays before its first byte arrives [s]."""
        if span <= 1:
            return 0.0
        return self.node.nic.latency + self.hops(span) * self.fabric.hop_latency

    @property
    def parts(self) -> dict[str, str]:
        """Accelerator, links and fabric in a line each."""
        node = self.node
        return {
            "accelerator": str(self.accelerator),
            "scale-up": f"{node.scale_up}, {plural(self.domains, 'domain')} of {self.domain_size}",
            "NICs": _nics(self),
            "fabric": _fabric(self),
        }

    @property
    def size(self) -> str:
        """Nodes and accelerators in words."""
        nodes, all_of_them = plural(self.nodes, "node"), plural(self.accelerators, "accelerator")
        return f"{self.name}: {nodes} of {self.node.accelerators} = {all_of_them}"

    def __str__(self) -> str:
        return "\n".join(
            [self.size, *(f"  {name:<11}  {text}" for name, text in self.parts.items())]
        )


def _nics(cluster: Cluster) -> str:
    node = cluster.node
    if node.nics == 0:
        return "none: the scale-up link is the only network"
    share = format_quantity(node.nic_bandwidth_per_accelerator, Dimension.BANDWIDTH)
    return f"{node.nics} a node, {node.nic}; {share} per accelerator"


def _fabric(cluster: Cluster) -> str:
    fabric = cluster.fabric
    text = f"{fabric.kind}, {fabric.oversubscription:g}:1 oversubscribed"
    if fabric.kind is FabricKind.TORUS:
        return f"{text}, {'x'.join(map(str, fabric.lengths(cluster.nodes)))} nodes"
    tiers = ", ".join(f"{tier.switches} {tier.name}" for tier in cluster.tiers if tier.switches)
    return f"{text}, switches: {tiers or 'none'}"


@remembered(64)
def slots_of(
    placement: Placement | tuple[int, ...], *, nodes: int, per_node: int, nodes_per_rack: int
) -> npt.NDArray[np.int64]:
    """The accelerator of every rank, by a rule or a list: a permutation, not to be written to.
    HardwareError if a given placement does not name every accelerator once.

    Examples
    --------
    >>> slots_of(Placement.STRIDED, nodes=2, per_node=2, nodes_per_rack=1).tolist()
    [0, 2, 1, 3]
    >>> slots_of(Placement.BY_RACK, nodes=4, per_node=1, nodes_per_rack=2).tolist()
    [0, 2, 1, 3]
    """
    slot = np.arange(nodes * per_node)
    if not isinstance(placement, Placement):
        slots = _given(placement, len(slot))
    else:
        node, place = np.divmod(slot, per_node)
        rack, row = np.divmod(node, nodes_per_rack)
        keys = {  # slowest last
            Placement.PACKED: (slot,),
            Placement.STRIDED: (node, place),
            Placement.BY_RAIL: (node, place, rack),
            Placement.BY_RACK: (place, rack, row),
        }
        slots = np.lexsort(keys[placement]).astype(np.int64)
    slots.setflags(write=False)
    return slots


def _given(placement: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    slots = np.array(placement, dtype=np.int64)
    if sorted(placement) != list(range(count)):
        raise HardwareError(
            f"placement: got {len(placement)} accelerators, of which {len(set(placement))} differ; "
            f"needed each of 0 to {count - 1} once, in the order of ranks"
        )
    return slots
