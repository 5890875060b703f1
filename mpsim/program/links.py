"""Which links every row uses: what a fluid network needs to know of a Program.

Each rank class has ports of its own, out and in: towards its scale-up domain, and its share of the
node's NICs. All ranks of a class do the same at the same time, and all accelerators of a node may
send at once, so a share is what one of them can count on; what meets on it is what one rank does at
a time: a message of the pipeline and a collective of replicas on the same NIC.

Links of the fabric that could be too thin (up-links of oversubscribed tiers, links of tori and
graphs) are shared by all classes whose traffic takes them: every communicator and every message
loads them as `mpsim.parallel.crossing` counts. Links that all traffic loads alike are one link.

Shapes: N rows, R rank classes, L links, U uses, E links of the fabric, P patterns of traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.hardware import Cluster
from mpsim.hardware.routes import routes_of
from mpsim.memo import remembered
from mpsim.parallel import Layout
from mpsim.parallel.crossing import Flows, exchange, load, messages, ring
from mpsim.program.program import SEND, TICK, Program, Stream

_CLUSTERS = 64  # whose ports stay known
_DIRECTIONS = ("out", "in")
_DIGITS = 9  # of a load: what agrees to so many is one link


class Deployment(Protocol):
    """Where a program's rank classes run, and who communicates: a plan as links see it."""

    @property
    def layout(self) -> Layout:
        """Mesh and cluster."""
        ...

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class has it."""
        ...

    def members(self, stream: Stream, rank: int) -> Ints:
        """Ranks of every communicator of a stream in a pipeline rank, int64[groups, members]."""
        ...


@structs.dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Links and what rows take of them."""

    names: tuple[str, ...]  # such as ``pp 3 NIC out``
    capacity: Floats  # float64[L], of each link [B/tick]
    row: Ints  # row, link: int64[U], uses, ordered by row
    link: Ints
    use: Floats  # float64[U], what the row takes of the link per unit of its rate
    # float64[N], rate of a row that nobody disturbs [B/tick]; 0 for rows that use no link
    cap: Floats
    # float64[N], the part of the row's duration in which it moves at that rate [ticks]; latency
    # goes before it and uses nothing
    work: Floats
    # links that belong to rank classes and come first, as many of each class: out and in of the
    # scale-up domain, then of the NICs if there are any
    ports: int = 0
    # of each link: ``scale-up``, ``NIC``, or the tier of the fabric; empty where nobody asks
    tiers: tuple[str, ...] = ()

    def uses(self) -> list[dict[int, float]]:
        """Links of every row with what it takes of each."""
        result: list[dict[int, float]] = [{} for _ in self.cap]
        for row, link, use in zip(
            self.row.tolist(), self.link.tolist(), self.use.tolist(), strict=True
        ):
            result[row][link] = use
        return result


def links_of(program: Program, deployment: Deployment) -> Links:
    """Find the links of every message and collective of a program of the deployment.

    Expanded, if what happens inside templates is to meet the rest (see `mpsim.program.expand`).

    Notes
    -----
    A row's bytes leave through the ports of its home class and arrive at those of its peer, or of
    its own class for a collective, in which each member sends and receives. At their usable rate
    its busiest link needs ``max(bytes / rate)``: that is `work`, at most the row's duration, and
    the rest of the duration is latency. The unit of rate is the byte over NICs where there is one,
    else over scale-up links, so that NICs share evenly by bytes.
    """
    communicates = (program.template < 0) & ((program.up_bytes > 0) | (program.out_bytes > 0))
    rows = np.flatnonzero(communicates)
    parts = [_ports(program, rows, deployment), _fabric(program, rows, deployment)]
    first = np.cumsum([0, *(len(part.names) for part in parts)])
    row = np.concatenate([part.row for part in parts])
    link = np.concatenate([part.link + begin for part, begin in zip(parts, first, strict=False)])
    amount = np.concatenate([part.amount for part in parts])
    capacity = np.concatenate([part.capacity for part in parts])
    order = np.lexsort((link, row))  # its last key counts first: by row, then by link
    row, link, amount = row[order], link[order], amount[order]
    needed = np.zeros(len(program))
    # unbuffered: plain indexing would keep the last of a row's links, not the busiest
    np.maximum.at(needed, row, amount / capacity[link])
    work = np.minimum(np.rint(needed), program.duration)
    unit = np.where(program.out_bytes > 0, program.out_bytes, program.up_bytes)
    moving = work > 0
    cap = np.divide(unit, work, out=np.zeros(len(program)), where=moving)
    used = moving[row]
    row, link, amount = row[used], link[used], amount[used]
    # what a measured rate above the link's own would take beyond it counts as a full link
    use = np.minimum(amount, capacity[link] * work[row]) / unit[row]
    names = tuple(name for part in parts for name in part.names)
    tiers = tuple(tier for part in parts for tier in part.tiers)
    ports = len(parts[0].names)
    return Links(names, capacity, row, link, use, cap, work, ports=ports, tiers=tiers)


@structs.dataclass(frozen=True, slots=True)
class _Part:
    """Links of one kind, and how many bytes rows put on them."""

    names: tuple[str, ...]
    tiers: tuple[str, ...]
    capacity: Floats
    row: Ints
    link: Ints
    amount: Floats


def _ports(program: Program, rows: Ints, deployment: Deployment) -> _Part:
    """Ports of every rank class."""
    kinds = list(_kinds(deployment.layout.cluster))
    rates = [[rate for _, rate, _ in _kinds(cluster)] for cluster in deployment.class_clusters]
    each = len(kinds) * len(_DIRECTIONS)
    sizes = [program.out_bytes if far else program.up_bytes for _, _, far in kinds]
    ends = (program.rank.astype(np.int64), _receiver(program))
    row: list[Ints] = []
    link: list[Ints] = []
    amount: list[Floats] = []
    for number, size in enumerate(sizes):
        mine = rows[size[rows] > 0]
        for direction, end in enumerate(ends):
            row.append(mine)
            link.append(end[mine] * each + number * len(_DIRECTIONS) + direction)
            amount.append(size[mine])
    return _Part(
        names=tuple(
            f"{rank} {name} {direction}"
            for rank in program.rank_name
            for name, _, _ in kinds
            for direction in _DIRECTIONS
        ),
        tiers=tuple(name for _ in program.rank_name for name, _, _ in kinds for _ in _DIRECTIONS),
        capacity=np.repeat(np.array(rates, dtype=np.float64).ravel(), len(_DIRECTIONS)),
        row=np.concatenate(row),
        link=np.concatenate(link),
        amount=np.concatenate(amount),
    )


def _kinds(cluster: Cluster) -> Iterator[tuple[str, float, bool]]:
    """Ports of a rank: name, usable rate of a direction [B/tick], whether for the outside."""
    node = cluster.node
    yield "scale-up", node.scale_up.bandwidth * node.scale_up.efficiency * TICK, False
    if node.nics:
        yield "NIC", node.nic_bandwidth_per_accelerator * node.nic.efficiency * TICK, True


@remembered(_CLUSTERS)
def port_rates(cluster: Cluster) -> Mapping[str, float]:
    """Usable rate of each kind of port of one rank, in one direction [B/tick]."""
    return {name: rate for name, rate, _ in _kinds(cluster)}


def _receiver(program: Program) -> Ints:
    """Rank class at whose ports each row's bytes arrive."""
    sends = program.kind == SEND
    return np.where(sends, program.peer, program.rank).astype(np.int64)


def _fabric(program: Program, rows: Ints, deployment: Deployment) -> _Part:
    """Links of the fabric that could be too thin."""
    routes = routes_of(deployment.layout.cluster)
    rows = rows[program.out_bytes[rows] > 0]
    nothing = np.zeros(0, dtype=np.int64)
    if not routes.names or not len(rows):
        return _Part((), (), np.zeros(0), nothing, nothing, np.zeros(0))
    sends = program.kind[rows] == SEND
    stream = np.where(sends, -1, program.stream[rows])
    traffic = np.stack([stream, program.rank[rows], program.peer[rows]])
    # few patterns, many rows: each is routed once; numpy 2.0 gives the inverse two axes
    keys, pattern = np.unique(traffic, axis=1, return_inverse=True)
    loads = np.stack(
        [load(deployment.layout.cluster, _flows(deployment, *key)) for key in keys.T.tolist()],
        axis=1,
    )  # E, P
    rate = routes.capacity * deployment.layout.cluster.node.nic.efficiency * TICK
    names, first, loads = _alike(routes.names, rate, loads)
    which, link = np.nonzero(loads.T[pattern.reshape(-1)])
    return _Part(
        names=names,
        tiers=tuple(routes.tiers[link] for link in first.tolist()),
        capacity=rate[first],
        row=rows[which],
        link=link,
        amount=program.out_bytes[rows[which]] * loads.T[pattern.reshape(-1)[which], link],
    )


def _alike(
    names: tuple[str, ...], capacity: Floats, loads: Floats
) -> tuple[tuple[str, ...], Ints, Floats]:
    """One of links that every pattern loads alike, without idle ones: name, number, loads."""
    # rounded, so that sums that differ in last bits are alike; 1e-300 avoids 0 / 0
    share = np.round(
        loads / capacity[:, None] / np.max(loads / capacity[:, None], initial=1e-300), _DIGITS
    )
    _, first, count = np.unique(share, axis=0, return_index=True, return_counts=True)
    used = loads[first].any(axis=1)
    order = np.argsort(first[used])  # np.unique sorts by load: back to the order of the links
    first, count = first[used][order], count[used][order]
    labels = tuple(
        names[link] + (f" and {members - 1} alike" if members > 1 else "")
        for link, members in zip(first.tolist(), count.tolist(), strict=True)
    )
    return labels, first, loads[first]


def _flows(deployment: Deployment, stream: int, rank: int, peer: int) -> Flows:
    """Traffic of all ranks of a class in a row of this stream; a message where there is a peer."""
    mesh, cluster = deployment.layout.mesh, deployment.layout.cluster
    if peer >= 0:
        ends = mesh.ranks[rank], mesh.ranks[peer]
        there = messages(cluster, *ends)
        if stream < 0:
            return there
        back = messages(cluster, *reversed(ends))
        return Flows(*(np.concatenate(pair) for pair in zip(there, back, strict=True)))
    if stream == Stream.EP:
        return exchange(cluster, mesh.groups(("etp", "ep"), rank))
    return ring(cluster, deployment.members(Stream(stream), rank))
