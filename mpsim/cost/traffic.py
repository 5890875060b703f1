"""Traffic of a collective: bytes an algorithm sends, and the least time that any algorithm needs.

With n ranks, m of them in each of d scale-up domains, and a size S (module `mpsim.cost.collectives`
says of what).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mpsim.arrays import Floats
from mpsim.cost.network import group_bandwidth, nic_bandwidth
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.parallel.crossing import GroupShape

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
