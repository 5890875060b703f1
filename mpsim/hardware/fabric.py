"""The network between nodes: its kind, and the tiers of switches it takes to join a number of nodes.

A network of leaves and spines is built the way reference designs are: half of a leaf's ports face nodes and half face
spines (fewer up when oversubscribed), and a tier is added above until one unit of it reaches every node.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence

from mpsim.errors import HardwareError

__all__ = ["Fabric", "FabricKind", "Tier", "tiers_of", "torus_distance", "torus_shape"]

TIER_NAMES = ("leaf", "spine", "core")


class FabricKind(enum.StrEnum):
    """How nodes are joined."""

    RAIL_OPTIMIZED = "rail-optimized"  # NIC k of every node on leaf k of its group
    FAT_TREE = "fat-tree"  # all NICs of a node on one leaf
    DRAGONFLY_PLUS = "dragonfly+"  # groups of leaves and spines, spines joined all to all
    TORUS = "torus"  # nodes joined to their neighbours, no switch
    SINGLE_SWITCH = "single-switch"  # one crossbar, however many nodes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes.

    Parameters
    ----------
    kind : FabricKind
    oversubscription : float
        Rate a leaf offers its nodes over the rate it has towards the tier above, at least 1.
    hop_latency : float
        What one switch (or one neighbour of a torus) adds [s].
    radix : int
        Ports of a switch, each as fast as a NIC; 0 stands for a switch with as many as it takes.
    axes : int
        Dimensions, if it is a torus.
    """

    kind: FabricKind
    oversubscription: float = 1.0
    hop_latency: float = 0.0
    radix: int = 0
    axes: int = 3

    def __post_init__(self) -> None:
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise HardwareError(
                f"fabric: oversubscription is {self.oversubscription:g}, needed 1 (full bisection) or more"
            )
        if not (math.isfinite(self.hop_latency) and self.hop_latency >= 0):
            raise HardwareError(
                f"fabric: hop_latency is {self.hop_latency:g} s, needed 0 s or more"
            )
        if self.radix < 0 or self.radix in (1, 2, 3):
            raise HardwareError(
                f"fabric: radix is {self.radix}, needed 4 ports or more, or 0 for no limit"
            )
        if self.axes < 1:
            raise HardwareError(f"fabric: axes is {self.axes}, needed 1 or more")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier of switches, lowest first.

    Parameters
    ----------
    name : str
        ``leaf``, ``spine``, ``core``, ...
    nodes : int
        Nodes below one unit of the tier; a unit is the leaf switches of a group, or the parallel
        switches above it that carry the same traffic.
    units : int
        How many units join all nodes.
    switches : int
        Switches in all units; 0 where units are cabled to each other directly.
    up_bandwidth : float
        From one unit to the tier above [B/s per direction]; 0 at the top.
    oversubscription : float
        Rate of the nodes below over what reaches the tier above, this tier and all below.
    hops : int
        Switches a message crosses when this is the highest tier it needs.
    """

    name: str
    nodes: int
    units: int
    switches: int
    up_bandwidth: float
    oversubscription: float
    hops: int


@functools.lru_cache(maxsize=256)
def tiers_of(fabric: Fabric, *, nodes: int, nics: int, bandwidth: float) -> tuple[Tier, ...]:
    """The tiers that join `nodes` nodes of `nics` ports of `bandwidth` each.

    Parameters
    ----------
    fabric : Fabric
    nodes, nics : int
        Nodes, and network ports of one node.
    bandwidth : float
        Of one port [B/s per direction].

    Returns
    -------
    tuple of Tier
        Lowest first; empty for a torus, for one node, and for nodes without NICs.

    Notes
    -----
    A leaf of R ports with oversubscription s has d = floor(R s / (1 + s)) ports down and R - d up. A
    middle tier has R/2 down and up; the top has R down. A top switch reaches at most R units, so a tier
    is added while there are more.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture (NDR): 64, 256, 512 and 1024 nodes take 16/8, 64/32,
    128/128/64 and 256/256/128 leaf/spine/core switches; this function gives the same counts.

    Examples
    --------
    >>> fabric = Fabric(kind=FabricKind.RAIL_OPTIMIZED, radix=64)
    >>> [(t.name, t.switches) for t in tiers_of(fabric, nodes=512, nics=8, bandwidth=50e9)]
    [('leaf', 128), ('spine', 128), ('core', 64)]
    """
    if fabric.kind is FabricKind.TORUS or nodes < 2 or nics < 1:
        return ()
    if fabric.kind is FabricKind.SINGLE_SWITCH or fabric.radix == 0:
        return (_one_switch(nodes),)
    below = [_leaf(fabric, nodes=nodes, nics=nics, bandwidth=bandwidth)]
    uplinks = below[0].switches * (fabric.radix - _down_ports(fabric))
    while not _is_top(below[-1], fabric, nics):
        below.append(
            _next_tier(below, fabric, nodes=nodes, nics=nics, uplinks=uplinks, bandwidth=bandwidth)
        )
    below[-1] = dataclasses.replace(below[-1], up_bandwidth=0.0)
    return tuple(below)


def _one_switch(nodes: int) -> Tier:
    return Tier(
        name="switch",
        nodes=nodes,
        units=1,
        switches=1,
        up_bandwidth=0.0,
        oversubscription=1.0,
        hops=1,
    )


def _down_ports(fabric: Fabric) -> int:
    share = fabric.oversubscription / (1 + fabric.oversubscription)
    return min(max(math.floor(fabric.radix * share), 1), fabric.radix - 1)


def _is_top(tier: Tier, fabric: Fabric, nics: int) -> bool:
    """One unit is the top, except the leaves of several rails, which only a spine joins."""
    return tier.units == 1 and not (tier.name == "leaf" and _rails(fabric, nics) > 1)


def _rails(fabric: Fabric, nics: int) -> int:
    return nics if fabric.kind is FabricKind.RAIL_OPTIMIZED else 1


def _leaf(fabric: Fabric, *, nodes: int, nics: int, bandwidth: float) -> Tier:
    down = _down_ports(fabric)
    rails = _rails(fabric, nics)
    reach = max(down * rails // nics, 1)
    units = math.ceil(nodes / reach)
    return Tier(
        name=TIER_NAMES[0],
        nodes=reach,
        units=units,
        switches=units * max(rails, math.ceil(reach * nics / down)),
        up_bandwidth=reach * nics * bandwidth / fabric.oversubscription,
        oversubscription=fabric.oversubscription,
        hops=1,
    )


def _next_tier(
    below: Sequence[Tier], fabric: Fabric, *, nodes: int, nics: int, uplinks: int, bandwidth: float
) -> Tier:
    last, level = below[-1], len(below)
    groups = fabric.kind is FabricKind.DRAGONFLY_PLUS and level == len(TIER_NAMES) - 1
    children = last.units * (_rails(fabric, nics) if level == 1 else 1)
    top = groups or children <= fabric.radix
    per_unit = max(fabric.radix // 2 // (children // last.units), 2)
    reach = max(nodes, last.nodes) if top else last.nodes * per_unit
    ports = fabric.radix if top else fabric.radix // 2
    return Tier(
        name="groups"
        if groups
        else TIER_NAMES[level]
        if level < len(TIER_NAMES)
        else f"tier-{level}",
        nodes=reach,
        units=1 if top else math.ceil(nodes / reach),
        switches=0 if groups else math.ceil(uplinks / ports),
        up_bandwidth=reach * nics * bandwidth / last.oversubscription,
        oversubscription=last.oversubscription,
        hops=2 * level if groups else 2 * level + 1,
    )


def torus_shape(members: int, axes: int) -> tuple[int, ...]:
    """The most cube-like torus of `members` on `axes` axes, longest axis first.

    Parameters
    ----------
    members : int
        How many to arrange, at least 1.
    axes : int
        Dimensions of the torus, at least 1.

    Returns
    -------
    tuple of int
        Lengths that multiply to `members`.

    Examples
    --------
    >>> torus_shape(4096, 3)
    (16, 16, 16)
    >>> torus_shape(12, 2)
    (4, 3)
    """
    if members < 1 or axes < 1:
        raise HardwareError(f"a torus needs 1 member and 1 axis or more, got {members} and {axes}")
    lengths: list[int] = []
    left = members
    for axis in range(axes, 1, -1):
        length = _divisor_at_most(left, round(left ** (1 / axis)))
        lengths.append(length)
        left //= length
    return tuple(sorted([*lengths, left], reverse=True))


def _divisor_at_most(number: int, limit: int) -> int:
    return next(value for value in range(max(limit, 1), 0, -1) if number % value == 0)


def torus_distance(shape: Sequence[int]) -> float:
    """Mean number of hops between two members of a torus of `shape`, wrap-around included.

    Notes
    -----
    A ring of k has a mean distance of floor(k^2 / 4) / k, itself included; axes add.
    """
    return sum((length * length // 4) / length for length in shape)
