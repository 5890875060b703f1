"""Execution traces of all ranks as a Program: the nodes of a collective or a message are one row on the ranks that take part.

Nodes are matched as ASTRA-sim matches them: the k-th collective of a group on each of its ranks is one collective, the k-th send of a pair of ranks with a tag meets the k-th receive. Rows
stand in an order in which each follows what it waits for, by the earliest time at which it could start and then by the number of its node, and queues run in that order; so a program that can
run never waits for itself. Computations of a rank follow each other; collectives over one axis do, and so do messages to one side.

References
----------
astra-sim/astra-sim 518bd51, ``Workload.cc``, ``system/collective/Ring.cc`` (an all-gather's size is that of one rank's shard).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpsim.cost import COLLECTIVES, CollectiveModel, KernelModel
from mpsim.errors import FormatError
from mpsim.formats.chakra_trace import Node, Trace, collective_type, whole
from mpsim.formats.execution import PHASES, ImportedProgram, axis_streams, program_vocabulary
from mpsim.formats.hlo_axes import device_axes
from mpsim.formats.imported import Recorded
from mpsim.hardware import Cluster
from mpsim.parallel.axes import AXES, Stream
from mpsim.parallel.crossing import messages, placed, slowdown
from mpsim.program import COLLECTIVE, SEND
from mpsim.program.rows import Rows
from mpsim.program.template import ticks

__all__ = ["chakra_program"]

_PRECISION = ("bf16", "fp16", "fp32")
_MESSAGE = COLLECTIVES.index("send_recv")
_PIPELINE = "pp"
_OF_STREAM = {stream.name.lower(): axis.name for axis in AXES for stream in axis.streams}
_STREAMS = {stream.name.lower(): stream for stream in Stream}
_KIND_OF = {"input_gradient": "backward"}


@dataclasses.dataclass(slots=True)
class _Row:
    """One operation of one or more ranks.

    Parameters
    ----------
    kind : str
        ``COMP``, ``COMM_COLL`` or ``COMM_SEND``.
    members : tuple of int
        Ranks that take part; sender and receiver of a message.
    nodes : list of (int, Node)
        Rank and node of each part.
    """

    kind: str
    members: tuple[int, ...]
    nodes: list[tuple[int, Node]]
    seconds: float = 0.0
    sent: tuple[float, float] = (0.0, 0.0)
    size: float = 0.0
    name: str = ""
    axis: str = ""
    before: set[int] = dataclasses.field(default_factory=set)

    @property
    def node(self) -> Node:
        """The part of the first rank."""
        return self.nodes[0][1]


def chakra_program(trace: Trace, cluster: Cluster | None, recorded: Recorded) -> ImportedProgram:
    """Build the program of a trace.

    Parameters
    ----------
    trace : Trace
    cluster : Cluster, optional
        On which collectives, messages and computations without a duration are priced, rank i on its accelerator i; left out, times are those of the trace.
    recorded : Recorded
        Facts of the trace.

    Returns
    -------
    ImportedProgram
        One rank class a rank.

    Raises
    ------
    FormatError
        If ranks call different collectives of a group, or nodes wait for each other.
    """
    rows = _merged(trace)
    if not rows:
        raise FormatError(
            f"{trace.files[0]}: holds no operation; needed computations or communication"
        )
    axes = _name_axes(rows, len(trace.ranks))
    prices = None if cluster is None else _Prices(cluster)
    for row in rows:
        row.seconds = max(node.duration for _, node in row.nodes)
        if prices is not None:
            prices.put(row)
    order = _order(trace, rows)
    flops = sum(whole(row.node.attributes.get("num_ops")) for row in rows if row.kind == "COMP")
    return ImportedProgram(
        name=trace.files[0].rpartition("/")[2].rsplit(".", 2)[0],
        format=recorded.format,
        tool=recorded.tool,
        version=recorded.version,
        files=recorded.files,
        program=_columns(rows, order, axes, len(trace.ranks)),
        axes=axes,
        cluster=cluster,
        flops=flops / len(trace.ranks),
        constants=() if prices is None else prices.constants(),
        facts=recorded.facts,
        warnings=recorded.warnings,
    )


def _merged(trace: Trace) -> list[_Row]:
    """Rows of all nodes, with what they wait for."""
    rows: list[_Row] = []
    known: dict[tuple[Any, ...], int] = {}
    place: list[dict[int, int]] = []
    calls: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, nodes in enumerate(trace.ranks):
        counts: dict[tuple[Any, ...], int] = {}
        here: dict[int, int] = {}
        for node in nodes:
            if node.kind in ("INVALID", "METADATA"):
                continue
            kind, key, members = _identity(trace, rank, node)
            if key is not None:
                counts[key] = counts.get(key, -1) + 1
                key = (*key, counts[key])
            if key is not None and key in known:
                rows[known[key]].nodes.append((rank, node))
                here[node.id] = known[key]
                continue
            here[node.id] = len(rows)
            if key is not None:
                known[key] = len(rows)
            rows.append(_Row(kind, members, [(rank, node)]))
        place.append(here)
        for key, count in counts.items():
            if key[0] == "collective":
                calls.setdefault(key[1:], [0] * len(trace.ranks))[rank] = count + 1
    _check_calls(trace, calls)
    _connect(trace, rows, place)
    return rows


def _identity(
    trace: Trace, rank: int, node: Node
) -> tuple[str, tuple[Any, ...] | None, tuple[int, ...]]:
    """Kind of the row of a node, what it is matched by, and the ranks that take part."""
    get = node.attributes.get
    if node.kind == "COMM_COLL":
        members = trace.members(node)
        if rank not in members:
            raise FormatError(
                f"{trace.files[rank]}: rank {rank} calls {node.name[:60]!r} of group {str(get('pg_name'))[:40]!r}, in which it is not"
            )
        return "COMM_COLL", ("collective", str(get("pg_name") or ""), members), members
    if node.kind in ("COMM_SEND", "COMM_RECV"):
        sends = node.kind == "COMM_SEND"
        other = get("comm_dst" if sends else "comm_src")
        if not isinstance(other, int) or not 0 <= other < len(trace.ranks):
            raise FormatError(
                f"{trace.files[rank]}: {node.name[:60]!r} names rank {other!r}; the trace has ranks 0 to {len(trace.ranks) - 1}"
            )
        ends = (rank, other) if sends else (other, rank)
        key = ("message", *ends, get("comm_tag"))
        return "COMM_SEND", (*key, "self" if ends[0] == ends[1] else ""), ends
    return "COMP", None, (rank,)


def _check_calls(trace: Trace, calls: dict[tuple[str, tuple[int, ...]], list[int]]) -> None:
    """Refuse groups whose ranks call different numbers of collectives: they would wait forever."""
    for (name, members), counts in calls.items():
        most, least = (
            max(members, key=counts.__getitem__),
            min(members, key=counts.__getitem__),
        )
        if counts[most] != counts[least]:
            raise FormatError(
                f"{trace.files[least]}: rank {least} calls {counts[least]} collectives of group {name[:40]!r} and rank {most} {counts[most]}; the trace is cut"
            )


def _connect(trace: Trace, rows: list[_Row], place: Sequence[dict[int, int]]) -> None:
    """Let rows wait for those that their nodes wait for; through metadata, for what that waits for."""
    for rank, nodes in enumerate(trace.ranks):
        here = place[rank]
        through = {node.id: (*node.control, *node.data) for node in nodes if node.id not in here}
        for node in nodes:
            if node.id not in here:
                continue
            row = here[node.id]
            pending, seen = [*node.control, *node.data], set[int]()
            while pending:
                other = pending.pop()
                if other in here:
                    if here[other] != row:
                        rows[row].before.add(here[other])
                elif other not in seen:
                    seen.add(other)
                    pending += through.get(other, ())


def _name_axes(rows: list[_Row], ranks: int) -> tuple[str, ...]:
    """Give every communication its axis: the queue's where mpsim wrote the trace, else what its group shows."""
    groups = {row.members for row in rows if row.kind == "COMM_COLL"}
    mesh = device_axes([[list(members)] for members in groups], ranks)
    found: dict[str, None] = {}
    for row in rows:
        if row.kind == "COMP":
            continue
        row.axis = _OF_STREAM.get(str(row.node.attributes.get("mpsim_stream")), "")
        if not row.axis:
            row.axis = _PIPELINE if row.kind == "COMM_SEND" else mesh.along([row.members])
        if not row.node.attributes.get("mpsim_part"):
            found[row.axis] = None
    return tuple(sorted(found))


class _Prices:
    """Cost models of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._collectives = CollectiveModel(cluster)
        chip = cluster.accelerator
        precision = next((name for name in _PRECISION if name in chip.peak_flops), "")
        self._precision = precision or min(chip.peak_flops)
        self._kernels = KernelModel(chip, self._precision)
        self._known: dict[tuple[Any, ...], tuple[float, tuple[float, float]]] = {}

    def put(self, row: _Row) -> None:
        """Price a row: communication always, a computation where its duration is not stated."""
        size = whole(row.node.attributes.get("comm_size"))
        if row.kind == "COMP":
            row.seconds = row.seconds or self._computed(row.node)
            return
        key = (
            (row.members, size)
            if row.kind == "COMM_SEND"
            else (collective_type(row.node), row.members, size)
        )
        if key not in self._known:
            self._known[key] = (
                self._sent(row.members, size)
                if row.kind == "COMM_SEND"
                else self._called(collective_type(row.node), row.members, size)
            )
        row.seconds, row.sent = self._known[key]

    def _computed(self, node: Node) -> float:
        """Roofline of FLOPs and bytes; for loads and stores of memory their bytes."""
        chip = self._cluster.accelerator
        flops = whole(node.attributes.get("num_ops"))
        moved = whole(node.attributes.get("tensor_size"))
        rate = chip.peak(self._precision) * self._kernels.peak_fraction(self._precision)
        return max(flops / rate, moved / chip.memory_bandwidth)

    def _called(
        self, kind: str, members: tuple[int, ...], size: int
    ) -> tuple[float, tuple[float, float]]:
        name = (
            kind if kind in COLLECTIVES else "broadcast"
        )  # gather and scatter to and from one rank
        shape = placed(self._cluster, np.array([members]))
        amount = _whole_tensor(kind, size, len(members))
        up, out = self._collectives.wire_bytes(name, amount, shape)
        return float(self._collectives.seconds(name, amount, shape)), (float(up), float(out))

    def _sent(self, ends: tuple[int, ...], size: int) -> tuple[float, tuple[float, float]]:
        source, target = np.array([ends[0]]), np.array([ends[1]])
        if ends[0] == ends[1]:
            return 0.0, (0.0, 0.0)
        crosses = bool(self._cluster.domain_of(source) != self._cluster.domain_of(target))
        slower = (
            slowdown(self._cluster, messages(self._cluster, source, target)) if crosses else None
        )
        seconds = self._collectives.send(float(size), crosses=crosses, slowdown=slower)
        return float(seconds), (0.0, float(size)) if crosses else (float(size), 0.0)

    def constants(self) -> tuple[Any, ...]:
        """Every constant that the prices rest on."""
        return tuple(dict.fromkeys([*self._kernels.provenance(), *self._collectives.provenance()]))


def _whole_tensor(kind: str, size: int, members: int) -> float:
    """Size as our cost models count it; the format counts one rank's shard of an all-gather."""
    return float(size * members if kind == "all_gather" else size)


def _order(trace: Trace, rows: list[_Row]) -> list[int]:
    """Rows in an order in which each follows what it waits for.

    Raises
    ------
    FormatError
        If some wait for each other.
    """
    after: list[list[int]] = [[] for _ in rows]
    waiting = [len(row.before) for row in rows]
    for number, row in enumerate(rows):
        for other in row.before:
            after[other].append(number)
    earliest = [0.0] * len(rows)
    heap = [(0.0, row.node.id, number) for number, row in enumerate(rows) if not waiting[number]]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        start, _, number = heapq.heappop(heap)
        order.append(number)
        end = start + rows[number].seconds
        for following in after[number]:
            earliest[following] = max(earliest[following], end)
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(heap, (earliest[following], rows[following].node.id, following))
    if len(order) < len(rows):
        stuck = next(rows[number] for number in range(len(rows)) if waiting[number])
        rank, node = stuck.nodes[0]
        raise FormatError(
            f"{trace.files[rank]}: {len(rows) - len(order)} nodes wait for each other, {node.name[:60]!r} of rank {rank} among them"
        )
    return order


def _columns(rows: list[_Row], order: list[int], axes: tuple[str, ...], ranks: int) -> Any:
    """The rows as a Program."""
    vocabulary = program_vocabulary(axes)
    queues = axis_streams(axes)
    place = {number: at for at, number in enumerate(order)}
    chosen = [rows[number] for number in order]
    streams = [_queues(row, queues) for row in chosen]
    collectives = [
        -1
        if row.kind == "COMP"
        else _MESSAGE
        if row.kind == "COMM_SEND"
        else COLLECTIVES.index(
            kind if (kind := collective_type(row.node)) in COLLECTIVES else "broadcast"
        )
        for row in chosen
    ]
    sizes = [
        0.0
        if row.kind == "COMP"
        else _whole_tensor(collective_type(row.node), size, len(row.members))
        if row.kind == "COMM_COLL"
        else float(size)
        for row in chosen
        for size in (whole(row.node.attributes.get("comm_size")),)
    ]
    parts = [_part(row, vocabulary.parts) for row in chosen]
    built = Rows(vocabulary)
    ids = built.add(
        len(chosen),
        label=np.array([row.node.name[:80] or row.kind.lower() for row in chosen]),
        rank=[row.members[0] for row in chosen],
        stream=[queue[0] for queue in streams],
        kind=[_kind(row, vocabulary.kinds) for row in chosen],
        part=[vocabulary.parts.index(part) for part in parts],
        peer=[row.members[1] if row.kind == "COMM_SEND" else -1 for row in chosen],
        duration=ticks(np.array([row.seconds for row in chosen])),
        up_bytes=[row.sent[0] for row in chosen],
        out_bytes=[row.sent[1] for row in chosen],
        collective=collectives,
        size=sizes,
        **{
            name: [_number(row.node.attributes.get(f"mpsim_{name}")) for row in chosen]
            for name in ("stage", "chunk", "microbatch")
        },
    )
    for row, number, queue in zip(chosen, ids.tolist(), streams, strict=True):
        for member, stream in zip(row.members[1:], queue[1:], strict=True):
            built.occupy(number, member, stream)
        if row.before:
            built.depend(np.full(len(row.before), number), [place[other] for other in row.before])
    return built.finish(
        rank_name=[f"rank {rank}" for rank in range(ranks)], class_size=np.ones(ranks, np.int64)
    )


def _queues(row: _Row, queues: dict[str, Stream]) -> list[Stream]:
    """Queue of a row on each of its ranks."""
    stated = _STREAMS.get(str(row.node.attributes.get("mpsim_stream")))
    if row.kind == "COMP":
        on_host = bool(row.node.attributes.get("is_cpu_op")) and row.node.duration > 0
        return [stated or (Stream.HOST if on_host else Stream.COMPUTE)]
    if row.kind == "COMM_COLL":
        return [stated if stated is not None else queues[row.axis]] * len(row.members)
    if row.members[0] < row.members[1]:
        return [stated or Stream.SEND_NEXT, _receiving(stated) or Stream.RECV_PREV]
    return [stated or Stream.SEND_PREV, _receiving(stated) or Stream.RECV_NEXT]


def _receiving(stated: Stream | None) -> Stream | None:
    """Queue on which a message of a sending queue arrives."""
    if stated is None:
        return None
    words = {"SEND_NEXT": "RECV_PREV", "SEND_PREV": "RECV_NEXT"}
    name = stated.name.removesuffix("_BACK")
    if (
        name not in words
    ):  # a step of a ring: every rank sends and receives at once, which one queue would put in a row
        return Stream.RECV_PREV_BACK
    return Stream[words[name] + stated.name[len(name) :]]


def _kind(row: _Row, kinds: tuple[str, ...]) -> int:
    if row.kind != "COMP":
        return SEND if row.kind == "COMM_SEND" else COLLECTIVE
    stated = str(row.node.attributes.get("mpsim_kind") or "")
    stated = _KIND_OF.get(stated, stated)
    return kinds.index(stated) if stated in kinds else kinds.index("compute")


def _part(row: _Row, parts: tuple[str, ...]) -> str:
    """Part of the account that a row's time counts as."""
    stated = str(row.node.attributes.get("mpsim_part") or "")
    if stated in parts:
        return stated
    return f"exposed_{row.axis}" if row.axis else PHASES[-1]


def _number(value: object) -> int:
    return value if isinstance(value, int) and -1 <= value < 1 << 31 else -1
