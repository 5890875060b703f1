"""Costs of a Layout: the cost models bound to its accelerators, its communicators and its messages,
in seconds.

`Places` of communicators and messages on one cluster are found once for all layouts that ask.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.cost.collectives import CollectiveModel
from mpsim.cost.constants import Constant
from mpsim.cost.interference import Interference, interference_of
from mpsim.cost.kernels import KernelModel, Work
from mpsim.cost.quantise import casting
from mpsim.errors import HardwareError
from mpsim.hardware import Accelerator, Cluster
from mpsim.hardware.routes import routes_of
from mpsim.memo import Memo, remembered
from mpsim.parallel import AXES, EXPERT_AXES, Communication, GroupShape, Layout, Mesh
from mpsim.parallel.axes import Communicator
from mpsim.parallel.crossing import message_slowdown, placed, spread
from mpsim.workload import Operator

_OF_EXPERTS = frozenset(
    group.name
    for axis in AXES
    for group in axis.communicators
    if set(group.axes) <= set(EXPERT_AXES)
)
_MESSAGES = 4096  # remembered: pairs of ranks and sizes


class Transfer(NamedTuple):
    """Seconds of a collective or message, and what a rank sends on both kinds of links [B]."""

    seconds: float
    up_bytes: float
    out_bytes: float


class LayoutCosts:
    """Cost models of one Layout; they share what those of a layout `like` it remember."""

    def __init__(self, layout: Layout, *, like: LayoutCosts | None = None) -> None:
        self.layout = layout
        self.kernels: KernelModel
        self.collectives: CollectiveModel
        self.places: Places
        clusters = layout.stage_clusters
        # of each pipeline rank, where they have different nodes: the first rank with the same ones,
        # whose models it uses
        self._first = [clusters.index(cluster) for cluster in clusters]
        self._others: dict[int, LayoutCosts] = {}
        self._of_meshes = Memo[Mesh, dict[int, StageCosts]](_MESSAGES)
        self._sent = Memo[tuple[object, ...], Transfer](_MESSAGES)
        self._messages = Memo[tuple[object, ...], Transfer](_MESSAGES)
        if like is not None:
            self.kernels, self.collectives = like.kernels, like.collectives
            self.places = like.places
            if not self._first:
                self._sent, self._messages = like._sent, like._messages
                self._of_meshes = like._of_meshes
            self._others = {
                rank: LayoutCosts(_elsewhere(layout, clusters[rank]), like=other)
                for rank, other in like._others.items()
            }
            return
        _check_casts(layout)
        self.kernels = KernelModel(
            layout.cluster.accelerator,
            layout.precision,
            attention_kernel=layout.framework.kernels.attention_kernel,
            eager_factor=layout.framework.kernels.memory_kernel_factor,
            narrow_head=layout.framework.kernels.narrow_head,
        )
        self.collectives, self.places = CollectiveModel(layout.cluster), places_of(layout.cluster)
        self._others = {
            rank: LayoutCosts(_elsewhere(layout, cluster))
            for rank, cluster in enumerate(clusters)
            if rank and self._first[rank] == rank
        }

    def of(self, rank: int) -> LayoutCosts:
        """The cost models of pipeline rank `rank`: these, unless its nodes are others."""
        return self._others.get(self._first[rank], self) if self._first else self

    def each(self) -> Iterator[LayoutCosts]:
        """All costs: the layout's own, and those of pipeline ranks with other nodes."""
        yield self
        yield from self._others.values()

    def models(self, ranks: Sequence[int]) -> list[CollectiveModel]:
        """Distinct models of collectives of pipeline ranks that meet; the slowest decides."""
        if not self._first:
            return [self.collectives]
        return [self.of(rank).collectives for rank in dict.fromkeys(self._first[r] for r in ranks)]

    @property
    def casts_weights(self) -> bool:
        """Whether linear layers compute in a precision narrower than their weights'."""
        return any(costs.kernels.casts for costs in (self, *self._others.values()))

    def cast_weights(self, parameters: Floats) -> Floats:
        """Time of casting so many weights of each pipeline rank; 0 in a wide precision [s]."""
        wide = self.layout.framework.lowering.activation_bytes
        seconds = self.kernels.weight_cast_seconds(parameters, wide)
        for rank in range(len(self._first)):
            seconds[rank] = self.of(rank).kernels.weight_cast_seconds(parameters[rank], wide)
        return seconds

    @functools.cached_property
    def interference(self) -> Interference:
        """Shares of the device that collectives take of kernels."""
        return interference_of(self.layout.framework.name, self.layout.cluster.accelerator)

    @functools.cached_property
    def alike(self) -> Ints:
        """The first pipeline rank with the same nodes and shapes of communicators, for each."""
        return self.places.alike(self.layout.mesh, tuple(self._first))

    def group(self, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return self.places.group(self.layout.mesh, axes, int(self.alike[rank]))

    def sits(self, name: object, rank: int, members: Callable[[], Ints]) -> GroupShape:
        """Where communicators of `rank` with these `members` sit; layouts of the mesh share it."""
        return self.places.sits((self.layout.mesh, name, rank), members)

    def provenance_alone(self) -> tuple[Constant, ...]:
        """Every constant used so far, kernels first, without those of ranks with other nodes."""
        return (*self.kernels.provenance(), *self.collectives.provenance())

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant used so far, kernels first."""
        constants = (costs.provenance_alone() for costs in self.each())
        return tuple(dict.fromkeys(itertools.chain(*constants)))

    def stage(self, rank: int) -> StageCosts:
        """Costs inside the stages of pipeline rank `rank`; one object for ranks that are alike."""
        first = int(self.alike[rank])
        if first not in self._stages:
            groups = [group for axis in AXES for group in axis.communicators]
            self._stages[first] = StageCosts(
                self.of(first), {group.name: self.communicator(group, first) for group in groups}
            )
        return self._stages[first]

    @functools.cached_property
    def _stages(self) -> dict[int, StageCosts]:
        """Costs of stages by rank, which layouts of one mesh share."""
        return self._of_meshes.get_or(self.layout.mesh, dict)

    def communicator(self, group: Communicator, rank: int) -> GroupShape:
        """Where a communicator of layers of pipeline rank `rank` sits."""
        whole = self.group(group.axes, rank)
        if group.part == "inside":
            return GroupShape(whole.per_domain, whole.per_domain, 1)
        each = whole._replace(ranks=whole.domains, per_domain=1)  # one of every domain
        return each if group.part == "across" else whole

    @property
    def scatters_messages(self) -> bool:
        """Whether tensor-parallel ranks send a part each, which the receivers gather."""
        layout = self.layout
        scatters = layout.framework.pipeline.scatter_gather and not layout.sequence_parallel
        return scatters and layout.mesh.tp > 1

    def message(self, source: int, target: int, size: float) -> Transfer:
        """A message between two pipeline ranks, as the slower of them has it. `source` and
        `target`: pipeline ranks. `size`: whole message, before tensor-parallel ranks divide it [B].
        """
        key = (self.layout.mesh, self.layout.sequence_parallel, source, target, size)
        if (sent := self._sent.get(key)) is None:
            crosses = self.places.crosses(self.layout.mesh, source, target)
            receivers = self.group(("tp",), target)
            slower = self.slowdown(source, target)
            ends = (source, target) if self._first else (source,)
            self._sent[key] = sent = max(
                self.of(end)._message(size, crosses, receivers, slower) for end in ends
            )
        return sent

    def slowdown(self, source: int, target: int) -> float | None:
        """How many times longer the fabric makes messages of two ranks; None without thin links."""
        return self.places.slowdown(self.layout.mesh, source, target)

    def _message(
        self, whole: float, crosses: bool, receivers: GroupShape, slower: float | None
    ) -> Transfer:
        """One message on the way from these nodes.

        Notes
        -----
        With sequence parallelism each tensor-parallel rank sends the 1/t of the tokens that it has.
        Without, it sends everything, or with scatter/gather 1/t, which receivers all-gather.
        """
        tp, divided = self.layout.mesh.tp, self.layout.sequence_parallel
        key = (whole, crosses, receivers, slower, tp, divided)
        if key in self._messages:
            return self._messages[key]
        layout, model, gathers = self.layout, self.collectives, self.scatters_messages
        size = whole / layout.mesh.tp if gathers or layout.sequence_parallel else whole
        # a framework may announce every message by others that carry next to nothing
        announcements = layout.framework.pipeline.send_messages - 1
        first = model.send(size, crosses=crosses, slowdown=slower)
        seconds = float(first + announcements * model.send(0.0, crosses=crosses))
        up, out = model.send_wire_bytes(size, crosses=crosses)
        if gathers:
            seconds += float(model.seconds("all_gather", whole, receivers))
            gathered = model.wire_bytes("all_gather", whole, receivers)
            up, out = up + gathered[0], out + gathered[1]
        self._messages[key] = Transfer(seconds, float(up), float(out))
        return self._messages[key]


def _elsewhere(layout: Layout, cluster: Cluster) -> Layout:
    """A layout as if all of its nodes were others."""
    return structs.replace(layout, cluster=cluster, stage_clusters=())


Used: TypeAlias = tuple[Mapping[str, Constant], Mapping[str, Constant]]
"""Constants of kernels and of collectives by name."""


class StageCosts:
    """Costs inside the blocks of one pipeline rank; those of equal keys price a division alike."""

    def __init__(self, costs: LayoutCosts, groups: Mapping[str, GroupShape]) -> None:
        self._costs = costs
        self._ledgers = costs.kernels.ledger, costs.collectives.ledger
        self._groups = groups
        # what stays in scale-up domains costs the same whatever the NICs are
        crosses, cluster = max(group.domains for group in groups.values()) > 1, costs.layout.cluster
        self.key = _content(cluster if crosses else cluster.inside, *groups.values())

    @contextlib.contextmanager
    def apart(self) -> Iterator[Used]:
        """Note constants for a while: what prices that are remembered rest on."""
        kernels, collectives = (ledger.apart() for ledger in self._ledgers)
        with kernels as inside, collectives as between:
            yield inside, between

    def note(self, used: Used) -> None:
        """Account for the constants of prices that were remembered."""
        for ledger, constants in zip(self._ledgers, used, strict=True):
            ledger.note_all(constants)

    def kernels(self, operators: Sequence[Operator]) -> Floats:
        """Seconds of sharded operators [s]."""
        return self._costs.kernels.seconds(operators)

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator of these ranks."""
        return self._costs.kernels.accelerator

    def work(self, operators: Sequence[Operator]) -> Work:
        """Work of sharded operators together."""
        return self._costs.kernels.work(operators)

    def collective(self, item: Communication) -> Transfer:
        """A collective of a block, with the kernel on its stream."""
        copied = self.kernels([item.copies])[0] if item.copies else 0.0
        return (sent := self._sent(item))._replace(seconds=sent.seconds + float(copied))

    def _sent(self, item: Communication) -> Transfer:
        group = self._groups[item.axis]
        model = self._costs.collectives
        if item.kind == "send":
            out = item.size * group.domains / group.ranks if group.crosses else 0.0
            took = model.send(item.size, crosses=group.crosses, slowdown=group.ring_slowdown)
            return Transfer(float(took), item.size - out, out)
        if item.across:
            return self._twice(item, group)
        up, out = model.wire_bytes(item.kind, item.size, group)
        seconds = self._issued + float(model.seconds(item.kind, item.size, group))
        return Transfer(seconds, float(up), float(out))

    def lost(self, item: Communication) -> float:
        """Share of their rate that kernels lose while tokens travel to or from experts; else 0.

        Other axes' collectives block, or run beside products whose overlap is modelled as a whole.
        """
        if item.axis not in _OF_EXPERTS:
            return 0.0
        seconds, up, out = self._sent(item)
        taken = self._costs.interference
        if not seconds:
            return 0.0
        # a kernel that sends over NICs holds its processors for their rate, whatever it hands on
        sent = out if item.across else up + out
        return taken.lost_at("ep", sent / seconds)

    @property
    def _issued(self) -> float:
        """Time that the framework adds to a collective of the library [s]."""
        return self._costs.layout.framework.host.collective_cost

    def _twice(self, item: Communication, group: GroupShape) -> Transfer:
        """An all-to-all between peers of domains, and one inside that passes on what arrives."""
        model = self._costs.collectives
        inside = GroupShape(group.per_domain, group.per_domain, 1)
        across = group._replace(ranks=group.domains, per_domain=1)
        slower = max(
            model.seconds(item.kind, item.size, inside),
            model.seconds(item.kind, item.across, across),
        )
        up, _ = model.wire_bytes(item.kind, item.size, inside)
        out = item.across * (1.0 - 1.0 / group.domains)
        return Transfer(self._issued + float(slower), float(up), float(out))


@remembered(_MESSAGES)
def _content(*content: object) -> object:
    """One object for equal content, which compares quickly: costs are asked for by it."""
    del content
    return object()


def _check_casts(layout: Layout) -> None:
    """Refuse stages that cast to the narrow precision in ways whose messages would not fit."""
    chips = {cluster.accelerator.name: cluster.accelerator for cluster in layout.stage_clusters}
    ways = {casting(layout.precision, chip) for chip in chips.values()}
    if len(ways) > 1:
        raise HardwareError(
            f"{' and '.join(chips)} cast to {layout.precision} in different ways; set"
            " training.precision to bf16"
        )


R = TypeVar("R")

_CLUSTERS = 64
_ANSWERS = 1 << 14  # remembered: a search asks for some ten of each mesh


@remembered(_CLUSTERS)
def places_of(cluster: Cluster) -> Places:
    """Shapes of communicators: the same for clusters that differ in rates of links, none thin."""
    if routes_of(cluster).names:
        return Places(cluster)
    return _places(cluster.at_any_rate)


@remembered(_CLUSTERS)
def _places(cluster: Cluster) -> Places:
    return Places(cluster)


class Places:
    """Shapes of communicators on one cluster.

    Notes
    -----
    A search asks for thousands of layouts on one cluster, of which most have a mesh in common with
    others; the last of them are kept by mesh, axes and rank.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known = Memo[tuple[object, ...], object](_ANSWERS)

    def group(self, mesh: Mesh, axes: tuple[str, ...], rank: int) -> GroupShape:
        """Where the communicator over `axes` of pipeline rank `rank` sits."""
        return self._once(
            ("group", mesh, axes, rank), lambda: mesh.shape(axes, rank, self._cluster)
        )

    def sits(self, name: tuple[object, ...], members: Callable[[], Ints]) -> GroupShape:
        """Where communicators with these members sit, which are always called by that name."""
        return self._once(("sits", *name), lambda: placed(self._cluster, members()))

    def spread(self, mesh: Mesh, name: str, members: Callable[[], Ints]) -> GroupShape:
        """Shape of communicators with these members, called by that name, on a free fabric."""
        return self._once(
            ("spread", mesh, name), lambda: spread(self._cluster.domain_of(members()))
        )

    def alike(self, mesh: Mesh, nodes: tuple[int, ...]) -> Ints:
        """For each pipeline rank, the first whose ranks sit in scale-up domains the same way: every
        communicator has the same shape.

        `nodes`: number of each pipeline rank's kind of node; empty where all are alike.
        """
        return self._once(("alike", mesh, nodes), lambda: self._alike(mesh, nodes))

    def _alike(self, mesh: Mesh, nodes: tuple[int, ...]) -> Ints:
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
        """How many times longer the fabric makes messages of two ranks; None without thin links."""

        def slower() -> float | None:
            return message_slowdown(self._cluster, mesh.ranks[source], mesh.ranks[target])

        return self._once(("slowdown", mesh, source, target), slower)

    def _domains(self, mesh: Mesh) -> Ints:
        """Scale-up domain of every rank, by pipeline rank."""
        return self._once(("domains", mesh), lambda: self._cluster.domain_of(mesh.ranks))

    def _offset(self, mesh: Mesh, rank: int) -> int:
        """Where ranks begin in what the fabric's thin links repeat over; 0 where none is thin."""
        cluster = self._cluster
        if not routes_of(cluster).names:
            return 0
        thin = [tier.nodes for tier in cluster.tiers if tier.up_bandwidth]
        period = thin[-1] if thin else cluster.nodes
        return int(cluster.node_of(mesh.ranks[rank]).min()) % period

    def _once(self, key: tuple[object, ...], find: Callable[[], R]) -> R:
        return cast(R, self._known.get_or(key, find))
