"""Export to the Chrome trace format, which Perfetto opens.

One process a rank class, one track a stream; slices of a track follow or contain each other. A
message is drawn on the sender's and receiver's track with a flow between them. Counters show
activations a rank holds and whether it computes. Times are whole nanoseconds, Perfetto's
resolution, so that ends and starts still meet. Equal timelines give equal bytes.

References
----------
Trace Event Format, "Trace Event Format" document of the Catapult project: phases X, M, C, s and f.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine.timeline import Timeline
from mpsim.errors import ScenarioError
from mpsim.formats.spans import LETTERS
from mpsim.output import write_whole
from mpsim.program import SEND, TICK, Program, Stream, Template

DETAILS = ("chunk", "kernel")
MOST_RANKS = 64
INSIDE = (Stream.TP, Stream.CP, Stream.EP)  # queues of collectives inside actions
_TICKS_PER_NS = round(1e-9 / TICK)
_NS_PER_US = 1000

_HOLDING = "forward"
_RELEASING = ("backward", "weight_gradient")

Event = dict[str, Any]
More: TypeAlias = "Callable[[int], Added]"


def write_trace(
    timeline: Timeline,
    path: str | Path,
    *,
    detail: str = "chunk",
    ranks: Iterable[int] | None = None,
) -> None:
    """Write a trace file.

    `path`: gzipped when it ends in ``.gz``. `detail`: ``chunk``: one slice an action; ``kernel``:
    its kernels and collectives as well, which makes large files: choose `ranks`. `ranks`: rank
    classes to include; the first `MOST_RANKS` when absent. ScenarioError if `detail` or a rank is
    unknown.
    """
    write_events(trace_events(timeline, detail=detail, ranks=ranks), path)


def write_events(
    events: Iterable[Event], path: str | Path, *, about: Mapping[str, object] | None = None
) -> None:
    """Write events of a trace, one a line; gzipped, without a clock, when `path` ends in ``.gz``.
    `about` says what the trace shows, as ``otherData`` of the file.
    """
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(encode, events))
    head = f'"otherData":{encode(dict(about))},' if about else ""
    data = f'{{"displayTimeUnit":"ms",{head}"traceEvents":[\n{lines}\n]}}\n'.encode()
    file = Path(path)
    packed = file.suffix == ".gz"
    write_whole(file, gzip.compress(data, 6, mtime=0) if packed else data)


def trace_events(
    timeline: Timeline,
    *,
    detail: str = "chunk",
    ranks: Iterable[int] | None = None,
    more: More | None = None,
) -> Iterator[Event]:
    """Yield the events of a trace: names, slices, flows, counters.

    `detail` and `ranks`: as in `write_trace`. `more`: further tracks and counters of a rank class.
    Queues of collectives inside actions (`INSIDE`) are left to it. ScenarioError if `detail` or a
    rank is unknown.

    Yields
    ------
    dict
        One event; ``ts`` and ``dur`` in microseconds.
    """
    if detail not in DETAILS:
        raise ScenarioError(f"got detail {detail!r}; needed one of {', '.join(DETAILS)}")
    program, shown = timeline.program, shown_ranks(timeline.program, ranks)
    streams = [stream for stream in Stream if more is None or stream not in INSIDE]
    rows = _Rows(timeline)
    for rank in shown:
        slices = list(_slices(rows, rank, streams, kernels=detail == "kernel"))
        slices.sort(key=lambda event: (event["tid"], event["ts"], -event["dur"]))
        added = Added() if more is None else more(rank)
        used = {
            event["tid"]: Stream(event["tid"] - 1).name.lower().replace("_", " ")
            for event in slices
        }
        yield from _names(program, rank, used | dict(added.tracks))
        yield from slices
        yield from added.events
        yield from _activations(rows, rank)
        yield from _busy(rows, rank)
    yield from _flows(rows, set(shown))


def shown_ranks(program: Program, ranks: Iterable[int] | None) -> list[int]:
    """Rank classes that a trace shows, else the first `MOST_RANKS`; or ScenarioError."""
    shown = list(range(min(program.ranks, MOST_RANKS)) if ranks is None else dict.fromkeys(ranks))
    if bad := [rank for rank in shown if not 0 <= rank < program.ranks]:
        raise ScenarioError(f"got ranks {bad}; needed ranks from 0 to {program.ranks - 1}")
    return shown


@structs.dataclass(frozen=True, slots=True)
class Added:
    """Further tracks of a rank: names by thread, and events."""

    tracks: Mapping[int, str] = structs.field(default_factory=dict)
    events: Sequence[Event] = ()


class _Rows:
    """Columns of a timeline as Python lists, quick to read singly; times in whole nanoseconds."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        program = self.program = timeline.program
        self.start: list[int] = nanoseconds(timeline.start).tolist()
        self.end: list[int] = nanoseconds(timeline.end).tolist()
        words = program.vocabulary
        self.kind = [words.kinds[kind] for kind in program.kind.tolist()]
        self.letters = {kind: LETTERS[kind] for kind in words.actions if kind in LETTERS}
        self.template: list[int] = program.template.tolist()
        self.numbers: dict[str, list[int]] = {
            name: getattr(program, name).tolist() for name in ("stage", "chunk", "microbatch")
        }
        self.stage, self.microbatch = self.numbers["stage"], self.numbers["microbatch"]
        self.bytes: dict[str, list[float]] = {
            name: getattr(program, name).tolist() for name in ("up_bytes", "out_bytes")
        }
        self.flops = [template.issued for template in program.templates]

    def name(self, row: int) -> str:
        """Title of a slice: ``F 3`` for the forward of microbatch 3, or the row's label."""
        kind = self.kind[row]
        label = self.letters.get(kind) or self.program.labels[self.program.label[row]]
        return f"{label} {self.microbatch[row]}" if self.microbatch[row] >= 0 else label

    def args(self, rows: list[int]) -> Event:
        """Figures of the rows of one action together, without those that do not apply."""
        args: Event = {
            key: column[rows[0]] for key, column in self.numbers.items() if column[rows[0]] >= 0
        }
        for key, column in self.bytes.items():
            if amount := sum(column[row] for row in rows):
                args[key] = amount
        if flops := sum(self.flops[self.template[row]] for row in rows if self.template[row] >= 0):
            args["flops"] = flops
        return args

    def actions(self, rank: int, stream: Stream) -> Iterator[list[int]]:
        """Rows of a stream in order, those of one action together."""

        def action(row: int) -> tuple[str, int, int]:
            if self.kind[row] in self.letters:
                return self.kind[row], self.stage[row], self.microbatch[row]
            return "", -1, row

        for _, group in itertools.groupby(self.timeline.rows(rank, stream).tolist(), key=action):
            yield list(group)


def nanoseconds(ticks: Floats) -> Ints:
    """Times of engines in the resolution of a trace."""
    return np.rint(ticks / _TICKS_PER_NS).astype(np.int64)


def _slices(rows: _Rows, rank: int, streams: Sequence[Stream], *, kernels: bool) -> Iterator[Event]:
    """Every action of a rank on some of its streams, and what happens inside."""
    for stream in streams:
        for action in rows.actions(rank, stream):
            first, last = action[0], action[-1]
            category = rows.kind[first]
            start, end = rows.start[first], rows.end[last]
            track = _track(rank, stream)
            yield slice_event(track, rows.name(first), category, start, end, rows.args(action))
            for row in action:
                if kernels and stream == Stream.COMPUTE and rows.template[row] >= 0:
                    yield from _kernels(rows, row, rank, streams)


def _kernels(rows: _Rows, row: int, rank: int, streams: Sequence[Stream]) -> Iterator[Event]:
    """Inside of a row, stretched as the row was by what ran at the same time."""
    template = rows.program.templates[rows.template[row]]
    since, until = rows.timeline.start[row], rows.timeline.end[row]
    alone = rows.program.duration[row]
    stretch = (until - since) / alone if alone else 1.0
    starts = nanoseconds(since + stretch * template.start)
    ends = nanoseconds(np.minimum(since + stretch * (template.start + template.duration), until))
    for i in np.flatnonzero(template.duration > 0).tolist():
        stream = Stream(int(template.stream[i]))
        if stream not in streams:
            continue
        category = "kernel" if stream == Stream.COMPUTE else "collective"
        name = template.names[template.name_index[i]]
        args = _kernel_args(template, i) | {"microbatch": rows.microbatch[row]}
        track = _track(rank, stream)
        yield slice_event(track, name, category, int(starts[i]), int(ends[i]), args)


def _kernel_args(template: Template, i: int) -> Event:
    args: Event = {"layer": int(template.layer[i])} if template.layer[i] >= 0 else {}
    for name in ("flops", "up_bytes", "out_bytes"):
        if amount := float(getattr(template, name)[i]):
            args[name] = amount
    return args


def slice_event(
    track: Mapping[str, int], name: str, category: str, start: int, end: int, args: Event
) -> Event:
    """A slice of a track (``pid`` and ``tid``) from `start` to `end` [ns]."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        **track,
        "ts": start / _NS_PER_US,
        "dur": (end - start) / _NS_PER_US,
        "args": args,
    }


def _track(rank: int, stream: Stream) -> dict[str, int]:
    """Process and thread of a stream, from 1 on: viewers take 0 for the idle process."""
    return {"pid": rank + 1, "tid": int(stream) + 1}


def _names(program: Program, rank: int, threads: Mapping[int, str]) -> Iterator[Event]:
    size = int(program.class_size[rank])
    name = program.rank_name[rank] + (f" (stands for {size} ranks)" if size > 1 else "")
    yield from named_events("process", rank + 1, 1, name, rank)
    for thread, title in sorted(threads.items()):
        yield from named_events("thread", rank + 1, thread, title, thread - 1)


def named_events(kind: str, process: int, thread: int, name: str, place: int) -> Iterator[Event]:
    """Name of a process or of one of its tracks, and its place among others."""
    ids = {"pid": process, "tid": thread}
    yield {"ph": "M", "name": f"{kind}_name", **ids, "args": {"name": name}}
    yield {"ph": "M", "name": f"{kind}_sort_index", **ids, "args": {"sort_index": place}}


def _flows(rows: _Rows, shown: set[int]) -> Iterator[Event]:
    """Arrows from the start of each message at the sender to its end at the receiver."""
    program = rows.program
    for row in np.flatnonzero(program.kind == SEND).tolist():
        source, target = int(program.rank[row]), int(program.peer[row])
        if source not in shown or target not in shown:
            continue
        slots = program.slot[program.slot_ptr[row] : program.slot_ptr[row + 1]]
        into = next(int(slot) % len(Stream) for slot in slots if slot // len(Stream) == target)
        leaves, arrives = rows.start[row], max(rows.start[row], rows.end[row] - 1)
        shared = {"name": "message", "cat": "send", "id": row}
        sender = _track(source, Stream(int(program.stream[row])))
        receiver = _track(target, Stream(into))
        yield {"ph": "s", **shared, **sender, "ts": leaves / _NS_PER_US}
        yield {"ph": "f", "bp": "e", **shared, **receiver, "ts": arrives / _NS_PER_US}


def _activations(rows: _Rows, rank: int) -> Iterator[Event]:
    """Counter of (chunk, microbatch) pairs a rank holds, from F's start to the end of B or W."""
    if not rows.letters:
        return
    since: dict[tuple[int, int], int] = {}
    until: dict[tuple[int, int], int] = {}
    for row in rows.timeline.rows(rank).tolist():  # in order; an action may be several rows
        pair = rows.stage[row], rows.microbatch[row]
        if rows.kind[row] == _HOLDING:
            since.setdefault(pair, rows.start[row])
        elif rows.kind[row] in _RELEASING:
            until[pair] = rows.end[row]
    changes = [(time, 1) for time in since.values()] + [(time, -1) for time in until.values()]
    yield from _counter(rank, "activations in flight", "held", changes)


def _busy(rows: _Rows, rank: int) -> Iterator[Event]:
    """Counter that is 1 while the compute stream runs an action, 0 in bubbles."""
    changes: list[tuple[int, int]] = []
    for row in rows.timeline.rows(rank).tolist():
        if rows.end[row] > rows.start[row]:
            changes += [(rows.start[row], 1), (rows.end[row], -1)]
    yield from _counter(rank, "computing", "actions", changes)


def _counter(rank: int, name: str, unit: str, changes: list[tuple[int, int]]) -> Iterator[Event]:
    """Add up changes in order of time, those of one moment together, without zeros."""
    total: dict[int, int] = {}
    for time, change in changes:
        total[time] = total.get(time, 0) + change
    value = 0
    for time in sorted(total):
        if not total[time]:
            continue
        value += total[time]
        yield counter_event(rank + 1, name, time, {unit: value})


def counter_event(process: int, name: str, time: int, values: Mapping[str, float]) -> Event:
    """Levels of a counter from a time [ns] on."""
    head = {"ph": "C", "name": name, "pid": process}
    return {**head, "ts": time / _NS_PER_US, "args": dict(values)}
