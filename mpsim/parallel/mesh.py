"""The mesh: which accelerator is which coordinate of every axis, which groups lie whole in a
scale-up domain, and which layers each pipeline stage holds.

A rack of 72 holds two groups of 32 and a part of a third, whose ranks would meet over NICs. Where
ranks are free a job leaves the rest of each rack to others and takes more racks, as schedulers of
such machines do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.errors import Problem, ScenarioError
from mpsim.hardware import Cluster, Placement
from mpsim.memo import remembered
from mpsim.parallel.axes import AXES, AXIS_NAMES, FOLDED, REPLICATING
from mpsim.parallel.crossing import GroupShape, placed, spread
from mpsim.shipped import say

EXPERT_AXES = tuple(axis.of_experts for axis in AXES if axis.of_experts)
"""Axes of the experts' mesh, fastest first."""
_OF_EXPERTS = {axis.name: axis.of_experts for axis in AXES if axis.of_experts}
_OF_STAGE = tuple(axis.name for axis in reversed(FOLDED))  # slowest first
_GRID = ("pp", *_OF_STAGE)
_KEPT = 4096  # answers about meshes that stay known: a search meets each many times


@structs.dataclass(frozen=True)
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
    # tensor parallelism of experts; left out, `tp`, as before there was a choice
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
                    f"got {'-'.join(self.order)}; needed every one of {', '.join(AXIS_NAMES)} once,"
                    " joined by '-', fastest first",
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
    def ranks(self) -> Ints:
        """Rank of every coordinate: pipeline first, then the axes of a stage (pp, dp, cp, tp)."""
        laid = [axis for axis in reversed(self.order) if axis in _GRID]
        grid = np.arange(self.world).reshape([self.degree(axis) for axis in laid])
        return np.moveaxis(grid, [laid.index(axis) for axis in _GRID], range(len(_GRID)))

    def groups(self, axes: Sequence[str], stage: int) -> Ints:
        """Members of every communicator over `axes` (or `EXPERT_AXES`) in one pipeline rank."""
        laid, grid = _OF_STAGE, self.ranks[stage]
        if not set(axes).isdisjoint(EXPERT_AXES):
            laid = tuple(_OF_EXPERTS[axis] for axis in reversed(self.order) if axis in _OF_EXPERTS)
            degree = {"etp": self.expert_tp, "ep": self.ep, "edp": self.edp}
            grid = np.sort(grid.ravel()).reshape([degree[axis] for axis in laid])
        # the axes of a group come last, so that its members lie side by side
        places = sorted(range(grid.ndim), key=lambda place: laid[place] in axes)
        members = math.prod(grid.shape[place] for place in places if laid[place] in axes)
        moved: Ints = grid.transpose(places).reshape(-1, members)
        return moved

    @remembered(_KEPT)
    def shape(self, axes: tuple[str, ...], stage: int, cluster: Cluster) -> GroupShape:
        """Where the members of a communicator of `groups` sit; a bound where groups differ."""
        return placed(cluster, self.groups(axes, stage))

    def model_groups(self) -> Ints:
        """Ranks of every replica of the model, int64[replicas, ranks]."""
        replicas = [_GRID.index(axis) for axis in REPLICATING]
        grid = np.moveaxis(self.ranks, replicas, range(len(replicas)))
        return grid.reshape(self.replicas, -1)


_ORDERED = ("tp", "ep", "etp", "cp")  # what suffers most from a NIC comes first


@structs.dataclass(frozen=True, slots=True)
class Straddling:
    """Groups of one axis of which some lie in more scale-up domains than they need."""

    axis: str
    members: int  # ranks of each
    groups: int  # groups, crossing: all of them, and those that do
    crossing: int

    def __str__(self) -> str:
        return f"{self.crossing} of {self.groups} {self.axis} groups of {self.members}"


def whole_groups(cluster: Cluster, mesh: Mesh) -> Cluster:
    """The cluster with as many accelerators of a domain as groups inside stages fill whole.

    Notes
    -----
    Ranks are free where they are packed and their nodes are no whole number of domains: who asks
    for whole domains has no others, and who lists accelerators means them. Of the numbers of nodes
    a domain, the largest of those that spread groups least is taken.
    """
    per_domain = cluster.node.domain // cluster.node.accelerators
    is_free = per_domain > 1 and cluster.nodes % per_domain and cluster.domains > 1
    if not is_free or cluster.placement is not Placement.PACKED:
        return cluster
    most = None if cluster.max_nodes is None else -(-cluster.max_nodes // per_domain)
    least = 1 if most is None else -(-cluster.nodes // most)
    return best_domain(cluster, mesh, least)


def best_domain(cluster: Cluster, mesh: Mesh, least: int = 1) -> Cluster:
    """The cluster as `whole_groups` would have it, free ranks or not, of `least` nodes a domain."""
    node = cluster.node
    most = node.domain // node.accelerators
    domain = _nodes(mesh, node.accelerators, most, least) * node.accelerators
    if domain == node.domain:
        return cluster
    return structs.replace(cluster, node=structs.replace(node, domain=domain))


def straddling(cluster: Cluster, mesh: Mesh, *, first: int = 0) -> tuple[Straddling, ...]:
    """Groups inside stages that lie in more scale-up domains than neighbours would need.

    None where a placement is asked for. The mesh begins at rank `first`.
    """
    if cluster.domains == 1 or cluster.placement is not Placement.PACKED:
        return ()
    return _straddling(mesh, cluster.node.domain, first)


@remembered(_KEPT)
def _straddling(mesh: Mesh, domain: int, first: int) -> tuple[Straddling, ...]:
    found = []
    for axis, groups in _groups(mesh).items():
        span = int((groups.max(axis=1) - groups.min(axis=1)).max()) + 1
        domains = np.sort((groups + first) // domain, axis=1)
        touched = 1 + (np.diff(domains, axis=1) != 0).sum(axis=1)
        crossing = int((touched > -(-span // domain)).sum())
        if crossing:
            found.append(Straddling(axis, groups.shape[1], len(groups), crossing))
    return tuple(found)


@remembered(_KEPT)
def _nodes(mesh: Mesh, per_node: int, most: int, least: int) -> int:
    """Nodes of a domain, `most` or fewer, where groups touch fewest domains, most evenly."""
    groups = list(_groups(mesh).values())
    bound = [(-(-each.shape[1] // (most * per_node)), -each.shape[1]) for each in groups]
    best, chosen = None, most
    for nodes in range(most, least - 1, -1):
        shapes = [spread(each // (nodes * per_node)) for each in groups]
        score = [(shape.domains, -shape.per_domain) for shape in shapes]
        if best is None or score < best:
            best, chosen = score, nodes
        if best == bound:
            break
    return chosen


def _groups(mesh: Mesh) -> Mapping[str, Ints]:
    """Members of every communicator inside stages, by axis; of axes of several ranks only."""
    degrees = {"tp": mesh.tp, "ep": mesh.ep, "etp": mesh.expert_tp, "cp": mesh.cp}
    if mesh.ep == 1:
        degrees["etp"] = 1  # that of the other layers, or of no experts
    return {
        axis: np.concatenate([mesh.groups((axis,), stage) for stage in range(mesh.pp)])
        for axis in _ORDERED
        if degrees[axis] > 1
    }


@structs.dataclass(frozen=True, slots=True)
class Stage:
    """One (virtual) pipeline stage."""

    index: int  # stage s feeds stage s + 1
    # first_layer, layers: its layers are ``first_layer .. first_layer + layers - 1``
    first_layer: int
    layers: int
    # embedding, head: whether it holds the token embedding, the output head with its loss
    embedding: bool
    head: bool
    rank: int = 0  # pipeline rank that runs it


def partition_layers(
    layers: int,
    stages: int,
    *,
    given: Sequence[int] | None = None,
    embedding_counts: bool = False,
    loss_counts: bool = False,
) -> tuple[Stage, ...]:
    """Divide the layers of a model among pipeline stages.

    `layers`: of the model. `stages`: pipeline ranks times virtual stages. `given`: layers of each
    stage in model order; evenly divided when absent. `embedding_counts` and `loss_counts`: whether
    embedding and loss each take one layer's place in an even division. ScenarioError if the layers
    do not divide, or the given ones do not fit.
    """
    counts = (
        _given(layers, stages, given)
        if given is not None
        else _even(layers, stages, embedding_counts=embedding_counts, loss_counts=loss_counts)
    )
    first = 0
    result = []
    for index, count in enumerate(counts):
        result.append(
            Stage(
                index=index,
                first_layer=first,
                layers=count,
                embedding=index == 0,
                head=index == stages - 1,
            )
        )
        first += count
    return tuple(result)


def placed_stages(
    parts: Sequence[Stage], model_stage: Sequence[int], stage_rank: Sequence[int]
) -> tuple[Stage, ...]:
    """Stages of a schedule: which part of the model each holds, on which pipeline rank.

    `parts`: the model in order, see `partition_layers`. `model_stage`: part of each stage; two
    stages hold the same one where pipelines run in both directions. `stage_rank`: pipeline rank of
    each stage.
    """
    return tuple(
        # not structs.replace, which takes five times as long: there may be hundreds of stages
        Stage(index, part.first_layer, part.layers, part.embedding, part.head, rank)
        for index, (part, rank) in enumerate(
            zip((parts[number] for number in model_stage), stage_rank, strict=True)
        )
    )


def _given(layers: int, stages: int, given: Sequence[int]) -> list[int]:
    faults = {
        f"got {len(given)} stages; needed {stages} (pp x virtual_stages)": len(given) != stages,
        f"got {sum(given)} layers in all; needed the model's {layers}": sum(given) != layers,
        "got a negative count; needed 0 or more": min(given, default=0) < 0,
    }
    problems = [
        Problem(message, key="parallelism.layers_per_stage")
        for message, is_wrong in faults.items()
        if is_wrong
    ]
    if problems:
        raise ScenarioError(problems)
    return list(given)


def _even(layers: int, stages: int, *, embedding_counts: bool, loss_counts: bool) -> list[int]:
    total = layers + embedding_counts + loss_counts
    each, left = divmod(total, stages)
    if left or each < 1 or (stages == 1 and each <= embedding_counts + loss_counts):
        counted = ["embedding"] * embedding_counts + ["loss"] * loss_counts
        extra = f" and {' and '.join(counted)}" if counted else ""
        message = say("parallel.uneven_stages", layers=layers, extra=extra, stages=stages)
        raise ScenarioError([Problem(message, key="parallelism.pp")])
    counts = [each] * stages
    counts[0] -= embedding_counts
    counts[-1] -= loss_counts
    return counts
