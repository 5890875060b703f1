"""The mesh: which accelerator is which coordinate of tp, cp, ep, dp and pp."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import Problem, ScenarioError
from mpsim.hardware import Cluster
from mpsim.parallel.crossing import placed, spread
from mpsim.parallel.group import GroupShape

__all__ = ["AXES", "EXPERT_AXES", "Mesh", "spread"]

AXES = ("tp", "cp", "ep", "dp", "pp")
EXPERT_AXES = ("etp", "ep", "edp")


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Degrees of the five axes and the order in which they are laid on accelerators.

    Ranks are accelerators, numbered node by node; the first axis of `order` changes fastest. Experts lay a mesh of their own over
    the ranks of a stage, so `ep` does not multiply the world: ``etp x ep x edp = tp x cp x dp``, with etp in the place of tp and edp
    in that of dp (as Megatron-Core does).

    Parameters
    ----------
    tp, cp, ep, dp, pp : int
        Degrees, at least 1.
    order : tuple of str
        A permutation of `AXES`, fastest first.
    etp : int, optional
        Tensor parallelism of experts; left out, `tp` with experts divided (as it was before there was a choice).
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = AXES
    etp: int | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"got {size!r}; needed a whole number of at least 1", key=f"parallelism.{axis}")
            for axis in AXES
            if not isinstance(size := getattr(self, axis), int) or size < 1
        ]
        if sorted(self.order) != sorted(AXES):
            problems.append(
                Problem(
                    f"got {'-'.join(self.order)}; needed every one of {', '.join(AXES)} once, "
                    "joined by '-', fastest first",
                    key="parallelism.order",
                )
            )
        if problems:
            raise ScenarioError(problems)

    @property
    def world(self) -> int:
        """Ranks: tp x cp x dp x pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism of experts, given or that of other layers."""
        return self.tp if self.etp is None else self.etp

    @property
    def edp(self) -> int:
        """Ranks of a stage that hold the same part of the same experts."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @functools.cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of every coordinate; axes in the order pp, dp, cp, tp."""
        laid = [axis for axis in self.order if axis != "ep"]
        shape = [int(getattr(self, axis)) for axis in reversed(laid)]
        grid = np.arange(self.world).reshape(shape)
        return np.moveaxis(
            grid, [laid[::-1].index(axis) for axis in ("pp", "dp", "cp", "tp")], range(4)
        )

    def groups(self, axes: Sequence[str], stage: int) -> NDArray[np.int64]:
        """Members of every communicator over `axes` among the ranks of one pipeline rank.

        Returns
        -------
        int64[groups, members]
        """
        names = ("dp", "cp", "tp")
        grid = self.ranks[stage]
        inside = [names.index(axis) for axis in names if axis in axes]
        moved: NDArray[np.int64] = np.moveaxis(grid, inside, range(3 - len(inside), 3))
        return moved.reshape(-1, math.prod(getattr(self, axis) for axis in names if axis in axes))

    def shape(self, axes: Sequence[str], stage: int, cluster: Cluster) -> GroupShape:
        """Where the members of a communicator sit; a bound on all of them, where they differ.

        Parameters
        ----------
        axes : sequence of str
            Among tp, cp, dp.
        stage : int
            Pipeline rank.
        cluster : Cluster
            It says which accelerators share a scale-up domain.
        """
        groups = self.groups(axes, stage)
        return placed(cluster, groups)

    def expert_groups(self, axes: Sequence[str], stage: int) -> NDArray[np.int64]:
        """Members of every communicator over `axes` of the experts' mesh, among the ranks of one pipeline rank.

        Parameters
        ----------
        axes : sequence of str
            Among `EXPERT_AXES`.
        stage : int
            Pipeline rank.

        Returns
        -------
        int64[groups, members]
        """
        degree = {"etp": self.expert_tp, "ep": self.ep, "edp": self.edp}
        place = {"tp": "etp", "ep": "ep", "dp": "edp"}
        slowest_first = [place[axis] for axis in reversed(self.order) if axis in place]
        grid = np.sort(self.ranks[stage].ravel()).reshape([degree[one] for one in slowest_first])
        inside = [slowest_first.index(axis) for axis in slowest_first if axis in axes]
        moved: NDArray[np.int64] = np.moveaxis(
            grid, inside, range(grid.ndim - len(inside), grid.ndim)
        )
        return moved.reshape(-1, math.prod(degree[axis] for axis in EXPERT_AXES if axis in axes))

    def expert_shape(self, axes: Sequence[str], stage: int, cluster: Cluster) -> GroupShape:
        """Where the members of a communicator of the experts' mesh sit; a bound on all of them, where they differ."""
        return placed(cluster, self.expert_groups(axes, stage))

    def shard_groups(self, shard: int, stage: int) -> NDArray[np.int64]:
        """Members of every group of `shard` neighbouring replicas of one pipeline rank, int64[groups, shard].

        Neighbours are next to each other in context parallelism, then in data parallelism.
        """
        return self.groups(("dp", "cp"), stage).reshape(-1, shard)

    def replica_groups(self, shard: int, stage: int) -> NDArray[np.int64]:
        """Members of every communicator between groups of `shard` replicas: those with the same share, int64[groups, replicas]."""
        groups = self.groups(("dp", "cp"), stage)
        return (
            groups.reshape(len(groups), -1, shard)
            .swapaxes(1, 2)
            .reshape(-1, groups.shape[1] // shard)
        )

    def model_parallel_shape(self, cluster: Cluster) -> GroupShape:
        """Where the ranks of one model replica sit: the communicator over tensor and pipeline parallelism."""
        replicas = np.moveaxis(self.ranks, 0, 2).reshape(-1, self.pp * self.tp)
        return spread(cluster.domain_of(replicas))

    def crosses(self, source: int, target: int, cluster: Cluster) -> bool:
        """Whether any message from pipeline rank `source` to `target` leaves its scale-up domain."""
        sent = cluster.domain_of(self.ranks[source])
        return bool((sent != cluster.domain_of(self.ranks[target])).any())
