"""Export of a service to the Chrome trace format: iterations of each engine, requests, and counters of batch and cache.

Iterations between which nothing begins or ends are one slice. A request is an asynchronous span from its arrival to its last token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.formats.perfetto import write_events

if TYPE_CHECKING:
    from mpsim.serving import Served, ServiceResult

_MICRO = 1e-6
_DIGITS = 3  # whole nanoseconds, the resolution of Perfetto
_REQUESTS = 0  # process of the requests; engines follow

Event = dict[str, object]


def write_service_trace(result: ServiceResult, path: str | Path) -> None:
    """Write a trace file, gzipped when `path` ends in ``.gz``; equal results give equal bytes."""
    write_events(service_events(result), path)


def service_events(result: ServiceResult) -> Iterator[Event]:
    """Events of a result in the Chrome trace format."""
    served = result.served
    yield _named(_REQUESTS, "requests")
    for number, name in enumerate(served.engine_names):
        yield _named(number + 1, name)
    columns = ("start", "span", "count", "decodes", "context", "prompt_tokens", "used", "engine")
    for row in zip(*(served.steps[name].tolist() for name in columns), strict=True):
        start, span, count, decodes, context, prompt, used, number = row
        process = int(number) + 1
        name = "decode" if not prompt else "prefill" if not decodes else "prefill and decode"
        detail = {
            "iterations": int(count),
            "decodes": int(decodes),
            "context": int(context),
            "prompt_tokens": int(prompt),
        }
        at = _time(start)
        duration = round(_time(start + span) - at, _DIGITS)
        yield {
            "ph": "X",
            "name": name,
            "pid": process,
            "tid": 0,
            "ts": at,
            "dur": duration,
            "args": detail,
        }
        for counter, value in (("sequences", decodes), ("blocks of cache", used)):
            yield {
                "ph": "C",
                "name": counter,
                "pid": process,
                "ts": at,
                "args": {counter: int(value)},
            }
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


def _named(process: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}


def _time(seconds: float) -> float:
    return round(seconds / _MICRO, _DIGITS)
