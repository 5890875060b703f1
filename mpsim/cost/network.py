"""Rates that links offer a group (a pair, in its domain, a NIC share), and traffic of a collective:
bytes an algorithm sends, and the least time that any algorithm needs.

With n ranks, m of them in each of d scale-up domains, and a size S (module `mpsim.cost.collectives`
says of what).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
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


COLLECTIVES = tuple(
    "all_reduce all_gather reduce_scatter broadcast reduce all_to_all send_recv barrier".split()
)
_TWO_WAY = ("all_reduce",)  # reduce-scatter and all-gather in one
_ROOTED = ("broadcast", "reduce")
_PAIR = 2


def ring_passes(kind: str, ranks: int) -> float:
    """Share of S that each rank of a ring sends: the bus-bandwidth factor of nccl-tests.

    ``2 (n-1)/n`` for all-reduce, ``(n-1)/n`` for all-gather, reduce-scatter and all-to-all, 1 for
    broadcast, reduce and a message, 0 for a barrier.
    """
    if kind == "barrier" or ranks <= 1:
        return 0.0
    if kind in _ROOTED or kind == "send_recv":
        return 1.0
    return (2.0 if kind in _TWO_WAY else 1.0) * (ranks - 1) / ranks


def sent_bytes(
    kind: str, size: ArrayLike, group: GroupShape, *, summed_by_switch: bool = False
) -> tuple[Floats, Floats]:
    """Bytes that a rank sends on average over its scale-up link and over its NIC share [B].

    Notes
    -----
    Rings run through the domains with m channels, so that one of m hops of each channel leaves the
    domain: a rank sends ``passes S (m-1)/m`` inside and ``passes S / m`` outside. Exceptions: an
    all-reduce over exactly two domains exchanges ``S/m`` outside (halves are summed on both sides);
    one that switches sum (`summed_by_switch`) puts the whole tensor and its own reduced part, ``S
    (m+1)/m``, on the scale-up link; all-to-all sends each peer its part directly. In a broadcast or
    reduce only n-1 of n ranks send.
    """
    s = np.asarray(size, float)
    n, m = group.ranks, group.per_domain
    if kind == "all_to_all":
        return s * (m - 1) / n, s * (n - m) / n
    total = s * ring_passes(kind, n) * ((n - 1) / n if kind in _ROOTED else 1.0)
    if kind == "send_recv":
        return (np.zeros_like(s), total) if group.crosses else (total, np.zeros_like(s))
    inside, outside = total * (m - 1) / m, total / m
    if not group.crosses:
        inside, outside = total, np.zeros_like(s)
    if kind in _TWO_WAY and group.domains == _PAIR:
        inside, outside = s * ring_passes(kind, m), s / m
    if kind in _TWO_WAY and summed_by_switch and m > 1:
        inside = s * (m + 1) / m
    return inside, outside


def floor_seconds(kind: str, size: ArrayLike, group: GroupShape, cluster: Cluster) -> Floats:
    """Least time of any algorithm on these links, at raw rates and without latency [s].

    Notes
    -----
    Two bounds, whichever is larger. *A rank* must send (or receive) ``passes S`` over its scale-up
    link and NIC share together; where switches reduce, an all-reduce need only send S. *A domain*
    must send (or receive) what others need from it over the NIC shares of its m members: ``(n-m)/n
    S`` for all-gather, reduce-scatter and (from each member) all-to-all, S for broadcast and
    reduce, ``2 (d-1)/d S`` for all-reduce (S when domains hold unequal numbers of members).
    Switches of the fabric are not taken to reduce, and NICs of other groups' ranks not to be
    borrowed.
    """
    s = np.asarray(size, float)
    n, m = group.ranks, group.per_domain
    if n <= 1 or kind == "barrier":
        return np.zeros_like(s)
    link = cluster.node.scale_up
    outside = nic_bandwidth(cluster, 1) if group.crosses else 0.0
    inside = _most_inside(cluster, 2 if kind == "send_recv" else m) if m > 1 else 0.0
    if kind == "send_recv":
        return s / (outside or _most_inside(cluster, _PAIR))
    passes = ring_passes(kind, n)
    if kind in _TWO_WAY and link.in_network_reduction:
        passes = 1.0
    of_rank = passes * s / (inside + outside)
    if not group.crosses:
        return of_rank
    result: Floats = np.maximum(of_rank, _leaving(kind, s, group) / (m * outside))
    return result


def _most_inside(cluster: Cluster, members: int) -> float:
    """Most that any routing could give one member; a torus may detour over all its links."""
    link = cluster.node.scale_up
    return link.bandwidth if link.shape is LinkShape.TORUS else group_bandwidth(cluster, members)


def _leaving(kind: str, s: Floats, group: GroupShape) -> Floats:
    """Bytes that the smallest domain must send or receive over all its NIC shares [B]."""
    n, m, d = group.ranks, group.per_domain, group.domains
    if kind in _TWO_WAY:
        return s * 2.0 * (d - 1) / d if n == m * d else s
    if kind in _ROOTED:
        return s
    remote = s * (n - m) / n
    return remote * m if kind == "all_to_all" else remote
