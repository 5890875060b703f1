"""Export to the Chrome trace format, which Perfetto opens.

One process a rank class, one track a stream; on a track nothing overlaps. A message is drawn on the sender's and on the receiver's track with a
flow between them. Equal timelines give equal bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpsim.engine.timeline import Timeline
from mpsim.errors import ScenarioError
from mpsim.program import TICK, Kind, Program, Stream, Template

__all__ = ["DETAILS", "trace_events", "write_trace"]

DETAILS = ("chunk", "kernel")
MOST_RANKS = 64
_US = TICK * 1e6

_ACTIONS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.INPUT_GRADIENT: "I",
    Kind.WEIGHT_GRADIENT: "W",
}

Event = dict[str, Any]


def write_trace(
    timeline: Timeline,
    path: str | Path,
    *,
    detail: str = "chunk",
    ranks: Iterable[int] | None = None,
) -> None:
    """Write a trace file.

    Parameters
    ----------
    timeline : Timeline
    path : str or Path
        Gzipped when it ends in ``.gz``.
    detail : str
        ``chunk``: one slice an action; ``kernel``: its kernels and collectives inside.
    ranks : iterable of int, optional
        Rank classes to include; the first `MOST_RANKS` when absent.

    Raises
    ------
    ScenarioError
        If `detail` or a rank is unknown.
    """
    lines = ",\n".join(
        json.dumps(event, separators=(",", ":"))
        for event in trace_events(timeline, detail=detail, ranks=ranks)
    )
    text = '{"displayTimeUnit":"ms","traceEvents":[\n' + lines + "\n]}\n"
    data = text.encode()
    file = Path(path)
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)


def trace_events(
    timeline: Timeline, *, detail: str = "chunk", ranks: Iterable[int] | None = None
) -> Iterator[Event]:
    """Yield the events of a trace: names, slices, flows, counters.

    Yields
    ------
    dict
        One event; ``ts`` and ``dur`` in microseconds.
    """
    if detail not in DETAILS:
        raise ScenarioError(f"got detail {detail!r}; needed one of {', '.join(DETAILS)}")
    program = timeline.program
    shown = list(range(min(program.ranks, MOST_RANKS)) if ranks is None else ranks)
    if bad := [rank for rank in shown if not 0 <= rank < program.ranks]:
        raise ScenarioError(f"got ranks {bad}; needed ranks from 0 to {program.ranks - 1}")
    for rank in shown:
        yield from _names(program, rank)
    for rank in shown:
        for stream in Stream:
            yield from _track(timeline, rank, stream, detail)
    yield from _flows(timeline, set(shown))
    for rank in shown:
        yield from _activations(timeline, rank)


def _names(program: Program, rank: int) -> Iterator[Event]:
    size = int(program.class_size[rank])
    name = program.rank_name[rank] + (f" (stands for {size} ranks)" if size > 1 else "")
    used = {int(slot) % len(Stream) for slot in program.slot if slot // len(Stream) == rank}
    used |= {
        int(one) for template in _templates_of(program, rank) for one in np.unique(template.stream)
    }
    yield _meta("process_name", rank, 0, name=name)
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for stream in sorted(used):
        yield _meta("thread_name", rank, stream, name=Stream(stream).name.lower().replace("_", " "))
        yield _meta("thread_sort_index", rank, stream, sort_index=stream)


def _templates_of(program: Program, rank: int) -> list[Template]:
    mine = program.template[(program.rank == rank) & (program.template >= 0)]
    return [program.templates[one] for one in np.unique(mine)]


def _meta(kind: str, rank: int, stream: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": stream, "args": args}


def _track(timeline: Timeline, rank: int, stream: Stream, detail: str) -> Iterator[Event]:
    program = timeline.program
    for row in timeline.rows(rank, stream).tolist():
        template = int(program.template[row])
        if template >= 0 and detail == "kernel":
            yield from _kernels(program.templates[template], timeline, row, rank)
        else:
            yield _slice(timeline, row, rank, int(stream))


def _slice(timeline: Timeline, row: int, rank: int, stream: int) -> Event:
    program = timeline.program
    args: dict[str, Any] = {
        name: int(getattr(program, name)[row])
        for name in ("stage", "chunk", "microbatch")
        if getattr(program, name)[row] >= 0
    }
    for name in ("up_bytes", "out_bytes"):
        if amount := float(getattr(program, name)[row]):
            args[name] = amount
    if program.template[row] >= 0:
        args["flops"] = float(program.templates[program.template[row]].flops.sum())
    return {
        "ph": "X",
        "name": name_of(program, row),
        "cat": Kind(int(program.kind[row])).name.lower(),
        "pid": rank,
        "tid": stream,
        "ts": timeline.start[row] * _US,
        "dur": (timeline.end[row] - timeline.start[row]) * _US,
        "args": args,
    }


def name_of(program: Program, row: int) -> str:
    """Title of a slice: ``F 3`` for the forward of microbatch 3, or the row's label."""
    kind = Kind(int(program.kind[row]))
    if kind in _ACTIONS:
        return f"{_ACTIONS[kind]} {int(program.microbatch[row])}"
    label = program.labels[program.label[row]]
    return f"{label} {int(program.microbatch[row])}" if kind is Kind.SEND else label


def _kernels(template: Template, timeline: Timeline, row: int, rank: int) -> Iterator[Event]:
    begin = timeline.start[row]
    for i in np.flatnonzero(template.duration > 0).tolist():
        args: dict[str, Any] = {"microbatch": int(timeline.program.microbatch[row])}
        if template.layer[i] >= 0:
            args["layer"] = int(template.layer[i])
        for name in ("flops", "up_bytes", "out_bytes"):
            if amount := float(getattr(template, name)[i]):
                args[name] = amount
        yield {
            "ph": "X",
            "name": template.names[template.name_index[i]],
            "cat": "kernel" if template.stream[i] == Stream.COMPUTE else "collective",
            "pid": rank,
            "tid": int(template.stream[i]),
            "ts": (begin + template.start[i]) * _US,
            "dur": template.duration[i] * _US,
            "args": args,
        }


def _flows(timeline: Timeline, shown: set[int]) -> Iterator[Event]:
    """Arrows from the sender's slice to the receiver's."""
    program = timeline.program
    for row in np.flatnonzero(program.kind == Kind.SEND).tolist():
        source, target = int(program.rank[row]), int(program.peer[row])
        if source not in shown or target not in shown:
            continue
        slots = program.slot[program.slot_ptr[row] : program.slot_ptr[row + 1]]
        into = next(int(one) % len(Stream) for one in slots if one // len(Stream) == target)
        shared = {"name": "send", "cat": "send", "id": row, "ts": timeline.start[row] * _US}
        yield {"ph": "s", **shared, "pid": source, "tid": int(program.stream[row])}
        yield {"ph": "f", "bp": "e", **shared, "pid": target, "tid": into}


def _activations(timeline: Timeline, rank: int) -> Iterator[Event]:
    """Counter of (chunk, microbatch) pairs whose activations a rank holds."""
    program = timeline.program
    rows = timeline.rows(rank)
    starts: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    for row in rows[
        np.isin(program.kind[rows], list(_ACTIONS))
    ].tolist():  # in order: an action may be several rows
        what = int(program.stage[row]), int(program.microbatch[row])
        if program.kind[row] == Kind.FORWARD:
            starts.setdefault(what, timeline.start[row])
        elif program.kind[row] != Kind.INPUT_GRADIENT:
            ends[what] = timeline.end[row]
    changes = sorted(
        [*((time, 1) for time in starts.values()), *((time, -1) for time in ends.values())]
    )
    held = 0
    for time, change in changes:  # releases come first where they coincide
        held += change
        yield {
            "ph": "C",
            "name": "activations in flight",
            "pid": rank,
            "ts": time * _US,
            "args": {"held": held},
        }
