"""Rows: one line of measured data, its configuration kept apart from what was measured."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from mpsim.errors import CalibrationError

__all__ = ["Cells", "Row", "read_rows"]

T = TypeVar("T")
_TRUE = ("1", "true", "yes")
_FALSE = ("0", "false", "no")


@dataclasses.dataclass(frozen=True, slots=True)
class Cells:
    """Some columns of a row, read as what they should hold.

    Every method takes the name of a column; a column that is absent is empty.
    """

    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Without blanks around it; "" where it is empty."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Finite number of at least 0, or None where it is empty.

        Raises
        ------
        CalibrationError
            If it is something else.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise CalibrationError(f"{column} is {text!r}; needed a finite number of at least 0")
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
            raise CalibrationError(f"{column} is {text!r}; needed 0 or 1")
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


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Parameters
    ----------
    id : str
        Its ``id`` or ``record_id``, else its number from 1.
    configuration, measured : Cells
        What a prediction may read, and what only the score may read.
    """

    id: str
    configuration: Cells
    measured: Cells


def read_rows(path: Path) -> list[dict[str, str]]:
    """Every row of a CSV file by column.

    Raises
    ------
    CalibrationError
        If the file is not CSV with a header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [{key: value or "" for key, value in row.items() if key} for row in reader]
            columns = reader.fieldnames
    except (csv.Error, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not columns or not rows:
        raise CalibrationError(f"{path} has no rows; needed a header and a row or more")
    return rows
