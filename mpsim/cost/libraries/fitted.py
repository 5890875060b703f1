"""NCCL and its kin: curves fitted on measurements inside a scale-up domain, the best of a few
algorithms across domains.

Inside a domain the better of two protocols, ``min(a1 + passes S / bus1, a2 + passes S / bus2 + c
sqrt(S))``, with constants by group size. Across domains ``a + passes S / bus + c sqrt(S)`` with
``passes S / bus`` the slower of the scale-up part and the NIC part, and `a` the best of a few
algorithms (``collectives.algorithm``). On a torus (TPU, Trainium) bidirectional rings run over the
axes that a group fills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, Ledger, choose_group, constant_groups
from mpsim.cost.nccl_curve import RING_LIMIT, DomainCurve
from mpsim.cost.network import (
    TorusExtent,
    cross_rail_span,
    group_bandwidth,
    group_nic_bandwidth,
    nic_bandwidth,
    nodes_spanned,
    pair_bandwidth,
    ring_passes,
    sent_bytes,
    slowed_nic_bandwidth,
    torus_extents,
)
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.hardware.lookup import shift_of
from mpsim.parallel.crossing import GroupShape

_NAMES = {
    "algorithm.ring-simple": ("Ring", "Simple"),
    "algorithm.ring-ll": ("Ring", "LL"),
    "algorithm.tree-simple": ("Tree", "Simple"),
    "algorithm.tree-ll": ("Tree", "LL"),
    "algorithm.nvls-tree": ("NVLSTree", "Simple"),
    "algorithm.pairwise": ("P2P", "Simple"),
}
_STEPS = {"all_reduce": 2, "barrier": 2}
_ROOTED = ("broadcast", "reduce")
# from one rank to the next, chunk by chunk; a reduce too, but those of several owners overlap
_CHAINED = "broadcast"


class FittedLibrary:
    """A library whose times were fitted on measurements: RCCL and HCCL as it stands, NCCL and the
    torus with more.

    `ledger`: where constants are accounted for. `loaded`: whether a job shares the network.

    Attributes
    ----------
    inside, network : ConstantGroup
        What was fitted inside a domain and between domains.
    algorithms : tuple of ConstantGroup
        Algorithms across domains that are priced; the fastest counts.
    """

    def __init__(self, name: str, cluster: Cluster, ledger: Ledger, *, loaded: bool) -> None:
        self.name = name
        self.cluster = cluster
        self._use = ledger.use
        link, nic = cluster.node.scale_up, cluster.node.nic
        labels = (f"{link.like or link.name}@{kind}" for kind in (cluster.accelerator.kind, ""))
        known = (choose_group("collectives", "inside", at, link.shape.value) for at in labels)
        # a sweep of one host is no word of a job's
        self.inside = next(group for group in known if not (loaded and "host" in group.words))
        groups = constant_groups("collectives")
        quiet = choose_group("collectives", "quiet", nic.name, nic.shape.value)
        self.network = groups["network.loaded"] if loaded else quiet
        self.algorithms = tuple(g for key, g in groups.items() if key.startswith("algorithm."))

    def seconds(self, kind: str, size: Floats, group: GroupShape) -> Floats:
        """Time of one collective [s]."""
        if group.crosses:
            times = list(self._times_across(kind, size, group).values())
            least: Floats = np.min(times, axis=0)
            return least + self._filling(size, group.domains) + self._chain(kind, size, group)
        return self._within(kind, size, group.ranks)

    def send(
        self, size: Floats, *, crosses: bool, share: int, slowdown: float | None = None
    ) -> Floats:
        """Time of one message [s]: ``alpha + share S / B``."""
        node = self.cluster.node
        if crosses:
            span = self.cluster.nodes
            rate = slowed_nic_bandwidth(self.cluster, slowdown, span) * node.nic.efficiency
            alpha = self._use(self.network, "send_latency") + self.cluster.network_latency(span)
        else:
            rate = pair_bandwidth(self.cluster) * node.scale_up.efficiency
            shift = shift_of(node.scale_up).latency
            alpha = max(0.0, self._use(self.inside, "send_latency") + shift)
        return alpha + size * share / rate

    def priced(self, kind: str, size: float, group: GroupShape) -> tuple[str, str]:
        """Algorithm and protocol whose time counts."""
        if kind == "send_recv":
            return "P2P", "Simple"
        at = np.asarray(0.0 if kind == "barrier" else size)
        if not group.crosses:
            return self._priced_within(kind, at, group.ranks)
        times = self._times_across(kind, at, group)
        return _NAMES[min(times, key=lambda name: float(times[name]))]

    def _priced_within(self, kind: str, size: Floats, members: int) -> tuple[str, str]:
        """The regime of the domain's curve; low-latency protocols were fitted as one, called LL."""
        if self._curve.is_quick(kind, size, members):
            return "P2P" if kind == "all_to_all" else "Ring", "LL"
        if kind == "all_to_all":
            return "P2P", "Simple"
        summed = kind == "all_reduce" and self._sums_in_switch(members)
        return "NVLS" if summed else "Ring", "Simple"

    def reach(self, kind: str, group: GroupShape) -> str:
        """Words for what of the group or collective nobody measured; empty where the fit has it."""
        if kind == "send_recv" or "ranks" not in self.inside.words:
            return ""
        if not group.crosses:
            return self._curve.reach(group.ranks)
        return "" if kind in _STEPS else "across domains as fitted on all-reduces"

    def sent_bytes(self, kind: str, size: Floats, group: GroupShape) -> tuple[Floats, Floats]:
        """Bytes a rank sends; where switches sum an all-reduce, those it puts on scale-up links."""
        if kind == "all_to_all":
            return self._routed(kind, size, group)
        sums = self._sums_in_switch(group.per_domain)
        return sent_bytes(kind, size, group, summed_by_switch=sums)

    @property
    def forwards(self) -> bool:
        """Whether a message leaves its domain by the NIC of its destination's rail (PXN)."""
        return False

    def _routed(self, kind: str, size: Floats, group: GroupShape) -> tuple[Floats, Floats]:
        """Bytes a rank sends inside and outside; handing over to the right rail counts inside."""
        inside, outside = sent_bytes(kind, size, group)
        if kind == "all_to_all" and self.forwards:
            inside = inside + outside * (group.per_domain - 1) / group.per_domain
        return inside, outside

    def _span(self, kind: str, group: GroupShape) -> int:
        """Nodes that messages span: an all-to-all without forwarding leaves the rails."""
        span = nodes_spanned(self.cluster, group.domains)
        strays = kind == "all_to_all" and group.per_domain > 1 and not self.forwards
        return cross_rail_span(self.cluster, span) if strays else span

    def _within(self, kind: str, size: Floats, members: int) -> Floats:
        summed = kind == "all_reduce" and self._sums_in_switch(members)
        shape = "pairwise" if kind == "all_to_all" else "nvls" if summed else "ring"
        hops, _ = _hops(shape, kind, GroupShape(members, members, 1))
        shift = hops * shift_of(self.cluster.node.scale_up).latency
        return self._curve.seconds(kind, size, members) + shift

    def _bus(self, kind: str, members: int) -> float:
        """Bus bandwidth of a large collective inside a domain [B/s]."""
        return self._curve.bus(kind, members)

    @property
    def _curve(self) -> DomainCurve:
        return DomainCurve(self.cluster, self.inside, self._use)

    def _sums_in_switch(self, members: int) -> bool:
        """Whether an all-reduce among `members` of a domain leaves the summing to the switches."""
        return self.cluster.node.scale_up.in_network_reduction and members > RING_LIMIT

    def _times_across(self, kind: str, size: Floats, group: GroupShape) -> dict[str, Floats]:
        """Times of the algorithms across domains, before the pipeline has filled."""
        span = self._span(kind, group)
        inside, outside = self._routed(kind, size, group)
        if kind in _ROOTED:  # the busiest rank, not the average
            inside, outside = (part * group.ranks / (group.ranks - 1) for part in (inside, outside))
        moved = outside / self._nic_rate(kind, group, span) * self._crowding(kind, group)
        if group.per_domain > 1:
            moved = np.maximum(moved, self._inside_part(kind, size, inside, group))
        return {
            algorithm.name: self._latency(algorithm, kind, group, span)
            + moved * self._use(algorithm, "traffic")
            for algorithm in self.algorithms
            if self._offers(algorithm, kind)
        }

    def _filling(self, size: Floats, domains: int) -> Floats:
        """Time to fill the pipeline of chunks: by all of a small S, at most by `root_limit`."""
        root = self._use(self.network, "root")
        root += self._use(self.network, "root_doubling") * math.log2(domains)
        filled = size / (1.0 + size / self._use(self.network, "root_limit"))
        result: Floats = root * np.sqrt(filled)
        return result

    def _chain(self, kind: str, size: Floats, group: GroupShape) -> Floats | float:
        """Time until the last of a broadcast's chain has its first chunk; a hop is at most S."""
        if kind != _CHAINED:
            return 0.0
        hop = self._use(constant_groups("collectives")["chain.rules"], "hop")
        result: Floats = (group.ranks - 2) * np.minimum(hop, size / self.cluster.node.nic.bandwidth)
        return result

    def _inside_part(self, kind: str, size: Floats, sent: Floats, group: GroupShape) -> Floats:
        """Time of the scale-up part, at the domain's bus bandwidth in a ring, else the links'."""
        bus = self._bus(kind, group.per_domain)
        if kind == "all_to_all" or self.cluster.node.scale_up.shape is LinkShape.MESH:
            return sent / bus
        return ring_passes(kind, group.ranks) * size / bus

    def _nic_rate(self, kind: str, group: GroupShape, span: int) -> float:
        """Rate of a collective on a NIC share: its efficiency less congestion, as domains grow.

        An all-to-all between whole domains reaches less than a ring: its messages meet at the NICs.
        """
        efficiency = self._use(self.network, "nic_fraction")
        nic, is_measured = self.cluster.node.nic, "measured" in self.network.words
        shifted = efficiency * shift_of(nic).rate
        efficiency = shifted if is_measured else min(nic.efficiency, efficiency)
        congestion = 1.0 + self._use(self.network, "congestion") * math.log2(group.domains)
        raw = group_nic_bandwidth(self.cluster, group, kind, span)
        if span != nodes_spanned(self.cluster, group.domains):  # strays from its rails
            raw = min(raw, nic_bandwidth(self.cluster, span))
        share = efficiency / congestion
        if kind == "all_to_all" and group.per_domain > 1:
            exchange = constant_groups("collectives")["exchange"]
            share = min(share, self._use(exchange, "nic_fraction"))
        return raw * share

    def _crowding(self, kind: str, group: GroupShape) -> float:
        """Times its share that a NIC carries where an all-reduce leaves by fewer NICs."""
        if kind != "all_reduce" or not self._sums_in_switch(group.per_domain):
            return 1.0
        return max(
            1.0, group.per_domain / self._use(constant_groups("collectives")["rails"], "rails")
        )

    def _offers(self, algorithm: ConstantGroup, kind: str) -> bool:
        needs_switch = "in_network" in algorithm.words
        able = self.cluster.node.scale_up.in_network_reduction or not needs_switch
        return able and kind in algorithm.words["kinds"]

    def _latency(self, algorithm: ConstantGroup, kind: str, group: GroupShape, span: int) -> float:
        """Fixed time of an algorithm: its hops inside and between domains."""
        near, far = _hops(algorithm.words["shape"][0], kind, group)
        inside_hop = self.cluster.node.scale_up.hop_latency + self._use(algorithm, "inside_extra")
        network_hop = self.cluster.network_latency(span) + self._use(algorithm, "network_extra")
        network_hop += self._use(self.network, "hop_extra")
        return self._use(algorithm, "base") + near * inside_hop + far * network_hop


class NcclLibrary(FittedLibrary):
    """NCCL forwards messages over NVLink (PXN, on by default)."""

    @property
    def forwards(self) -> bool:
        """PXN needs NVLink."""
        return self.cluster.node.scale_up.shape is not LinkShape.HOST


def _hops(shape: str, kind: str, group: GroupShape) -> tuple[float, float]:
    """Hops inside and between domains, one after the other."""
    n, m, d = group.ranks, group.per_domain, group.domains
    twice = _STEPS.get(kind, 1)
    if shape == "ring":
        return twice * (n - d), twice * (d - 1)
    if shape == "tree":
        return twice * (m - 1), twice * math.log2(d)
    near = 1 if m > 1 else 0
    if shape == "pairwise":
        return near, 1
    return near, twice * math.log2(d)  # through the switches


_RING, _LINE = (
    8,
    4,
)  # a middle link carries k/8 buffers of an all-to-all on a ring of k, k/4 on a line


class TorusLibrary(FittedLibrary):
    """XLA's collectives on a torus.

    Notes
    -----
    ``t = base + diameter hop + passes S / (links b)``: an axis that the group fills is a ring that
    sends both ways (two links of b), part of an axis is a line (one); axes work at the same time.
    An all-reduce is a reduce-scatter and an all-gather, so it takes twice the hops. An all-to-all
    is also bound by the middle of its longest axis.
    """

    def _priced_within(self, kind: str, size: Floats, members: int) -> tuple[str, str]:
        return "torus rings", "none"

    def _within(self, kind: str, size: Floats, members: int) -> Floats:
        extents = torus_extents(self.cluster, members)
        hops = sum(extent.diameter for extent in extents) * _STEPS.get(kind, 1)
        latency = self._use(self.inside, "base") + hops * self.cluster.node.scale_up.latency
        moved = ring_passes(kind, members) * size / self._bus(kind, members)
        if kind == "all_to_all":
            rate = pair_bandwidth(self.cluster) * self._use(self.inside, "torus_fraction")
            moved = np.maximum(moved, size * _bisection_load(extents) / rate)
        return latency + moved

    def _bus(self, kind: str, members: int) -> float:
        shift = shift_of(self.cluster.node.scale_up)
        fraction = self._use(self.inside, "torus_fraction") * shift.rate
        return group_bandwidth(self.cluster, members) * fraction


def _bisection_load(extents: Sequence[TorusExtent]) -> float:
    """Share of a rank's all-to-all buffer that the busiest link carries."""
    return max(e.members / (_RING if e.wraps else _LINE) for e in extents)
