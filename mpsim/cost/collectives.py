"""Seconds of collectives and point-to-point messages on a cluster.

Size S of a collective: the whole tensor for all-reduce, broadcast and reduce; the *gathered* tensor for all-gather and
reduce-scatter; the send buffer of one rank for all-to-all; the message for send_recv; ignored by barrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from mpsim.cost.constants import (
    Constant,
    ConstantGroup,
    choose_group,
    constant_groups,
    hardware_constant,
)
from mpsim.cost.nccl_choice import chosen, latency_growth
from mpsim.cost.network import (
    TorusExtent,
    group_bandwidth,
    nic_bandwidth,
    nodes_spanned,
    pair_bandwidth,
    torus_extents,
)
from mpsim.cost.traffic import COLLECTIVES, floor_seconds, ring_passes, sent_bytes
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.components import Cluster, LinkShape
from mpsim.parallel.group import GroupShape

__all__ = ["COLLECTIVES", "CollectiveModel"]

Floats = NDArray[np.float64]
Size = float | Floats

_CURVE_OF = {"broadcast": "all_gather", "reduce": "reduce_scatter", "barrier": "all_reduce"}
_RING_LIMIT = 4  # ranks up to which NCCL sums in a ring even where switches could
_STEPS = {"all_reduce": 2, "barrier": 2}


class CollectiveModel:
    """Time and traffic of collectives on one cluster, alone on its links.

    Parameters
    ----------
    cluster : Cluster
    loaded : bool
        True for training, where other traffic of the job shares the network (constants fitted on training runs); False for
        a benchmark on a quiet network.
    """

    def __init__(self, cluster: Cluster, *, loaded: bool = True) -> None:
        self.cluster = cluster
        link = cluster.node.scale_up
        name = f"{link.name}@{cluster.accelerator.family}"
        self._inside = choose_group("collectives", "inside", name, link.shape.value)
        groups = constant_groups("collectives")
        nic = cluster.node.nic
        quiet = choose_group("collectives", "quiet", nic.name, nic.shape.value)
        self._network = groups["network.loaded"] if loaded else quiet
        self._algorithms = tuple(g for key, g in groups.items() if key.startswith("algorithm."))
        self._used: dict[str, Constant] = {}
        for joint in (link, cluster.node.nic):
            for figure, value, unit in (
                ("bandwidth", joint.bandwidth, "B/s"),
                ("latency", joint.latency, "s"),
                ("efficiency", joint.efficiency, "1"),
            ):
                constant = hardware_constant(joint, figure, value, unit)
                self._used[constant.name] = constant

    @overload
    def seconds(self, kind: str, size_bytes: float, group: GroupShape) -> float: ...
    @overload
    def seconds(self, kind: str, size_bytes: Floats, group: GroupShape) -> Floats: ...
    def seconds(self, kind: str, size_bytes: Size, group: GroupShape) -> Size:
        """Time of one collective, never below `floor`.

        Parameters
        ----------
        kind : str
            One of `COLLECTIVES`.
        size_bytes : float or array
            S as the module's docstring defines it [B].
        group : GroupShape

        Returns
        -------
        float or array
            Time [s]; 0 for a group of one.

        Notes
        -----
        Inside a domain the better of two protocols, ``min(a1 + passes S / bus1, a2 + passes S / bus2 + c sqrt(S))``, with
        constants by group size. Across domains ``a + passes S / bus + c sqrt(S)`` with ``passes S / bus`` the slower of the
        scale-up part and the NIC part, and `a` the best of a few algorithms (``collectives.algorithm``).
        """
        _check_kind(kind)
        size = np.asarray(0.0 if kind == "barrier" else size_bytes, dtype=np.float64)
        if group.ranks <= 1:
            return _like(size_bytes, np.zeros_like(np.asarray(size_bytes, float)))
        if kind == "send_recv":
            result = self._send(size, crosses=group.crosses, share=1)
        elif group.crosses:
            result = self._across(kind, size, group)
        else:
            result = self._within(kind, size, group.ranks)
        result = np.maximum(result, floor_seconds(kind, size, group, self.cluster))
        return _like(size_bytes, np.broadcast_to(result, np.shape(size_bytes)))

    @overload
    def floor(self, kind: str, size_bytes: float, group: GroupShape) -> float: ...
    @overload
    def floor(self, kind: str, size_bytes: Floats, group: GroupShape) -> Floats: ...
    def floor(self, kind: str, size_bytes: Size, group: GroupShape) -> Size:
        """Least time of any algorithm on these links [s]; see `mpsim.cost.traffic.floor_seconds`."""
        _check_kind(kind)
        return _like(size_bytes, floor_seconds(kind, size_bytes, group, self.cluster))

    @overload
    def wire_bytes(
        self, kind: str, size_bytes: float, group: GroupShape
    ) -> tuple[float, float]: ...
    @overload
    def wire_bytes(
        self, kind: str, size_bytes: Floats, group: GroupShape
    ) -> tuple[Floats, Floats]: ...
    def wire_bytes(self, kind: str, size_bytes: Size, group: GroupShape) -> tuple[Size, Size]:
        """Bytes a rank sends on average over its scale-up link and over its NIC share [B]."""
        _check_kind(kind)
        if group.ranks <= 1 or kind == "barrier":
            zero = _like(size_bytes, np.zeros(np.shape(size_bytes)))
            return zero, zero
        inside, outside = sent_bytes(
            kind, size_bytes, group, summed_by_switch=self._sums_in_switch(group.per_domain)
        )
        return _like(size_bytes, inside), _like(size_bytes, outside)

    @overload
    def send(self, size_bytes: float, *, crosses: bool, share: int = 1) -> float: ...
    @overload
    def send(self, size_bytes: Floats, *, crosses: bool, share: int = 1) -> Floats: ...
    def send(self, size_bytes: Size, *, crosses: bool, share: int = 1) -> Size:
        """Time of one message between two accelerators: ``alpha + share S / B``.

        Parameters
        ----------
        size_bytes : float or array
            Message [B].
        crosses : bool
            Whether it leaves the scale-up domain; then B is the sender's share of its node's NICs, else the pair's rate.
        share : int
            Messages that use the same link (or NIC share) at once.

        Returns
        -------
        float or array
            Time [s].
        """
        if share < 1:
            raise HardwareError(f"share is {share}, needed 1 message or more")
        return _like(
            size_bytes, self._send(np.asarray(size_bytes, float), crosses=crosses, share=share)
        )

    def choice(self, kind: str, size_bytes: float, group: GroupShape) -> tuple[str, str]:
        """Algorithm and protocol that the library would pick, by its own rule; see `mpsim.cost.nccl`.

        Parameters
        ----------
        kind : str
            One of `COLLECTIVES`.
        size_bytes : float
            S as the module's docstring defines it [B].
        group : GroupShape

        Returns
        -------
        tuple of str
            As NCCL names them (``Ring``, ``LL``); ``P2P`` for what it does not tune; ``none`` for a group of one.
        """
        _check_kind(kind)
        return chosen(self.cluster, kind, size_bytes, group)

    def send_wire_bytes(self, size_bytes: Size, *, crosses: bool) -> tuple[Size, Size]:
        """Bytes a message puts on the sender's scale-up link and on its NIC share [B]."""
        zero = _like(size_bytes, np.zeros(np.shape(size_bytes)))
        return (zero, size_bytes) if crosses else (size_bytes, zero)

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant that was used so far, by name."""
        return tuple(self._used[name] for name in sorted(self._used))

    def _use(self, group: ConstantGroup, leaf: str) -> float:
        constant = group[leaf]
        self._used[constant.name] = constant
        return constant.value

    def _send(self, size: Floats, *, crosses: bool, share: int) -> Floats:
        node = self.cluster.node
        if crosses:
            span = self.cluster.nodes
            rate = nic_bandwidth(self.cluster, span) * node.nic.efficiency
            alpha = self._use(self._network, "send_latency") + self.cluster.network_latency(span)
        else:
            rate = pair_bandwidth(self.cluster) * node.scale_up.efficiency
            alpha = self._use(self._inside, "send_latency")
        return alpha + size * share / rate

    def _within(self, kind: str, size: Floats, members: int) -> Floats:
        if self.cluster.node.scale_up.shape is LinkShape.TORUS:
            return self._torus(kind, size, members)
        moved = ring_passes(kind, members) * size
        root = self._curve("root", kind, members) * np.sqrt(size)
        simple = self._curve("latency", kind, members) + moved / self._bus(kind, members) + root
        if not any(leaf.startswith("quick") for leaf in self._inside):  # only Simple is known
            return simple
        rate = group_bandwidth(self.cluster, members) * self._curve("quick_fraction", kind, members)
        quick = self._curve("quick_latency", kind, members) + moved / rate
        result: Floats = np.minimum(quick, simple)
        return result

    def _bus(self, kind: str, members: int) -> float:
        """Bus bandwidth of a large collective inside a domain [B/s]."""
        raw = group_bandwidth(self.cluster, members)
        if self.cluster.node.scale_up.shape is LinkShape.TORUS:
            return raw * self._use(self._inside, "torus_fraction")
        return raw * self._curve("fraction", kind, members)

    def _curve(self, what: str, kind: str, members: int) -> float:
        """A constant of a collective, between the group sizes it was measured for in log; latency beyond them as NCCL expects."""
        curve = _CURVE_OF.get(kind, kind)
        labels = [int(label) for label in self._inside.words["ranks"]]
        grows = what.endswith("latency")
        if curve == "all_reduce" and not grows and self._lacks_switch():
            members = min(members, _RING_LIMIT)
        values = [self._use(self._inside, f"{what}_{curve}_{label}") for label in labels]
        if grows and members > labels[-1]:
            simple = what == "latency"
            growth = latency_growth(self.cluster, curve, members, labels[-1], simple=simple)
            if growth is not None:
                return values[-1] * growth
        return _between(members, labels, values, beyond=grows)

    def _lacks_switch(self) -> bool:
        """Whether the measured link reduced in its switches but this one cannot."""
        able = self.cluster.node.scale_up.in_network_reduction
        return "in_network" in self._inside.words and not able

    def _sums_in_switch(self, members: int) -> bool:
        """Whether an all-reduce among `members` of a domain leaves the summing to the switches."""
        return self.cluster.node.scale_up.in_network_reduction and members > _RING_LIMIT

    def _torus(self, kind: str, size: Floats, members: int) -> Floats:
        extents = torus_extents(self.cluster, members)
        hops = sum(extent.diameter for extent in extents) * _STEPS.get(kind, 1)
        latency = self._use(self._inside, "base") + hops * self.cluster.node.scale_up.latency
        moved = ring_passes(kind, members) * size / self._bus(kind, members)
        if kind == "all_to_all":
            rate = pair_bandwidth(self.cluster) * self._use(self._inside, "torus_fraction")
            moved = np.maximum(moved, size * _bisection_load(extents) / rate)
        return latency + moved

    def _across(self, kind: str, size: Floats, group: GroupShape) -> Floats:
        span = nodes_spanned(self.cluster, group.domains)
        inside, outside = sent_bytes(kind, size, group)
        if kind in ("broadcast", "reduce"):  # the busiest rank, not the average
            inside, outside = (part * group.ranks / (group.ranks - 1) for part in (inside, outside))
        moved = outside / self._nic_rate(span, group.domains)
        if group.per_domain > 1:
            moved = np.maximum(moved, self._inside_part(kind, size, inside, group))
        root = self._use(self._network, "root")
        root += self._use(self._network, "root_doubling") * math.log2(group.domains)
        times = [
            self._latency(algorithm, kind, group, span) + moved * self._use(algorithm, "traffic")
            for algorithm in self._algorithms
            if self._offers(algorithm, kind)
        ]
        result: Floats = np.min(times, axis=0) + root * np.sqrt(self._filling(size))
        return result

    def _filling(self, size: Floats) -> Floats:
        """Part of S whose pipeline of chunks has to fill: all of a small one, at most `root_limit`."""
        result: Floats = size / (1.0 + size / self._use(self._network, "root_limit"))
        return result

    def _inside_part(self, kind: str, size: Floats, sent: Floats, group: GroupShape) -> Floats:
        """Time of the scale-up part: a ring through all ranks runs at the domain's bus bandwidth, a mesh at that of its links."""
        bus = self._bus(kind, group.per_domain)
        if kind == "all_to_all" or self.cluster.node.scale_up.shape is LinkShape.MESH:
            return sent / bus
        return ring_passes(kind, group.ranks) * size / bus

    def _nic_rate(self, span: int, domains: int) -> float:
        """What one NIC share carries of a collective: its efficiency, less congestion that grows with the domains."""
        efficiency = self._use(self._network, "nic_fraction")
        if "measured" not in self._network.words:
            efficiency = min(self.cluster.node.nic.efficiency, efficiency)
        congestion = 1.0 + self._use(self._network, "congestion") * math.log2(domains)
        return nic_bandwidth(self.cluster, span) * efficiency / congestion

    def _offers(self, algorithm: ConstantGroup, kind: str) -> bool:
        needs_switch = "in_network" in algorithm.words
        able = self.cluster.node.scale_up.in_network_reduction or not needs_switch
        return able and kind in algorithm.words["kinds"]

    def _latency(self, algorithm: ConstantGroup, kind: str, group: GroupShape, span: int) -> float:
        """Fixed time of an algorithm: its hops inside and between domains."""
        near, far = _hops(algorithm.words["shape"][0], kind, group)
        inside_hop = self.cluster.node.scale_up.latency + self._use(algorithm, "inside_extra")
        network_hop = self.cluster.network_latency(span) + self._use(algorithm, "network_extra")
        network_hop += self._use(self._network, "hop_extra")
        return self._use(algorithm, "base") + near * inside_hop + far * network_hop


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


def _bisection_load(extents: Sequence[TorusExtent]) -> float:
    """Share of a rank's all-to-all buffer that the busiest link carries: k/8 on a ring of k, k/4 on a line."""
    return max(e.members / (8 if e.wraps else 4) for e in extents)


def _between(members: int, labels: list[int], values: list[float], *, beyond: bool) -> float:
    """Interpolate in log2 of the group size; past the last label keep its value, or its slope if `beyond`."""
    at, marks = math.log2(members), [math.log2(label) for label in labels]
    if beyond and members > labels[-1] and len(labels) > 1:
        slope = max(0.0, (values[-1] - values[-2]) / (marks[-1] - marks[-2]))
        return values[-1] + slope * (at - marks[-1])
    return float(np.interp(at, marks, values))


def _check_kind(kind: str) -> None:
    if kind not in COLLECTIVES:
        raise HardwareError(f"no collective {kind!r}; {nearest(kind, COLLECTIVES)}")


def _like(given: Size, result: Floats) -> Size:
    """A float for a float, an array for an array."""
    return np.array(result) if isinstance(given, np.ndarray) else float(result)
