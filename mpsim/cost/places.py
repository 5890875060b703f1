"""Places of communicators and messages on one cluster, each found once for all layouts that ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster
from mpsim.hardware.routes import routes_of
from mpsim.memo import Memo, remembered
from mpsim.parallel import GroupShape, Mesh
from mpsim.parallel.crossing import message_slowdown

__all__ = ["Places", "places_of"]

R = TypeVar("R")

_CLUSTERS = 16
_ANSWERS = 1 << 14  # remembered: a search asks for some ten of each mesh


@remembered(_CLUSTERS)
def places_of(cluster: Cluster) -> Places:
    """Shapes of communicators on a cluster."""
    return Places(cluster)


class Places:
    """Shapes of communicators on one cluster.

    Notes
    -----
    A search asks for thousands of layouts on one cluster, of which most have a mesh in common with others; the last of them are kept
    by mesh, axes and rank.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known = Memo[tuple[object, ...], object](_ANSWERS)

    def group(self, mesh: Mesh, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return self._once(
            ("group", mesh, axes, rank), lambda: mesh.shape(axes, rank, self._cluster)
        )

    def alike(self, mesh: Mesh, nodes: tuple[int, ...]) -> NDArray[np.int64]:
        """For each pipeline rank, the first whose ranks sit in scale-up domains the same way: every communicator has the same shape.

        Parameters
        ----------
        nodes : tuple of int
            Number of each pipeline rank's kind of node; empty where all are alike.
        """
        return self._once(("alike", mesh, nodes), lambda: self._alike(mesh, nodes))

    def _alike(self, mesh: Mesh, nodes: tuple[int, ...]) -> NDArray[np.int64]:
        first: dict[tuple[object, ...], int] = {}
        alike = []
        for rank, own in enumerate(self._domains(mesh)):
            where = (own - own.min()).tobytes(), self._offset(mesh, rank), nodes[rank : rank + 1]
            alike.append(first.setdefault(where, rank))
        return np.array(alike)

    def crosses(self, mesh: Mesh, source: int, target: int) -> bool:
        """Whether any message between two pipeline ranks leaves its scale-up domain."""
        domains = self._domains(mesh)
        return bool((domains[source] != domains[target]).any())

    def slowdown(self, mesh: Mesh, source: int, target: int) -> float | None:
        """How many times longer the fabric makes messages between two pipeline ranks; None where no link of it is thin."""

        def slower() -> float | None:
            return message_slowdown(self._cluster, mesh.ranks[source], mesh.ranks[target])

        return self._once(("slowdown", mesh, source, target), slower)

    def _domains(self, mesh: Mesh) -> NDArray[np.int64]:
        """Scale-up domain of every rank, by pipeline rank."""
        return self._once(("domains", mesh), lambda: self._cluster.domain_of(mesh.ranks))

    def _offset(self, mesh: Mesh, rank: int) -> int:
        """Where ranks begin within what the thin links of the fabric repeat over; 0 where none is thin."""
        cluster = self._cluster
        if not routes_of(cluster).names:
            return 0
        thin = [tier.nodes for tier in cluster.tiers if tier.up_bandwidth]
        period = thin[-1] if thin else cluster.nodes
        return int(cluster.node_of(mesh.ranks[rank]).min()) % period

    def _once(self, key: tuple[object, ...], find: Callable[[], R]) -> R:
        return cast(R, self._known.get_or(key, find))
