"""NCCL's own estimate of a collective: which algorithm and protocol it picks, and the time it expects.

``t = latency + S / bandwidth`` for every algorithm and protocol that is enabled; the least decides. The rule and its constants are those of
NCCL's tuner (``mpsim/cost/data/nccl.yaml``, by release). The choice and the bandwidth of large messages are good; times between 64 KB
and 256 MB are 20-40 % too short, which `mpsim.cost.collectives` repairs with what was measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.cost.constants import Constant, ConstantGroup, constant_groups
from mpsim.cost.nccl_graph import Graph, ring_graph, switch_graph, tree_speed
from mpsim.errors import HardwareError, nearest
from mpsim.memo import remembered

__all__ = [
    "ARCHITECTURES",
    "DEFAULT_VERSION",
    "VERSIONS",
    "Choice",
    "NcclGroup",
    "candidates",
    "choose",
]

Floats = NDArray[np.float64]

DEFAULT_VERSION = "2.30.7"
VERSIONS = ("2.30.7", "2.27.7", "2.18.5")  # newest first; the default one has every constant
ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")
_PROTOCOLS = ("ll", "ll128", "simple")
_RINGED = ("all_reduce", "all_gather", "reduce_scatter")
_LONG = 64  # bytes a channel and rank from which a ring across nodes counts as long
_MOST_CHANNELS = 64
_SMALLEST_TREE = 64.0  # size the first entry of the tree's table is for [B]
_PAIR = 2


@dataclasses.dataclass(frozen=True, slots=True)
class NcclGroup:
    """A communicator as NCCL's tuner sees it.

    Parameters
    ----------
    architecture : str
        One of `ARCHITECTURES`.
    ranks, nodes : int
        GPUs, and nodes (NVLink domains) they are on.
    links : int
        NVLinks of a GPU; 0 where GPUs talk over PCIe.
    nic_bandwidth : float
        NICs of a node over the GPUs of it that take part [B/s]; ignored on one node.
    pcie_bandwidth : float
        Of a GPU without NVLink [B/s].
    switches_sum : bool
        Whether NVLink switches can reduce (NVLS).
    amd_host : bool
        Whether the CPUs are AMD's.
    version : str
        One of `VERSIONS`.
    """

    architecture: str
    ranks: int
    nodes: int
    links: int
    nic_bandwidth: float = 0.0
    pcie_bandwidth: float = 0.0
    switches_sum: bool = False
    amd_host: bool = False
    version: str = DEFAULT_VERSION

    def __post_init__(self) -> None:
        for given, known in ((self.architecture, ARCHITECTURES), (self.version, VERSIONS)):
            if given not in known:
                raise HardwareError(f"NCCL's tables do not know {given!r}; {nearest(given, known)}")

    @property
    def per_node(self) -> float:
        """Ranks of a node, on average."""
        return self.ranks / self.nodes

    @property
    def scope(self) -> int:
        """Column of NCCL's tables: 1, 2, or 3 for more nodes."""
        return min(self.nodes, 3)

    @property
    def inside_rate(self) -> float:
        """Rate at which a GPU can send inside its node, by NCCL's link table [B/s]."""
        if not self.links:
            return self.pcie_bandwidth
        return self.table("graph").value("link") * self.links

    def table(self, name: str) -> ConstantGroup:
        """Constants of one table, of this release and architecture."""
        return _table(self.version, name, self.architecture)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """One algorithm and protocol: what it would cost.

    Parameters
    ----------
    algorithm, protocol : str
        NCCL's names (``Ring``, ``LL128``).
    latency : float
        [s].
    bandwidth : float
        Bytes of S a second, before the tree's correction [B/s].
    """

    algorithm: str
    protocol: str
    latency: float
    bandwidth: float
    group: NcclGroup = dataclasses.field(repr=False)

    def seconds(self, size: ArrayLike) -> Floats:
        """NCCL's expectation for S bytes [s]."""
        s = np.asarray(size, float)
        if self.algorithm == "Tree":
            return self.latency + s / (self.bandwidth * self._tree_share(s))
        latency: float | Floats = self.latency
        if (self.algorithm, self.protocol) == ("Ring", "Simple") and self.group.nodes > 1:
            latency = np.where(s >= self._long_from(), self.latency * self._long_factor(), latency)
        return latency + s / self.bandwidth

    def _tree_share(self, s: Floats) -> Floats:
        table = self.group.table("tree")
        stem = f"correction_{self.protocol.lower()}_"
        shares = [table.value(leaf) for leaf in table if leaf.startswith(stem)]
        place = np.floor(np.log2(np.maximum(s, _SMALLEST_TREE) / _SMALLEST_TREE)).astype(int)
        inside = place < len(shares)
        return np.where(inside, np.array(shares)[np.minimum(place, len(shares) - 1)], 1.0)

    def _long_from(self) -> float:
        channels = runtime_channels(self.group)
        return float(_LONG * channels * self.group.ranks)

    def _long_factor(self) -> float:
        old = "_volta" if self.group.architecture == "volta" else ""
        return self.group.table("rules").value(f"factor_long_ring{old}")


def candidates(kind: str, group: NcclGroup) -> tuple[Choice, ...]:
    """Every algorithm and protocol that NCCL would consider.

    Parameters
    ----------
    kind : str
        all_reduce, all_gather, reduce_scatter, broadcast or reduce; sends and all-to-all are not tuned by NCCL.
    group : NcclGroup
        Of 2 ranks or more.

    Returns
    -------
    tuple of Choice
    """
    return tuple(_candidates(kind, group))


def choose(kind: str, size: float, group: NcclGroup) -> Choice:
    """Choice of NCCL for S bytes: the candidate with the least expected time."""
    return min(candidates(kind, group), key=lambda choice: float(choice.seconds(size)))


def runtime_channels(group: NcclGroup) -> int:
    """Channels that run: twice those of the search, again twice for fast rings across Hopper nodes, 64 at most."""
    ring = _ring(group)
    fast = group.table("graph").value("speeds_2_1")
    wide = group.architecture in ("hopper", "blackwell") and group.nodes > 1 and ring.across > fast
    channels = 2 * ring.channels * (2 if wide and 2 * ring.channels < 16 else 1)
    return min(channels, _MOST_CHANNELS)


def _candidates(kind: str, group: NcclGroup) -> Iterator[Choice]:
    protocols = [p for p in _PROTOCOLS if p != "ll128" or group.links]
    for protocol in protocols:
        yield _ring_choice(kind, protocol, group)
        if kind == "all_reduce":
            yield _tree_choice(protocol, group)
    if kind in _RINGED and group.switches_sum and group.links and group.per_node >= _PAIR:
        if group.nodes == 1:
            yield _switch_choice("nvls", kind, group)
        elif kind == "all_reduce":
            yield _switch_choice("nvlstree", kind, group)
    if kind in ("all_gather", "reduce_scatter") and group.nodes == group.ranks > 1:
        yield _pat_choice(group)


def _steps(kind: str, ranks: int) -> int:
    """Steps of a ring."""
    if kind == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if kind in _RINGED else ranks


def _hop(group: NcclGroup, leaf: str) -> float:
    return group.table("nvlink" if group.links else "pcie").value(leaf)


def _ring(group: NcclGroup) -> Graph:
    return ring_graph(
        group.table("graph"), group.nodes, group.per_node, group.inside_rate, group.nic_bandwidth
    )


def _bus(graph: Graph, group: NcclGroup, inside: float) -> float:
    """Channels times the speed that counts: of the inside up to two nodes, of the network beyond."""
    return graph.channels * (inside if group.nodes <= _PAIR else graph.across)


def _ring_choice(kind: str, protocol: str, group: NcclGroup) -> Choice:
    graph, rules, caps = _ring(group), group.table("rules"), group.table("caps")
    bus = _bus(graph, group, graph.inside)
    if protocol == "ll":
        bus = min(_most_ll(group), bus * rules.value("factor_ring_ll"))
    elif protocol == "ll128":
        cap = graph.channels * caps.value(f"cap_ring_ll128_{group.scope}")
        bus = min(bus * rules.value("factor_ring_ll128"), cap)
    steps = _steps(kind, group.ranks)
    rate = bus * group.ranks / steps
    return Choice("Ring", _NAMES[protocol], _ring_latency(kind, protocol, group), rate, group)


def _ring_latency(kind: str, protocol: str, group: NcclGroup) -> float:
    leaf, network = f"ring_{protocol}", group.table("network")
    base, near = group.table("base").value(leaf), _hop(group, leaf)
    if kind not in _RINGED:
        return base + near + (network.value(leaf) if group.nodes > 1 else 0.0)
    steps, inter = _steps(kind, group.ranks), 0
    post = 0.0
    if group.nodes > 1:
        inter = (2 if kind == "all_reduce" else 1) * (group.nodes - 1)
        post = network.value("post_amd" if group.amd_host else "post_intel")
        post *= 3 if protocol == "simple" else 1
    far = network.value(f"tree_{protocol}" if group.nodes == group.ranks else leaf)
    return base + (steps - inter) * max(near, post) + inter * far


def _tree_choice(protocol: str, group: NcclGroup) -> Choice:
    graph, rules, caps, leaf = (
        _ring(group),
        group.table("rules"),
        group.table("caps"),
        f"tree_{protocol}",
    )
    inside = tree_speed(group.table("graph"), group.nodes, graph, group.inside_rate)
    bus = _bus(graph, group, inside) * rules.value("factor_tree")
    bus = min(bus, graph.channels * caps.value(f"cap_tree_{group.scope}"))
    if protocol == "ll":
        bus = min(bus * rules.value("factor_tree_ll"), _most_ll(group))
    elif protocol == "ll128":
        cap = graph.channels * caps.value(f"cap_tree_ll128_{group.scope}")
        bus = min(bus * rules.value(f"factor_tree_ll128_{group.scope}"), cap)
    near, far = _hop(group, leaf), group.table("network").value(leaf)
    depth = (group.per_node - 1) * near + math.floor(math.log2(group.nodes)) * far
    latency = group.table("base").value(leaf) + 2 * depth
    return Choice("Tree", _NAMES[protocol], latency, bus / 2, group)


def _switch_choice(algorithm: str, kind: str, group: NcclGroup) -> Choice:
    """NVLS on one node, NVLSTree on several."""
    leaf, rules = f"{algorithm}_simple", group.table("rules")
    per_node = group.per_node
    graph = switch_graph(
        group.table("graph"), group.nodes, per_node, group.inside_rate, group.nic_bandwidth
    )
    latency = group.table("base").value(leaf) + _hop(group, leaf)
    latency += 2 * math.floor(math.log2(group.nodes)) * group.table("network").value(leaf)
    if "factor_nvls_flat" in rules:
        across = graph.across if group.nodes <= _PAIR else graph.across / 2
        bus = graph.channels * min(graph.inside, across if group.nodes > 1 else graph.inside)
        rate = bus * rules.value("factor_nvls_flat")
    else:
        bus = _switch_bus(kind, group, graph)
        rate = bus * (group.ranks / _steps(kind, group.ranks) if kind == "all_reduce" else 1.0)
    return Choice(_NAMES[algorithm], "Simple", latency, rate, group)


def _switch_bus(kind: str, group: NcclGroup, graph: Graph) -> float:
    caps, channels = group.table("caps"), graph.channels
    inside = graph.inside * caps.value("factor_nvls") * (channels - 1) / channels
    inside *= 2 if kind == "all_reduce" else (group.per_node - 1) / group.per_node
    limits = [inside, graph.across * (2 if group.nodes == _PAIR else 1)]
    if group.nodes > 1:
        limits.append(caps.value(f"cap_nvlstree_{group.scope}"))
    return channels * min(limits)


def _pat_choice(group: NcclGroup) -> Choice:
    graph, rules = _ring(group), group.table("rules")
    rate = _bus(graph, group, graph.inside) * rules.value("factor_pat")
    depth = math.floor(math.log2(group.nodes)) * group.table("network").value("pat_simple")
    latency = group.table("base").value("pat_simple") + depth * rules.value("factor_pat_hop")
    latency += rules.value("pat_rank") * group.ranks
    return Choice("PAT", "Simple", latency, rate, group)


def _most_ll(group: NcclGroup) -> float:
    host = "" if group.nodes == 1 else "amd_" if group.amd_host else "intel_"
    return group.table("caps").value(f"cap_ll_{host}{group.scope}")


_NAMES = {"ll": "LL", "ll128": "LL128", "simple": "Simple", "nvls": "NVLS", "nvlstree": "NVLSTree"}


@remembered(256)
def _table(version: str, name: str, architecture: str) -> ConstantGroup:
    """A table of a release: the default release's, with what the older one had instead."""
    groups = constant_groups("nccl")
    names = (f"{name}.{architecture}", name)
    # the default release comes first, so that what an older one says of a leaf replaces it
    parts = [
        groups[f"{release}.{place}"]
        for release in dict.fromkeys((DEFAULT_VERSION, version))
        for place in names
        if f"{release}.{place}" in groups
    ]
    constants: Mapping[str, Constant] = {
        leaf: value for part in parts for leaf, value in part.items()
    }
    return dataclasses.replace(parts[0], constants=constants)
