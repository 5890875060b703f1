"""Seconds of a collective inside one scale-up domain, from curves fitted to measured sweeps.

A curve belongs to a link, a collective and a group size: ``min(a1 + moved/bus1, a2 + moved/bus2 + c
sqrt(filling))``, the low-latency protocols and Simple, whose root is the filling of its pipeline of
chunks. Chunks grow with S up to the size of NCCL's buffers, so the filling ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, constant_groups
from mpsim.cost.network import group_bandwidth, ring_passes
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.hardware.lookup import shift_of
from mpsim.memo import remembered

RING_LIMIT = 4  # ranks up to which NCCL sums in a ring even where switches could
_CURVE_OF = {"broadcast": "all_gather", "reduce": "reduce_scatter", "barrier": "all_reduce"}
_COPIED = 2.0  # a copy within a device reads and writes
_TUNED = {"ada": "ampere", "turing": "volta"}  # PCIe boards, where only the host's caps differ
_ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")


class _Neighbours(NamedTuple):
    """Measured group sizes on both sides of a group, and its place between them in log."""

    low: int
    high: int
    weight: float


@structs.dataclass(frozen=True, slots=True)
class DomainCurve:
    """Curves of one link, as one kind of accelerator runs them."""

    cluster: Cluster
    constants: ConstantGroup  # ``inside.*`` of this link
    # gives the value of a leaf of a group, and notes that it was used
    use: Callable[[ConstantGroup, str], float]

    def seconds(self, kind: str, size: Floats, members: int) -> Floats:
        """Time among `members` of a domain [s].

        Notes
        -----
        Between two measured group sizes the times of both, for as many bytes on the wire, are
        interpolated in log of time over log of members. Above `RING_LIMIT` an all-reduce that
        switches sum may run as fast as the next larger measured one. Beyond the largest its bus
        bandwidth stays and its latency grows as NCCL expects.
        """
        low, high, weight = self._between(members)
        time = self._measured(kind, size, members, low)
        if high != low:
            above = self._measured(kind, size, members, high)
            time = time ** (1.0 - weight) * above**weight
            if _CURVE_OF.get(kind, kind) == "all_reduce" and self._sums(low):
                time = np.minimum(time, self._simple("all_reduce", size, members, high))
        return time + self._own_copy(kind, size, members)

    def is_quick(self, kind: str, size: Floats, members: int) -> bool:
        """Whether the low-latency regime counts: the time is less than that of Simple alone."""
        slow = {leaf: own for leaf, own in self.constants.items() if not leaf.startswith("quick")}
        simple = structs.replace(self, constants=structs.replace(self.constants, constants=slow))
        return bool(self.seconds(kind, size, members) < simple.seconds(kind, size, members))

    def bus(self, kind: str, members: int) -> float:
        """Bus bandwidth of a large collective [B/s]."""
        low, high, weight = self._between(members)
        ends = [self._rate("fraction", kind, members, label) for label in (low, high)]
        return float(ends[0] ** (1.0 - weight) * ends[1] ** weight)

    def reach(self, members: int) -> str:
        """Distance of the group from the measured ones in words; empty where it is one of them."""
        low, high, _ = self._between(members)
        if low != high:
            return f"between fits of {low} and {high} ranks"
        return f"beyond fits of {high} ranks" if members > high else ""

    def _between(self, members: int) -> _Neighbours:
        labels = [int(label) for label in self.constants.words["ranks"]]
        low = max([n for n in labels if n <= members], default=labels[0])
        high = min([n for n in labels if n >= members], default=labels[-1])
        if low == high:
            return _Neighbours(low, high, 0.0)
        return _Neighbours(low, high, math.log(members / low) / math.log(high / low))

    def _measured(self, kind: str, size: Floats, members: int, label: int) -> Floats:
        """The curve of `label` ranks for the bytes that each of `members` puts on the wire."""
        moved, theirs = ring_passes(kind, members) * size, ring_passes(kind, label)
        alike = moved / theirs if theirs else size
        simple = self._simple(kind, alike, members, label)
        if not any(leaf.startswith("quick") for leaf in self.constants):  # only Simple is known
            return simple
        quick = moved / self._rate("quick_fraction", kind, members, label)
        result: Floats = np.minimum(
            self._latency("quick_latency", kind, members, label) + quick, simple
        )
        return result

    def _simple(self, kind: str, size: Floats, members: int, label: int) -> Floats:
        """The second regime of `label` ranks for their S bytes."""
        moved = ring_passes(kind, label) * size
        wire = moved / self._rate("fraction", kind, members, label)
        filling = self._leaf("root", kind, label) * np.sqrt(self._filling(size))
        result: Floats = self._latency("latency", kind, members, label) + wire + filling
        return result

    def _filling(self, size: Floats) -> Floats:
        """Part of S whose pipeline of chunks has to fill: all of a small one, `filling_limit`."""
        if "filling_limit" not in self.constants:
            return size
        result: Floats = size / (1.0 + size / self.use(self.constants, "filling_limit"))
        return result

    def _own_copy(self, kind: str, size: Floats, members: int) -> Floats | float:
        """An all-to-all copies a rank's own part from its send to its receive buffer."""
        if kind != "all_to_all":
            return 0.0
        share = self.use(constant_groups("collectives")["device.rules"], "copy_fraction")
        return _COPIED * size / members / (share * self.cluster.accelerator.memory_bandwidth)

    def _latency(self, what: str, kind: str, members: int, label: int) -> float:
        """Fixed time of a regime; Simple never starts before the low-latency protocols do."""
        value = self._leaf(what, kind, label) * self._device("device_latency")
        largest = int(self.constants.words["ranks"][-1])
        if members <= largest:
            return value
        value *= self._growth(what, kind, members, largest)
        quick = f"quick_latency_{_CURVE_OF.get(kind, kind)}_{label}"
        if what == "latency" and quick in self.constants:
            value = max(value, self._latency("quick_latency", kind, members, label))
        return value

    def _growth(self, what: str, kind: str, members: int, largest: int) -> float:
        """How many times later a group starts than the largest measured: NCCL's, or the slope."""
        curve = _CURVE_OF.get(kind, kind)
        simple = what == "latency"
        growth = latency_growth(self.cluster, curve, members, largest, simple=simple)
        return growth if growth is not None else self._slope(what, kind, members)

    def _slope(self, what: str, kind: str, members: int) -> float:
        """Growth along the line through the two largest groups, in log of members."""
        labels = [int(label) for label in self.constants.words["ranks"]][-2:]
        if len(labels) == 1:
            return 1.0
        low, high = (self._leaf(what, kind, label) for label in labels)
        slope = max(0.0, high - low) / math.log2(labels[1] / labels[0])
        return 1.0 + slope * math.log2(members / labels[1]) / high

    def _rate(self, what: str, kind: str, members: int, label: int) -> float:
        curve = _CURVE_OF.get(kind, kind)
        share = self._device("device_p2p" if curve == "all_to_all" else "device_rate")
        share *= shift_of(self.cluster.node.scale_up).rate
        return group_bandwidth(self.cluster, members) * self._leaf(what, kind, label) * share

    def _leaf(self, what: str, kind: str, label: int) -> float:
        curve = _CURVE_OF.get(kind, kind)
        if curve == "all_reduce" and not what.endswith("latency") and self._lacks_switch():
            label = min(label, RING_LIMIT)
        return self.use(self.constants, f"{what}_{curve}_{label}")

    def _device(self, leaf: str) -> float:
        group = _device_group(self.cluster.accelerator.kind)
        return self.use(group, leaf) if group else 1.0

    def _lacks_switch(self) -> bool:
        """Whether the measured link reduced in its switches but this one cannot."""
        able = self.cluster.node.scale_up.in_network_reduction
        return "in_network" in self.constants.words and not able

    def _sums(self, low: int) -> bool:
        """Whether groups above `low` were measured with the switches summing, and these can."""
        able = self.cluster.node.scale_up.in_network_reduction
        return low >= RING_LIMIT and able and "in_network" in self.constants.words


@remembered(256)
def _device_group(name: str) -> ConstantGroup | None:
    """Factors of an accelerator on the curves of its link, fitted for another; None if none."""
    groups = constant_groups("collectives")
    matching = (g for key, g in groups.items() if key.startswith("device.") and g.matches(name))
    return next(matching, None)


def latency_growth(
    cluster: Cluster, kind: str, members: int, measured: int, *, simple: bool
) -> float | None:
    """How many times longer NCCL expects the fixed time of a collective in a domain to be than in
    the largest group measured.

    `kind`: all_reduce, all_gather or reduce_scatter; NCCL tunes nothing else that has a curve.
    `members` and `measured`: ranks of the group, and of the largest one that was measured.
    `simple`: whether only the Simple protocol counts.

    Returns: 1 or more; None where NCCL has no say.
    """
    family = cluster.accelerator.family
    if kind == "all_to_all" or _TUNED.get(family, family) not in _ARCHITECTURES:
        return None
    before, after = (_latency(cluster, kind, ranks, simple=simple) for ranks in (measured, members))
    return max(1.0, after / before)


def _latency(cluster: Cluster, kind: str, ranks: int, *, simple: bool) -> float:
    """Fixed time of the best algorithm and protocol: a base, and a hop a step (``nccl.yaml``)."""
    link = cluster.node.scale_up
    wired = link.shape is not LinkShape.HOST and link.links > 0
    passes = 2 if kind == "all_reduce" else 1
    # a tree through all ranks of a node has as many steps as a ring; its hops differ
    algorithms = ("ring", "tree") if kind == "all_reduce" else ("ring",)
    protocols = ("simple",) if simple else ("ll", "ll128", "simple") if wired else ("ll", "simple")
    steps = {f"{name}_{way}": passes * (ranks - 1) for name in algorithms for way in protocols}
    if wired and link.in_network_reduction:
        steps["nvls_simple"] = 1
    groups = constant_groups("nccl")
    base, hop = groups["base"], groups["nvlink" if wired else "pcie"]
    return min(base.value(leaf) + count * hop.value(leaf) for leaf, count in steps.items())
