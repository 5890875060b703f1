"""What a cluster is made of: Accelerator, Link, Node, Fabric, Cluster.

All bandwidths are per direction. A bidirectional (marketing) figure is halved where it enters the catalog.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from mpsim.errors import HardwareError

__all__ = ["Accelerator", "Cluster", "Fabric", "FabricKind", "Link", "LinkShape", "Node"]


class LinkShape(enum.StrEnum):
    """How the accelerators of one scale-up domain are joined."""

    SWITCH = "switch"  # any pair gets the full rate (NVSwitch)
    MESH = "mesh"  # one direct link per pair; a pair gets rate / (domain - 1)
    TORUS = "torus"  # rings along each axis (ICI)
    HOST = "host"  # through PCIe and the host
    NETWORK = "network"  # a NIC into the fabric


class FabricKind(enum.StrEnum):
    """How nodes are joined."""

    RAIL_OPTIMIZED = "rail-optimized"
    FAT_TREE = "fat-tree"
    DRAGONFLY_PLUS = "dragonfly+"
    TORUS = "torus"
    SINGLE_SWITCH = "single-switch"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as software sees it, from its datasheet.

    Parameters
    ----------
    name : str
        Identifier in the catalog.
    title, vendor, family : str
        Printed name, maker, and the family whose kernel constants apply (``ampere``, ``hopper``, ...).
    year : int
        Of launch.
    peak_flops : mapping of str to float
        Dense peak by precision (fp64 fp32 tf32 fp16 bf16 fp8 fp4 int8) [FLOP/s].
    memory_bytes, memory_bandwidth : float
        Device memory [B] and its rate [B/s].
    compute_units : int
        SMs, CUs or cores.
    tdp_w, idle_w : float
        Board power limit and idle power [W].
    scale_up : str or None
        Name of its usual scale-up link.
    price_per_hour : float or None
        On demand [USD/h].
    sources : mapping of str to str
        For each figure (or ``*`` for the rest): where it was read and when; ``recalled`` marks a lead, not a fact.
    """

    name: str
    title: str
    vendor: str
    family: str
    year: int
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    compute_units: int
    tdp_w: float
    idle_w: float
    scale_up: str | None = None
    price_per_hour: float | None = None
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def peak(self, precision: str) -> float:
        """Dense peak [FLOP/s] of matrix products in `precision`; HardwareError if the chip lacks it."""
        try:
            return self.peak_flops[precision]
        except KeyError:
            has = ", ".join(sorted(self.peak_flops))
            raise HardwareError(
                f"{self.name} has no {precision}; it has {has}: choose one of these or another accelerator"
            ) from None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of link; ``bandwidth`` is per direction, for scale-up the sum over an accelerator's links.

    Parameters
    ----------
    bandwidth : float
        Per direction and accelerator (scale-up) or per port (NIC, host) [B/s].
    latency : float
        One hop, as a message pays it [s].
    shape : LinkShape
    links : int
        Physical links the bandwidth is the sum of (a torus divides by it).
    in_network_reduction : bool
        Whether switches can reduce (NVLink SHARP).
    efficiency : float
        Share of `bandwidth` that large messages reach.
    """

    name: str
    title: str
    shape: LinkShape
    bandwidth: float
    latency: float
    links: int = 1
    in_network_reduction: bool = False
    efficiency: float = 1.0
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Accelerators that share a host and its NICs.

    Parameters
    ----------
    accelerators : int
        In the node.
    domain : int
        Accelerators of one scale-up domain: those of the node, or more (72 for NVL72, a pod for a torus).
    nics : int
        NICs of the node for traffic between nodes.
    nic : Link
        What one of them does.
    """

    accelerator: Accelerator
    accelerators: int
    scale_up: Link
    domain: int
    nics: int
    nic: Link

    @property
    def nic_bandwidth_per_accelerator(self) -> float:
        """An accelerator's share of its node's NICs [B/s per direction]."""
        return self.nics * self.nic.bandwidth / self.accelerators


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes."""

    kind: FabricKind
    oversubscription: float = 1.0
    hop_latency: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of one kind joined by a fabric; accelerators are numbered node by node."""

    name: str
    node: Node
    nodes: int
    fabric: Fabric
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def accelerators(self) -> int:
        """How many there are."""
        return self.nodes * self.node.accelerators

    @property
    def accelerator(self) -> Accelerator:
        """The one kind of accelerator this cluster has."""
        return self.node.accelerator
