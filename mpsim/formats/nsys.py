"""SQLite exports of Nsight Systems: kernels of every device, and actions of a pipeline among the ranges of NVTX.

References
----------
NVIDIA Nsight Systems, SQLite schema: tables are made when there is something to put into them.
"""

from __future__ import annotations

import array
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.formats.imported import Recorded, collective_name
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.spans import Span, Spans, busy_facts, is_number, joined, kernel_class
from mpsim.inputs import open_regular

__all__ = ["NSYS", "is_sqlite"]

_NANO = 1e-9
_ACTION = re.compile(r"PP:(\d+)(F|I|B|W)(\d+)$")
_STEP = re.compile(
    r"(?i)(?:profiler|train(?:ing)?|iteration|mpsim)?[_ ]?(?:step|iteration)[#_ :]*\d+$"
)
_KINDS = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}
_SQLITE = b"SQLite format 3\0"
_LONGEST = 1 << 22  # bytes of a value: a name of a kernel has up to thousands


def is_sqlite(path: Path) -> bool:
    """Whether a file is a database of SQLite."""
    try:
        with open_regular(path, needed="a database", error=FormatError) as raw:
            return bool(raw.read(len(_SQLITE)) == _SQLITE)
    except FormatError:  # said by the reader that is asked to read it
        return False


def _read_nsys(head: Head, options: Options) -> Recorded:
    """Read what ``nsys export --type sqlite`` wrote.

    Raises
    ------
    FormatError
        If it is damaged, or holds no kernels.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{head.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as base:
            _bound(base)
            return _nsys(head.path, base, keeps=options.spans)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise FormatError(
            f"{head.path}: damaged, or no export of Nsight Systems: {error}"
        ) from error


def _bound(base: sqlite3.Connection) -> None:
    """Keep a made-up database from running what it holds, and a value from filling the memory."""
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
        base.execute(f"PRAGMA {pragma}")


def _nsys(path: Path, base: sqlite3.Connection, *, keeps: bool) -> Recorded:
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
    calls: dict[Any, list[Span]] = {}
    count = 0
    for start, end, where, name in base.execute(
        f"SELECT start, end, {device}, {named} FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ):
        if not (is_number(start) and is_number(end)) or end < start:
            continue
        count += 1
        word = str(names.get(name, name))
        kind = kernel_class(word)
        kernels.setdefault(where, {}).setdefault(kind, array.array("d")).extend((start, end))
        if keeps and kind == "communication":
            calls.setdefault(where, []).append(_call(word, start * _NANO, end * _NANO))
    if not count:
        raise FormatError(f"{path}: holds no kernels; record a step with --trace=cuda")
    first = min(kernels, key=str)
    facts: dict[str, Any] = {
        "devices": len(kernels),
        "kernels": count,
        **busy_facts(kernels[first], _NANO),
    }
    actions, steps = _ranges(base) if "NVTX_EVENTS" in tables else ([], [])
    if actions:
        facts["actions"] = [span.token for span in actions]
    if steps:
        facts["step_s"] = [end - start for start, end in steps]
    return Recorded(
        format="nsys",
        tool="Nsight Systems",
        files=(str(path),),
        facts=facts,
        spans=tuple(
            _spans(
                where, kernels[where], calls.get(where, []), actions, steps, alone=len(kernels) == 1
            )
            for where in sorted(kernels, key=str)
        )
        if keeps
        else (),
    )


def _call(word: str, start: float, end: float) -> Span:
    """A communication kernel, whose name says which collective it is."""
    found = re.search(
        r"(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Reduce|SendRecv)", word
    )
    name = collective_name(found[1]) if found else None
    sends = name == "send_recv"
    return Span(
        start,
        end,
        "send" if sends else "collective",
        name or word[:40],
        axis="pp" if sends else "dp",
    )


def _spans(
    device: object,
    kernels: dict[str, array.array[float]],
    calls: list[Span],
    actions: list[Span],
    steps: list[tuple[float, float]],
    *,
    alone: bool,
) -> Spans:
    """Everything that one device did; ranges of NVTX belong to it where it is the only one."""
    spans = list(calls)
    if alone:
        spans += actions
    dense = []
    if "computation" in kernels and not (alone and actions):
        dense.append(joined(kernels["computation"], "compute", "kernels", _NANO))
    if "memory" in kernels:
        dense.append(joined(kernels["memory"], "copy", "copies", _NANO))
    spans.sort(key=lambda span: (span.start, span.end))
    number = device if isinstance(device, int) else None
    return Spans(f"device {device}", number, tuple(spans), tuple(dense), tuple(steps))


def _ranges(base: sqlite3.Connection) -> tuple[list[Span], list[tuple[float, float]]]:
    """Actions of a pipeline and steps among the ranges of NVTX, by their start."""
    columns = {row[1] for row in base.execute("PRAGMA table_info(NVTX_EVENTS)")}
    if not {"start", "text"} <= columns:
        return [], []
    end = "n.end" if "end" in columns else "n.start"
    query = (
        f"SELECT n.start, {end}, COALESCE(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
        if "textId" in columns
        else f"SELECT n.start, {end}, n.text FROM NVTX_EVENTS n"
    )
    actions, steps = [], []
    for start, until, text in base.execute(query):
        if not is_number(start):
            continue
        last = until if is_number(until) and until >= start else start
        match = _ACTION.match(str(text))
        if match is not None:
            stage, what, microbatch = match.groups()
            actions.append(
                Span(
                    start * _NANO,
                    last * _NANO,
                    _KINDS[what],
                    what,
                    stage=int(stage),
                    microbatch=int(microbatch),
                )
            )
        elif _STEP.match(str(text)):
            steps.append((start * _NANO, last * _NANO))
    return sorted(actions, key=lambda span: (span.start, span.token)), sorted(steps)


NSYS: Final = Format(
    "nsys",
    "SQLite export of Nsight Systems",
    "timeline",
    lambda head: is_sqlite(head.path),
    _read_nsys,
)
