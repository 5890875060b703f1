"""Collectives on a torus (TPU, Trainium): bidirectional rings over the axes that a group fills."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost.libraries.fitted import FittedLibrary
from mpsim.cost.network import TorusExtent, group_bandwidth, pair_bandwidth, torus_extents
from mpsim.cost.traffic import ring_passes
from mpsim.hardware.lookup import shift_of

__all__ = ["TorusLibrary"]

Floats = NDArray[np.float64]
_TWICE = {"all_reduce": 2, "barrier": 2}
_RING, _LINE = (
    8,
    4,
)  # a middle link carries k/8 buffers of an all-to-all on a ring of k, k/4 on a line


class TorusLibrary(FittedLibrary):
    """XLA's collectives on a torus.

    Notes
    -----
    ``t = base + diameter hop + passes S / (links b)``: an axis that the group fills is a ring that sends both ways (two links of b), part of
    an axis is a line (one); axes work at the same time. An all-reduce is a reduce-scatter and an all-gather, so it takes twice the hops.
    An all-to-all is also bound by the middle of its longest axis.
    """

    def _priced_within(self, kind: str, size: Floats, members: int) -> tuple[str, str]:
        return "torus rings", "none"

    def _within(self, kind: str, size: Floats, members: int) -> Floats:
        extents = torus_extents(self.cluster, members)
        hops = sum(extent.diameter for extent in extents) * _TWICE.get(kind, 1)
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
