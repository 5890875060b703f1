"""Chakra's execution traces as a format: what files of it state, and the program that they are."""

from __future__ import annotations

from collections import Counter
from typing import Final

from mpsim import structs
from mpsim.formats.chakra.trace import Node, Trace, is_trace, read_ranks
from mpsim.formats.imported import Recorded
from mpsim.formats.source import Format, Head, Options

__all__ = ["CHAKRA"]


def _read_trace(head: Head, options: Options) -> Recorded:
    """Read all ranks of an execution trace, and the program they are where a cluster is named or
    they state every time.

    FormatError if a rank is missing or cut, or sends and receives do not pair.
    """
    trace = read_ranks(head.path)
    recorded = _facts(trace)
    # what is under half a microsecond is stated as 0
    states_times = any(
        node.duration > 0 for nodes in trace.ranks for node in nodes if node.kind.startswith("COMM")
    )
    if options.cluster is None and not states_times:
        return recorded
    from mpsim.formats.chakra.program import chakra_program  # engines and cost models
    from mpsim.formats.execution import sized_cluster

    cluster = None
    if options.cluster is not None:
        cluster = sized_cluster(options.cluster, len(trace.ranks))
    program = chakra_program(trace, cluster, recorded.warnings)
    return structs.replace(recorded, program=program)


def _facts(trace: Trace) -> Recorded:
    """Counts of nodes, messages and collectives."""
    messages: dict[str, Counter[tuple[object, ...]]] = {
        "COMM_SEND": Counter(),
        "COMM_RECV": Counter(),
    }
    called: dict[tuple[str, int, str, tuple[int, ...]], Counter[int]] = {}
    for rank, nodes in enumerate(trace.ranks):
        for node in nodes:
            if node.kind in messages:
                messages[node.kind][_ends(rank, node)] += 1
            elif node.kind == "COMM_COLL":
                key = (
                    node.collective.replace("_", "-"),
                    node.whole("comm_size"),
                    node.text("pg_name"),
                    trace.members(node),
                )
                called.setdefault(key, Counter())[rank] += 1
    collectives = [
        {
            "kind": kind,
            "times": max(counts.values()),
            "operand_bytes": size,
            "groups": [list(members)],
        }
        for (kind, size, _, members), counts in called.items()
    ]
    sends, receives = messages["COMM_SEND"], messages["COMM_RECV"]
    unpaired = (sends - receives) + (receives - sends)
    compute = (sum(node.duration for node in nodes if node.kind == "COMP") for nodes in trace.ranks)
    return Recorded(
        format="chakra",
        tool="Chakra execution trace",
        version=trace.version,
        files=trace.files,
        facts={
            "ranks": len(trace.ranks),
            "nodes": sum(map(len, trace.ranks)),
            "messages": sum((sends & receives).values()),
            "collectives": collectives,
            "compute_s": max(compute, default=0.0),
        },
        warnings=(f"{sum(unpaired.values())} messages have no partner",) if unpaired else (),
    )


def _ends(rank: int, node: Node) -> tuple[object, ...]:
    """Sender, receiver, tag and size of a message, of either of its nodes."""
    get = node.attributes.get
    source, target = (
        (rank, get("comm_dst")) if node.kind == "COMM_SEND" else (get("comm_src"), rank)
    )
    return source, target, get("comm_tag"), get("comm_size")


CHAKRA: Final = Format("chakra", lambda head: is_trace(head.path), _read_trace)
