"""Export of a step to the Chrome trace format: timeline, communication, memory and links; and of a
service: iterations, requests, batch and cache.

Besides the tracks of `mpsim.formats.perfetto` every rank has one track for each axis on which it
communicates inside actions, whose slices are named ``exposed: ...`` (and coloured, where viewers
know ``cname``) while kernels wait for them, and one for what it waits for between actions (``pp
exposed``, ``dp exposed``). Exposed slices are of category ``exposed``; those of a rank and an axis
sum to its part of the breakdown, rounded to nanoseconds. Counters show memory by kind and the use
of its ports. A track of the whole step holds the scenario, its digest, the version and the
headline; the same stands in ``otherData`` of the file.

References
----------
Trace Event Format, "Trace Event Format" document of the Catapult project: ``otherData``, ``cname``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.formats import perfetto
from mpsim.parallel.axes import AXES, AXIS_NAMES, Stream
from mpsim.program import TICK
from mpsim.result import MemoryCurve, Result
from mpsim.result.slices import CommunicationSlices
from mpsim.stamp import stamp

if TYPE_CHECKING:
    from mpsim.serving import Served, ServiceResult

MOST_SLICES = 100_000
"""Most slices of communication in a trace; of further ranks, and beyond, there are none."""

_MOST_MOMENTS = 2000
"""Moments of memory of one rank at most; of more, the fullest of each of so many spans."""
_MOST_KERNELS = 1_000_000
"""Kernels of a step whose links are followed; following more takes gigabytes."""
_MOST_LINKS = 32  # links of the fabric in a trace at most, the busiest
_EXPOSED_COLOUR, _HIDDEN_COLOUR = "terrible", "grey"
_IN_PLACE = {
    AXIS_NAMES.index(a.name): a.streams[0] for a in AXES if a.streams[0] in perfetto.INSIDE
}
_STEP, _FABRIC = 100_000, 100_001  # processes beyond those of ranks


def write_step_trace(
    result: Result, path: str | Path, *, detail: str = "chunk", ranks: Iterable[int] | None = None
) -> None:
    """Write a trace file; equal results give equal bytes.

    `path`: gzipped when it ends in ``.gz``. `detail`: ``chunk``: one slice an action and one a
    collective inside; ``kernel``: kernels as well, which makes large files: choose `ranks`.
    `ranks`: rank classes to include; the first `mpsim.formats.perfetto.MOST_RANKS` when absent.
    ScenarioError if `detail` or a rank is unknown.
    """
    tracks = _Tracks(result, perfetto.shown_ranks(result.timeline.program, ranks))
    perfetto.write_events(_events(tracks, detail), path, about=tracks.about)


def step_events(
    result: Result, *, detail: str = "chunk", ranks: Iterable[int] | None = None
) -> Iterator[perfetto.Event]:
    """Yield the events of `write_step_trace`."""
    return _events(_Tracks(result, perfetto.shown_ranks(result.timeline.program, ranks)), detail)


def _events(tracks: _Tracks, detail: str) -> Iterator[perfetto.Event]:
    timeline = tracks.result.timeline
    yield from _step(tracks)
    yield from perfetto.trace_events(timeline, detail=detail, ranks=tracks.ranks, more=tracks.of)
    if tracks.follows_links:
        yield from _fabric(tracks.result)


class _Tracks:
    """Tracks and counters of ranks beyond their timeline, and what the file says of itself."""

    def __init__(self, result: Result, ranks: list[int]) -> None:
        self.result, self.ranks = result, ranks
        self._slices = _within_budget(result, ranks)
        program = result.program
        kernels = np.array([*(len(template.stream) for template in program.templates), 1])
        # whether the step is small enough to show the use of links
        self.follows_links = int(kernels[program.template].sum()) <= _MOST_KERNELS
        told = sum(len(slices) for slices in self._slices.values())
        self.about: Mapping[str, object] = {
            "scenario": result.scenario.name,
            "digest": result.scenario.digest,
            "mpsim": stamp(),
            "step_time_s": result.timeline.step_time_s,
            "accelerators": int(program.class_size.sum()),
            "ranks": len(ranks),
            "rank_classes": program.ranks,
            "communication_slices": told,
            "communication_of_ranks": len(self._slices),
        }

    def of(self, rank: int) -> perfetto.Added:
        """Tracks and counters of one rank."""
        events = list(_memory(rank, self.result.memory_curve(rank)))
        if self.follows_links:
            events += _ports(self.result, rank)
        if rank not in self._slices:
            return perfetto.Added({}, events)
        slices = list(_communication(rank, self._slices[rank]))
        names = {event["tid"]: _title(event["tid"]) for event in slices}
        return perfetto.Added(names, [*slices, *events])


def _within_budget(result: Result, ranks: list[int]) -> dict[int, CommunicationSlices]:
    """Slices of as many ranks as there is room for, the last cut short where it has too many."""
    chosen: dict[int, CommunicationSlices] = {}
    left = MOST_SLICES
    for rank in ranks:
        if left <= 0:
            break
        slices = result.communication_slices([rank])
        if len(slices) > left:
            earliest = np.sort(np.argsort(slices.start, kind="stable")[:left])
            slices = slices.where(earliest)
        chosen[rank] = slices
        left -= len(slices)
    return chosen


def _communication(rank: int, slices: CommunicationSlices) -> Iterator[perfetto.Event]:
    """Slices of every axis inside actions, and of waits between them."""
    inside = np.isin(slices.axis, list(_IN_PLACE))
    drawn = slices.where(np.flatnonzero(inside | slices.exposed))
    start, end = perfetto.nanoseconds(drawn.start), perfetto.nanoseconds(drawn.end)
    columns = (column.tolist() for column in (drawn.axis, start, end, drawn.exposed))
    places = (column.tolist() for column in (drawn.stage, drawn.microbatch, drawn.layer))
    reach: dict[int, int] = {}
    for name, axis, since, until, exposed, stage, microbatch, layer in zip(
        drawn.names, *columns, *places, strict=True
    ):
        thread = int(_IN_PLACE[axis]) + 1 if axis in _IN_PLACE else len(Stream) + 1 + axis
        # rounding to nanoseconds may let two meet that follow each other
        since = max(since, reach.get(thread, since))
        if until <= since:
            continue
        reach[thread] = until
        numbers = {"stage": stage, "microbatch": microbatch, "layer": layer}
        args: perfetto.Event = {key: number for key, number in numbers.items() if number >= 0}
        title = f"exposed: {name}" if exposed else name
        track = {"pid": rank + 1, "tid": thread}
        category = "exposed" if exposed else "hidden"
        event = perfetto.slice_event(track, title, category, since, until, args)
        yield {**event, "cname": _EXPOSED_COLOUR if exposed else _HIDDEN_COLOUR}


def _title(thread: int) -> str:
    if thread <= len(Stream):
        return Stream(thread - 1).name.lower()
    return f"{AXIS_NAMES[thread - 1 - len(Stream)]} exposed"


def _memory(rank: int, curve: MemoryCurve) -> Iterator[perfetto.Event]:
    """Counter of what a rank holds, by kind [B]."""
    time = np.rint(curve.time_s / (TICK * 1000)).astype(np.int64)
    chosen = _moments(time, curve.held)
    kinds = {name: held[chosen].tolist() for name, held in curve.components.items()}
    previous: tuple[int, ...] = ()
    for moment, *levels in zip(time[chosen].tolist(), *kinds.values(), strict=True):
        level = tuple(round(max(amount, 0.0)) for amount in levels)
        if level != previous:
            yield perfetto.counter_event(
                rank + 1, "memory (B)", moment, dict(zip(kinds, level, strict=True))
            )
        previous = level


def _moments(time: Ints, held: Floats) -> Ints:
    """Moments to show: the last of each time, and of many the fullest of each span."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], True))
    if len(last) <= _MOST_MOMENTS:
        return last
    spans = np.array_split(last, _MOST_MOMENTS)
    return np.array([span[np.argmax(held[span])] for span in spans])


def _ports(result: Result, rank: int) -> Iterator[perfetto.Event]:
    """Counters of the use of a rank's ports, in percent of what they could carry."""
    use, ranks = result.links, result.timeline.program.ranks
    each, name = use.ports // ranks, result.timeline.program.rank_name[rank]
    for link in range(rank * each, (rank + 1) * each):
        title = use.names[link].removeprefix(f"{name} ")
        yield from _use(rank + 1, f"{title} (%)", result, link)


def _use(process: int, title: str, result: Result, link: int) -> Iterator[perfetto.Event]:
    use, previous = result.links, -1.0
    if not use.carried[link]:
        return
    times = np.rint(use.edges_s / (TICK * 1000)).astype(np.int64).tolist()
    for time, share in zip(times, [*use.share[link].tolist(), 0.0], strict=True):
        percent = round(100 * share, 1)
        if percent != previous:
            yield perfetto.counter_event(process, title, time, {"in use": percent})
        previous = percent


def _fabric(result: Result) -> Iterator[perfetto.Event]:
    """A process with counters of the busiest links of the fabric."""
    use = result.links
    links = [link for link in use.busiest(len(use.names)).tolist() if link >= use.ports]
    if not links:
        return
    yield from perfetto.named_events("process", _FABRIC, 1, "fabric", _FABRIC)
    for link in sorted(links[:_MOST_LINKS]):
        yield from _use(_FABRIC, f"{use.names[link]} (%)", result, link)


def _step(tracks: _Tracks) -> Iterator[perfetto.Event]:
    """A process with one slice: the step, and what it is the step of."""
    about = tracks.about
    name = f"{about['scenario']} by mpsim {about['mpsim']}"
    yield from perfetto.named_events("process", _STEP, 1, name, -1)
    yield from perfetto.named_events("thread", _STEP, 1, "step", 0)
    end = int(perfetto.nanoseconds(np.array([tracks.result.timeline.makespan]))[0])
    track = {"pid": _STEP, "tid": 1}
    yield perfetto.slice_event(track, f"step of {about['scenario']}", "step", 0, end, dict(about))


_NS_PER_US = 1000
_REQUESTS = 0  # process of the requests; engines follow


def write_service_trace(result: ServiceResult, path: str | Path) -> None:
    """Write a trace file, gzipped when `path` ends in ``.gz``; equal results give equal bytes."""
    perfetto.write_events(service_events(result), path)


def service_events(result: ServiceResult) -> Iterator[perfetto.Event]:
    """Events of a result; iterations between which nothing begins or ends are one slice, a request
    is an asynchronous span from its arrival to its last token.
    """
    served = result.served
    for process, title in enumerate(("requests", *served.engine_names)):
        yield from perfetto.named_events("process", process, 0, title, process)
    columns = ("start", "span", "count", "decodes", "context", "prompt_tokens", "used", "engine")
    for row in zip(*(served.steps[name].tolist() for name in columns), strict=True):
        start, span, count, decodes, context, prompt, used, number = row
        track = {"pid": int(number) + 1, "tid": 0}
        name = "decode" if not prompt else "prefill" if not decodes else "prefill and decode"
        sizes = zip(("iterations", *columns[3:6]), (count, decodes, context, prompt), strict=True)
        at, args = _ns(start), {word: int(size) for word, size in sizes}
        yield perfetto.slice_event(track, name, "iterations", at, _ns(start + span), args)
        for counter, value in (("sequences", decodes), ("blocks of cache", used)):
            yield perfetto.counter_event(track["pid"], counter, at, {counter: int(value)})
    yield from _transfers(served)
    requests, times = result.requests, (served.arrival, served.first, served.last)
    for number, (arrival, first, last) in enumerate(zip(*(t.tolist() for t in times), strict=True)):
        if math.isnan(last):
            continue
        span = {"cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
        lengths = {"prompt": int(requests.prompt[number]), "output": int(requests.output[number])}
        yield {"ph": "b", "name": "request", **span, "ts": _time(arrival), "args": lengths}
        yield {"ph": "n", "name": "first token", **span, "ts": _time(first)}
        yield {"ph": "e", "name": "request", **span, "ts": _time(last)}


def _transfers(served: Served) -> Iterator[perfetto.Event]:
    """Keys and values on their way from one pool to the other."""
    columns = (served.transfers[name].tolist() for name in ("request", "start", "end", "bytes"))
    for request, start, end, size in zip(*columns, strict=True):
        span = {"cat": "transfer", "id": int(request), "pid": _REQUESTS, "tid": 0}
        yield {"ph": "b", "name": "transfer", **span, "ts": _time(start), "args": {"bytes": size}}
        yield {"ph": "e", "name": "transfer", **span, "ts": _time(end)}


def _ns(seconds: float) -> int:
    """Whole nanoseconds, the resolution of Perfetto."""
    return round(seconds * 1e9)


def _time(seconds: float) -> float:
    """Time of an event [us]."""
    return _ns(seconds) / _NS_PER_US
