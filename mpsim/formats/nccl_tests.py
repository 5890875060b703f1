"""nccl-tests: the table it prints, and the JSON it writes with ``-J``.

Its sizes are those of `mpsim.cost.collectives`: the whole tensor, the gathered one, or a rank's
send buffer. Times of the out-of-place run count, else those of the in-place run.

References
----------
NVIDIA/nccl-tests, ``src/util.cu`` (versions 2.0 to 2.18): columns of the table, keys of the JSON,
which writes numbers that are not finite as the string ``"nan"``.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpsim.errors import CalibrationError
from mpsim.formats.imported import Points, collective_name, collective_point
from mpsim.formats.source import Format, Head, Options, read_text
from mpsim.inputs import Record, shown
from mpsim.shipped import say

_MICRO = 1e-6
_GIGA = 1e9
_VERSION = re.compile(r"(?:nccl-tests version|rccl-tests: Version)\s+(\S+)")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)"
    r"\s+device\s+\d+\s+\[\S+\]\s+(.*)"
)
_PROGRAM = re.compile(r"(\w{1,40}?)_perf(?:_mpi)?\b")
_ROW = re.compile(r"\s*(\d{1,18})\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(.*)")
_OLD_ROW = re.compile(r"\s*(\d{1,18})\s+(\d+)\s+(\w+)\s+(\w+)()\s+(.*)")
"""Rows of before 2.11: no root, and the largest error in place of a count of wrong elements."""
_HALF, _SPREAD = 4, 4
"""Columns of one run, and those that -I adds (least, most, 99th percentile, variation)."""
_FIGURES = {
    "time": ("time_s", _MICRO),
    "alg_bw": ("algbw_Bps", _GIGA),
    "bus_bw": ("busbw_Bps", _GIGA),
}
"""Figures of one half of a row, in the table's order, by the JSON's words: names and units."""
_LARGEST_ERROR = 1e-2
_JSON_VERSIONS = (1, 2, 3)
_MOST_RANKS = 1_000_000
_LARGEST = 1 << 24  # bytes: a size is a line of about 100
_LONGEST_LINE = 10_000  # characters: patterns go over lines again and again


def _read_text_report(head: Head, options: Options) -> Points:
    """Read the table of nccl-tests. CalibrationError if it breaks off, or a result is no result."""
    path = head.path
    lines = read_text(path, needed="a report of nccl-tests", largest=_LARGEST).splitlines()
    if max(map(len, lines), default=0) > _LONGEST_LINE:
        raise CalibrationError(say("formats.long_line", path=path, longest=_LONGEST_LINE))
    ranks = [seen for line in lines if (seen := _RANK.match(line))]
    columns = re.compile(r"\s*#(?=.*size)(?=.*count)(?=.*time)").match
    head_line = next(filter(columns, lines), "")
    old = bool(head_line) and "root" not in head_line
    width = _HALF + (_SPREAD if "p99" in head_line or "cv%" in head_line else 0)
    name = _named(path, next((m[1] for line in lines if (m := _PROGRAM.search(line))), ""))
    if ranks or options.ranks is None:
        group = _group(path, [_Rank(int(r[1]), int(r[2] or 0), r[3], r[4].strip()) for r in ranks])
    else:
        group = _Group(options.ranks, 1, "")
    rows: list[_Row] = []
    for number, line in enumerate(lines, start=1):
        pattern = _OLD_ROW if old else _ROW
        row = None if line.lstrip().startswith("#") else pattern.match(line)
        if row is None:
            continue
        cells = row[6].split()
        size, place = int(row[1]), f"{path}:{number}"
        if len(cells) < _HALF:
            raise CalibrationError(f"{place}: the line breaks off; the file is truncated")
        time = _time(place, cells[0])
        _check_right(place, cells[3], most=_LARGEST_ERROR if old else 0.0)
        halves = {"out_of_place": cells[:4], "in_place": cells[width : width + _HALF]}
        figures = {half: dict(zip(_FIGURES, halves[half], strict=False)) for half in halves}
        rows.append(_Row(size, row[3], figures, [time * _MICRO], f"{path.name}:{number}"))
    if not any("Avg bus bandwidth" in line for line in lines):
        count = len({row.size for row in rows} - {0})
        raise CalibrationError(say("formats.cut_table", path=path, count=count))
    rccl = any("rccl-tests" in line for line in lines)
    version = next((m[1] for line in lines if (m := _VERSION.search(line))), "")
    return _points(path, "rccl-tests" if rccl else "nccl-tests", name, group, rows, version)


def _told(halves: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    """Times and bandwidths of a row in SI units: out of place, or in place where that alone ran."""
    first = "out_of_place" if halves.get("out_of_place") else "in_place"
    told: dict[str, object] = {"out_of_place": first == "out_of_place"}
    for half, figures in halves.items():
        head = "" if half == first else f"{half}_"
        for word, (key, unit) in _FIGURES.items():
            value = figures.get(word, figures.get("cpu_time") if word == "time" else None)
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                if math.isfinite(number := float(value)):
                    told[head + key] = number * unit
    return told


def _read_json_report(head: Head, options: Options) -> Points:
    """Read what ``-J`` wrote. CalibrationError: another version, no, missing or wrong results."""
    del options  # the file names its devices
    path = head.path
    report = Record(head.document, str(path), error=CalibrationError)
    version = report.whole("version", _JSON_VERSIONS[0])
    if version not in _JSON_VERSIONS:
        raise CalibrationError(
            f"{path}: JSON version {shown(version)} of nccl-tests; this version of mpsim reads"
            f" {', '.join(map(str, _JSON_VERSIONS))}"
        )
    if "end_time" not in report or not isinstance(report.value("results"), list):
        raise CalibrationError(f"{path}: truncated, it has no end_time; run it to its end")
    group = _group(path, _ranks(report.record("config")))
    program = _PROGRAM.search(" ".join(map(str, report.items("args", []))))
    name = _named(path, program[1] if program else "")
    rows: list[_Row] = []
    for index, row in enumerate(report.records("results")):
        halves = {half: row.record(half, {}) for half in ("out_of_place", "in_place")}
        run = halves["out_of_place"] or halves["in_place"]
        if not run:
            raise CalibrationError(f"{row.place}: has no time; run it to its end")
        _check_right(row.place, str(run.value("nwrong")))
        times, dtype = _json_times(row, run), row.text("type", "")[:20]
        figures = {
            half: {word: run.value(word) for word in ("cpu_time", *_FIGURES) if word in run}
            for half, run in halves.items()
        }
        rows.append(_Row(row.whole("size", 0), dtype, figures, times, f"{path.name}#{index}"))
    return _points(path, "nccl-tests -J", name, group, rows, f"JSON {version}")


class _Row(NamedTuple):
    """One size of a report: its figures out of place and in place, and the times that count [s]."""

    size: int
    dtype: str
    halves: Mapping[str, Mapping[str, Any]]
    times: list[float]
    place: str


class _Rank(NamedTuple):
    """One rank of a run."""

    rank: int
    group: int
    host: str
    gpu: str  # its name; empty where the report has none


class _Group(NamedTuple):
    """A communicator."""

    members: int
    hosts: int
    gpu: str


def _ranks(config: Record) -> list[_Rank]:
    """Ranks of every process, which has one a thread and GPU."""
    each = config.whole("nthreads", 1, least=1, most=_MOST_RANKS) * config.whole(
        "ngpus", 1, least=1, most=_MOST_RANKS
    )
    devices = config.records("devices", [])
    if each * len(devices) > _MOST_RANKS:
        raise config.wrong("devices", f"{_MOST_RANKS:,} ranks or fewer")
    return [
        _Rank(
            device.whole("rank", most=_MOST_RANKS) + index,
            device.whole("group", 0),
            device.text("hostname"),
            device.text("device_info", ""),
        )
        for device in devices
        for index in range(each)
    ]


def _json_times(row: Record, run: Record) -> list[float]:
    """Times of every iteration where they were kept, else the mean [s]."""
    each = row.record("out_of_place_per_iter", {})
    times = each.items("times_us", []) or [run.value("time") or run.value("cpu_time")]
    return [_time(row.place, sample) * _MICRO for sample in times]


def _time(place: str, value: object) -> float:
    try:
        time = float(str(value))
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time > 0):
        raise CalibrationError(f"{place}: time is {shown(value)}; needed a number above 0")
    return time


def _check_right(place: str, wrong: str, *, most: float = 0.0) -> None:
    if wrong in ("N/A", "None", "null"):
        return
    try:
        right = float(wrong) <= most
    except ValueError:
        right = False
    if not right:
        raise CalibrationError(f"{place}: {wrong[:20]} elements were wrong; do not calibrate on it")


def _named(path: Path, word: str) -> str:
    """The collective that a program, or else the name of the file, stands for."""
    for candidate in (word, path.stem.removesuffix("_perf")):
        name = collective_name(candidate)
        if name is not None:
            return name
    parts = re.split(r"[^a-z]+", path.stem.lower())
    runs = ["".join(parts[at : at + count]) for count in (2, 1) for at in range(len(parts))]
    within = {name for run in runs if (name := collective_name(run)) is not None}
    longer = {name for name in within if not any(name != more and name in more for more in within)}
    if len(longer) == 1:
        return longer.pop()
    raise CalibrationError(say("formats.which_collective", path=path))


def _group(path: Path, ranks: Sequence[_Rank]) -> _Group:
    """The communicator of the first rank."""
    if not ranks:
        raise CalibrationError(f"{path}: names no rank; needed the lines '#  Rank 0 Pid ...'")
    numbers = sorted({each.rank for each in ranks})
    missing = next((index for index, rank in enumerate(numbers) if rank != index), None)
    if missing is not None:
        raise CalibrationError(
            f"{path}: rank {missing} of {numbers[-1] + 1} is missing; join the output of all ranks"
        )
    devices = {each.gpu for each in ranks if each.gpu}
    if len(devices) > 1:
        raise CalibrationError(
            f"{path}: mixes {', '.join(map(shown, sorted(devices)[:4]))}; calibrate each on its own"
        )
    first = [each.host for each in ranks if each.group == ranks[0].group]
    return _Group(len(first), len(set(first)), next(iter(devices), ""))


def _points(
    path: Path, tool: str, name: str, group: _Group, rows: Sequence[_Row], version: str
) -> Points:
    """Every size of a report as a row, the last of each as a point."""
    shape = {"ranks": group.members, "domains": group.hosts}
    points = {
        row.size: collective_point(name, row.size, row.times, **shape, place=row.place)
        for row in rows
        if row.size
    }
    if not points:
        raise CalibrationError(f"{path}: holds no size; needed a table of nccl-tests with rows")
    told = (
        {"collective": name, "bytes": row.size, "ranks": group.members, "dtype": row.dtype}
        | _told(row.halves)
        for row in rows
    )
    return Points(
        str(path),
        tool,
        tuple(points.values()),
        device_name=group.gpu,
        library="rccl" if tool == "rccl-tests" else "nccl",
        format="nccl-tests",
        version=version,
        rows=tuple(told),
    )


NCCL_TESTS: Final = Format(
    "nccl-tests",
    lambda head: "# nThread" in head.text or "out-of-place" in head.text,
    _read_text_report,
)
NCCL_TESTS_JSON: Final = Format(
    "nccl-tests-json",
    lambda head: {"config", "nccl_version"} <= head.document.keys(),
    _read_json_report,
)
