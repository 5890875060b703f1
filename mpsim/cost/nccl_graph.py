"""Channels and speeds that NCCL's search for graphs finds, by the rules of its search on switched nodes.

The rules are a short form of src/graph/search.cc, checked against the graphs that NCCL logs on 8-GPU nodes (docs/explanation/collectives.md).
"""

from __future__ import annotations

import dataclasses
import math

from mpsim.cost.constants import ConstantGroup

__all__ = ["Graph", "ring_graph", "switch_graph", "tree_speed"]

_DUPLICATED_FROM = 25e9  # speed from which a graph's channels are doubled and halved in speed [B/s]
_KEPT_BELOW, _KEPT_CHANNELS = (
    50e9,
    4,
)  # unless newer than Ampere, slower than this and more channels than this
_MOST_CHANNELS = 16  # of a search; half of what may run
_PAIR = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """Channels of an algorithm, and the speed of one inside and across nodes [B/s]."""

    channels: int
    inside: float
    across: float


def ring_graph(
    table: ConstantGroup, nodes: int, per_node: float, inside: float, nic: float
) -> Graph:
    """Rings: the most of channels times speed that fits the links, then more channels of half the speed.

    Parameters
    ----------
    table : ConstantGroup
        Speeds to try and limits.
    nodes : int
    per_node : float
        Ranks of a node.
    inside, nic : float
        What a GPU can send inside its node, and its share of the node's NICs [B/s].
    """
    if nodes == 1:
        most, channels = inside, int(table.value("most_channels"))
    else:
        most, channels = min(inside, _share(table, nic) * per_node), max(1, int(per_node))
    best, count = 0.0, 1
    for speed in _speeds(table, nodes):
        fits = min(channels, math.floor(most / speed))
        if nodes > 1 and speed > _share(table, nic):
            continue
        if fits * speed > best * count:
            best, count = speed, int(fits)
    if not best:
        best = most
    return _doubled(table, Graph(count, best, best))


def tree_speed(table: ConstantGroup, nodes: int, ring: Graph, inside: float) -> float:
    """Speed of a tree's channel inside a node: raised over the ring's, for a rank is an end of its own channel."""
    if nodes == 1 or ring.channels < _PAIR:
        return ring.inside
    room = inside / (ring.channels - 1)
    return max([ring.inside, *(s for s in _speeds(table, nodes) if s <= room)])


def switch_graph(
    table: ConstantGroup, nodes: int, per_node: float, inside: float, nic: float
) -> Graph:
    """NVLS: a channel a GPU, each loading every link once and its head's twice."""
    room = inside / (per_node + 1)
    tried = _speeds(table, nodes)
    speed = next((s for s in tried if s <= room), room)
    if nodes == 1:
        return Graph(int(per_node), speed, max(tried))
    share = _share(table, nic)
    return Graph(int(per_node), speed, next((s for s in tried if s <= share), share))


def _share(table: ConstantGroup, nic: float) -> float:
    """A GPU's share of the NICs that its PCIe can feed."""
    return min(nic, table.value("nic_limit"))


def _speeds(table: ConstantGroup, nodes: int) -> list[float]:
    stem = "speeds_1_" if nodes == 1 else "speeds_2_"
    return [constant.value for leaf, constant in table.items() if leaf.startswith(stem)]


def _doubled(table: ConstantGroup, graph: Graph) -> Graph:
    """Twice the channels at half the speed, where they are fast and few (newer than Ampere: very fast, or very few)."""
    stays = "keep_below" in table and (
        graph.inside < table.value("keep_below") and graph.channels > table.value("keep_channels")
    )
    if graph.inside < table.value("double_from") or stays:
        return graph
    return Graph(2 * graph.channels, graph.inside / 2, graph.across / 2)
