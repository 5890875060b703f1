"""Traces of torch.profiler read for the step: rank and groups, actions of the pipeline in their order, kernels by class, collectives, steps.

The file is read as a stream, event by event; of kernels only their times are kept. Host names and paths of the recording are not kept.

References
----------
pytorch/kineto and ``torch/csrc/profiler`` of torch 2.13; facebookresearch/HolisticTraceAnalysis f4d0062, ``utils.py`` (classes of kernels).
"""

from __future__ import annotations

import array
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mpsim.formats.imported import Recorded, collective_name
from mpsim.formats.kineto import Event, is_kineto, read_points, stream_events
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.spans import (
    Dense,
    Span,
    Spans,
    axis_of,
    busy_facts,
    is_number,
    joined,
    kernel_class,
)
from mpsim.record import MOST

__all__ = ["KINETO", "read_trace"]

_MICRO = 1e-6
_RANGE = re.compile(
    r"PP:(\d{1,6})(F|I|B|W|UNSHARD|REDUCE_GRAD|SEND_F|SEND_B|RECV_F|RECV_B)(\d{0,9})$"
)
_STEP = re.compile(r"(?:ProfilerStep|\w*[sS]tep)#(\d+)$")
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_KINDS = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}
_LAUNCHES = ("c10d::", "_c10d_functional::", "record_param_comms", "gloo:")
_OPTIMIZER = "Optimizer.step#"


def read_trace(head: Head, options: Options) -> Recorded:
    """Read a trace of torch.profiler, event by event.

    Raises
    ------
    CalibrationError
        If there are no events, or the file breaks off.
    """
    events = stream_events(head.path)
    opening = next(events)["text"]
    info, base = _header(opening)
    rank, ranks = _whole(info.get("rank")), _whole(info.get("world_size"))
    trace = _Trace(keeps=options.spans)
    for event in events:
        if event.get("ph") == "X":
            trace.add(event)
            rank = _stated_rank(event) if rank is None else rank
    groups = _groups(info)
    facts: dict[str, Any] = {
        "rank": rank,
        "ranks": ranks if ranks is not None else options.ranks,
        "base_ns": base,
    }
    if groups:
        facts["groups"] = [
            {"name": name, "ranks": list(members)} for name, members in groups.items()
        ]
    facts |= trace.facts()
    warnings = []
    if rank is None:
        warnings.append(
            "the trace does not say which rank it is of; torch writes distributedInfo from 2.1 on"
        )
    if trace.wrong:
        warnings.append(f"{trace.wrong} events without a time were left out")
    return Recorded(
        format="kineto",
        tool="torch.profiler",
        files=(str(head.path),),
        facts={key: value for key, value in facts.items() if value is not None},
        warnings=tuple(warnings),
        spans=(trace.spans(rank, base or 0, groups),) if options.spans else (),
    )


def _header(text: str) -> tuple[Mapping[str, Any], int | None]:
    """Block about the job, and base of the clock [ns], of what stands before the events."""
    block = re.search(r'"distributedInfo"\s*:\s*(\{)', text)
    info: Any = {}
    if block is not None:
        with contextlib.suppress(ValueError, RecursionError):
            info, _ = json.JSONDecoder().raw_decode(text, block.start(1))
    base = re.search(r'"baseTimeNanoseconds"\s*:\s*(\d{1,20})', text)
    return info if isinstance(info, dict) else {}, int(base[1]) if base else None


def _whole(value: object) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST
    return value if fits else None  # type: ignore[return-value] # a number, as `fits` says


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _groups(info: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Members of every group that the trace lists; lists that were shortened are left out."""
    listed = info.get("pg_config")
    found: dict[str, tuple[int, ...]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks")
        if isinstance(ranks, list) and ranks and all(_whole(rank) is not None for rank in ranks):
            found[_text(entry.get("pg_name")) or str(len(found))] = tuple(ranks)
    return found


def _stated_rank(event: Event) -> int | None:
    args = event.get("args")
    return _whole(args.get("Rank")) if isinstance(args, dict) else None


class _Trace:
    """Sums over the events of one trace, and where spans are kept what happened when.

    Parameters
    ----------
    keeps : bool
        Whether spans are kept.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        # 16 B a kernel: traces have millions
        self.kernels: dict[Any, dict[str, array.array[float]]] = {}
        self.ranges: dict[str, list[tuple[float, float, str, str, str]]] = {
            "host": [],
            "device": [],
        }
        self.optimizer: dict[str, list[tuple[float, float]]] = {"host": [], "device": []}
        self.collectives: Counter[tuple[str, int, int]] = Counter()
        self.launched: Counter[tuple[str, int]] = Counter()
        self.calls: list[Span] = []
        self.operators: array.array[float] = array.array("d")
        self.steps: list[tuple[float, float]] = []
        self.wrong = 0

    def add(self, event: Event) -> None:
        """Take one complete event."""
        start, length = event.get("ts"), event.get("dur")
        if not (is_number(start) and is_number(length)) or length < 0:
            self.wrong += 1
            return
        name, category = _text(event.get("name")), event.get("cat")
        if isinstance(category, str) and category in _KERNELS:
            self._kernel(event, name, start, start + length)
        elif category in ("user_annotation", "gpu_user_annotation"):
            where = "device" if category == "gpu_user_annotation" else "host"
            self._annotation(event, name, where, start, start + length)
        elif (
            self.keeps
            and category == "cpu_op"
            and not self.kernels
            and not name.startswith(_LAUNCHES)
        ):
            self.operators.extend((start, start + length))

    def _annotation(self, event: Event, name: str, where: str, start: float, end: float) -> None:
        if match := _RANGE.match(name):
            stage, what, microbatch = match.groups()
            if bool(microbatch) != (what in ("UNSHARD", "REDUCE_GRAD")):
                self.ranges[where].append((start, end, stage, what, microbatch))
        elif name.startswith("gloo:"):
            self._collective(name.removeprefix("gloo:"), event.get("args"), start, end)
        elif name.startswith(_OPTIMIZER):
            self.optimizer[where].append((start, end))
        elif where == "host" and _STEP.match(name):
            self.steps.append((start, end))

    def _kernel(self, event: Event, name: str, start: float, end: float) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        device = args.get("device", event.get("pid"))
        kind = kernel_class(name)
        if _whole(device) is not None or (isinstance(device, str) and device.isdigit()):
            times = self.kernels.setdefault(device, {}).setdefault(kind, array.array("d"))
            times.extend((start, end))
        if kind == "communication":
            size, group = _whole(args.get("In msg nelems")), _whole(args.get("Group size"))
            stated = _text(args.get("Collective name")) or _kernel_word(name)
            word = collective_name(stated.strip("_")) or stated[:40]
            if "Collective name" in args:
                self.collectives[word, size or 0, group or 0] += 1
            if self.keeps:
                described = args.get("Process Group Description") or args.get("Process Group Name")
                self._call(word, start, end, size or 0, group or 0, _text(described))

    def _collective(self, word: str, args: object, start: float, end: float) -> None:
        dims = args.get("Input Dims") if isinstance(args, dict) else None
        count = 0
        for shape in dims if isinstance(dims, list) else []:
            if isinstance(shape, list) and shape and all(_whole(size) for size in shape):
                product = 1
                for size in shape:
                    product *= size
                count = min(count + product, MOST)
        name = collective_name(word) or word[:40]
        self.launched[name, count] += 1
        if self.keeps:
            # a send or a receive of gloo lasts until somebody waits for it: its range says when it was over
            self._call(word if word in ("send", "recv") else name, start, end, count, 0, "")

    def _call(self, word: str, start: float, end: float, size: int, ranks: int, group: str) -> None:
        sends = word in ("send", "recv", "send_recv")
        axis = "pp" if sends else axis_of(group)
        kind = "send" if sends else "collective"
        self.calls.append(
            Span(start * _MICRO, end * _MICRO, kind, word, axis=axis, size=size, ranks=ranks)
        )

    @property
    def _seen(self) -> str:
        """Whether actions are those of the device, where it recorded any, or of the host."""
        return "device" if self.ranges["device"] else "host"

    def facts(self) -> dict[str, Any]:
        """Everything that was found, by the names of the output."""
        found: dict[str, Any] = {}
        actions = [entry for entry in sorted(self.ranges[self._seen]) if entry[3] in _KINDS]
        if actions:
            found["actions"] = ["".join(entry[2:]) for entry in actions]
        if self.kernels:
            device = min(self.kernels, key=str)
            found |= busy_facts(self.kernels[device], _MICRO)
        if self.collectives:
            found["collectives"] = [
                {"kind": kind, "times": times, "elements": size, "ranks": group}
                for (kind, size, group), times in self.collectives.items()
            ]
        elif self.launched:
            found["collectives"] = [
                {"kind": kind, "times": times, "elements": size}
                for (kind, size), times in self.launched.items()
            ]
        if self.steps:
            found["step_s"] = [(end - start) * _MICRO for start, end in sorted(self.steps)]
        return found

    def spans(self, rank: int | None, base: int, groups: Mapping[str, tuple[int, ...]]) -> Spans:
        """Everything that happened, by its start."""
        return Spans(
            name="a rank" if rank is None else f"rank {rank}",
            rank=rank,
            spans=tuple(sorted(self._spans(), key=lambda span: (span.start, span.end))),
            dense=tuple(self._dense()),
            steps=tuple((start * _MICRO, end * _MICRO) for start, end in sorted(self.steps)),
            groups=groups,
            base_ns=base,
        )

    def _dense(self) -> Iterator[Dense]:
        """Kernels and copies of the device, or operators of the host where there is none; actions stand for what computes."""
        has_actions = any(entry[3] in _KINDS for entry in self.ranges[self._seen])
        device = min(self.kernels, key=str) if self.kernels else None
        classes = {} if device is None else self.kernels[device]
        if not has_actions:
            times = self.operators if device is None else classes.get("computation")
            if times:
                name = "operators" if device is None else "kernels"
                yield joined(times, "compute", name, _MICRO)
        if copies := classes.get("memory"):
            yield joined(copies, "copy", "copies", _MICRO)

    def _spans(self) -> Iterator[Span]:
        messages = [entry for entry in self.ranges["host"] if entry[3].startswith("SEND")]
        for start, end, stage, what, microbatch in self.ranges[self._seen]:
            at, until = start * _MICRO, end * _MICRO
            number = int(microbatch) if microbatch else -1
            if what in _KINDS:
                yield Span(at, until, _KINDS[what], what, stage=int(stage), microbatch=number)
            elif what in ("UNSHARD", "REDUCE_GRAD"):
                name = "gather parameters" if what == "UNSHARD" else "reduce gradients"
                yield Span(at, until, "collective", name, axis="dp", stage=int(stage))
            elif what.startswith("SEND"):
                name = "send activation" if what.endswith("F") else "send gradient"
                yield Span(at, until, "send", name, axis="pp", stage=int(stage), microbatch=number)
        where = "device" if self.optimizer["device"] or self.kernels else "host"
        for start, end in self.optimizer[where]:
            yield Span(start * _MICRO, end * _MICRO, "optimizer", "optimizer step")
        # sends of a pipeline are in its ranges already
        yield from (call for call in self.calls if not (messages and call.kind == "send"))


def _kernel_word(name: str) -> str:
    """Collective in the name of a kernel such as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``."""
    found = re.search(
        r"(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Reduce|SendRecv)", name
    )
    return found[1] if found else name


KINETO: Final = Format(
    "kineto", "trace of torch.profiler", "points", is_kineto, read_points, read_trace
)
