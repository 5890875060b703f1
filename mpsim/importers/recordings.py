"""Recordings of a step: traces of torch.profiler, SQLite exports of Nsight Systems, timelines of Horovod.

Each says what a device did and for how long: compute and communication kernels and what they overlap, actions of a pipeline in their order, collectives. Host names
and paths of the recording are not kept.

References
----------
pytorch/kineto and ``torch/csrc/profiler`` of torch 2.13; NVIDIA Nsight Systems, SQLite schema; horovod/horovod 2626dc87, ``timeline.cc``, ``common.h``;
facebookresearch/HolisticTraceAnalysis f4d0062, ``utils.py`` (classes of kernels).
"""

from __future__ import annotations

import array
import contextlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mpsim.errors import FormatError
from mpsim.importers.imported import Recorded, collective_name
from mpsim.importers.kineto import Event, is_kineto, read_points, stream_events
from mpsim.importers.source import Format, Head, Options, open_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["HOROVOD", "KINETO", "NSYS", "busy_time", "overlap", "read_trace", "union"]

_MICRO, _NANO = 1e-6, 1e-9
_ACTION = re.compile(r"PP:(\d+)(F|I|B|W)(\d+)$")
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LARGEST_LINE: Final = 1 << 20
_SQLITE = b"SQLite format 3\0"
Interval = tuple[float, float]
Array: TypeAlias = "npt.NDArray[np.float64]"


def union(intervals: Sequence[float] | Array) -> Array:
    """Intervals joined where they touch, in order.

    Parameters
    ----------
    intervals : sequence of float
        Start and end of each, one after the other.

    Returns
    -------
    ndarray of shape (n, 2)

    Examples
    --------
    >>> union([3, 4, 0, 1, 0.5, 2]).tolist()
    [[0.0, 2.0], [3.0, 4.0]]
    """
    import numpy as np

    pairs = (
        np.frombuffer(intervals)
        if isinstance(intervals, array.array)
        else np.array(intervals, dtype=float)
    )
    pairs = pairs.reshape(-1, 2)
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(pairs[:, 1])
    first = np.append(True, pairs[1:, 0] > ends[:-1])  # no interval before reaches it
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pairs) - 1)
    return np.column_stack([pairs[first, 0], ends[last]])


def busy_time(intervals: Sequence[float] | Array) -> float:
    """Time that any of the intervals covers."""
    joined = union(intervals)
    return float((joined[:, 1] - joined[:, 0]).sum())


def overlap(left: Sequence[float], right: Sequence[float]) -> float:
    """Time that intervals of both sides cover.

    Examples
    --------
    >>> overlap([0, 2, 3, 5], [1, 4])
    2.0
    """
    import numpy as np

    together = busy_time(np.concatenate([union(left).ravel(), union(right).ravel()]))
    return max(0.0, busy_time(left) + busy_time(right) - together)


def kernel_class(name: str) -> str:
    """``communication``, ``memory`` or ``computation``, by the name of a kernel."""
    low = name.lower()
    if (
        low.startswith(("nccl", "rccl"))
        or "ncclkernel" in low
        or "nccldevkernel" in low
        or "msccl" in low
    ):
        return "communication"
    return "memory" if low.startswith(("memcpy", "memset", "[cuda mem", "dma")) else "computation"


def _busy(kernels: Mapping[str, Sequence[float]], scale: float) -> dict[str, float]:
    """Busy times of one device and what overlaps [s]."""
    compute, communication = kernels.get("computation", ()), kernels.get("communication", ())
    return {
        "compute_s": busy_time(compute) * scale,
        "communication_s": busy_time(communication) * scale,
        "overlap_s": overlap(compute, communication) * scale,
    }


# --- torch.profiler


def read_trace(head: Head, options: Options) -> Recorded:
    """Read a trace of torch.profiler, event by event.

    Raises
    ------
    CalibrationError
        If there are no events, or the file breaks off.
    """
    trace = _Trace()
    events = stream_events(head.path)
    rank, ranks, base = _header(next(events)["text"])
    for event in events:
        if event.get("ph") == "X":
            trace.add(event)
            rank = _stated_rank(event) if rank is None else rank
    facts: dict[str, Any] = {
        "rank": rank,
        "ranks": ranks if ranks is not None else options.ranks,
        "base_ns": base,
    }
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
    )


def _header(text: str) -> tuple[int | None, int | None, int | None]:
    """Rank, number of ranks and base of the clock, of what stands before the events."""
    block = re.search(r'"distributedInfo"\s*:\s*(\{)', text)
    info: Any = {}
    if block is not None:
        with contextlib.suppress(json.JSONDecodeError):
            info, _ = json.JSONDecoder().raw_decode(text, block.start(1))
    base = re.search(r'"baseTimeNanoseconds"\s*:\s*(\d{1,20})', text)
    numbers = [info.get(key) if isinstance(info, dict) else None for key in ("rank", "world_size")]
    rank, ranks = (
        number if isinstance(number, int) and not isinstance(number, bool) else None
        for number in numbers
    )
    return rank, ranks, int(base[1]) if base else None


def _stated_rank(event: Event) -> int | None:
    args = event.get("args")
    rank = args.get("Rank") if isinstance(args, dict) else None
    return rank if isinstance(rank, int) else None


class _Trace:
    """Sums over the events of one trace."""

    def __init__(self) -> None:
        self.kernels: dict[
            Any, dict[str, array.array[float]]
        ] = {}  # 16 B a kernel: traces have millions
        self.actions: dict[str, list[tuple[float, str]]] = {"host": [], "device": []}
        self.collectives: Counter[tuple[str, int, int]] = Counter()
        self.launched: Counter[tuple[str, int]] = Counter()
        self.steps: list[Interval] = []
        self.wrong = 0

    def add(self, event: Event) -> None:
        """Take one complete event."""
        start, length = event.get("ts"), event.get("dur")
        if not (_number(start) and _number(length)):
            self.wrong += 1
            return
        name, category = str(event.get("name", "")), event.get("cat")
        assert isinstance(start, int | float)
        assert isinstance(length, int | float)
        if category in _KERNELS:
            self._kernel(event, name, (start, start + length))
        elif category in ("user_annotation", "gpu_user_annotation"):
            if match := _ACTION.match(name):
                where = "device" if category == "gpu_user_annotation" else "host"
                self.actions[where].append((start, "".join(match.groups())))
            elif name.startswith("ProfilerStep#") and category == "user_annotation":
                self.steps.append((start, start + length))
            elif name.startswith("gloo:"):
                self._collective(name.removeprefix("gloo:"), event.get("args"))

    def _kernel(self, event: Event, name: str, interval: Interval) -> None:
        args = event.get("args")
        device = (
            args.get("device", event.get("pid")) if isinstance(args, dict) else event.get("pid")
        )
        kind = kernel_class(name)
        if str(device).isdigit():
            self.kernels.setdefault(device, {}).setdefault(kind, array.array("d")).extend(interval)
        if kind == "communication" and isinstance(args, dict) and "Collective name" in args:
            size = args.get("In msg nelems")
            group = args.get("Group size")
            word = (
                collective_name(str(args["Collective name"])) or str(args["Collective name"])[:40]
            )
            self.collectives[
                word, size if isinstance(size, int) else 0, group if isinstance(group, int) else 0
            ] += 1

    def _collective(self, word: str, args: object) -> None:
        dims = args.get("Input Dims") if isinstance(args, dict) else None
        count = 0
        if isinstance(dims, list):
            for shape in dims:
                if (
                    isinstance(shape, list)
                    and shape
                    and all(isinstance(size, int) for size in shape)
                ):
                    product = 1
                    for size in shape:
                        product *= size
                    count += product
        self.launched[collective_name(word) or word[:40], count] += 1

    def facts(self) -> dict[str, Any]:
        """Everything that was found, by the names of the output."""
        found: dict[str, Any] = {}
        actions = self.actions["device"] or self.actions["host"]
        if actions:
            found["actions"] = [token for _, token in sorted(actions)]
        if self.kernels:
            device = min(self.kernels, key=str)
            found |= _busy(self.kernels[device], _MICRO)
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


def _number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e18
        and (not isinstance(value, float) or value == value)
    )


# --- Horovod


def _is_horovod(head: Head) -> bool:
    return (
        head.text.lstrip().startswith("[")
        and re.search(
            r"NEGOTIATE_|process_name|start_time_since_epoch_in_micros|CYCLE_START|MEMCPY_IN_FUSION_BUFFER",
            head.text,
        )
        is not None
    )


def _read_horovod(head: Head, options: Options) -> Recorded:
    """Read a timeline of Horovod, whole or cut: a run that was killed has no closing bracket.

    Raises
    ------
    FormatError
        If a line is no event, or there is no tensor.
    """
    names: dict[int, str] = {}
    stacks: dict[int, list[tuple[str, float]]] = {}
    spans: dict[str, dict[Interval, int]] = {}
    waits: list[float] = []
    for event in _lines(head.path):
        place, phase = event.get("pid"), event.get("ph")
        if not isinstance(place, int):
            continue
        if phase == "M":
            args = event.get("args")
            if event.get("name") == "process_name" and isinstance(args, dict):
                names[place] = str(args.get("name", ""))
            continue
        time = event.get("ts")
        if not _number(time):
            continue
        assert isinstance(time, int | float)
        name = str(event.get("name", ""))
        if phase == "B":
            stacks.setdefault(place, []).append((name, time))
        elif phase == "E" and stacks.get(place):
            opened, start = stacks[place].pop()
            _span(opened, (start, time), spans, waits)
        elif phase == "X" and _number(event.get("dur")):
            _span(name, (time, time + event["dur"]), spans, waits)
    tensors = {place: name for place, name in names.items() if place or stacks.get(place)}
    if not tensors and not spans:
        raise FormatError(f"{head.path}: names no tensor; needed a timeline of Horovod")
    every = [interval for found in spans.values() for interval in found]
    facts: dict[str, Any] = {
        "tensors": len(tensors),
        "fused": sum(count > 1 for found in spans.values() for count in found.values()),
        "collective_s": sum(end - start for start, end in every) * _MICRO,
        "wait_s": sum(waits) * _MICRO,
        "collectives": [
            {"kind": kind, "times": len(found), "tensors": sum(found.values())}
            for kind, found in spans.items()
        ],
    }
    if options.ranks is not None:
        facts["ranks"] = options.ranks
    cut = sum(len(stack) for stack in stacks.values())
    warnings = (f"{cut} operations were under way where the file ends",) if cut else ()
    return Recorded(
        format="horovod",
        tool="Horovod timeline",
        files=(str(head.path),),
        facts=facts,
        warnings=warnings,
    )


def _span(
    name: str, interval: Interval, spans: dict[str, dict[Interval, int]], waits: list[float]
) -> None:
    """Count an interval: fused tensors repeat that of their collective."""
    if re.match(r"(NCCL|MPI|GLOO|CCL|DDL)_(?!BCAST_WAIT)\w+", name):
        found = spans.setdefault(name, {})
        found[interval] = found.get(interval, 0) + 1
    elif name.startswith("NEGOTIATE_"):
        waits.append(interval[1] - interval[0])


def _lines(path: Path) -> Iterator[Event]:
    """Events of a list, one a line; the last may be cut."""
    decode = json.JSONDecoder().raw_decode
    with open_text(path, needed="a timeline of Horovod") as stream:
        number = 0
        while line := stream.readline(_LARGEST_LINE):
            number += 1
            place = 0
            text = line.strip().lstrip("[").strip().rstrip(",]").strip()
            while place < len(text):
                try:
                    event, place = decode(text, place)
                except (json.JSONDecodeError, RecursionError) as error:
                    if stream.readline(_LARGEST_LINE):
                        raise FormatError(
                            f"{path}:{number}: is no event; the file is damaged"
                        ) from error
                    return
                while place < len(text) and text[place] in ", \t":
                    place += 1
                if isinstance(event, dict):
                    yield event


# --- Nsight Systems


def is_sqlite(path: Path) -> bool:
    """Whether a file is a database of SQLite."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as raw:
            return raw.read(len(_SQLITE)) == _SQLITE
    except (OSError, ValueError):
        return False


def _read_nsys(head: Head, options: Options) -> Recorded:
    """Read what ``nsys export --type sqlite`` wrote.

    Raises
    ------
    FormatError
        If it is damaged, or holds no kernels.
    """
    del options
    try:
        with contextlib.closing(
            sqlite3.connect(f"{head.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as base:
            return _nsys(head.path, base)
    except sqlite3.Error as error:
        raise FormatError(
            f"{head.path}: damaged, or no export of Nsight Systems: {error}"
        ) from error


def _nsys(path: Path, base: sqlite3.Connection) -> Recorded:
    tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        raise FormatError(
            f"{path}: holds no kernels (no table CUPTI_ACTIVITY_KIND_KERNEL); record with --trace=cuda and export again"
        )
    columns = {row[1] for row in base.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    named = next((column for column in ("demangledName", "shortName") if column in columns), None)
    if named is None or not {"start", "end"} <= columns:
        raise FormatError(
            f"{path}: its kernels have no names or times; export again with this version of nsys"
        )
    device = "deviceId" if "deviceId" in columns else "0"
    names = dict(base.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    kernels: dict[Any, dict[str, array.array[float]]] = {}
    count = 0
    for start, end, where, name in base.execute(
        f"SELECT start, end, {device}, {named} FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ):
        if not (_number(start) and _number(end)) or end < start:
            continue
        count += 1
        kernels.setdefault(where, {}).setdefault(
            kernel_class(str(names.get(name, name))), array.array("d")
        ).extend((start, end))
    if not count:
        raise FormatError(f"{path}: holds no kernels; record a step with --trace=cuda")
    first = min(kernels, key=str)
    facts: dict[str, Any] = {
        "devices": len(kernels),
        "kernels": count,
        **_busy(kernels[first], _NANO),
    }
    if "NVTX_EVENTS" in tables:
        facts |= _ranges(base)
    return Recorded(format="nsys", tool="Nsight Systems", files=(str(path),), facts=facts)


def _ranges(base: sqlite3.Connection) -> dict[str, Any]:
    """Actions of a pipeline among the ranges of NVTX."""
    columns = {row[1] for row in base.execute("PRAGMA table_info(NVTX_EVENTS)")}
    if not {"start", "text"} <= columns:
        return {}
    joined = "textId" in columns
    query = (
        "SELECT n.start, COALESCE(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
        if joined
        else "SELECT start, text FROM NVTX_EVENTS"
    )
    found = []
    for start, text in base.execute(query):
        match = _ACTION.match(str(text)) if _number(start) else None
        if match is not None:
            found.append((start, "".join(match.groups())))
    return {"actions": [token for _, token in sorted(found)]} if found else {}


KINETO: Final = Format(
    "kineto", "trace of torch.profiler", "points", is_kineto, read_points, read_trace
)
HOROVOD: Final = Format("horovod", "timeline of Horovod", "timeline", _is_horovod, _read_horovod)
NSYS: Final = Format(
    "nsys",
    "SQLite export of Nsight Systems",
    "timeline",
    lambda head: is_sqlite(head.path),
    _read_nsys,
)
