"""SQLite exports of Nsight Systems: kernels of every device, and actions of a pipeline among the
ranges of NVTX.

References
----------
NVIDIA Nsight Systems, SQLite schema: tables are made when there is something to put into them.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mpsim.errors import FormatError
from mpsim.formats.imported import Recorded, collective_name
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.spans import (
    ACTIONS,
    SYNCS,
    Array,
    Busy,
    Span,
    Spans,
    dense_of,
    is_number,
    kernel_class,
    kernel_word,
)
from mpsim.inputs import open_regular

_NANO = 1e-9
_ACTION = re.compile(r"PP:(\d+)(F|I|B|W)(\d+)$")
_STEP = re.compile(
    r"(?i)(?:profiler|train(?:ing)?|iteration|mpsim)?[_ ]?(?:step|iteration)[#_ :]*\d+$"
)
_SQLITE = b"SQLite format 3\0"
_LONGEST = 1 << 22  # bytes of a value: a name of a kernel has up to thousands
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def is_sqlite(path: Path) -> bool:
    """Whether a file is a database of SQLite."""
    try:
        with open_regular(path, needed="a database", error=FormatError) as raw:
            return bool(raw.read(len(_SQLITE)) == _SQLITE)
    except FormatError:  # said by the reader that is asked to read it
        return False


def _read_nsys(head: Head, options: Options) -> Recorded:
    """Read ``nsys export --type sqlite``. FormatError if it is damaged, or holds no kernels."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{head.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as base:
            # a made-up database runs nothing that it holds, and no value fills the memory
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
                base.execute(f"PRAGMA {pragma}")
            return _recorded(head.path, base, keeps=options.spans)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise FormatError(
            f"{head.path}: damaged, or no export of Nsight Systems: {error}"
        ) from error


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    """Columns of a table; empty where there is no such table.

    A view of that name is none: it runs what its author wrote, for ever if that is meant.
    """
    tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return (
        {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
        if table in tables
        else set()
    )


def _recorded(path: Path, base: sqlite3.Connection, *, keeps: bool) -> Recorded:
    columns = _columns(base, _KERNELS)
    if not columns:
        raise FormatError(
            f"{path}: holds no kernels (no table {_KERNELS}); record with --trace=cuda and export"
            " again"
        )
    named = next((column for column in ("demangledName", "shortName") if column in columns), None)
    if named is None or not {"start", "end"} <= columns:
        raise FormatError(
            f"{path}: its kernels have no names or times; export again with this version of nsys"
        )
    device = "deviceId" if "deviceId" in columns else "0"
    has_names = bool(_columns(base, "StringIds"))
    names = dict(base.execute("SELECT id, value FROM StringIds")) if has_names else {}
    devices: dict[object, Busy] = {}
    calls: dict[object, list[Span]] = {}
    marks: dict[object, dict[str, list[tuple[float, float]]]] = {}
    count = 0
    for start, end, where, name in base.execute(
        f"SELECT start, end, {device}, {named} FROM {_KERNELS}"
    ):
        if not (is_number(start) and is_number(end)) or end < start:
            continue
        count += 1
        word = str(names.get(name, name))
        kind = devices.setdefault(where, Busy(_NANO)).add(word, start, end)
        if keeps and kind == "communication":
            collective = collective_name(kernel_word(word)) or word[:40]
            calls.setdefault(where, []).append(
                Span.communication(start * _NANO, end * _NANO, collective, axis="dp")
            )
        elif keeps and kind == "computation":
            marked = marks.setdefault(where, {}).setdefault(kernel_class(word), [])
            marked.append((start * _NANO, end * _NANO))
    if not count:
        raise FormatError(f"{path}: holds no kernels; record a step with --trace=cuda")
    actions, steps = _ranges(base)
    # calls of several processes in one file do not say of which device they are
    host = _host(base, names) if keeps and len(devices) == 1 else {"host": []}
    facts: dict[str, object] = {
        "devices": len(devices),
        "kernels": count,
        **devices[min(devices, key=str)].facts(),
    }
    if actions:
        facts["actions"] = [span.token for span in actions]
    if steps:
        facts["step_s"] = [end - start for start, end in steps]
    own = actions if len(devices) == 1 else []  # ranges belong to a device where it is the only one
    spans = [
        _spans(
            where,
            devices[where],
            [*calls.get(where, []), *own],
            steps,
            {**host, **marks.get(where, {})},
        )
        for where in sorted(devices, key=str)
    ]
    return Recorded(
        format="nsys",
        tool="Nsight Systems",
        files=(str(path),),
        facts=facts,
        spans=tuple(spans) if keeps else (),
    )


def _spans(
    device: object,
    busy: Busy,
    spans: list[Span],
    steps: list[tuple[float, float]],
    marks: Mapping[str, list[tuple[float, float]]],
) -> Spans:
    """Everything that one device did; actions stand for what computes."""
    has_actions = any(span.is_action for span in spans)
    return Spans(
        f"device {device}",
        device if isinstance(device, int) else None,
        tuple(sorted(spans, key=lambda span: (span.start, span.end))),
        tuple(dense_of(busy, "kernels", has_actions=has_actions)),
        tuple(steps),
        marks={kind: _pairs(times) for kind, times in marks.items()}
        | {
            "busy": next(
                (item.times for item in busy.dense("computation", "compute", "")), _pairs([])
            )
        },
    )


def _pairs(times: list[tuple[float, float]]) -> Array:
    import numpy as np

    return np.array(times, float).reshape(-1, 2)


def _host(
    base: sqlite3.Connection, names: Mapping[int, str]
) -> dict[str, list[tuple[float, float]]]:
    """When the host was in a call of the runtime, to launch or to wait for the device [s]."""
    found: dict[str, list[tuple[float, float]]] = {"host": [], "sync": []}
    if {"start", "end", "nameId"} <= _columns(base, _CALLS):
        for start, end, name in base.execute(f"SELECT start, end, nameId FROM {_CALLS}"):
            if is_number(start) and is_number(end) and end >= start:
                # names carry the version of their interface: cudaLaunchKernel_v7000
                waits = str(names.get(name, "")).partition("_")[0] in SYNCS
                found["sync" if waits else "host"].append((start * _NANO, end * _NANO))
    return found


def _ranges(base: sqlite3.Connection) -> tuple[list[Span], list[tuple[float, float]]]:
    """Actions of a pipeline and steps among the ranges of NVTX, by their start."""
    actions, steps = [], []
    for start, end, text in _marked(base):
        at, until = start * _NANO, end * _NANO
        if match := _ACTION.match(text):
            stage, what, microbatch = match.groups()
            actions.append(
                Span(at, until, ACTIONS[what], what, stage=int(stage), microbatch=int(microbatch))
            )
        elif _STEP.match(text):
            steps.append((at, until))
    return sorted(actions, key=lambda span: (span.start, span.token)), sorted(steps)


def _marked(base: sqlite3.Connection) -> Iterator[tuple[float, float, str]]:
    """Start, end and text of every range of NVTX."""
    columns = _columns(base, "NVTX_EVENTS")
    if not {"start", "text"} <= columns:
        return
    last = "n.end" if "end" in columns else "n.start"
    text, joined = "n.text", ""
    if "textId" in columns:
        text, joined = "COALESCE(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
    for start, end, words in base.execute(
        f"SELECT n.start, {last}, {text} FROM NVTX_EVENTS n {joined}"
    ):
        if is_number(start):
            yield start, end if is_number(end) and end >= start else start, str(words)


NSYS: Final = Format(
    "nsys",
    "SQLite export of Nsight Systems",
    "timeline",
    lambda head: is_sqlite(head.path),
    _read_nsys,
)
