"""Export of a training step to Chakra execution traces, which ASTRA-sim runs: one file a rank, and the members of its groups.

Every kernel, collective and message of every rank becomes a node. Dependencies within a rank are data dependencies; the order of its queues, which the format does not know, is written as
control dependencies. A message is a send on one rank and a receive on another; what a program lets one rank wait for on another without a message cannot be written, since nodes of a
file wait for each other only.

References
----------
astra-sim/astra-sim 518bd51: ``Workload.cc`` (types of nodes and attributes it reads), ``system/collective/Ring.cc`` (``comm_size`` is what one NPU puts in: the shard of an all-gather).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import COLLECTIVES
from mpsim.errors import ScenarioError
from mpsim.execution_trace import (
    COLLECTIVE_TYPES,
    NODE_TYPES,
    encode_attribute,
    encode_bytes,
    encode_packed,
    encode_varint,
    framed,
)
from mpsim.output import safe_name, write_whole
from mpsim.parallel.axes import FOLDED, Span
from mpsim.program import COLLECTIVE, SEND, TICK, Program, Stream
from mpsim.program.csr import owners
from mpsim.program.expand import expand, expanded_flops
from mpsim.simulate import Prepared

__all__ = ["MOST_NODES", "ChakraExport", "write_chakra"]

MOST_NODES: Final = 4_000_000
"""Nodes of all ranks together: a GB of files."""
_VERSION = b"1.0.0"
_MICRO = 1e-6
_TAGS = 1 << 30
_COMP, _SEND, _RECV, _COLL = (
    NODE_TYPES.index(name) for name in ("COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
)
_SHARDS = ("all_gather",)  # collectives whose size ASTRA-sim counts before they gather
_AS = {"reduce": "reduce_scatter"}  # every member owns a share of what is reduced to its owners
_MESSAGE = COLLECTIVES.index("send_recv")

Ints = NDArray[np.int64]
_Varying = Callable[[int, int], bytes]
"""Bytes that a rank adds to a node of its class, by its place in the class and its number."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChakraExport:
    """Files of an export and what they cannot hold.

    Parameters
    ----------
    files : tuple of Path
        One a rank, then the members of the groups.
    nodes : int
        Of all ranks together.
    losses : tuple of str
        What the format cannot hold, one sentence each.
    """

    files: tuple[Path, ...]
    nodes: int
    losses: tuple[str, ...]


def write_chakra(
    prepared: Prepared, folder: str | Path, *, prefix: str | None = None
) -> ChakraExport:
    """Write the execution trace of every rank of a prepared training step.

    Parameters
    ----------
    prepared : Prepared
        See `mpsim.prepare`.
    folder : str or Path
        Made if it is not there.
    prefix : str, optional
        Files are named ``PREFIX.RANK.et`` and ``PREFIX.comm_group.json``; the scenario's name by default.

    Returns
    -------
    ChakraExport

    Raises
    ------
    ScenarioError
        If replicas differ from each other, or there would be too many nodes.
    """
    plan, program = prepared.plan, prepared.program
    name = safe_name(prefix or prepared.scenario.name)
    if plan.classes:
        raise ScenarioError(
            f"{name}: replicas differ from each other (cluster.replicas, variation); an execution trace is written of replicas that are alike"
        )
    fine = expand(program)
    writer = _Writer(fine, expanded_flops(program), prepared)
    if writer.nodes > MOST_NODES:
        raise ScenarioError(
            f"{name}: {writer.nodes:,} operations on {plan.layout.mesh.world} ranks; needed at most {MOST_NODES:,}: "
            "take fewer replicas or microbatches (--set training.global_batch=...)"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for rank, content in writer.files():
        file = place / f"{name}.{rank}.et"
        write_whole(file, content)
        files.append(file)
    groups = place / f"{name}.comm_group.json"
    write_whole(groups, json.dumps(writer.groups()) + "\n")
    return ChakraExport((*files, groups), writer.nodes, writer.losses())


class _Writer:
    """The nodes of all ranks, those of one rank class encoded once."""

    def __init__(self, program: Program, flops: NDArray[np.float64], prepared: Prepared) -> None:
        self._program, self._plan = program, prepared.plan
        self._ranks = prepared.plan.layout.mesh.ranks
        self._flops = flops
        self._numbers: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self._written = np.zeros(len(program.dep), dtype=bool)  # waits that some file has
        self._rows = self._by_class()
        each = np.array([len(rows) for rows in self._rows])
        self.nodes = int((each * self._ranks[0].size).sum())

    def _by_class(self) -> list[Ints]:
        """Rows that each rank class takes part in, ascending."""
        program = self._program
        rank, row = program.slot // len(Stream), owners(program.slot_ptr)
        order = np.lexsort((row, rank))
        rank, row = rank[order], row[order]
        first = np.ones(len(row), dtype=bool)
        first[1:] = (rank[1:] != rank[:-1]) | (row[1:] != row[:-1])
        rank, row = rank[first], row[first]
        begins = np.searchsorted(rank, np.arange(program.ranks + 1))
        return [row[begins[place] : begins[place + 1]] for place in range(program.ranks)]

    def files(self) -> Iterator[tuple[int, bytes]]:
        """Rank and content of every file, in the order of ranks."""
        contents: dict[int, bytes] = {}
        head = framed(encode_bytes(1, _VERSION))
        for place in range(self._program.ranks):
            nodes = list(self._nodes(place))
            for index, rank in enumerate(self._ranks[place].ravel().tolist()):
                parts = [head]
                for fixed, varying in nodes:
                    parts.append(fixed if varying is None else framed(fixed + varying(index, rank)))
                contents[rank] = b"".join(parts)
        yield from sorted(contents.items())

    def _nodes(self, place: int) -> Iterator[tuple[bytes, _Varying | None]]:
        """Nodes of one rank class: what all its ranks have in common, and what each adds."""
        program = self._program
        kinds, labels = program.vocabulary.kinds, program.labels
        before = self._queue_order(place)
        mine = set(self._rows[place].tolist())
        for row in self._rows[place].tolist():
            first = int(program.dep_ptr[row])
            data = program.dep[first : program.dep_ptr[row + 1]].tolist()
            inside = [self._id(other) for other in data if other in mine]
            self._written[first : first + len(data)] |= np.array(
                [other in mine for other in data], dtype=bool
            )
            control = [self._id(other) for other in before.get(row, ()) if other not in data]
            label = labels[program.label[row]] or kinds[program.kind[row]].replace("_", " ")
            common = b"".join(
                (
                    encode_bytes(2, label.encode()),
                    encode_packed(4, control),
                    encode_packed(5, inside),
                    encode_varint(7 << 3)
                    + encode_varint(round(float(program.duration[row]) * TICK / _MICRO)),
                    *self._ours(row),
                )
            )
            yield from self._typed(place, row, common)

    @staticmethod
    def _id(row: int) -> int:
        """Number of the node of a row; of a ring's step, of its send, whose receive follows."""
        return 2 * row

    def _queue_order(self, place: int) -> dict[int, list[int]]:
        """The row before each on every queue of a rank class."""
        program = self._program
        chosen = program.slot // len(Stream) == place
        row, slot = owners(program.slot_ptr)[chosen], program.slot[chosen]
        order = np.argsort(slot, kind="stable")
        row, slot = row[order], slot[order]
        same = slot[1:] == slot[:-1]
        found: dict[int, list[int]] = {}
        for here, earlier in zip(row[1:][same].tolist(), row[:-1][same].tolist(), strict=True):
            known = found.setdefault(here, [])
            if earlier not in known:
                known.append(earlier)
        return found

    def _ours(self, row: int) -> Iterator[bytes]:
        """Attributes that only mpsim reads: queue and part of the account, by name."""
        program = self._program
        stream = Stream(int(program.stream[row])).name.lower()
        yield encode_attribute("mpsim_stream", "string", stream)
        yield encode_attribute("mpsim_kind", "string", program.vocabulary.kinds[program.kind[row]])
        part = program.vocabulary.parts[program.part[row]]
        # communication is exposed over the axis of its queue; what only stands for waiting says itself what it counts as
        if program.collective[row] < 0 or not part.startswith("exposed_"):
            yield encode_attribute("mpsim_part", "string", part)
        for name in ("stage", "chunk", "microbatch"):
            value = int(getattr(program, name)[row])
            if value >= 0:
                yield encode_attribute(f"mpsim_{name}", "int32", value)

    def _typed(
        self, place: int, row: int, common: bytes
    ) -> Iterator[tuple[bytes, _Varying | None]]:
        """The node or nodes of one row, by what it does."""
        program = self._program
        collective = int(program.collective[row])
        number = self._id(row)
        if collective < 0:
            on_host = int(program.stream[row]) in (Stream.HOST, Stream.COPY)
            content = (
                _start(number, _COMP, common)
                + encode_attribute("is_cpu_op", "bool", int(on_host))
                + encode_attribute("num_ops", "int64", round(float(self._flops[row])))
                + encode_attribute("tensor_size", "uint64", 0)
            )
            yield framed(content), None
        elif program.kind[row] == SEND:
            sends = int(program.rank[row]) == place
            other = int(program.peer[row] if sends else program.rank[row])
            kind = _SEND if sends else _RECV
            yield _start(number, kind, common), self._message(row, other, kind)
        elif collective == _MESSAGE:
            groups = self._members(place, row)
            yield _start(number, _SEND, common), self._ring(row, groups, _SEND)
            yield _start(number + 1, _RECV, common), self._ring(row, groups, _RECV)
        else:
            yield _start(number, _COLL, common), self._collective(row, self._members(place, row))

    def _message(self, row: int, other: int, kind: int) -> _Varying:
        """Ends of a message between ranks in the same place of two rank classes."""
        size, tag = round(float(self._program.size[row])), row % _TAGS
        others = self._ranks[other].ravel().tolist()

        def ends(index: int, rank: int) -> bytes:
            partner = others[index]
            source, target = (rank, partner) if kind == _SEND else (partner, rank)
            return _ends(source, target, size, tag)

        return ends

    def _ring(self, row: int, groups: Mapping[int, tuple[int, ...]], kind: int) -> _Varying:
        """Ends of a step of a ring: to the next of the group, from the one before."""
        size, tag = round(float(self._program.size[row])), row % _TAGS

        def ends(index: int, rank: int) -> bytes:
            del index
            members = groups[rank]
            at = members.index(rank)
            following, earlier = members[(at + 1) % len(members)], members[at - 1]
            source, target = (rank, following) if kind == _SEND else (earlier, rank)
            return _ends(source, target, size, tag)

        return ends

    def _collective(self, row: int, groups: Mapping[int, tuple[int, ...]]) -> _Varying:
        """Type, size and group of a collective."""
        name = COLLECTIVES[int(self._program.collective[row])]
        name = _AS.get(name, name)
        whole = float(self._program.size[row])
        kind = COLLECTIVE_TYPES.index(name)

        def described(index: int, rank: int) -> bytes:
            del index
            members = groups[rank]
            size = whole / len(members) if name in _SHARDS else whole
            return (
                encode_attribute("is_cpu_op", "bool", 0)
                + encode_attribute("comm_type", "int64", kind)
                + encode_attribute("comm_size", "int64", round(size))
                + encode_attribute("pg_name", "string", str(self._group(members)))
            )

        return described

    def _group(self, members: tuple[int, ...]) -> int:
        return self._numbers.setdefault(members, len(self._numbers) + 1)

    def groups(self) -> dict[str, list[int]]:
        """Members of every group that occurs, by its number."""
        return {str(number): list(members) for members, number in self._numbers.items()}

    def _members(self, place: int, row: int) -> dict[int, tuple[int, ...]]:
        """The group of every rank of a class in one row."""
        program = self._program
        stream = Stream(int(program.stream[row]))
        slots = program.slot[program.slot_ptr[row] : program.slot_ptr[row + 1]]
        classes = sorted({int(slot) // len(Stream) for slot in slots})
        if len(classes) > 1 or stream is Stream.COMPUTE:
            return self._across(tuple(classes), int(program.span[row]))
        key = (int(stream), place)
        if key not in self._known:
            mesh = self._plan.layout.mesh
            groups = (
                mesh.expert_groups(("ep",), place)
                if stream is Stream.EP
                else self._plan.members(stream, place)
            )
            self._known[key] = {rank: tuple(group) for group in groups.tolist() for rank in group}
        return self._known[key]

    def _across(self, classes: tuple[int, ...], span: int) -> dict[int, tuple[int, ...]]:
        """Groups of a row that several rank classes take part in: over its span, and over the classes."""
        over = [0]  # of the axes of `mesh.ranks` (pp, dp, cp, tp), those that one group holds
        for position, axis in enumerate(reversed(FOLDED), start=1):
            if span & axis.span & (Span.TP | Span.CP | Span.DP):
                over.append(position)
        chosen = self._ranks[list(classes)]
        apart = [axis for axis in range(chosen.ndim) if axis not in over]
        moved = chosen.transpose([*apart, *over])
        count = int(np.prod([chosen.shape[axis] for axis in over]))
        groups: list[list[int]] = moved.reshape(-1, count).tolist()
        return {rank: tuple(sorted(group)) for group in groups for rank in group}

    def losses(self) -> tuple[str, ...]:
        """Sentences on what the files cannot hold."""
        program = self._program
        told = [
            "durations are whole microseconds",
            "memory, energy and prices have no place in an execution trace",
            "bytes that kernels move are not known by kernel: tensor_size is 0, so run ASTRA-sim with roofline-enabled 0",
        ]
        if crossing := int((~self._written).sum()):
            told.append(
                f"{crossing} waits of one rank for another without a message are left out: nodes of a file wait for each other only"
            )
        names = {COLLECTIVES[kind] for kind in set(program.collective.tolist()) if kind >= 0}
        told += [
            f"{name} is written as {_AS[name]}: ASTRA-sim has no {name}"
            for name in sorted(names & _AS.keys())
        ]
        hosts = np.isin(program.stream, (Stream.HOST, Stream.COPY)) & (program.kind == COLLECTIVE)
        if hosts.any():
            told.append("copies to and from the host are computations of the host")
        return tuple(told)


def _start(number: int, kind: int, common: bytes) -> bytes:
    return (
        encode_varint(1 << 3)
        + encode_varint(number)
        + encode_varint(3 << 3)
        + encode_varint(kind)
        + common
    )


def _ends(source: int, target: int, size: int, tag: int) -> bytes:
    return (
        encode_attribute("is_cpu_op", "bool", 0)
        + encode_attribute("comm_src", "int32", source)
        + encode_attribute("comm_dst", "int32", target)
        + encode_attribute("comm_size", "int64", size)
        + encode_attribute("comm_tag", "int32", tag)
    )
