"""Places: where the ranks of meshes sit on one cluster, each found once for all plans that ask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster
from mpsim.hardware.routes import routes_of
from mpsim.parallel import GroupShape, Mesh
from mpsim.parallel.crossing import messages, slowdown
from mpsim.program.remember import remembered

__all__ = ["Places"]


class Places:
    """Answers for meshes on one cluster.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @remembered
    def group(self, mesh: Mesh, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return mesh.shape(axes, rank, self._cluster)

    @remembered
    def expert_group(self, mesh: Mesh, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of the experts' mesh sits."""
        return mesh.expert_shape(axes, rank, self._cluster)

    @remembered
    def alike(self, mesh: Mesh, nodes: tuple[int, ...]) -> NDArray[np.int64]:
        """For each pipeline rank, the first whose ranks sit in scale-up domains the same way: every communicator has the same shape.

        Parameters
        ----------
        mesh : Mesh
        nodes : tuple of int
            Number of each pipeline rank's kind of node; empty where all are alike.
        """
        first: dict[tuple[object, ...], int] = {}
        alike = []
        for rank, own in enumerate(self._domains(mesh)):
            where = (own - own.min()).tobytes(), self._offset(mesh, rank), nodes[rank : rank + 1]
            alike.append(first.setdefault(where, rank))
        return np.array(alike)

    @remembered
    def crosses(self, mesh: Mesh, source: int, target: int) -> bool:
        """Whether any message between two pipeline ranks leaves its scale-up domain."""
        domains = self._domains(mesh)
        return bool((domains[source] != domains[target]).any())

    @remembered
    def slowdown(self, mesh: Mesh, source: int, target: int) -> float | None:
        """How many times longer the fabric makes messages between two pipeline ranks; None where no link of it is thin."""
        if not routes_of(self._cluster).names:
            return None
        ranks = mesh.ranks
        return slowdown(self._cluster, messages(self._cluster, ranks[source], ranks[target]))

    @remembered
    def _domains(self, mesh: Mesh) -> NDArray[np.int64]:
        """Scale-up domain of every rank, by pipeline rank."""
        return self._cluster.domain_of(mesh.ranks)

    def _offset(self, mesh: Mesh, rank: int) -> int:
        """Where ranks begin within what the thin links of the fabric repeat over; 0 where none is thin."""
        cluster = self._cluster
        if not routes_of(cluster).names:
            return 0
        thin = [one.nodes for one in cluster.tiers if one.up_bandwidth]
        period = thin[-1] if thin else cluster.nodes
        return int(cluster.node_of(mesh.ranks[rank]).min()) % period
