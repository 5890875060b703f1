"""Traces of torch.profiler (Kineto), read as a stream, event by event: kernels by operator and
shape, or what happened in the step and when.

A trace of a training run is gigabytes; of kernels only their times are kept. Shapes are there when
the profiler ran with ``record_shapes=True``; without them a trace says how long kernels took, but
not of what, and nothing can be fitted. Host names and paths of the recording are not kept. Above
600 lines, as both readings share one stream of events.

References
----------
pytorch/kineto, ``libkineto/src/output_json.cpp``, ``torch/csrc/profiler`` of torch 2.13: cat
``cpu_op`` with args ``Input Dims``, ``Input type``, ``External id``; cat ``kernel`` with args
``External id``, and for NCCL ``Collective name``, ``In msg nelems``, ``Out msg nelems``, ``Group
size``, ``dtype``. HolisticTraceAnalysis f4d0062, ``utils.py`` (classes of kernels).
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from mpsim.errors import CalibrationError
from mpsim.formats import imported, spans
from mpsim.formats.source import Format, Head, Options, open_text
from mpsim.formats.words import DATA, table
from mpsim.inputs import LINE, LINES, MOST, shown
from mpsim.shipped import say
from mpsim.workload import gemm_flops

if TYPE_CHECKING:
    from mpsim.engine.cover import Cover

_CHUNK = 1 << 20
_LONGEST_HEAD = 1 << 26
_SHOWN = 60  # characters of what cannot be read
_MICRO = 1e-6
_LONGEST_US = 1e15  # a recording of thirty years
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_MOST_SAMPLES = 200  # of one shape: more say nothing new
_ELEMENT_BYTES = {"float": 4, "bfloat16": 2, "half": 2, "double": 8, "int": 4, "long": 8, "byte": 1}
_TYPES = table(DATA, "recordings")["types"]
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
_ROWS = table(DATA, "recordings")["rows"]
_HEAD_DIMS = 4
_FEWEST_DIMS = 2
_LONGEST_SIDE = 1 << 40
_MOST_RANKS = 1_000_000
_RANGE = re.compile(
    r"PP:(\d{1,6})(F|I|B|W|UNSHARD|REDUCE_GRAD|SEND_F|SEND_B|RECV_F|RECV_B)(\d{0,9})$"
)
_STEP = re.compile(r"(?:ProfilerStep|\w*[sS]tep)#(\d+)$")
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = ("c10d::", "_c10d_functional::", "record_param_comms", "gloo:")
_OPTIMIZER, _LOADER = "Optimizer.step#", "enumerate(DataLoader)"
_BACKWARD = "autograd::engine::evaluate_function"
_SYNCS = spans.SYNCS | {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"}
_ATTENTION = ("aten::_scaled_dot_product", "aten::scaled_dot_product")
_UNFUSED = "aten::_scaled_dot_product_attention_math"
_BITS = {"c10::half": 16, "c10::bfloat16": 16, "float": 32, "double": 64}
_STREAMS = tuple(
    f"aten::{word}"
    for word in (
        "gelu silu relu native_layer_norm native_dropout _fused_rms_norm rms_norm _softmax softmax"
        " _log_softmax nll_loss embedding index_select"
    ).split()
)
"""Host operators that move memory: activations, norms, softmax, loss, embedding, backward."""
_CLASSES = ("gemm", "attention", "memory")
_RANGE_NAMES = table(DATA, "recordings")["ranges"]

_NO_RANK = "the trace does not say which rank it is of; torch writes distributedInfo from 2.1 on"

Event = dict[str, Any]


def _is_kineto(head: Head) -> bool:
    """Whether a file begins as traces of torch.profiler do."""
    marks = ("traceEvents", '"schemaVersion"', "deviceProperties")
    return any(mark in head.text for mark in marks)


def stream_events(path: Path) -> Iterator[Event]:
    """Every event of a trace, one at a time; the first one is the head of the file under the name
    ``head``. CalibrationError if there are no events, or the file breaks off.
    """
    with open_text(path, needed="a Kineto trace") as stream:
        buffer, place = stream.read(_CHUNK), 0
        while (found := _EVENTS.search(buffer, place)) is None:
            place = max(0, len(buffer) - _CHUNK)  # what was looked at is not looked at again
            chunk_text = stream.read(_CHUNK)
            if not chunk_text or len(buffer) > _LONGEST_HEAD:
                raise CalibrationError(say("formats.no_events", path=path))
            buffer += chunk_text
        yield {"ph": "head", "text": buffer[: found.start()]}
        yield from _decoded(path, stream, buffer, found.end())


def _decoded(path: Path, stream: IO[str], buffer: str, place: int) -> Iterator[Event]:
    """Objects of a list, decoded as they arrive; what was decoded is forgotten chunk by chunk."""
    decode = json.JSONDecoder().raw_decode
    chunk, count = _CHUNK, 0

    def broken(why: str) -> CalibrationError:
        return CalibrationError(f"{path}: event {count + 1} {why}")

    while True:
        while place < len(buffer) and buffer[place] in ", \t\r\n":
            place += 1
        if place < len(buffer) and buffer[place] == "]":
            return
        if count == LINES:
            raise CalibrationError(say("formats.many_events", path=path, most=LINES))
        try:
            event, place = decode(buffer, place)
            chunk, count = _CHUNK, count + 1
        except RecursionError as error:
            raise broken("is nested deeper than can be read") from error
        except json.JSONDecodeError as error:
            if len(buffer) - place > LINE:
                beginning = shown(buffer[place : place + _SHOWN])
                raise broken(f"is no JSON object: {beginning}") from error
            chunk_text = stream.read(chunk)
            if not chunk_text:
                raise CalibrationError(say("formats.cut_trace", path=path, count=count)) from error
            buffer, place, chunk = buffer[place:] + chunk_text, 0, 2 * chunk
            continue
        except ValueError as error:  # Python reads no integers of thousands of digits
            raise broken("has a number too long to read") from error
        if isinstance(event, dict):
            yield event


def _args(event: Event) -> Mapping[str, object]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


# --- kernels and collectives, as points


class _Kernel(NamedTuple):
    """Computation of an operator: its name in `mpsim measure`, format, sizes and words."""

    op: str
    dtype: str
    shape: tuple[tuple[str, int], ...]
    way: str = ""
    backend: str = ""

    def point(self, times: list[float], place: str) -> imported.MeasuredPoint:
        """Its kernels' times as a measured point."""
        shape = dict(self.shape)
        variant: dict[str, str | int | float | bool] = {"pass": self.way} if self.way else {}
        variant |= {"backend": self.backend, "causal": True} if self.backend else {}
        point = partial(imported.kernel_point, self.op, shape, times, dtype=self.dtype, place=place)
        if self.op != "gemm":
            return point(variant=variant)
        flops = gemm_flops(shape["m"], shape["n"], shape["k"], shape["batch"])
        return point(variant=variant, phase="sustained", flops=flops)


class _Collective(NamedTuple):
    """A collective of so many bytes, as our sizes count them."""

    name: str
    size: int
    ranks: int

    def point(self, times: list[float], place: str) -> imported.MeasuredPoint:
        """The fastest of its times as a measured point: in the others somebody waited."""
        return imported.collective_point(
            self.name, self.size, [min(times)], ranks=self.ranks, domains=1, place=place
        )


def _read_points(source: Head, options: Options) -> imported.Points:
    """Read products and collectives of a trace. CalibrationError if it is cut or has no shapes."""
    del options
    path = source.path
    events = stream_events(path)
    head = next(events)["text"]
    device = re.search(r'"deviceProperties"\s*:\s*\[\s*\{', head)
    samples: dict[_Kernel | _Collective, list[float]] = {}
    operators: dict[int | str, _Kernel] = {}
    tokens: set[int] = set()  # rows of forward products, over which weight gradients are summed
    kernels = 0
    for event in events:
        if event.get("ph") != "X":
            continue
        args, category = _args(event), event.get("cat")
        timed: _Kernel | _Collective | None = None
        if category == "cpu_op":
            computed = _computed(_text(event.get("name")), args, tokens)
            if computed is not None:
                operators[_external(args)] = computed
                timed = None if device else computed
        elif category == "kernel":
            kernels += 1
            timed = _timed(event, args, operators)
        if timed is not None:
            times = samples.setdefault(timed, [])
            seconds = _duration(path, event)
            if len(times) < _MOST_SAMPLES:
                times.append(seconds)
    points = tuple(
        key.point(positive, path.name)
        for key, times in samples.items()
        if (positive := [seconds for seconds in times if seconds > 0])
    )
    if not points:
        raise CalibrationError(say("formats.no_shapes", path=path, kernels=kernels))
    waiting = f"{path}: collectives in a trace include waiting for other ranks; measure them alone"
    communicates = any(point.family == "collectives" for point in points)
    return imported.Points(
        str(path),
        "torch.profiler",
        points,
        device_name=_device(head),
        library="nccl" if communicates else "",
        warnings=(waiting,) if communicates else (),
    )


def _timed(
    event: Event, args: Mapping[str, object], operators: Mapping[int | str, _Kernel]
) -> _Kernel | _Collective | None:
    """Subject of a kernel's time: a collective, or its operator's, no copy or bias on the way."""
    if "Collective name" in args:
        return _message(args)
    name, computed = str(event.get("name", "")).lower(), operators.get(_external(args))
    words = spans.KERNEL_WORDS.get(computed.op if computed else "", ("",))
    return computed if any(word in name for word in words) else None


def _class_of(name: str) -> str:
    """Class of kernels that an operator is of; empty for the rest."""
    if name in _PRODUCTS:
        return "gemm"
    if name.startswith(_ATTENTION):
        return "attention"
    return "memory" if name.startswith(_STREAMS) else ""


def _widest(types: object) -> str:
    """Bits of the widest number format of an operator's inputs; empty where none is stated."""
    named = types if isinstance(types, list) else []
    bits = max((_BITS.get(word.lower(), 0) for word in named if isinstance(word, str)), default=0)
    return str(bits or "")


def _external(args: Mapping[str, object]) -> int | str:
    """Number that joins a kernel to its operator."""
    number = args.get("External id")
    return number if isinstance(number, int | str) else ""


def _duration(path: Path, event: Event) -> float:
    value: Any = event.get("dur")
    if type(value) not in (int, float) or not 0 <= value < _LONGEST_US:
        raise CalibrationError(
            say("formats.no_duration", path=path, name=shown(event.get("name")), got=shown(value))
        )
    return float(value) * _MICRO


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(
        type(side) is int and 1 <= side <= _LONGEST_SIDE for side in value
    )


def _computed(name: str, args: Mapping[str, object], tokens: set[int]) -> _Kernel | None:
    """Computation of an operator by shapes and formats of its operands, or None."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    backward = "_backward" in name
    op = "gemm" if name in _PRODUCTS else _ROWS.get(name.partition("_backward")[0], "")
    op = "attention" if name.startswith(_ATTENTION[0]) else op
    if not op or not isinstance(dims, list) or not isinstance(types, list):
        return None
    sides = [shape for shape in dims if _is_shape(shape) and len(shape) >= 1]
    named = [kind.lower() for kind in types if isinstance(kind, str) and kind.lower() in _TYPES]
    wide = [shape for shape in sides if len(shape) >= _FEWEST_DIMS]
    if not named or not wide:
        return None
    dtype, way = _TYPES[named[-1]], "backward" if backward else "forward"
    if op == "gemm":
        return _product(name, args, wide, dtype, tokens)
    if op == "attention":
        heads = [shape for shape in sides if len(shape) == _HEAD_DIMS][backward:]
        if len(heads) < _FEWEST_DIMS or heads[0][2] != heads[1][2]:
            return None
        (batch, count, sequence, width), few = heads[0], heads[1][1]
        sizes = (batch, count, few, sequence, width)
        shape = zip(("batch", "heads", "kv_heads", "sequence", "head_dim"), sizes, strict=True)
        return _Kernel(op, dtype, tuple(shape), way, "cudnn" if "cudnn" in name else "flash")
    rows, features = math.prod(wide[0][:-1]), wide[0][-1]
    if op == "add" and (len(sides) < _FEWEST_DIMS or sides[0] != sides[1]):
        return None
    named_sizes = {"tokens": rows, "features": features}
    if op == "cross_entropy":
        named_sizes = {"tokens": rows, "vocabulary": features}
    elif op == "embedding":
        table, ids = (rows, math.prod(sides[1])) if len(sides) > 1 and not backward else (1, rows)
        named_sizes = {"tokens": ids, "vocabulary": table, "features": features}
    return _Kernel(op, dtype, tuple(named_sizes.items()), way)


def _product(
    name: str, args: Mapping[str, object], sides: list[list[int]], dtype: str, tokens: set[int]
) -> _Kernel | None:
    """The product of the last two operands; summed over forward rows it is a weight's gradient."""
    if len(sides) < _FEWEST_DIMS:
        return None
    a, b = sides[-2], sides[-1]
    way = ""
    if args.get("Fwd thread id") == 0:
        tokens.add(a[-2])
        way = "forward"
    elif tokens:
        way = "wgrad" if a[-1] in tokens and a[-2] not in tokens else "dgrad"
    sizes = {"m": a[-2], "n": b[-1], "k": a[-1], "batch": a[0] if name == "aten::bmm" else 1}
    return _Kernel("gemm", dtype, tuple(sizes.items()), way)


def _message(args: Mapping[str, object]) -> _Collective | None:
    """The collective of a kernel of NCCL; None where it is none of ours or states no size."""
    name = imported.collective_name(str(args["Collective name"]).removeprefix("_"))
    element = _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    ranks = args.get("Group size")
    if name is None or element is None or not isinstance(ranks, int) or not 1 < ranks < _MOST_RANKS:
        return None
    stated = (args.get("In msg nelems"), args.get("Out msg nelems"))
    most = max((n for n in stated if isinstance(n, int) and n < MOST), default=0)
    return _Collective(name, most * element, ranks) if most >= 1 else None


def _device(head: str) -> str:
    start = re.search(r'"deviceProperties"\s*:\s*\[', head)
    match = start and re.search(r'"name"\s*:\s*"([^"]{0,200})"', head[start.end() :])
    return match[1] if match else ""


# --- the step


def _read_trace(head: Head, options: Options) -> imported.Recorded:
    """Read a trace event by event. CalibrationError without events, or if the file breaks off."""
    events = stream_events(head.path)
    opening = next(events)["text"]
    info = _distributed_info(opening)
    base = re.search(r'"baseTimeNanoseconds"\s*:\s*(\d{1,20})', opening)
    rank, ranks = _whole(info.get("rank")), _whole(info.get("world_size"))
    trace = _Trace(keeps=options.spans)
    for event in events:
        if event.get("ph") == "X":
            trace.add(event)
            rank = _whole(_args(event).get("Rank")) if rank is None else rank
    groups = _groups(info)
    facts: dict[str, Any] = {
        "rank": rank,
        "ranks": options.ranks if ranks is None else ranks,
        "base_ns": int(base[1]) if base else None,
        "groups": [{"name": name, "ranks": list(members)} for name, members in groups.items()]
        or None,
        **trace.facts(),
    }
    warnings = [_NO_RANK] if rank is None else []
    if trace.wrong:
        warnings.append(f"{trace.wrong} events without a time were left out")
    found = spans.Spans(
        name="a rank" if rank is None else f"rank {rank}",
        rank=rank,
        spans=tuple(sorted(trace.spans(), key=lambda span: (span.start, span.end))),
        dense=tuple(trace.dense()),
        steps=tuple(trace.steps()),
        groups=groups,
        marks=trace.marks(),
        base_ns=facts["base_ns"] or 0,
    )
    return imported.Recorded(
        format="kineto",
        tool="torch.profiler",
        files=(str(head.path),),
        facts={key: value for key, value in facts.items() if value is not None},
        warnings=tuple(warnings),
        spans=(found,) if options.spans else (),
    )


def _distributed_info(text: str) -> Mapping[str, object]:
    """Block about the job, of what stands before the events; empty where there is none."""
    block = re.search(r'"distributedInfo"\s*:\s*(\{)', text)
    info: object = {}
    if block is not None:
        with contextlib.suppress(ValueError, RecursionError):
            info, _ = json.JSONDecoder().raw_decode(text, block.start(1))
    return info if isinstance(info, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < MOST else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _groups(info: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Members of every group that the trace lists; lists that were shortened are left out."""
    listed = info.get("pg_config")
    found: dict[str, tuple[int, ...]] = {}
    for entry in listed if isinstance(listed, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and ranks and all(_whole(rank) is not None for rank in ranks):
            found[_text(entry.get("pg_name")) or str(len(found))] = tuple(ranks)
    return found


class _Range(NamedTuple):
    """A range of the pipeline [us]."""

    start: float
    end: float
    stage: str
    what: str
    microbatch: str


class _Trace:
    """Sums over the events of one trace, and where spans are kept what happened when."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.devices: dict[object, spans.Busy] = {}
        # of the host, and as the device ran them
        self.ranges: dict[str, list[_Range]] = {"host": [], "device": []}
        self.optimizer: dict[str, list[tuple[float, float]]] = {"host": [], "device": []}
        self.collectives: Counter[tuple[str, int, int]] = Counter()
        self.launched: Counter[tuple[str, int]] = Counter()
        self.calls: list[spans.Span] = []
        self.operators, self.leaves = spans.Busy(_MICRO), spans.Busy(_MICRO)
        self.marked: list[tuple[float, float]] = []
        self.seen_marks: dict[str, array.array[float]] = {}
        self.forward_ids: dict[int | str, float] = {}
        self.formats: dict[int | str, str] = {}
        self.wrong = 0

    def add(self, event: Event) -> None:
        """Take one complete event."""
        start, length = event.get("ts"), event.get("dur")
        if not (spans.is_number(start) and spans.is_number(length)) or length < 0:
            self.wrong += 1
            return
        name, category = _text(event.get("name")), _text(event.get("cat"))
        if category in _KERNELS:
            self._kernel(event, name, start, start + length)
        elif category in ("user_annotation", "gpu_user_annotation"):
            where = "device" if category == "gpu_user_annotation" else "host"
            self._annotation(event, name, where, start, start + length)
        elif category == "cpu_op" and name.startswith(_LAUNCHES):
            self._mark("sync" if name == "c10d::barrier" else "sent", start, start + length)
        elif category == "cpu_op" and self.keeps:
            # the host stands for what computes where no device does
            self.operators.compute(start, start + length)
            # the rest only call others, and wait
            if "::" in name and not name.startswith(_BACKWARD):
                self.leaves.compute(start, start + length)
            self._operator(event, name, start, start + length)
        elif name in _SYNCS:
            self._mark("sync", start, start + length)

    def _mark(self, kind: str, start: float, end: float) -> None:
        if self.keeps:
            self.seen_marks.setdefault(kind, array.array("d")).extend((start, end))

    def _operator(self, event: Event, name: str, start: float, end: float) -> None:
        """Marks of an operator: class, and forward, or a backward that runs forward ones again."""
        if name.startswith(_BACKWARD):
            self._mark("backward", start, end)
            return
        args = _args(event)
        if name in _SYNCS:
            self._mark("sync", start, end)
        elif kind := _class_of(name):
            self._mark(kind, start, end)
            odd = "unfused" if name == _UNFUSED else _widest(args.get("Input type"))
            if odd:
                self._mark(f"{kind} {odd}", start, end)
            if odd and (number := _external(args)):
                self.formats[number] = odd
        if args.get("Fwd thread id") == 0 and "Sequence number" in args:
            self._mark("forward", start, end)
            self.forward_ids[_external(args)] = start

    def _annotation(self, event: Event, name: str, where: str, start: float, end: float) -> None:
        if match := _RANGE.match(name):
            stage, what, microbatch = match.groups()
            if bool(microbatch) != (what in ("UNSHARD", "REDUCE_GRAD")):
                self.ranges[where].append(_Range(start, end, stage, what, microbatch))
        elif name.startswith("gloo:"):
            self._collective(name.removeprefix("gloo:"), _args(event), start, end)
        elif name.startswith(_LOADER) and where == "host":
            self._mark("loader", start, end)
        elif name.startswith(_OPTIMIZER):
            self.optimizer[where].append((start, end))
        elif where == "host" and _STEP.match(name):
            self.marked.append((start, end))

    def _kernel(self, event: Event, name: str, start: float, end: float) -> None:
        args = _args(event)
        device = args.get("device", event.get("pid"))
        known = _whole(device) is not None or (isinstance(device, str) and device.isdigit())
        busy = self.devices.setdefault(device, spans.Busy(_MICRO)) if known else spans.Busy(_MICRO)
        if (kind := busy.add(name, start, end)) != "communication":
            if kind == "computation" and self.keeps:
                self._class(name, _external(args), start, end)
            return
        size, ranks = _whole(args.get("In msg nelems")) or 0, _whole(args.get("Group size")) or 0
        stated = _text(args.get("Collective name")) or spans.kernel_word(name)
        word = imported.collective_name(stated.strip("_")) or stated[:40]
        if "Collective name" in args:
            self.collectives[word, size, ranks] += 1
        group = args.get("Process Group Description") or args.get("Process Group Name")
        self._call(word, start, end, size, axis=spans.axis_of(_text(group)), ranks=ranks)

    def _collective(self, word: str, args: Mapping[str, object], start: float, end: float) -> None:
        dims = args.get("Input Dims")
        count = 0
        for shape in dims if isinstance(dims, list) else []:
            if isinstance(shape, list) and shape and all(_whole(size) for size in shape):
                count = min(count + math.prod(shape), MOST)
        name = imported.collective_name(word) or word[:40]
        self.launched[name, count] += 1
        # gloo's send or receive lasts until somebody waits for it: its range says how long
        self._call(word if word in ("send", "recv") else name, start, end, count)

    def _call(
        self, word: str, start: float, end: float, size: int, *, axis: str = "dp", ranks: int = 0
    ) -> None:
        if self.keeps:
            at, until = start * _MICRO, end * _MICRO
            call = spans.Span.communication(at, until, word, axis=axis, size=size, ranks=ranks)
            self.calls.append(call)

    def _class(self, name: str, number: int | str, start: float, end: float) -> None:
        """Class of a kernel; a forward operator's runs again if that lies inside a backward."""
        kind = spans.kernel_class(name)
        self._mark(f"device {kind}", start, end)
        if number in self.formats:
            self._mark(f"device {kind} {self.formats[number]}", start, end)
        if number in self.forward_ids:
            self._mark("device forward", start, end)
            self._mark("device launched", self.forward_ids[number], 0.0)

    def marks(self) -> dict[str, spans.Array]:
        """Intervals that explain a step: a device's kernels, else host operators [s]."""
        import numpy as np

        from mpsim.engine.cover import Cover

        pairs = {
            kind: np.frombuffer(times).reshape(-1, 2) * _MICRO
            for kind, times in self.seen_marks.items()
        }
        empty = np.zeros((0, 2))
        backward = Cover(*pairs.pop("backward", empty).T)
        ran, began = pairs.pop("forward", empty), pairs.pop("device launched", empty)
        again = _joined(ran[backward.contains(ran[:, 0])], backward)
        if self.devices:
            pairs.pop("sent", None)
            again = pairs.pop("device forward", empty)[backward.contains(began[:, 0])]
            pairs = {kind: times for kind, times in pairs.items() if not kind.startswith(_CLASSES)}
            pairs |= dict.fromkeys(_CLASSES, empty)
            for kind in [kind for kind in pairs if kind.startswith("device ")]:
                pairs[kind.removeprefix("device ")] = pairs.pop(kind)
            pairs["host"] = next(
                (item.times for item in self.operators.dense("computation", "compute", "")), empty
            )
        received = [(call.start, call.end) for call in self.calls if call.name == "recv"]
        if received or "sent" in pairs:
            pairs["sent"] = np.concatenate(
                [pairs.get("sent", empty), np.array(received).reshape(-1, 2)]
            )
        busy = next((self._device or self.leaves).dense("computation", "compute", ""), None)
        return {**pairs, "recompute": again, **({"busy": busy.times} if busy else {})}

    @property
    def _seen(self) -> list[_Range]:
        """Ranges as the device ran them, where it recorded any, or of the host."""
        return self.ranges["device"] or self.ranges["host"]

    @property
    def _device(self) -> spans.Busy | None:
        """The first device; None where the host computes."""
        return self.devices[min(self.devices, key=str)] if self.devices else None

    def steps(self) -> list[tuple[float, float]]:
        """Start and end of every step that is marked [s]."""
        return [(start * _MICRO, end * _MICRO) for start, end in sorted(self.marked)]

    def facts(self) -> dict[str, object]:
        """Everything that was found, by the names of the output; None for what was not."""
        actions = [item for item in sorted(self._seen) if item.what in spans.ACTIONS]
        collectives: list[dict[str, object]] = [
            {"kind": kind, "times": times, "elements": size, "ranks": ranks}
            for (kind, size, ranks), times in self.collectives.items()
        ]
        collectives = collectives or [
            {"kind": kind, "times": times, "elements": size}
            for (kind, size), times in self.launched.items()
        ]
        lengths = [(end - start) * _MICRO for start, end in sorted(self.marked)]
        return {
            "actions": [f"{item.stage}{item.what}{item.microbatch}" for item in actions] or None,
            **(self._device.facts() if self._device else {}),
            "collectives": collectives or None,
            "step_s": lengths or None,
        }

    def dense(self) -> Iterator[spans.Dense]:
        """Kernels and copies of the device, or host operators; actions stand for what computes."""
        has_actions = any(item.what in spans.ACTIONS for item in self._seen)
        name = "kernels" if self._device else "operators"
        return spans.dense_of(self._device or self.operators, name, has_actions=has_actions)

    def spans(self) -> Iterator[spans.Span]:
        """Actions, collectives, messages and optimizer steps."""
        messages = [item for item in self.ranges["host"] if item.what in ("SEND_F", "SEND_B")]
        for item in self._seen:
            at, until, stage = item.start * _MICRO, item.end * _MICRO, int(item.stage)
            number = int(item.microbatch or -1)
            if item.what in spans.ACTIONS:
                yield spans.Span(
                    at, until, spans.ACTIONS[item.what], item.what, stage=stage, microbatch=number
                )
            elif item.what in _RANGE_NAMES:
                name, kind, axis = _RANGE_NAMES[item.what]
                yield spans.Span(at, until, kind, name, axis=axis, stage=stage, microbatch=number)
        where = "device" if self.optimizer["device"] or self.devices else "host"
        for start, end in self.optimizer[where]:
            yield spans.Span(start * _MICRO, end * _MICRO, "optimizer", "optimizer step")
        # sends of a pipeline are in its ranges already
        yield from (call for call in self.calls if not (messages and call.kind == "send"))


def _joined(times: spans.Array, pieces: Cover) -> spans.Array:
    """One interval a piece, from its begin to the last of `times` within, with what is between."""
    import numpy as np

    if not len(times):
        return times
    piece = np.searchsorted(pieces.start, times[:, 0], side="right")
    order = np.lexsort((times[:, 0], piece))
    first = np.flatnonzero(np.diff(piece[order], prepend=-1))
    begin = pieces.start[piece[order[first]] - 1]
    return np.column_stack([begin, np.maximum.reduceat(times[order, 1], first)])


KINETO: Final = Format("kineto", _is_kineto, _read_points, _read_trace)
