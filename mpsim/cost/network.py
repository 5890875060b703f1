"""Rates that links offer a group before any algorithm: a pair, in its domain, a NIC share."""

from __future__ import annotations

import math

from mpsim import structs
from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.hardware.fabric import torus_shape
from mpsim.parallel.crossing import GroupShape

_LINKS_PER_AXIS = 2  # one in each direction along an axis of a torus


@structs.dataclass(frozen=True, slots=True)
class TorusExtent:
    """Reach of a group along one axis of a torus, and whether the links close into a ring there."""

    members: int
    wraps: bool

    @property
    def rate(self) -> int:
        """Links a member receives on at once along this axis."""
        return _LINKS_PER_AXIS if self.wraps else 1

    @property
    def diameter(self) -> int:
        """Most hops between two members along this axis."""
        return self.members // 2 if self.wraps else self.members - 1


def torus_extents(cluster: Cluster, members: int) -> tuple[TorusExtent, ...]:
    """Axes that a group of `members` occupies, filling one whole axis after another.

    Notes
    -----
    A group no longer than an axis lies on it, and has wraparound only when it fills it; meshes are
    usually mapped so. A group that could be folded onto two axes (4 as 2 x 2) would be faster.
    """
    link = cluster.node.scale_up
    sides = sorted(torus_shape(cluster.domain_size, max(1, link.links // _LINKS_PER_AXIS)))
    extents, left = [], members
    for side in reversed(sides):
        reach = min(side, left)
        if reach > 1:
            extents.append(TorusExtent(reach, wraps=reach == side and side > _LINKS_PER_AXIS))
        left = math.ceil(left / reach)
    return tuple(extents)


def pair_bandwidth(cluster: Cluster) -> float:
    """Raw rate between two neighbouring accelerators of a scale-up domain [B/s per direction]."""
    link, domain = cluster.node.scale_up, cluster.node.domain
    if link.shape is LinkShape.MESH:
        return link.bandwidth / max(1, domain - 1)
    if link.shape is LinkShape.TORUS:
        return link.bandwidth / link.links
    return link.bandwidth


def group_bandwidth(cluster: Cluster, members: int) -> float:
    """Raw rate at which each of `members` of a domain can send to the others at once [B/s]."""
    link = cluster.node.scale_up
    if link.shape is LinkShape.MESH:
        return pair_bandwidth(cluster) * max(1, members - 1)
    if link.shape is LinkShape.TORUS:
        links = sum(extent.rate for extent in torus_extents(cluster, members))
        return pair_bandwidth(cluster) * max(1, links)
    return link.bandwidth


def nodes_spanned(cluster: Cluster, domains: int) -> int:
    """Nodes that `domains` neighbouring scale-up domains consist of."""
    per_domain = max(1, cluster.node.domain // cluster.node.accelerators)
    return min(cluster.nodes, domains * per_domain)


def cross_rail_span(cluster: Cluster, span: int) -> int:
    """Nodes that a message between unlike NICs of `span` nodes spans: on rails it must climb."""
    if not cluster.fabric.has_rails or not cluster.tiers:
        return span
    return min(cluster.nodes, max(span, cluster.tiers[0].nodes + 1))


def group_nic_bandwidth(cluster: Cluster, group: GroupShape, kind: str, span: int) -> float:
    """Raw rate of one accelerator's share of its node's NICs in a collective [B/s per direction].

    `group`: with what its traffic meets on the fabric, if that was counted. `kind`: an
    ``all_to_all`` is an exchange, all others are rings. `span`: neighbouring nodes it is taken to
    span where nothing was counted.
    """
    counted = group.exchange_slowdown if kind == "all_to_all" else group.ring_slowdown
    return slowed_nic_bandwidth(cluster, counted, span)


def slowed_nic_bandwidth(cluster: Cluster, slowdown: float | None, span: int) -> float:
    """Raw rate of a share of a node's NICs, slowed down as counted or by `span` nodes [B/s]."""
    return (
        nic_bandwidth(cluster, span) if slowdown is None else nic_bandwidth(cluster, 1) / slowdown
    )


def nic_bandwidth(cluster: Cluster, span: int) -> float:
    """Raw rate of one accelerator's share of its node's NICs [B/s per direction].

    Every accelerator is taken to send at once, as all groups of a parallel step do, and the tiers
    it crosses divide the rate by their oversubscription.
    """
    if cluster.node.nics == 0:
        raise HardwareError(
            f"{cluster.name}: a group leaves its scale-up domain of {cluster.node.domain} but nodes"
            " have no NIC; give nic and nics_per_node, or keep the group inside a domain"
        )
    return cluster.node_bandwidth(span) / cluster.node.accelerators
