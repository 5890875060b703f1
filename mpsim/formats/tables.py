"""CSV tables of measured data: their rows and cells, and those of kernels and collectives.

Columns of a row's hardware (``system``, ``gpu``, ``link``, ``nic``) hold one machine: `only`.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from mpsim import structs
from mpsim.errors import CalibrationError, nearest
from mpsim.formats.imported import (
    MeasuredPoint,
    Points,
    collective_name,
    collective_point,
    kernel_point,
)
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, table
from mpsim.inputs import read_cells, refusal, shown
from mpsim.shipped import say
from mpsim.workload import gemm_flops

T = TypeVar("T")
MOST: Final[Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("layers", "pp", "vp_chunks_per_rank", "interleave_chunks_per_stage", "cp"), 4096.0
        ),
        **dict.fromkeys(("tp", "ep", "moe_experts", "gpus_per_node", "accel_per_node"), 65_536.0),
        **dict.fromkeys(("microbatches", "num_microbatches", "grad_accum"), 100_000.0),
        **dict.fromkeys(("num_accel", "gpus", "nodes", "dp", "num_requests", "concurrency"), 1e6),
        **dict.fromkeys(("global_batch_seqs", "micro_batch_seqs", "batch_per_instance"), 1e7),
    }
)
"""Largest numbers of columns that lists and simulations grow with: what is larger is damage, ten
times the largest of published rows."""
_LARGEST: Final = 1e30  # of all others
_LONGEST_CELL: Final = 10_000
_NUMBER: Final = r"\d+\.?\d*|\.\d+"
_TRUE = ("1", "true", "yes")
_FALSE = ("0", "false", "no")


def without_thousands(text: str) -> str:
    """A cell without separators of thousands: commas, blanks and apostrophes."""
    return re.sub(r"(?<=\d)[, '](?=\d{3}(?!\d))", "", text)


def tidied(column: str, text: str) -> str:
    """A cell without typography, separators of thousands, and the unit that its column has anyway.

    Examples
    --------
    >>> tidied("num_accel", "1,024 GPUs"), tidied("seq_len", "8k"), tidied("bytes", "1 GiB")
    ('1024', '8192', '1073741824')
    >>> tidied("ep", "TP8")
    'TP8'
    """
    known = table(DATA, "cells")
    text = re.sub(known["dashes"], "-", unicodedata.normalize("NFKC", text)).strip()
    if not re.fullmatch(known["numbers"], column):
        return re.sub(r"\s+", " ", text)
    plain = without_thousands(text)
    for entry in known["units"]:
        if re.fullmatch(entry["columns"], column):
            pattern = entry["pattern"].replace("{column}", column)
            match = re.fullmatch(pattern, plain)
            if match and re.fullmatch(_NUMBER, match[1]):
                return f"{float(match[1]) * entry['times']:.15g}"
    return plain if re.fullmatch(r"[\d.]+", plain) else text


@structs.dataclass(frozen=True, slots=True)
class Cells:
    """Some columns of a row, read as what they should hold.

    Every method takes the name of a column; a column that is absent is empty.
    """

    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Without blanks around it; "" where it is empty."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Finite number of at least 0, None where empty; CalibrationError if it is neither."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value >= 0:
            raise CalibrationError(
                f"{column} is {shown(text)}; needed a finite number of at least 0"
            )
        if value > MOST.get(column, _LARGEST):
            needed = f"{MOST[column]:,.0f} or less" if column in MOST else "a finite number"
            raise CalibrationError(f"{column} is {shown(text)}; needed {needed}")
        return value

    def whole(self, column: str) -> int | None:
        """Whole number, or None where it is empty; CalibrationError if it is something else."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value):
            raise CalibrationError(f"{column} is {value:g}; needed a whole number")
        return int(value)

    def flag(self, column: str) -> bool | None:
        """Yes or no, or None where it is empty; CalibrationError if it is something else."""
        text = self.text(column).lower()
        if not text:
            return None
        if text not in (*_TRUE, *_FALSE):
            raise CalibrationError(f"{column} is {shown(text)}; needed 0 or 1")
        return text in _TRUE

    def required_number(self, column: str) -> float:
        """Number; CalibrationError where it is empty."""
        return _present(column, self.number(column))

    def required(self, column: str) -> int:
        """Whole number of at least 1; CalibrationError where it is empty or 0."""
        value = _present(column, self.whole(column))
        if value < 1:
            raise CalibrationError(f"{column} is {value}; needed 1 or more")
        return value


def _present(column: str, value: T | None) -> T:
    if value is None:
        raise CalibrationError(f"{column} is not stated")
    return value


def read_rows(path: Path) -> list[dict[str, str]]:
    """Every row of a CSV file by column. CalibrationError if the file is not CSV with a header."""
    lines = read_cells(path, needed="a CSV file", error=CalibrationError)
    _, columns = next(lines, (0, []))
    rows = []
    for number, cells in lines:
        if max(map(len, cells)) > _LONGEST_CELL:  # patterns go over them
            reason = (
                f"a cell of over {_LONGEST_CELL:,} characters; needed a CSV file of shorter ones"
            )
            raise refusal(CalibrationError, path, reason, number)
        pairs = itertools.zip_longest(columns, cells[: len(columns)], fillvalue="")
        rows.append({name: cell for name, cell in pairs if name})
    if not rows:
        raise CalibrationError(f"{path} has no rows; needed a header and a row or more")
    return rows


_MICRO, _TERA = 1e-6, 1e12
_COLLECTIVES = frozenset({"collective", "bytes", "time_us", "gpus", "nodes"})
_KERNELS = frozenset({"gpu", "op", "dtype", "time_us"})
_MACHINE = ("system", "gpu", "link", "nic")
_DTYPES = table(DATA, "recordings")["dtypes"]
_SHOWN = 6


def _read_table(head: Head, options: Options) -> Points:
    """Read a CSV table, of several machines those rows whose columns have the values of `options`.
    CalibrationError if its columns are unknown, it mixes machines, or a number is none.
    """
    path, only = head.path, options.only
    rows = read_rows(path)
    columns = set(rows[0])
    for key in only:
        if key not in columns:
            raise CalibrationError(f"{path}: no column {shown(key)}; {nearest(key, columns)}")
    picked = [
        (number, row)
        for number, row in enumerate(rows, start=2)
        if all(row.get(key, "") == value for key, value in only.items())
    ]
    if not picked:
        asked = ", ".join(f"{key}={value}" for key, value in only.items())
        raise CalibrationError(f"{path}: no row has {asked}")
    if columns >= _COLLECTIVES:
        read, library = _collective, "nccl"
    elif columns >= _KERNELS:
        read, library = _kernel, ""
    else:
        wanted = "; or ".join(", ".join(sorted(columns)) for columns in (_COLLECTIVES, _KERNELS))
        raise CalibrationError(say("formats.no_columns", path=path, wanted=wanted))
    _check_one_machine(path, [row for _, row in picked])
    points = []
    for number, row in picked:
        try:
            point = read(Cells(row), f"{path.name}:{number}")
        except CalibrationError as error:
            raise CalibrationError(f"{path}:{number}: {error}") from error
        if point is not None:
            points.append(point)
    if not points:
        raise CalibrationError(f"{path}: no row has a shape and a time that can be fitted")
    device = picked[0][1].get("gpu", "")
    return Points(str(path), "CSV", tuple(points), device_name=device, library=library)


def table_of(points: Points) -> str:
    """Points of a benchmark as CSV that this reader takes back; rows as they are, else."""
    out = io.StringIO()
    if points.points:
        columns = ["collective", "nodes", "gpus", "bytes", "time_us"]
        rows = [
            [
                point.op,
                point.domains,
                point.ranks,
                point.shape["bytes"],
                f"{min(point.seconds) / _MICRO:.12g}",
            ]
            for point in points.points
            if point.family == "collectives"
        ]
    else:
        columns = list(dict.fromkeys(key for row in points.rows for key in row))
        rows = [[row.get(key, "") for key in columns] for row in points.rows]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def _check_one_machine(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Refuse rows of several machines: constants of a mixture are those of none."""
    for column in _MACHINE:
        values = list(dict.fromkeys(row.get(column, "") for row in rows))
        if column in ("link", "nic"):  # a row on one node names no NIC
            values = [value for value in values if value and value != "none"]
        if len(values) > 1:
            few = ", ".join(map(shown, values[:_SHOWN]))
            more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
            raise CalibrationError(
                f"{path}: mixes {column}s {few}{more}; pick one, such as --only"
                f" {column}={shown(values[0])}"
            )


def _collective(cells: Cells, place: str) -> MeasuredPoint | None:
    time, size = cells.number("time_us"), cells.number("bytes")
    ranks, nodes = cells.required("gpus"), cells.required("nodes")
    name = collective_name(cells.text("collective"))
    if name is None:
        raise CalibrationError(say("formats.which_row", got=shown(cells.text("collective"))))
    if not time or not size or ranks <= 1:
        return None
    return collective_point(
        name, int(size), [time * _MICRO], ranks=ranks, domains=nodes, place=place
    )


def _kernel(cells: Cells, place: str) -> MeasuredPoint | None:
    """A matrix product with shape and time or rate, or fused attention; other rows are left."""
    time, dtype = cells.number("time_us"), _DTYPES.get(cells.text("dtype"))
    if dtype is None:
        return None
    m, n, k = (cells.whole(column) for column in "mnk")
    if m and n and k and cells.text("op").partition(" (")[0] == "gemm":
        batch = cells.whole("batch") or 1
        rate = cells.number("tflops")
        flops = gemm_flops(m, n, k, batch)
        time = time or (flops / (rate * _TERA * _MICRO) if rate else None)
        if not time:
            return None
        shape = {"m": m, "n": n, "k": k, "batch": batch}
        return kernel_point("gemm", shape, [time * _MICRO], dtype=dtype, place=place, flops=flops)
    return _attention(cells, place, time * _MICRO, dtype) if time else None


def _attention(cells: Cells, place: str, seconds: float, dtype: str) -> MeasuredPoint | None:
    passes = {"fwd": "forward", "bwd": "backward"}
    stated = cells.text("causal") not in ("", "not stated")
    sizes = [cells.whole(column) for column in ("batch", "heads", "seq")]
    if "attention" not in cells.text("op") or not stated or not all(sizes):
        return None
    if cells.text("pass") not in passes or not cells.text("head_dim").isdigit():
        return None
    batch, heads, sequence = (int(size or 0) for size in sizes)
    width = int(cells.text("head_dim"))
    shape = {"batch": batch, "heads": heads, "sequence": sequence, "head_dim": width}
    variant: dict[str, str | int | float | bool] = {
        "pass": passes[cells.text("pass")],
        "causal": bool(cells.flag("causal")),
        "backend": "flash",
    }
    return kernel_point("attention", shape, [seconds], dtype=dtype, variant=variant, place=place)


TABLE: Final = Format(
    "table", lambda head: "," in head.first_line and not head.is_object, _read_table
)
