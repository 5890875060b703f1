"""OSU Micro-Benchmarks: latencies, bandwidths and collectives of MPI, versions 5 to 7.

Sizes mean one thing a collective: the vector of an all-reduce, a rank's part of an all-gather, what
goes to each peer of an all-to-all, the whole input of a reduce-scatter; points have those of
`mpsim.cost.collectives`, rows the file's, which states no number of ranks.

References
----------
OSU Micro-Benchmarks 7.4, ``c/util/osu_util.c``, ``osu_util_mpi.c``: headers and columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.formats.imported import MeasuredPoint, Points, collective_name, collective_point
from mpsim.formats.source import Format, Head, Options, read_text
from mpsim.formats.words import DATA, table
from mpsim.inputs import shown
from mpsim.shipped import say

LARGEST: Final = 4_000_000
_LONGEST_LINE: Final = 1000
_TITLE = re.compile(r"#\s*OSU\s+(\S+)\s+(.*?)\s+Test\s*(?:v?([\d.]+\w*))?\s*$")
_COUNTS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_WORDS: Final = {"bcast": "broadcast", "alltoallw": "alltoallv", "allgatherv": "allgather"}
_GATHERED = ("all_gather", "all_to_all")  # a row's size is one rank's or one peer's share
_COLUMNS: Final = table(DATA, "recordings")["osu"]
_UNITS: Final = {name: unit for _, name, unit in _COLUMNS}


def _lines(path: Path, text: str) -> list[str]:
    """Lines of a report, none of which is long."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE:
            why = f"a line of over {_LONGEST_LINE} characters; the file is damaged"
            raise FormatError(f"{path}:{number}: {why}")
    return lines


def _read_report(head: Head, options: Options) -> Points:
    """Read the tables of one run. FormatError without a number of ranks, or of failed results."""
    text = read_text(head.path, needed="output of an OSU benchmark", largest=LARGEST)
    if options.ranks is None:
        raise FormatError(say("formats.osu_ranks", path=head.path))
    title, version, rows, points = "", "", [], {}
    columns: Sequence[str] = ()
    dtype, extra = "", dict[str, object]()
    for number, line in enumerate(_lines(head.path, text), start=1):
        stripped = line.strip()
        place = f"{head.path}:{number}"
        if match := _TITLE.match(stripped):
            if title and match[2] != title:
                raise FormatError(say("formats.osu_second", place=place, name=shown(match[2])))
            title, version = match[2], match[3] or ""
        elif match := re.match(r"#\s*Datatype:\s*([\w ]+)", stripped):
            dtype = match[1].strip()
        elif match := re.match(
            r"#\s*\[ pairs:\s*(\d{1,9}) \]\s*\[ window size:\s*(\d{1,9}) \]", stripped
        ):
            extra = {"pairs": int(match[1]), "window": int(match[2])}
        elif stripped.startswith("#"):
            columns = _columns(stripped) or columns
        elif stripped and title:
            if not columns:
                raise FormatError(say("formats.osu_columns", place=place))
            row = _row(place, stripped, columns)
            rows.append(_told(title, row, options.ranks, dtype) | extra)
            point = _point(title, row, options.ranks, f"{head.path.name}:{number}")
            if point is not None:
                points[point.shape["bytes"], dtype] = point
    if not rows:
        raise FormatError(say("formats.osu_empty", path=head.path))
    why = f"{title}: no collective; its rows are printed and calibrate nothing"
    warnings = () if collective_name(_word(title)) is not None else (why,)
    return Points(
        str(head.path),
        f"OSU {title}",
        tuple(points.values()),
        warnings=warnings,
        format="osu",
        version=version,
        rows=tuple(rows),
    )


def _columns(line: str) -> list[str]:
    """Contents of each column, from the line that names them; empty where it names none."""
    words = re.split(r"\s{2,}", line.lstrip("# ").strip())
    if len(words) == 1 and re.match(r"(?i)size\s", words[0]):
        words = ["Size", words[0].split(None, 1)[1]]
    names = []
    for word in words:
        title = word.strip().lower()
        names += [name for pattern, name, _ in _COLUMNS if re.fullmatch(pattern, title)][:1]
    return names if len(names) == len(words) else []


def _row(place: str, line: str, columns: Sequence[str]) -> dict[str, object]:
    cells = line.split()
    if len(cells) != len(columns):
        raise FormatError(f"{place}: has {len(cells)} of {len(columns)} columns; the file is cut")
    row: dict[str, object] = {}
    for name, cell in zip(columns, cells, strict=True):
        if name == "validation":
            if cell.lower() == "fail":
                raise FormatError(f"{place}: the result failed its check; do not calibrate on it")
            row[name] = cell
            continue
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or value > 1e18:
            raise FormatError(f"{place}: got {shown(cell)}; needed a number")
        row[name] = value * _UNITS[name] if _UNITS[name] else int(value)
    return row


def _word(title: str) -> str:
    """The collective of a title, in a word that every tool uses."""
    word = re.sub(
        r"(?i)\b(non-?blocking|persistent|latency|mpi|personalized|exchange|intercommunicator)\b",
        " ",
        title,
    )
    word = "".join(letter for letter in word.lower() if letter.isalnum())
    plain = re.sub(r"^i(?=all|bcast|red|bar)", "", word)  # of what does not block
    return _WORDS.get(plain, plain)


def _told(title: str, row: Mapping[str, Any], ranks: int, dtype: str) -> dict[str, object]:
    """One row as it is printed, in SI units."""
    name = collective_name(_word(title))
    usual = "send_recv" if _word(title) in ("latency", "", "bandwidth") else title
    told: dict[str, object] = {"collective": name or usual, "ranks": ranks, **row}
    told.setdefault("bytes", 0)
    if name in _COUNTS and row.get("time_s") and row.get("bytes"):
        size = row["bytes"] * (ranks if name in _GATHERED else 1)
        told["busbw_Bps"] = size / row["time_s"] * _COUNTS[name] * (ranks - 1) / ranks
    if dtype:
        told["dtype"] = dtype
    return told


def _point(title: str, row: Mapping[str, Any], ranks: int, place: str) -> MeasuredPoint | None:
    name = collective_name(_word(title))
    seconds, size = row.get("pure_s", row.get("time_s")), row.get("bytes", 0)
    if name is None or not seconds or not size or ranks < 2:
        return None
    return collective_point(
        name,
        size * (ranks if name in _GATHERED else 1),
        [seconds],
        ranks=ranks,
        domains=1,
        place=place,
    )


OSU: Final = Format(
    "osu",
    lambda head: any(_TITLE.match(line.strip()) for line in head.text.splitlines()[:40]),
    _read_report,
)
