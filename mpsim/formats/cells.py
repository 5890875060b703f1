"""CSV tables of measured data: their rows, and the cells of a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.inputs import read_cells, refusal, shown

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
_TRUE = ("1", "true", "yes")
_FALSE = ("0", "false", "no")


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
