"""Export of a service to the Chrome trace format: iterations, requests, batch and cache.

Iterations between which nothing begins or ends are one slice. A request is an asynchronous span
from its arrival to its last token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.formats.perfetto import Event, counter_event, named_events, slice_event, write_events

if TYPE_CHECKING:
    from mpsim.serving import Served, ServiceResult

_NS_PER_US = 1000
_REQUESTS = 0  # process of the requests; engines follow


def write_service_trace(result: ServiceResult, path: str | Path) -> None:
    """Write a trace file, gzipped when `path` ends in ``.gz``; equal results give equal bytes."""
    write_events(service_events(result), path)


def service_events(result: ServiceResult) -> Iterator[Event]:
    """Events of a result in the Chrome trace format."""
    served = result.served
    for process, title in enumerate(("requests", *served.engine_names)):
        yield from named_events("process", process, 0, title, process)
    columns = ("start", "span", "count", "decodes", "context", "prompt_tokens", "used", "engine")
    for row in zip(*(served.steps[name].tolist() for name in columns), strict=True):
        start, span, count, decodes, context, prompt, used, number = row
        track = {"pid": int(number) + 1, "tid": 0}
        name = "decode" if not prompt else "prefill" if not decodes else "prefill and decode"
        sizes = zip(("iterations", *columns[3:6]), (count, decodes, context, prompt), strict=True)
        at, args = _ns(start), {word: int(size) for word, size in sizes}
        yield slice_event(track, name, "iterations", at, _ns(start + span), args)
        for counter, value in (("sequences", decodes), ("blocks of cache", used)):
            yield counter_event(track["pid"], counter, at, {counter: int(value)})
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


def _transfers(served: Served) -> Iterator[Event]:
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
