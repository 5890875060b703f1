"""Orders in a CSV file: one row a rank, one token a cell, as PyTorch's compute-only format.

The format is that of ``_PipelineScheduleRuntime._load_csv(file, format="compute_only")`` of PyTorch
2.13; empty cells are idle slots and are left out, because orders have no time.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from mpsim.errors import ScheduleError
from mpsim.inputs import read_cells
from mpsim.output import whole
from mpsim.schedule.orders import Orders

_NUMBER = re.compile(r"\d+")
_NEEDED = "text of comma-separated tokens, such as 3F0"
_LARGEST = 1 << 26  # bytes: a token is about 6
_SHOWN = 40  # letters of a cell in a message
_DIGITS = 18  # of a number that are read: more are far beyond all bounds anyway


def read_csv(path: str | Path) -> Orders:
    """Read and validate the orders of one training step.

    `path`: one row a rank, rank 0 first; cells such as ``3F0``. ScheduleError if the file cannot be
    read, or is not one whole training step; the message names the file.
    """
    lines = read_cells(path, needed=_NEEDED, error=ScheduleError, largest=_LARGEST)
    tokens = [[cell.strip() for cell in row if cell.strip()] for _, row in lines]
    try:
        while tokens and not tokens[-1]:
            tokens.pop()
        _check_numbers(tokens)
        return Orders.from_tokens(tokens, schedule=Path(path).stem).validate()
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from error


def _size(number: int) -> str:
    return str(number) if number < 10 ** (_DIGITS - 1) else f"{_DIGITS} digits or more"


def _check_numbers(tokens: list[list[str]]) -> None:
    """Refuse a stage or microbatch far beyond the actions, before arrays of its size."""
    numbers = {
        int(digits[:_DIGITS]): cell
        for row in tokens
        for cell in row
        for digits in _NUMBER.findall(cell)
    }
    most = 2 * sum(map(len, tokens))  # a cell can hold a block of two
    largest = max(numbers, default=0)
    if largest > most:
        raise ScheduleError(
            f"got {numbers[largest][:_SHOWN]!r}, a number of {_size(largest)}, in {most // 2}"
            " cells; needed stages and microbatches numbered from 0 without a gap"
        )


def write_csv(orders: Orders, path: str | Path) -> None:
    """Write orders so that `read_csv` and PyTorch read them back."""
    with whole(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(orders.tokens())
