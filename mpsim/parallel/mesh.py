"""The mesh: which accelerator is which coordinate of every axis."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import Problem, ScenarioError
from mpsim.hardware import Cluster
from mpsim.parallel.axes import AXES, AXIS_NAMES, FOLDED, REPLICATING
from mpsim.parallel.crossing import GroupShape, placed

EXPERT_AXES = tuple(axis.of_experts for axis in AXES if axis.of_experts)
"""Axes of the experts' mesh, fastest first."""
_OF_EXPERTS = {axis.name: axis.of_experts for axis in AXES if axis.of_experts}
_OF_STAGE = tuple(axis.name for axis in reversed(FOLDED))  # slowest first
_GRID = ("pp", *_OF_STAGE)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Degrees of the axes and the order in which they are laid on accelerators.

    Ranks are accelerators, numbered node by node; the first axis of `order` changes fastest.
    Experts lay a mesh of their own over the ranks of a stage, so `ep` does not multiply the world:
    ``etp x ep x edp = tp x cp x dp``, with etp in the place of tp and edp in that of dp (as
    Megatron-Core does).
    """

    tp: int = 1  # tp, cp, ep, dp, pp: degrees, at least 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    # a permutation of `mpsim.parallel.axes.AXIS_NAMES`, fastest first
    order: tuple[str, ...] = AXIS_NAMES
    # tensor parallelism of experts; left out, `tp` with experts divided (as it was before there was
    # a choice)
    etp: int | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"got {size!r}; needed a whole number of at least 1", key=f"parallelism.{axis}")
            for axis in AXIS_NAMES
            if not isinstance(size := getattr(self, axis), int) or size < 1
        ]
        if sorted(self.order) != sorted(AXIS_NAMES):
            problems.append(
                Problem(
                    f"got {'-'.join(self.order)}; needed every one of {', '.join(AXIS_NAMES)} once, "
                    "joined by '-', fastest first",
                    key="parallelism.order",
                )
            )
        if problems:
            raise ScenarioError(problems)

    @functools.cached_property
    def world(self) -> int:
        """Ranks of all axes that multiply them."""
        return math.prod(self.degree(axis) for axis in _GRID)

    @functools.cached_property
    def replicas(self) -> int:
        """Ranks that hold the same parameters."""
        return math.prod(self.degree(axis) for axis in REPLICATING)

    @property
    def of_layers(self) -> tuple[int, ...]:
        """Degrees that divide what a rank computes of a layer, those of experts last."""
        own = (self.degree(axis.name) for axis in AXES if axis.communicators)
        return (*own, self.expert_tp)

    def degree(self, axis: str) -> int:
        """Ranks along the axis of that name."""
        return int(getattr(self, axis))

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism of experts, given or that of other layers."""
        return self.tp if self.etp is None else self.etp

    @property
    def edp(self) -> int:
        """Ranks of a stage that hold the same part of the same experts."""
        return self.world // self.pp // (self.expert_tp * self.ep)

    @functools.cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of every coordinate; the pipeline comes first, then the axes of a stage, slowest first (pp, dp, cp, tp)."""
        laid = [axis for axis in reversed(self.order) if axis in _GRID]
        grid = np.arange(self.world).reshape([self.degree(axis) for axis in laid])
        return np.moveaxis(grid, [laid.index(axis) for axis in _GRID], range(len(_GRID)))

    def groups(self, axes: Sequence[str], stage: int) -> NDArray[np.int64]:
        """Members of every communicator over `axes` among the ranks of one pipeline rank. `axes`:
        of the mesh, or all of `EXPERT_AXES`.

        Returns
        -------
        int64[groups, members]
        """
        laid, grid = _OF_STAGE, self.ranks[stage]
        if not set(axes).isdisjoint(EXPERT_AXES):
            laid = tuple(_OF_EXPERTS[axis] for axis in reversed(self.order) if axis in _OF_EXPERTS)
            degree = {"etp": self.expert_tp, "ep": self.ep, "edp": self.edp}
            grid = np.sort(grid.ravel()).reshape([degree[axis] for axis in laid])
        # the axes of a group come last, so that its members lie side by side
        places = sorted(range(grid.ndim), key=lambda place: laid[place] in axes)
        members = math.prod(grid.shape[place] for place in places if laid[place] in axes)
        moved: NDArray[np.int64] = grid.transpose(places).reshape(-1, members)
        return moved

    def shape(self, axes: Sequence[str], stage: int, cluster: Cluster) -> GroupShape:
        """Where the members of a communicator of `groups` sit; a bound where groups differ."""
        return placed(cluster, self.groups(axes, stage))

    def shard_groups(self, shard: int, stage: int) -> NDArray[np.int64]:
        """Members of every group of `shard` neighbouring replicas of one pipeline rank, int64[groups, shard].

        Neighbours are next to each other along the axis that changes fastest.
        """
        return self.groups(REPLICATING, stage).reshape(-1, shard)

    def replica_groups(self, shard: int, stage: int) -> NDArray[np.int64]:
        """Members of every communicator between groups of `shard` replicas: those with the same share, int64[groups, replicas]."""
        groups = self.groups(REPLICATING, stage)
        return (
            groups.reshape(len(groups), -1, shard)
            .swapaxes(1, 2)
            .reshape(-1, groups.shape[1] // shard)
        )

    def model_groups(self) -> NDArray[np.int64]:
        """Ranks of every replica of the model, int64[replicas, ranks]."""
        replicas = [_GRID.index(axis) for axis in REPLICATING]
        grid = np.moveaxis(self.ranks, replicas, range(len(replicas)))
        return grid.reshape(self.replicas, -1)

    def crosses(self, source: int, target: int, cluster: Cluster) -> bool:
        """Whether any message from pipeline rank `source` to `target` leaves its scale-up domain."""
        sent = cluster.domain_of(self.ranks[source])
        return bool((sent != cluster.domain_of(self.ranks[target])).any())
