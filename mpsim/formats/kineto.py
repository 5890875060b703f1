"""Kineto traces of torch.profiler, read as a stream: kernels by operator and shape, collectives by message.

A trace of a training run is gigabytes; events are decoded one after the other and only durations are kept. Shapes are there when the
profiler ran with ``record_shapes=True``; without them a trace says how long kernels took, but not of what, and nothing can be fitted.

References
----------
pytorch/kineto, ``libkineto/src/output_json.cpp``: cat ``cpu_op`` with args ``Input Dims``, ``Input type``, ``External id``; cat ``kernel`` with args
``External id``, and for NCCL ``Collective name``, ``In msg nelems``, ``Out msg nelems``, ``Group size``, ``dtype``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mpsim.errors import CalibrationError
from mpsim.formats.imported import (
    MeasuredPoint,
    Points,
    collective_name,
    collective_point,
    kernel_point,
)
from mpsim.formats.source import Head, Options, open_text
from mpsim.inputs import shown
from mpsim.record import MOST
from mpsim.workload import gemm_flops

__all__ = ["Event", "is_kineto", "read_points", "stream_events"]

_CHUNK = 1 << 20
_LONGEST_HEAD = 1 << 26
_LONGEST_EVENT = 1 << 25
_SHOWN = 60  # characters of what cannot be read
_MICRO = 1e-6
_LONGEST_US = 1e15  # a recording of thirty years
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_MOST_SAMPLES = 200  # of one shape: more say nothing new
_ELEMENT_BYTES = {"float": 4, "bfloat16": 2, "half": 2, "double": 8, "int": 4, "long": 8, "byte": 1}
_TYPES = {
    "float": "float32",
    "c10::bfloat16": "bfloat16",
    "c10::half": "float16",
    "double": "float64",
}
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
_FEWEST_DIMS = 2
_LONGEST_SIDE = 1 << 40
_MOST_RANKS = 1_000_000

Event = dict[str, Any]


def is_kineto(head: Head) -> bool:
    """Whether a file begins as traces of torch.profiler do."""
    marks = ("traceEvents", '"schemaVersion"', "deviceProperties")
    return any(mark in head.text for mark in marks)


def stream_events(path: Path) -> Iterator[Event]:
    """Every event of a trace, one at a time; the first one is the head of the file under the name ``head``.

    Raises
    ------
    CalibrationError
        If there are no events, or the file breaks off.
    """
    with open_text(path, needed="a Kineto trace") as stream:
        yield from _events(path, stream)


def _events(path: Path, stream: IO[str]) -> Iterator[Event]:
    buffer, place = stream.read(_CHUNK), 0
    while (found := _EVENTS.search(buffer, place)) is None:
        place = max(0, len(buffer) - _CHUNK)  # what was looked at is not looked at again
        chunk_text = stream.read(_CHUNK)
        if not chunk_text or len(buffer) > _LONGEST_HEAD:
            raise CalibrationError(
                f"{path}: has no traceEvents; needed a trace of torch.profiler (export_chrome_trace)"
            )
        buffer += chunk_text
    yield {"ph": "head", "text": buffer[: found.start()]}
    yield from _decoded(path, stream, buffer, found.end())


def _decoded(path: Path, stream: IO[str], buffer: str, place: int) -> Iterator[Event]:
    """Objects of a list, decoded as they arrive; what was decoded is forgotten chunk by chunk."""
    decode = json.JSONDecoder().raw_decode
    chunk, count = _CHUNK, 0
    while True:
        while place < len(buffer) and buffer[place] in ", \t\r\n":
            place += 1
        if place < len(buffer) and buffer[place] == "]":
            return
        try:
            event, place = decode(buffer, place)
            chunk, count = _CHUNK, count + 1
        except RecursionError as error:
            raise CalibrationError(
                f"{path}: event {count + 1} is nested deeper than can be read"
            ) from error
        except json.JSONDecodeError as error:
            if len(buffer) - place > _LONGEST_EVENT:
                raise CalibrationError(
                    f"{path}: event {count + 1} is no JSON object: {shown(buffer[place : place + _SHOWN])}"
                ) from error
            chunk_text = stream.read(chunk)
            if not chunk_text:
                raise CalibrationError(
                    f"{path}: truncated, the list of events breaks off after {count}; export the trace again"
                ) from error
            buffer, place, chunk = buffer[place:] + chunk_text, 0, 2 * chunk
            continue
        except ValueError as error:  # Python reads no integers of thousands of digits
            raise CalibrationError(
                f"{path}: event {count + 1} has a number too long to read"
            ) from error
        if isinstance(event, dict):
            yield event


class _Samples:
    """Durations by what they are of."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.times: dict[tuple[Any, ...], list[float]] = {}
        self.kernels = 0

    def add(self, key: tuple[Any, ...], seconds: float) -> None:
        times = self.times.setdefault(key, [])
        if len(times) < _MOST_SAMPLES:
            times.append(seconds)


def read_points(source: Head, options: Options) -> Points:
    """Read matrix products and collectives of a trace.

    Raises
    ------
    CalibrationError
        If it breaks off, a duration is no number, or no event says of what shape it is.
    """
    del options
    path = source.path
    samples, operators, head = _Samples(path.name), {}, ""
    on_gpu = False
    for event in stream_events(path):
        if event.get("ph") == "head":
            head = event["text"]
            on_gpu = bool(re.search(r'"deviceProperties"\s*:\s*\[\s*\{', head))
            continue
        if event.get("ph") != "X":
            continue
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        category = event.get("cat")
        if category == "cpu_op" and event.get("name") in _PRODUCTS:
            shape = _product(str(event["name"]), args)
            if shape is not None:
                operators[_external(args)] = shape
                if not on_gpu:
                    samples.add(shape, _duration(path, event))
        elif category == "kernel":
            samples.kernels += 1
            _take_kernel(path, event, args, operators, samples)
    points = tuple(_points(samples))
    if not points:
        raise CalibrationError(
            f"{path}: no event has a shape ({samples.kernels} kernels without); profile with record_shapes=True"
        )
    waiting = f"{path}: collectives in a trace include waiting for other ranks; measure them alone"
    communicates = any(point.family == "collectives" for point in points)
    return Points(
        str(path),
        "torch.profiler",
        points,
        device_name=_device(head),
        library="nccl" if communicates else "",
        warnings=(waiting,) if communicates else (),
    )


def _take_kernel(
    path: Path,
    event: Event,
    args: Mapping[str, Any],
    operators: Mapping[Any, Any],
    samples: _Samples,
) -> None:
    if "Collective name" in args:
        key = _message(args)
        if key is not None:
            samples.add(key, _duration(path, event))
        return
    shape = operators.get(_external(args))
    if shape is not None and _is_product(str(event.get("name", ""))):
        samples.add(shape, _duration(path, event))


def _external(args: Mapping[str, Any]) -> int | str:
    """Number that joins a kernel to its operator."""
    number = args.get("External id")
    return number if isinstance(number, int | str) else ""


def _is_product(name: str) -> bool:
    """Whether a kernel does the product of its operator, rather than a copy or a bias on the way."""
    return any(word in name.lower() for word in ("gemm", "cutlass", "matmul", "nvjet", "cublas"))


def _duration(path: Path, event: Event) -> float:
    value: Any = event.get("dur")
    if type(value) not in (int, float) or not 0 <= value < _LONGEST_US:
        raise CalibrationError(
            f"{path}: event {shown(event.get('name'))} has dur {shown(value)}; needed a number of microseconds"
        )
    return float(value) * _MICRO


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= _LONGEST_SIDE
        for side in value
    )


def _product(name: str, args: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Key of a product: batch, m, n, k and the number format."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    sides = [shape for shape in dims if _is_shape(shape) and len(shape) >= _FEWEST_DIMS]
    if len(sides) < _FEWEST_DIMS:
        return None
    a, b = sides[-2], sides[-1]
    batch = a[0] if name == "aten::bmm" else 1
    named = [kind.lower() for kind in types if isinstance(kind, str) and kind.lower() in _TYPES]
    if not named:
        return None
    return ("gemm", _TYPES[named[-1]], int(batch), int(a[-2]), int(b[-1]), int(a[-1]))


def _message(args: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Key of a collective: name, bytes as our sizes count them, ranks."""
    name = collective_name(str(args["Collective name"]).removeprefix("_"))
    element = _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    sent, received = args.get("In msg nelems"), args.get("Out msg nelems")
    ranks = args.get("Group size")
    if name is None or element is None or not isinstance(ranks, int) or not 1 < ranks < _MOST_RANKS:
        return None
    counts = [count for count in (sent, received) if isinstance(count, int) and count < MOST]
    if not counts or max(counts) < 1:
        return None
    return ("collective", name, max(counts) * element, ranks)


def _points(samples: _Samples) -> Iterator[MeasuredPoint]:
    for key, times in samples.times.items():
        positive = [seconds for seconds in times if seconds > 0]
        if not positive:
            continue
        if key[0] == "collective":
            _, name, size, ranks = key
            fastest = [min(positive)]  # the others waited
            yield collective_point(name, size, fastest, ranks=ranks, domains=1, place=samples.file)
            continue
        _, dtype, batch, m, n, k = key
        shape = {"m": m, "n": n, "k": k, "batch": batch}
        yield kernel_point(
            "gemm",
            shape,
            positive,
            dtype=dtype,
            place=samples.file,
            phase="sustained",
            flops=gemm_flops(m, n, k, batch),
        )


def _device(head: str) -> str:
    start = re.search(r'"deviceProperties"\s*:\s*\[', head)
    match = start and re.search(r'"name"\s*:\s*"([^"]{0,200})"', head[start.end() :])
    return match[1] if match else ""
