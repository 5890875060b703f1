"""Export of a training step to Chakra execution traces for ASTRA-sim: a file a rank, groups.

Every kernel, collective and message of every rank becomes a node. Dependencies within a rank are
data dependencies; the order of its queues is written as control dependencies. A message is a send
on one rank and a receive on another; what lets one rank wait for another without a message cannot
be written, since nodes of a file wait for each other only.

References
----------
astra-sim/astra-sim 518bd51: ``Workload.cc`` (types of nodes and attributes it reads),
``system/collective/Ring.cc`` (``comm_size`` is what one NPU puts in: the shard of an all-gather).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from mpsim.arrays import Floats
from mpsim.cost import COLLECTIVES
from mpsim.errors import ScenarioError
from mpsim.formats.chakra import trace
from mpsim.formats.outgoing import Exported, Lost, check_trains
from mpsim.output import safe_name
from mpsim.parallel.axes import EXPOSED, FOLDED, Span
from mpsim.program import COLLECTIVE, SEND, TICK, Program, Stream
from mpsim.program.csr import owners
from mpsim.program.expand import expand, expanded_flops
from mpsim.scenario import Scenario
from mpsim.shipped import say
from mpsim.simulate import Prepared, prepare

MOST_NODES: Final = 4_000_000  # nodes of all ranks together: a GB of files
_VERSION = "1.0.0"
_MICRO = 1e-6
_TAGS = 1 << 30
_SHARDS = ("all_gather",)  # collectives whose size ASTRA-sim counts before they gather
_AS = {"reduce": "reduce_scatter"}  # every member owns a share of what is reduced to its owners
_MESSAGE = COLLECTIVES.index("send_recv")

Groups = Mapping[int, tuple[int, ...]]  # members of the group of every rank
_Varying = Callable[[int, int], Mapping[str, int | str]]
"""Attributes that a rank adds to a node of its class, by its place in the class and its number."""


def export_chakra(scenario: Scenario) -> Exported:
    """Execution traces of every rank of a scenario's training step; see `chakra_files`."""
    check_trains(scenario)
    return chakra_files(prepare(scenario))


def write_chakra(prepared: Prepared, folder: str | Path, *, prefix: str | None = None) -> Exported:
    """Write the execution trace of every rank of a step into a folder; see `chakra_files`."""
    exported = chakra_files(prepared, prefix=prefix)
    exported.save(folder)
    return exported


def chakra_files(prepared: Prepared, *, prefix: str | None = None) -> Exported:
    """Execution trace of every rank of a training step, see `mpsim.prepare`, and then its groups.

    `prefix`: files are named ``PREFIX.RANK.et`` and ``PREFIX.comm_group.json``; the scenario's name
    by default. ScenarioError if replicas differ from each other, or there would be too many nodes;
    MissingExtraError if protobuf is not installed.
    """
    plan, program = prepared.plan, prepared.program
    name = safe_name(prefix or prepared.scenario.name)
    if plan.classes:
        raise ScenarioError(say("formats.unlike_replicas", name=name))
    fine = expand(program)
    writer = _Writer(fine, expanded_flops(program), prepared)
    world = plan.layout.mesh.world
    if writer.nodes > MOST_NODES:
        raise ScenarioError(
            f"{name}: {writer.nodes:,} operations on {world} ranks; needed at most {MOST_NODES:,}: "
            "take fewer replicas or microbatches (--set training.global_batch=...)"
        )
    files = {f"{name}.{rank}.et": content for rank, content in writer.files()}
    files[f"{name}.comm_group.json"] = f"{json.dumps(writer.groups())}\n".encode()
    return Exported(
        format="chakra",
        tool="Chakra execution trace",
        files=files,
        nodes=writer.nodes,
        lost=tuple(Lost("", "", why) for why in writer.losses()),
        notes=(f"{world} ranks, {writer.nodes:,} nodes",),
    )


class _Writer:
    """The nodes of all ranks, those of one rank class put together once."""

    def __init__(self, program: Program, flops: Floats, prepared: Prepared) -> None:
        self._program, self._plan = program, prepared.plan
        self._ranks = prepared.plan.layout.mesh.ranks
        self._flops = flops
        self._numbers: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[int, int], Groups] = {}
        self._written = np.zeros(len(program.dep), dtype=bool)  # waits that some file has
        # rows that each rank class takes part in, ascending
        pairs = np.unique(
            np.stack([program.slot // len(Stream), owners(program.slot_ptr)], axis=1), axis=0
        )
        begins = np.searchsorted(pairs[:, 0], np.arange(program.ranks + 1))
        self._rows = [pairs[begin:end, 1] for begin, end in itertools.pairwise(begins.tolist())]
        self.nodes = sum(map(len, self._rows)) * self._ranks[0].size

    def files(self) -> Iterator[tuple[int, bytes]]:
        """Rank and content of every file, in the order of ranks."""
        contents: dict[int, bytes] = {}
        head = trace.framed(trace.message("GlobalMetadata", version=_VERSION))
        for place in range(self._program.ranks):
            nodes = [
                (node, trace.framed(node) if varying is None else b"", varying)
                for node, varying in self._nodes(place)
            ]
            for index, rank in enumerate(self._ranks[place].ravel().tolist()):
                parts = [head]
                for node, fixed, varying in nodes:
                    if varying is None:
                        parts.append(fixed)
                        continue
                    own = trace.message("Node")
                    own.CopyFrom(node)
                    trace.add_attributes(own, varying(index, rank))
                    parts.append(trace.framed(own))
                contents[rank] = b"".join(parts)
        yield from sorted(contents.items())

    def _nodes(self, place: int) -> Iterator[tuple[object, _Varying | None]]:
        """Nodes of one rank class: what all its ranks have in common, and what each adds."""
        program = self._program
        kinds, labels = program.vocabulary.kinds, program.labels
        before = self._queue_order(place)
        mine = set(self._rows[place].tolist())
        for row in self._rows[place].tolist():
            first = int(program.dep_ptr[row])
            data = program.dep[first : program.dep_ptr[row + 1]].tolist()
            self._written[first : first + len(data)] |= np.array(
                [other in mine for other in data], dtype=bool
            )
            for extra, (kind, varying) in enumerate(self._typed(place, row)):
                node = trace.message(
                    "Node",
                    id=_node_id(row) + extra,
                    name=labels[program.label[row]] or kinds[program.kind[row]].replace("_", " "),
                    type=trace.NODE_TYPES.index(kind),
                    ctrl_deps=[_node_id(each) for each in before.get(row, ()) if each not in data],
                    data_deps=[_node_id(other) for other in data if other in mine],
                    duration_micros=round(float(program.duration[row]) * TICK / _MICRO),
                )
                trace.add_attributes(node, self._ours(row))
                if kind == "COMP":
                    on_host = int(program.stream[row]) in (Stream.HOST, Stream.COPY)
                    flops = round(float(self._flops[row]))
                    work = {"is_cpu_op": int(on_host), "num_ops": flops, "tensor_size": 0}
                    trace.add_attributes(node, work)
                yield node, varying

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

    def _ours(self, row: int) -> dict[str, int | str]:
        """Attributes that only mpsim reads: queue and part of the account, by name."""
        program = self._program
        part = program.vocabulary.parts[program.part[row]]
        ours: dict[str, int | str] = {
            "mpsim_stream": Stream(int(program.stream[row])).name.lower(),
            "mpsim_kind": program.vocabulary.kinds[program.kind[row]],
        }
        # communication is exposed over its queue's axis; what only waits says what it counts as
        if program.collective[row] < 0 or part not in EXPOSED:
            ours["mpsim_part"] = part
        for name in ("stage", "chunk", "microbatch"):
            value = int(getattr(program, name)[row])
            if value >= 0:
                ours[f"mpsim_{name}"] = value
        return ours

    def _typed(self, place: int, row: int) -> Iterator[tuple[str, _Varying | None]]:
        """Type of the node or nodes of one row, by what it does, and what each rank adds."""
        program = self._program
        collective = int(program.collective[row])
        if collective < 0:
            yield "COMP", None
        elif program.kind[row] == SEND:
            sends = int(program.rank[row]) == place
            other = int(program.peer[row] if sends else program.rank[row])
            # a message goes between ranks in the same place of two rank classes
            partners = self._ranks[other].ravel().tolist()
            yield self._end(row, lambda index, _: partners[index], sends=sends)
        elif (
            collective == _MESSAGE
        ):  # a step of a ring: to the next of the group, from the one before
            groups = self._members(place, row)
            for sends, step in ((True, 1), (False, -1)):
                yield self._end(row, functools.partial(_neighbour, groups, step), sends=sends)
        else:
            yield "COMM_COLL", self._collective(row, self._members(place, row))

    def _end(
        self, row: int, partner: Callable[[int, int], int], *, sends: bool
    ) -> tuple[str, _Varying]:
        """One end of a message: its type, and the attributes of a rank by its partner."""
        size, tag = round(float(self._program.size[row])), row % _TAGS

        def ends(index: int, rank: int) -> Mapping[str, int | str]:
            pair = (rank, partner(index, rank))
            source, target = pair if sends else pair[::-1]
            return {
                "is_cpu_op": 0,
                "comm_src": source,
                "comm_dst": target,
                "comm_size": size,
                "comm_tag": tag,
            }

        return "COMM_SEND" if sends else "COMM_RECV", ends

    def _collective(self, row: int, groups: Groups) -> _Varying:
        """Type, size and group of a collective."""
        name = COLLECTIVES[int(self._program.collective[row])]
        name = _AS.get(name, name)
        whole = float(self._program.size[row])
        kind = trace.COLLECTIVE_TYPES.index(name)

        def described(index: int, rank: int) -> Mapping[str, int | str]:
            del index
            members = groups[rank]
            size = whole / len(members) if name in _SHARDS else whole
            number = self._numbers.setdefault(members, len(self._numbers) + 1)
            return {
                "is_cpu_op": 0,
                "comm_type": kind,
                "comm_size": round(size),
                "pg_name": str(number),
            }

        return described

    def groups(self) -> dict[str, list[int]]:
        """Members of every group that occurs, by its number."""
        return {str(number): list(members) for members, number in self._numbers.items()}

    def _members(self, place: int, row: int) -> Groups:
        """The group of every rank of a class in one row."""
        program = self._program
        stream = Stream(int(program.stream[row]))
        slots = program.slot[program.slot_ptr[row] : program.slot_ptr[row + 1]]
        classes = sorted({int(slot) // len(Stream) for slot in slots})
        if len(classes) > 1 or stream is Stream.COMPUTE:
            return self._across(classes, int(program.span[row]))
        key = (int(stream), place)
        if key not in self._known:
            mesh = self._plan.layout.mesh
            groups = (
                mesh.groups(("ep",), place)
                if stream is Stream.EP
                else self._plan.members(stream, place)
            )
            self._known[key] = {rank: tuple(group) for group in groups.tolist() for rank in group}
        return self._known[key]

    def _across(self, classes: Sequence[int], span: int) -> Groups:
        """Groups of a row of several rank classes: over its span, and over the classes."""
        over = [0]  # of the axes of `mesh.ranks` (pp, dp, cp, tp), those that one group holds
        for position, axis in enumerate(reversed(FOLDED), start=1):
            if span & axis.span & (Span.TP | Span.CP | Span.DP):
                over.append(position)
        chosen = self._ranks[classes]
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
            say("formats.no_bytes"),
        ]
        if crossing := int((~self._written).sum()):
            told.append(say("formats.crossing", crossing=crossing))
        names = {COLLECTIVES[kind] for kind in set(program.collective.tolist()) if kind >= 0}
        told += [
            f"{name} is written as {_AS[name]}: ASTRA-sim has no {name}"
            for name in sorted(names & _AS.keys())
        ]
        hosts = np.isin(program.stream, (Stream.HOST, Stream.COPY)) & (program.kind == COLLECTIVE)
        if hosts.any():
            told.append("copies to and from the host are computations of the host")
        return tuple(told)


def _node_id(row: int) -> int:
    """Number of the node of a row; of a ring's step, of its send, whose receive follows."""
    return 2 * row


def _neighbour(groups: Groups, step: int, index: int, rank: int) -> int:
    """The rank so many steps on in the ring of a rank's group."""
    del index
    members = groups[rank]
    return members[(members.index(rank) + step) % len(members)]
