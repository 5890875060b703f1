"""Crossing: what communicators put on links of the fabric, and how much these slow them.

A *ring* visits scale-up domains in the order of the group's ranks; every rank sends to the rank in
its place in the next domain. On a torus it becomes rings along every axis of the group, both ways
at once. An *exchange* (all-to-all) sends from every rank to every rank of other domains, as much to
each. Weights are shares of what one rank sends over the network.

Shapes: G groups, M members of each, F flows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.hardware import Cluster, FabricKind
from mpsim.hardware.routes import routes_of


class GroupShape(NamedTuple):
    """A communicator as a cost model sees it."""

    ranks: int  # members
    per_domain: int  # members in each scale-up domain (the fewest, where domains differ)
    domains: int  # scale-up domains touched
    # ring_slowdown, exchange_slowdown: how many times longer links of the fabric make what a ring,
    # or an all-to-all, sends over NICs; None where nobody counted: then all of it is taken to cross
    # every tier that as many neighbouring nodes span
    ring_slowdown: float | None = None
    exchange_slowdown: float | None = None

    @property
    def crosses(self) -> bool:
        """Whether traffic has to leave the scale-up domain."""
        return self.domains > 1


class Flows(NamedTuple):
    """Sending and receiving node, and how much of a rank's traffic goes that way [F]."""

    source: Ints
    target: Ints
    weight: Floats


_NOTHING = Flows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def placed(cluster: Cluster, groups: Ints) -> GroupShape:
    """Where members of communicators sit, and what the fabric takes while all [G, M] send."""
    shape = spread(cluster.domain_of(groups))
    if not shape.crosses or not routes_of(cluster).names:
        return shape
    return GroupShape(
        shape.ranks,
        shape.per_domain,
        shape.domains,
        ring_slowdown=slowdown(cluster, ring(cluster, groups)),
        exchange_slowdown=slowdown(cluster, exchange(cluster, groups)),
    )


def spread(domains: Ints) -> GroupShape:
    """Shape that bounds groups [groups, members]: most domains touched, fewest members in one."""
    ordered = np.sort(np.atleast_2d(domains), axis=1)
    is_new = np.ones(ordered.shape, dtype=bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    runs = np.diff(np.flatnonzero(is_new), append=ordered.size)
    return GroupShape(
        ranks=ordered.shape[1], per_domain=int(runs.min()), domains=int(is_new.sum(axis=1).max())
    )


def load(cluster: Cluster, flows: Flows) -> Floats:
    """Bytes on each link of the fabric while every rank sends one over the network [B]."""
    return routes_of(cluster).load(*flows)


def slowdown(cluster: Cluster, flows: Flows) -> float:
    """How many times longer traffic takes than by NICs alone: 1, or by the busiest link."""
    return max(1.0, _busiest(cluster, flows))


def _busiest(cluster: Cluster, flows: Flows) -> float:
    """Time of the busiest link of the fabric over that of NICs alone; 0 where no link is thin."""
    routes, rate = routes_of(cluster), cluster.node.nic_bandwidth_per_accelerator
    if not routes.names:
        return 0.0
    return float((routes.load(*flows) * rate / routes.capacity).max())


def message_slowdown(cluster: Cluster, source: Ints, target: Ints) -> float | None:
    """How many times longer than shares of NICs the fabric makes messages; None if no longer."""
    node = cluster.node
    if not routes_of(cluster).names and node.nics >= node.accelerators:
        return None
    flows = messages(cluster, source, target)
    return max(_lent(cluster, flows), _busiest(cluster, flows))


def _lent(cluster: Cluster, flows: Flows) -> float:
    """Time of a message over that on its accelerator's share of NICs; below 1 where few send."""
    node = cluster.node
    if not len(flows.source) or node.nics >= node.accelerators:
        return 1.0
    senders = int(np.bincount(flows.source).max())
    return min(1.0, max(senders, node.nics) / node.accelerators)


def messages(cluster: Cluster, source: Ints, target: Ints) -> Flows:
    """Ranks of `source` send to those in their place in `target`; none within a domain."""
    here, there = np.ravel(source), np.ravel(target)
    leaves = cluster.domain_of(here) != cluster.domain_of(there)
    here, there = here[leaves], there[leaves]
    return Flows(cluster.node_of(here), cluster.node_of(there), np.ones(len(here)))


def ring(cluster: Cluster, groups: Ints) -> Flows:
    """Flows of rings, such as all-reduce, all-gather and reduce-scatter run in."""
    crossing = _crossing(cluster, groups)
    if cluster.fabric.kind is FabricKind.TORUS:
        return _joined([_torus_rings(cluster, members) for members in crossing])
    return _joined([_ring(cluster, members) for members in crossing])


def exchange(cluster: Cluster, groups: Ints) -> Flows:
    """Flows of all-to-alls."""
    return _joined([_exchange(cluster, members) for members in _crossing(cluster, groups)])


def _crossing(cluster: Cluster, groups: Ints) -> Ints:
    """Groups with members in several scale-up domains."""
    groups = np.atleast_2d(groups)
    domains = cluster.domain_of(groups)
    crossing: Ints = groups[(domains != domains[:, :1]).any(axis=1)]
    return crossing


def _joined(flows: list[Flows]) -> Flows:
    columns = zip(*(flows or [_NOTHING]), strict=True)
    return Flows(*(np.concatenate(column) for column in columns))


def _ring(cluster: Cluster, members: Ints) -> Flows:
    domains = cluster.domain_of(members)
    _, first, place = np.unique(domains, return_index=True, return_inverse=True)
    turn = np.argsort(np.argsort(first))[place.reshape(-1)]  # which domain in the order of the ring
    rings = [members[turn == domain] for domain in range(len(first))]
    following = [*rings[1:], rings[0]]
    there = [
        next_ring[np.arange(len(here)) % len(next_ring)]
        for here, next_ring in zip(rings, following, strict=True)
    ]
    source, target = np.concatenate(rings), np.concatenate(there)
    return Flows(cluster.node_of(source), cluster.node_of(target), np.ones(len(source)))


def _torus_rings(cluster: Cluster, members: Ints) -> Flows:
    shape = cluster.fabric.lengths(cluster.nodes)
    node, ranks = np.unique(cluster.node_of(members), return_counts=True)
    places = np.stack(np.unravel_index(node, shape), axis=1)
    axes = [axis for axis in range(len(shape)) if len(np.unique(places[:, axis])) > 1]
    lines = {axis: _lines(places, axis) for axis in axes}
    if not all(len(row) > 1 for parallel in lines.values() for row in parallel):
        return _ring(cluster, members)  # not a box of the torus
    flows = []
    for axis in axes:
        share = cluster.fabric.widths[axis] if cluster.fabric.widths else 1.0
        whole = math.fsum(cluster.fabric.widths[n] if cluster.fabric.widths else 1.0 for n in axes)
        for line in lines[axis]:
            weight = ranks[line] * share / whole / 2
            flows += [Flows(node[line], np.roll(node[line], step), weight) for step in (1, -1)]
    return _joined(flows)


def _lines(places: Ints, axis: int) -> list[Ints]:
    """Members along one axis, in its order: lists of places that agree in all other coordinates."""
    others = np.delete(places, axis, axis=1)
    _, line = np.unique(others, axis=0, return_inverse=True)
    # by line, then along it: a line's members lie side by side and are cut where the line changes
    order = np.lexsort((places[:, axis], line.reshape(-1)))
    cuts = np.flatnonzero(np.diff(line.reshape(-1)[order])) + 1
    return np.split(order, cuts)


def _exchange(cluster: Cluster, members: Ints) -> Flows:
    node, index, count = np.unique(
        cluster.node_of(members), return_inverse=True, return_counts=True
    )
    domain = np.empty(len(node), dtype=np.int64)
    domain[index.reshape(-1)] = cluster.domain_of(members)
    apart = domain[:, None] != domain[None, :]
    others = (apart * count).sum(
        axis=1
    )  # partners that each rank of a node reaches over the network
    weight = apart * count[None, :] * count[:, None] / others[:, None]
    source, target = np.nonzero(apart)
    return Flows(node[source], node[target], weight[source, target])
