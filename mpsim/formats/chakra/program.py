"""Execution traces of all ranks as a Program: a collective or message is one row of its ranks.

Nodes are matched as ASTRA-sim matches them: the k-th collective of a group on each of its ranks is
one collective, the k-th send of a pair of ranks with a tag meets the k-th receive. Rows stand in an
order in which each follows what it waits for, by the earliest time at which it could start and then
by the number of its node, and queues run in that order; so a program that can run never waits for
itself. Computations of a rank follow each other; collectives over one axis do, and so do messages
to one side.

References
----------
astra-sim/astra-sim 518bd51, ``Workload.cc``, ``collective/Ring.cc`` (all-gathers count a shard).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpsim import structs
from mpsim.cost import COLLECTIVES, Constant, KernelModel
from mpsim.errors import FormatError
from mpsim.formats import execution
from mpsim.formats.chakra.trace import Node, Trace
from mpsim.formats.mesh_axes import device_axes
from mpsim.hardware import Cluster
from mpsim.parallel.axes import AXES, Stream
from mpsim.program import COLLECTIVE, SEND, Program
from mpsim.program.rows import Rows
from mpsim.program.template import ticks

_PRECISION = ("bf16", "fp16", "fp32")
_MESSAGE = "send_recv"
_PIPELINE = "pp"
_NOTHING = execution.Price(0.0, 0.0, 0.0)
_OF_STREAM = {stream.name.lower(): axis.name for axis in AXES for stream in axis.streams}
_STREAMS = {stream.name.lower(): stream for stream in Stream}
_KIND_OF = {"input_gradient": "backward"}
_ARRIVES = {"SEND_NEXT": "RECV_PREV", "SEND_PREV": "RECV_NEXT"}
_NUMBERS = ("stage", "chunk", "microbatch")


@structs.dataclass(slots=True)
class _Row:
    """One operation of one or more ranks."""

    # as the cost models call it, ``send_recv`` for a message; empty for a computation
    collective: str
    members: tuple[int, ...]  # ranks that take part; sender and receiver of a message
    nodes: list[tuple[int, Node]]  # rank and node of each part
    price: execution.Price = _NOTHING
    axis: str = ""
    before: set[int] = structs.field(default_factory=set)

    @property
    def node(self) -> Node:
        """The part of the first rank."""
        return self.nodes[0][1]

    @property
    def is_message(self) -> bool:
        """Whether it is a send with its receive."""
        return self.collective == _MESSAGE

    @property
    def size(self) -> float:
        """Bytes as our cost models count them; the format counts a rank's part of a gather."""
        if not self.collective:
            return 0.0
        shards = len(self.members) if self.collective == "all_gather" else 1
        return float(self.node.whole("comm_size") * shards)


def chakra_program(
    trace: Trace, cluster: Cluster | None, warnings: tuple[str, ...] = ()
) -> execution.ImportedProgram:
    """Build the program of a trace.

    `cluster`: on which collectives, messages and computations without a duration are priced, rank i
    on its accelerator i; left out, times are those of the trace. FormatError if ranks call
    different collectives of a group, or nodes wait for each other.

    Returns execution.ImportedProgram: one rank class a rank.
    """
    rows = _merged(trace)
    if not rows:
        raise FormatError(
            f"{trace.files[0]}: holds no operation; needed computations or communication"
        )
    axes = _name_axes(rows, len(trace.ranks))
    for row in rows:
        row.price = execution.Price(max(node.duration for _, node in row.nodes), 0.0, 0.0)
    constants = _price(rows, cluster) if cluster is not None else ()
    order = _order(trace, rows)
    flops = sum(row.node.whole("num_ops") for row in rows if not row.collective)
    return execution.ImportedProgram(
        name=trace.files[0].rpartition("/")[2].rsplit(".", 2)[0],
        program=_columns(rows, order, axes, len(trace.ranks)),
        axes=axes,
        cluster=cluster,
        flops=flops / len(trace.ranks),
        constants=constants,
        warnings=warnings,
    )


def _merged(trace: Trace) -> list[_Row]:
    """Rows of all nodes, with what they wait for."""
    rows: list[_Row] = []
    known: dict[tuple[object, ...], int] = {}
    calls: dict[tuple[Any, ...], Counter[int]] = {}
    for rank, nodes in enumerate(trace.ranks):
        counts: Counter[tuple[object, ...]] = Counter()
        here: dict[int, int] = {}
        for node in nodes:
            if node.kind in ("INVALID", "METADATA"):
                continue
            row, key = _identified(trace, rank, node)
            counts[key] += 1
            # a computation is met by nothing: its own id is its key
            here[node.id] = known.setdefault((*key, counts[key]), len(rows))
            if here[node.id] == len(rows):
                rows.append(row)
            rows[here[node.id]].nodes.append((rank, node))
            if node.kind == "COMM_COLL":
                calls.setdefault(key, Counter())[rank] += 1
        _connect(nodes, rows, here)
    for (_, name, members), called in calls.items():
        most = max(members, key=called.__getitem__)
        least = min(members, key=called.__getitem__)
        if called[most] != called[least]:  # they would wait forever
            raise FormatError(
                f"{trace.files[least]}: rank {least} calls {called[least]} collectives of group"
                f" {name[:40]!r} and rank {most} {called[most]}; the trace is cut"
            )
    return rows


def _identified(trace: Trace, rank: int, node: Node) -> tuple[_Row, tuple[object, ...]]:
    """An empty row for a node, and what those of other ranks are matched with it by."""
    if node.kind == "COMM_COLL":
        members = trace.members(node)
        if rank not in members:
            raise FormatError(
                f"{trace.files[rank]}: rank {rank} calls {node.name[:60]!r} of group"
                f" {str(node.attributes.get('pg_name'))[:40]!r}, in which it is not"
            )
        name = node.collective if node.collective in COLLECTIVES else "broadcast"
        return _Row(name, members, []), ("collective", node.text("pg_name"), members)
    if node.kind not in ("COMM_SEND", "COMM_RECV"):
        return _Row("", (rank,), []), (rank, node.id)
    sends = node.kind == "COMM_SEND"
    other = node.attributes.get("comm_dst" if sends else "comm_src")
    if not isinstance(other, int) or not 0 <= other < len(trace.ranks):
        raise FormatError(
            f"{trace.files[rank]}: {node.name[:60]!r} names rank {other!r}; the trace has ranks 0"
            f" to {len(trace.ranks) - 1}"
        )
    ends = (rank, other) if sends else (other, rank)
    itself = "self" if rank == other else ""
    return _Row(_MESSAGE, ends, []), ("message", *ends, node.attributes.get("comm_tag"), itself)


def _connect(nodes: Sequence[Node], rows: list[_Row], here: dict[int, int]) -> None:
    """Let rows wait for those that their nodes wait for, metadata passed through."""
    through = {node.id: node.before for node in nodes if node.id not in here}
    for node in nodes:
        if node.id not in here:
            continue
        row = here[node.id]
        pending, seen = list(node.before), set[int]()
        while pending:
            other = pending.pop()
            if other not in here:
                if other not in seen:
                    seen.add(other)
                    pending += through.get(other, ())
            elif here[other] != row:
                rows[row].before.add(here[other])


def _name_axes(rows: list[_Row], ranks: int) -> tuple[str, ...]:
    """Give every communication its axis: the queue's of mpsim's traces, else by its group."""
    communicating = [row for row in rows if row.collective]
    groups = {row.members for row in communicating if not row.is_message}
    mesh = device_axes([[list(members)] for members in groups], ranks)
    for row in communicating:
        shown = _PIPELINE if row.is_message else mesh.along([row.members])
        row.axis = _OF_STREAM.get(row.node.text("mpsim_stream")) or shown
    return tuple(sorted({row.axis for row in communicating if not row.node.text("mpsim_part")}))


def _price(rows: list[_Row], cluster: Cluster) -> tuple[Constant, ...]:
    """Price communication, and computations without a duration; list the constants used."""
    chip, prices = cluster.accelerator, execution.CommunicationPrices(cluster)
    precision = next((name for name in _PRECISION if name in chip.peak_flops), min(chip.peak_flops))
    kernels = KernelModel(chip, precision)
    rate = chip.peak(precision) * kernels.peak_fraction(precision)
    known: dict[tuple[object, ...], execution.Price] = {}
    for row in rows:
        if not row.collective:  # roofline of FLOPs and bytes; of loads and stores their bytes
            flops, moved = row.node.whole("num_ops"), row.node.whole("tensor_size")
            seconds = row.price.seconds or max(flops / rate, moved / chip.memory_bandwidth)
            row.price = execution.Price(seconds, 0.0, 0.0)
            continue
        key = row.collective, row.members, row.size
        if key not in known:
            known[key] = (
                prices.messages(int(row.size), [row.members])
                if row.is_message
                else prices.collective(row.collective, row.size, [row.members])
            )
        row.price = known[key]
    return tuple(dict.fromkeys([*kernels.provenance(), *prices.model.provenance()]))


def _order(trace: Trace, rows: list[_Row]) -> list[int]:
    """Rows, each after what it waits for. FormatError if some wait for each other."""
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
        end = start + rows[number].price.seconds
        for following in after[number]:
            earliest[following] = max(earliest[following], end)
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(heap, (earliest[following], rows[following].node.id, following))
    if len(order) < len(rows):
        stuck = next(rows[number] for number in range(len(rows)) if waiting[number])
        rank, node = stuck.nodes[0]
        raise FormatError(
            f"{trace.files[rank]}: {len(rows) - len(order)} nodes wait for each other,"
            f" {node.name[:60]!r} of rank {rank} among them"
        )
    return order


def _columns(rows: list[_Row], order: list[int], axes: tuple[str, ...], ranks: int) -> Program:
    """The rows as a Program."""
    vocabulary = execution.program_vocabulary(axes)
    queues = execution.axis_streams(axes)
    place = {number: at for at, number in enumerate(order)}
    chosen = [rows[number] for number in order]
    streams = [_queues(row, queues) for row in chosen]
    prices = np.array([row.price for row in chosen])
    built = Rows(vocabulary)
    ids = built.add(
        len(chosen),
        label=np.array([row.node.name[:80] or _default_label(row) for row in chosen]),
        rank=[row.members[0] for row in chosen],
        stream=[queue[0] for queue in streams],
        kind=[_kind(row, vocabulary.kinds) for row in chosen],
        part=[vocabulary.part(_part(row, vocabulary.parts)) for row in chosen],
        peer=[row.members[1] if row.is_message else -1 for row in chosen],
        duration=ticks(prices[:, 0]),
        up_bytes=prices[:, 1],
        out_bytes=prices[:, 2],
        collective=[COLLECTIVES.index(row.collective) if row.collective else -1 for row in chosen],
        size=[row.size for row in chosen],
        **{
            name: [_number(row.node.attributes.get(f"mpsim_{name}")) for row in chosen]
            for name in _NUMBERS
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


def _default_label(row: _Row) -> str:
    """A row without a name is called by its type, a message by its send."""
    if row.is_message:
        return "comm_send"
    return "comm_coll" if row.collective else "comp"


def _queues(row: _Row, queues: dict[str, Stream]) -> list[Stream]:
    """Queue of a row on each of its ranks."""
    stated = _STREAMS.get(row.node.text("mpsim_stream"))
    if not row.collective:
        on_host = bool(row.node.attributes.get("is_cpu_op")) and row.node.duration > 0
        return [stated or (Stream.HOST if on_host else Stream.COMPUTE)]
    if not row.is_message:
        return [queues[row.axis] if stated is None else stated] * len(row.members)
    up = row.members[0] < row.members[1]
    sends = stated or (Stream.SEND_NEXT if up else Stream.SEND_PREV)
    return [sends, _receiving(sends)]


def _receiving(sends: Stream) -> Stream:
    """Queue on which a message of a sending queue arrives."""
    name = sends.name.removesuffix("_BACK")
    if name not in _ARRIVES:
        # a step of a ring: every rank sends and receives at once, which one queue cannot
        return Stream.RECV_PREV_BACK
    return Stream[_ARRIVES[name] + sends.name[len(name) :]]


def _kind(row: _Row, kinds: tuple[str, ...]) -> int:
    if row.collective:
        return SEND if row.is_message else COLLECTIVE
    stated = row.node.text("mpsim_kind")
    stated = _KIND_OF.get(stated, stated)
    return kinds.index(stated if stated in kinds else "compute")


def _part(row: _Row, parts: tuple[str, ...]) -> str:
    """Part of the account that a row's time counts as."""
    stated = row.node.text("mpsim_part")
    if stated in parts:
        return stated
    return f"exposed_{row.axis}" if row.axis else execution.PHASES[-1]


def _number(value: object) -> int:
    return value if isinstance(value, int) and -1 <= value < 1 << 31 else -1
