"""The network between nodes: its kind, and the tiers of switches that join them.

A network of leaves and spines is built as reference designs are: half of a leaf's ports face nodes
and half spines (fewer when oversubscribed), with tiers until one unit reaches every node.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from mpsim import structs
from mpsim.errors import HardwareError
from mpsim.memo import remembered
from mpsim.nouns import Seconds

TIER_NAMES = ("leaf", "spine", "core")


class FabricKind(enum.StrEnum):
    """How nodes are joined."""

    RAIL_OPTIMIZED = "rail-optimized"  # NIC k of every node on leaf k of its group
    RAIL_ONLY = "rail-only"  # a network of its own for NIC k of every node, no way between them
    DUAL_PLANE = "dual-plane"  # rails whose ports are split over two networks of twice the radix
    FAT_TREE = "fat-tree"  # all NICs of a node on one leaf
    DRAGONFLY_PLUS = "dragonfly+"  # groups of leaves and spines, spines joined all to all
    TORUS = "torus"  # nodes joined to their neighbours, no switch
    SINGLE_SWITCH = "single-switch"  # one crossbar, however many nodes
    GRAPH = "graph"  # any links, read from a file


_RAILS = (FabricKind.RAIL_OPTIMIZED, FabricKind.RAIL_ONLY, FabricKind.DUAL_PLANE)
_UNTIERED = (FabricKind.TORUS, FabricKind.GRAPH)
_FEWEST_PORTS = 4  # of a switch: two down, two up


class Routing(enum.StrEnum):
    """How flows choose among ways of equal length."""

    ECMP = "ecmp"  # spread evenly over all of them
    STATIC = "static"  # one way for each destination, whoever sends (destination modulo up-links)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes."""

    kind: FabricKind
    # rate a leaf offers its nodes over the rate it has towards the tier above, at least 1
    oversubscription: float = 1.0
    hop_latency: Seconds = 0.0  # what one switch (or one neighbour of a torus) adds [s]
    # ports of a switch, each as fast as a NIC; 0 stands for a switch with as many as it takes
    radix: int = 0
    axes: int = 3  # dimensions, if it is a torus
    # the same rate for spines, cores, ... towards the tier above them; 1 for those not given
    above: tuple[float, ...] = ()
    # networks that the ports of every NIC are split over; a dual-plane fabric has 2
    planes: int = 1
    routing: Routing = Routing.ECMP
    shape: tuple[int, ...] = ()  # lengths of the axes of a torus; empty for the most cube-like one
    # relative bandwidth of the axes of a torus; empty for equal ones
    widths: tuple[float, ...] = ()
    # edges of a graph: two vertices and the bandwidth each way [B/s]; node i is ``node i``
    links: tuple[tuple[str, str, float], ...] = ()
    # switch_price, cable_price: of one switch, of one cable [USD]
    switch_price: float | None = None
    cable_price: float | None = None
    switch_power_w: float | None = None  # of one switch [W]

    @property
    def has_rails(self) -> bool:
        """Whether NIC k of a node is on a leaf of its own."""
        return self.kind in _RAILS

    @property
    def networks(self) -> int:
        """Planes."""
        return max(self.planes, 2) if self.kind is FabricKind.DUAL_PLANE else self.planes

    def lengths(self, nodes: int) -> tuple[int, ...]:
        """Lengths of the axes of a torus of `nodes`; HardwareError if they make another number."""
        if not self.shape:
            return torus_shape(nodes, self.axes)
        if math.prod(self.shape) != nodes:
            raise HardwareError(
                f"fabric: a torus of {'x'.join(map(str, self.shape))} has {math.prod(self.shape)}"
                f" nodes, the cluster {nodes}; give another shape, or leave it out"
            )
        return self.shape

    def __post_init__(self) -> None:
        axes = len(self.shape) or self.axes
        needs = {
            f"oversubscription above the leaves is {self.above}, needed 1 or more each": all(
                math.isfinite(number) and number >= 1 for number in self.above
            ),
            "planes and lengths of axes have to be 1 or more": min((self.planes, *self.shape)) >= 1,
            f"widths are {self.widths}, needed more than 0 each": all(n > 0 for n in self.widths),
            f"got {len(self.widths)} widths for {axes} axes; needed one each": (
                len(self.widths) in (0, axes)
            ),
            "kind graph needs links, and links need kind graph": (
                (self.kind is FabricKind.GRAPH) == bool(self.links)
            ),
            f"oversubscription is {self.oversubscription:g}, needed 1 (full bisection) or more": (
                math.isfinite(self.oversubscription) and self.oversubscription >= 1
            ),
            f"hop_latency is {self.hop_latency:g} s, needed 0 s or more": (
                math.isfinite(self.hop_latency) and self.hop_latency >= 0
            ),
            f"radix is {self.radix}, needed 4 ports or more, or 0 for no limit": (
                self.radix == 0 or self.radix >= _FEWEST_PORTS
            ),
            f"axes is {self.axes}, needed 1 or more": self.axes >= 1,
        }
        for need, is_met in needs.items():
            if not is_met:
                raise HardwareError(f"fabric: {need}")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier of switches, lowest first."""

    name: str  # ``leaf``, ``spine``, ``core``, ...
    # nodes below one unit of the tier; a unit is the leaf switches of a group, or the parallel
    # switches above it that carry the same traffic
    nodes: int
    units: int  # how many units join all nodes
    switches: int  # switches in all units; 0 where units are cabled to each other directly
    up_bandwidth: float  # from one unit to the tier above [B/s per direction]; 0 at the top
    # rate of the nodes below over what reaches the tier above, this tier and all below
    oversubscription: float
    hops: int  # switches a message crosses when this is the highest tier it needs
    cables: int = 0  # to the tier below, or between units that are cabled to each other


@remembered(256)
def tiers_of(fabric: Fabric, *, nodes: int, nics: int, bandwidth: float) -> tuple[Tier, ...]:
    """Tiers that join nodes of so many NICs of `bandwidth` each [B/s per direction], lowest first.

    There are none in a torus, for one node, and for nodes without NICs.

    Notes
    -----
    A leaf of R ports with oversubscription s has d = floor(R s / (1 + s)) ports down and R - d up,
    a middle tier likewise (R/2 down and up without); the top has R down. A top switch reaches at
    most R units, so a tier is added while there are more. With k planes each switch has k R ports
    of a k-th of the rate, and there are k of everything.

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
    if fabric.kind in _UNTIERED or nodes < 2 or nics < 1:
        return ()
    if fabric.kind is FabricKind.SINGLE_SWITCH or fabric.radix == 0:
        whole = {"nodes": nodes, "units": 1, "switches": 1, "hops": 1, "cables": nodes * nics}
        return (Tier(name="switch", up_bandwidth=0.0, oversubscription=1.0, **whole),)
    planes = fabric.networks
    each = structs.replace(fabric, radix=fabric.radix * planes)
    return tuple(
        structs.replace(
            tier,
            switches=tier.switches * planes,
            up_bandwidth=tier.up_bandwidth * planes,
            cables=tier.cables * planes,
        )
        for tier in _plane(each, nodes=nodes, nics=nics, bandwidth=bandwidth / planes)
    )


def _plane(fabric: Fabric, *, nodes: int, nics: int, bandwidth: float) -> list[Tier]:
    """Tiers of one plane."""
    below = [_leaf(fabric, nodes=nodes, nics=nics, bandwidth=bandwidth)]
    uplinks = below[0].switches * (fabric.radix - _down_ports(fabric, 0))
    while not _is_top(below[-1], fabric, nics):
        below.append(
            _next_tier(below, fabric, nodes=nodes, nics=nics, uplinks=uplinks, bandwidth=bandwidth)
        )
        uplinks = math.ceil(uplinks / _thinning(fabric, len(below) - 1))
    below[-1] = structs.replace(below[-1], up_bandwidth=0.0)
    return below


def _thinning(fabric: Fabric, level: int) -> float:
    """Oversubscription of one tier by itself."""
    if level == 0:
        return fabric.oversubscription
    return fabric.above[level - 1] if level <= len(fabric.above) else 1.0


def _down_ports(fabric: Fabric, level: int) -> int:
    thinning = _thinning(fabric, level)
    share = thinning / (1 + thinning)
    return min(max(math.floor(fabric.radix * share), 1), fabric.radix - 1)


def _is_top(tier: Tier, fabric: Fabric, nics: int) -> bool:
    """One unit is the top, except the leaves of several rails, which only a spine joins."""
    return tier.units == 1 and not (tier.name == TIER_NAMES[0] and _joined(fabric, nics) > 1)


def _rails(fabric: Fabric, nics: int) -> int:
    return nics if fabric.has_rails else 1


def _joined(fabric: Fabric, nics: int) -> int:
    """Rails that a spine joins."""
    return 1 if fabric.kind is FabricKind.RAIL_ONLY else _rails(fabric, nics)


def _leaf(fabric: Fabric, *, nodes: int, nics: int, bandwidth: float) -> Tier:
    down = _down_ports(fabric, 0)
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
        cables=nodes * nics,
    )


def _next_tier(
    below: Sequence[Tier], fabric: Fabric, *, nodes: int, nics: int, uplinks: int, bandwidth: float
) -> Tier:
    last, level = below[-1], len(below)
    groups = fabric.kind is FabricKind.DRAGONFLY_PLUS and level == len(TIER_NAMES) - 1
    rails = _joined(fabric, nics) if level == 1 else 1
    apart = nics if fabric.kind is FabricKind.RAIL_ONLY else 1
    top = groups or last.units * rails <= fabric.radix
    down = _down_ports(fabric, level)
    reach = max(nodes, last.nodes) if top else last.nodes * max(down // rails, 2)
    thinning = last.oversubscription * (1.0 if top else _thinning(fabric, level))
    ports = fabric.radix if top else down
    return Tier(
        name="groups"
        if groups
        else TIER_NAMES[level]
        if level < len(TIER_NAMES)
        else f"tier-{level}",
        nodes=reach,
        units=1 if top else math.ceil(nodes / reach),
        switches=0 if groups else apart * math.ceil(uplinks / apart / ports),
        up_bandwidth=reach * nics * bandwidth / thinning,
        oversubscription=thinning,
        hops=2 * level if groups else 2 * level + 1,
        cables=uplinks // 2 if groups else uplinks,
    )


def torus_shape(members: int, axes: int) -> tuple[int, ...]:
    """Lengths of the most cube-like torus of `members` on `axes` axes, longest axis first.

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
        longest = max(round(left ** (1 / axis)), 1)
        lengths.append(next(value for value in range(longest, 0, -1) if left % value == 0))
        left //= lengths[-1]
    return tuple(sorted([*lengths, left], reverse=True))


def torus_distance(shape: Sequence[int]) -> float:
    """Mean number of hops between two members of a torus of `shape`, wrap-around included.

    Notes
    -----
    A ring of k has a mean distance of floor(k^2 / 4) / k, itself included; axes add.
    """
    return math.fsum((length * length // 4) / length for length in shape)
