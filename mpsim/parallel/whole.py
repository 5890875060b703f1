"""Whole groups: how much of a scale-up domain a job fills, so that the groups that talk most stay inside one, and which do not.

A rack of 72 holds two groups of 32 and a part of a third, whose ranks would meet over NICs. Where ranks are free a job leaves the rest of
each rack to others and takes more racks, as schedulers of such machines do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster, Placement
from mpsim.memo import remembered
from mpsim.parallel.crossing import spread
from mpsim.parallel.mesh import Mesh

Ints = NDArray[np.int64]

_KEPT = 4096  # meshes whose domain stays known: a search meets each many times
_ORDERED = ("tp", "ep", "etp", "cp")  # what suffers most from a NIC comes first


@dataclasses.dataclass(frozen=True, slots=True)
class Straddling:
    """Groups of one axis of which some lie in more scale-up domains than they need."""

    axis: str
    members: int  # ranks of each
    groups: int  # groups, crossing: all of them, and those that do
    crossing: int

    def __str__(self) -> str:
        return f"{self.crossing} of {self.groups} {self.axis} groups of {self.members}"


def whole_groups(cluster: Cluster, mesh: Mesh) -> Cluster:
    """The cluster with as many accelerators of each scale-up domain as groups inside stages fill whole.

    Notes
    -----
    Ranks are free where they are packed and their nodes are no whole number of domains: who asks for whole domains has no others, and
    who lists accelerators means them. Of the numbers of nodes a domain, the largest of those that spread groups least is taken.
    """
    per_domain = cluster.node.domain // cluster.node.accelerators
    is_free = per_domain > 1 and cluster.nodes % per_domain and cluster.domains > 1
    if not is_free or cluster.placement is not Placement.PACKED:
        return cluster
    most = None if cluster.max_nodes is None else -(-cluster.max_nodes // per_domain)
    least = 1 if most is None else -(-cluster.nodes // most)
    return best_domain(cluster, mesh, least)


def best_domain(cluster: Cluster, mesh: Mesh, least: int = 1) -> Cluster:
    """The cluster as `whole_groups` would have it, free ranks or not, of `least` nodes a domain."""
    node = cluster.node
    most = node.domain // node.accelerators
    domain = _nodes(mesh, node.accelerators, most, least) * node.accelerators
    if domain == node.domain:
        return cluster
    return dataclasses.replace(cluster, node=dataclasses.replace(node, domain=domain))


def straddling(cluster: Cluster, mesh: Mesh, *, first: int = 0) -> tuple[Straddling, ...]:
    """Groups inside stages that lie in more scale-up domains than neighbours would need.

    None where a placement is asked for. The mesh begins at rank `first`.
    """
    if cluster.domains == 1 or cluster.placement is not Placement.PACKED:
        return ()
    found = []
    for axis, groups in _groups(mesh).items():
        span = int((groups.max(axis=1) - groups.min(axis=1)).max()) + 1
        domains = np.sort((groups + first) // cluster.node.domain, axis=1)
        touched = 1 + (np.diff(domains, axis=1) != 0).sum(axis=1)
        crossing = int((touched > -(-span // cluster.node.domain)).sum())
        if crossing:
            found.append(Straddling(axis, groups.shape[1], len(groups), crossing))
    return tuple(found)


@remembered(_KEPT)
def _nodes(mesh: Mesh, per_node: int, most: int, least: int) -> int:
    """Nodes of a domain, at most `most`, with which groups touch fewest domains, most evenly; the largest such number."""
    groups = list(_groups(mesh).values())
    bound = [(-(-each.shape[1] // (most * per_node)), -each.shape[1]) for each in groups]
    best, chosen = None, most
    for nodes in range(most, least - 1, -1):
        shapes = [spread(each // (nodes * per_node)) for each in groups]
        score = [(shape.domains, -shape.per_domain) for shape in shapes]
        if best is None or score < best:
            best, chosen = score, nodes
        if best == bound:
            break
    return chosen


def _groups(mesh: Mesh) -> Mapping[str, Ints]:
    """Members of every communicator inside stages, by axis; of axes of several ranks only."""
    degrees = {"tp": mesh.tp, "ep": mesh.ep, "etp": mesh.expert_tp, "cp": mesh.cp}
    if mesh.ep == 1:
        degrees["etp"] = 1  # that of the other layers, or of no experts
    return {
        axis: np.concatenate([mesh.groups((axis,), stage) for stage in range(mesh.pp)])
        for axis in _ORDERED
        if degrees[axis] > 1
    }
