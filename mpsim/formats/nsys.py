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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats import spans
from mpsim.formats.imported import Recorded, collective_name
from mpsim.formats.source import Format, Head, Options
from mpsim.inputs import open_regular
from mpsim.shipped import say

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
        raise FormatError(say("formats.no_export", path=head.path, error=error)) from error


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    """Columns of a table; empty where there is no such table.

    A view of that name is none: it runs what its author wrote, for ever if that is meant.
    """
    tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if table not in tables:
        return set()
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}


class _Timed(NamedTuple):
    """Something with a name that began and ended, in the file's own time [ns]."""

    start: float
    end: float
    name: str
    device: object = None


@structs.dataclass(slots=True)
class _Device:
    """A device and everything that it ran."""

    busy: spans.Busy = structs.field(default_factory=lambda: spans.Busy(_NANO))
    calls: list[spans.Span] = structs.field(default_factory=list)
    marks: dict[str, list[tuple[float, float]]] = structs.field(default_factory=dict)

    def add(self, kernel: _Timed, *, keeps: bool) -> None:
        """Take a kernel; `keeps`: with when it ran."""
        kind = self.busy.add(kernel.name, kernel.start, kernel.end)
        at, until = kernel.start * _NANO, kernel.end * _NANO
        if keeps and kind == "communication":
            word = collective_name(spans.kernel_word(kernel.name)) or kernel.name[:40]
            self.calls.append(spans.Span.communication(at, until, word, axis="dp"))
        elif keeps and kind == "computation":
            self.marks.setdefault(spans.kernel_class(kernel.name), []).append((at, until))

    def spans(
        self,
        name: object,
        own: Sequence[spans.Span],
        steps: Sequence[tuple[float, float]],
        host: Mapping[str, list[tuple[float, float]]],
    ) -> spans.Spans:
        """Everything that it did; actions among its `own` ranges stand for what computes."""
        found = [*self.calls, *own]
        has_actions = any(span.is_action for span in found)
        computed = next(self.busy.dense("computation", "compute", ""), None)
        marks = {kind: _pairs(times) for kind, times in {**host, **self.marks}.items()}
        return spans.Spans(
            f"device {name}",
            name if isinstance(name, int) else None,
            tuple(sorted(found, key=lambda span: (span.start, span.end))),
            tuple(spans.dense_of(self.busy, "kernels", has_actions=has_actions)),
            tuple(steps),
            marks=marks | {"busy": _pairs([]) if computed is None else computed.times},
        )


def _kernels(path: Path, base: sqlite3.Connection, names: Mapping[int, str]) -> Iterator[_Timed]:
    """Every kernel with a time."""
    columns = _columns(base, _KERNELS)
    if not columns:
        raise FormatError(say("formats.no_kernels", path=path, table=_KERNELS))
    named = next((column for column in ("demangledName", "shortName") if column in columns), None)
    if named is None or not {"start", "end"} <= columns:
        raise FormatError(say("formats.no_times", path=path))
    device = "deviceId" if "deviceId" in columns else "0"
    query = f"SELECT start, end, {device}, {named} FROM {_KERNELS}"
    for start, end, where, name in base.execute(query):
        if spans.is_number(start) and spans.is_number(end) and end >= start:
            yield _Timed(start, end, str(names.get(name, name)), where)


def _recorded(path: Path, base: sqlite3.Connection, *, keeps: bool) -> Recorded:
    has_names = bool(_columns(base, "StringIds"))
    names = dict(base.execute("SELECT id, value FROM StringIds")) if has_names else {}
    devices: dict[object, _Device] = {}
    count = 0
    for count, kernel in enumerate(_kernels(path, base, names), start=1):  # noqa: B007
        devices.setdefault(kernel.device, _Device()).add(kernel, keeps=keeps)
    if not devices:
        raise FormatError(f"{path}: holds no kernels; record a step with --trace=cuda")
    actions, steps = _ranges(base)
    alone = len(devices) == 1  # ranges and calls do not say of which device they are
    host = _host(base, names) if keeps and alone else {"host": []}
    facts: dict[str, object] = {
        "devices": len(devices),
        "kernels": count,
        **devices[min(devices, key=str)].busy.facts(),
    }
    if actions:
        facts["actions"] = [span.token for span in actions]
    if steps:
        facts["step_s"] = [end - start for start, end in steps]
    ranks = [
        devices[name].spans(name, actions if alone else (), steps, host)
        for name in sorted(devices, key=str)
    ]
    return Recorded(
        format="nsys",
        tool="Nsight Systems",
        files=(str(path),),
        facts=facts,
        spans=tuple(ranks) if keeps else (),
    )


def _pairs(times: list[tuple[float, float]]) -> spans.Array:
    import numpy as np

    return np.array(times, float).reshape(-1, 2)


def _host(
    base: sqlite3.Connection, names: Mapping[int, str]
) -> dict[str, list[tuple[float, float]]]:
    """When the host was in a call of the runtime, to launch or to wait for the device [s]."""
    found: dict[str, list[tuple[float, float]]] = {"host": [], "sync": []}
    if {"start", "end", "nameId"} <= _columns(base, _CALLS):
        for start, end, name in base.execute(f"SELECT start, end, nameId FROM {_CALLS}"):
            if spans.is_number(start) and spans.is_number(end) and end >= start:
                # names carry the version of their interface: cudaLaunchKernel_v7000
                waits = str(names.get(name, "")).partition("_")[0] in spans.SYNCS
                found["sync" if waits else "host"].append((start * _NANO, end * _NANO))
    return found


def _ranges(base: sqlite3.Connection) -> tuple[list[spans.Span], list[tuple[float, float]]]:
    """Actions of a pipeline and steps among the ranges of NVTX, by their start."""
    actions, steps = [], []
    for marked in _marked(base):
        at, until = marked.start * _NANO, marked.end * _NANO
        if match := _ACTION.match(marked.name):
            stage, what, microbatch = match.groups()
            actions.append(
                spans.Span(
                    at,
                    until,
                    spans.ACTIONS[what],
                    what,
                    stage=int(stage),
                    microbatch=int(microbatch),
                )
            )
        elif _STEP.match(marked.name):
            steps.append((at, until))
    return sorted(actions, key=lambda span: (span.start, span.token)), sorted(steps)


def _marked(base: sqlite3.Connection) -> Iterator[_Timed]:
    """Every range of NVTX."""
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
        if spans.is_number(start):
            until = end if spans.is_number(end) and end >= start else start
            yield _Timed(start, until, str(words))


NSYS: Final = Format("nsys", lambda head: is_sqlite(head.path), _read_nsys)
