"""Chakra's execution traces as a format: what files of it state, and the program that they are."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from mpsim.formats.chakra_trace import Trace, collective_type, is_trace, read_ranks, whole
from mpsim.formats.imported import Recorded, recorded_program
from mpsim.formats.source import Format, Head, Options

__all__ = ["CHAKRA", "facts_of"]


def _read_trace(head: Head, options: Options) -> Recorded:
    """Read all ranks of an execution trace, and the program they are where a cluster is named or they state every time.

    Raises
    ------
    FormatError
        If a rank is missing or cut, or sends and receives do not pair.
    """
    trace = read_ranks(head.path)
    recorded = facts_of(trace)
    if options.cluster is None and not states_times(trace):
        return recorded
    from mpsim.formats.chakra_program import chakra_program  # engines and cost models
    from mpsim.formats.execution import sized_cluster

    cluster = None
    if options.cluster is not None:
        cluster = sized_cluster(options.cluster, len(trace.ranks))
    return recorded_program(chakra_program(trace, cluster, recorded))


def states_times(trace: Trace) -> bool:
    """Whether a trace states how long its communication takes, so that it runs without a cluster that prices it; what is under half a microsecond is stated as 0."""
    return any(
        node.duration > 0 for nodes in trace.ranks for node in nodes if node.kind.startswith("COMM")
    )


def facts_of(trace: Trace) -> Recorded:
    """Counts of nodes, messages and collectives."""
    count = 0
    sends: Counter[tuple[Any, ...]] = Counter()
    receives: Counter[tuple[Any, ...]] = Counter()
    called: dict[tuple[str, int, str, tuple[int, ...]], Counter[int]] = {}
    compute: list[float] = []
    for rank, nodes in enumerate(trace.ranks):
        count += len(nodes)
        compute.append(sum(node.duration for node in nodes if node.kind == "COMP"))
        for node in nodes:
            kind, get = node.kind, node.attributes.get
            if kind == "COMM_SEND":
                sends[rank, get("comm_dst"), get("comm_tag"), get("comm_size")] += 1
            elif kind == "COMM_RECV":
                receives[get("comm_src"), rank, get("comm_tag"), get("comm_size")] += 1
            elif kind == "COMM_COLL":
                key = (
                    collective_type(node).replace("_", "-"),
                    whole(get("comm_size")),
                    str(get("pg_name") or ""),
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
    unpaired = (sends - receives) + (receives - sends)
    warnings = (f"{sum(unpaired.values())} messages have no partner",) if unpaired else ()
    facts = {
        "ranks": len(trace.ranks),
        "nodes": count,
        "messages": sum((sends & receives).values()),
        "collectives": collectives,
        "compute_s": max(compute, default=0.0),
    }
    return Recorded(
        format="chakra",
        tool="Chakra execution trace",
        version=trace.version,
        files=trace.files,
        facts=facts,
        warnings=warnings,
    )


CHAKRA: Final = Format(
    "chakra", "execution trace of Chakra", "timeline", lambda head: is_trace(head.path), _read_trace
)
