"""Orders in a CSV file: one row a rank, one token a cell, as PyTorch's compute-only format.

The format is the one that ``_PipelineScheduleRuntime._load_csv(file, format="compute_only")`` of PyTorch
2.13 reads; empty cells are idle slots of a drawing and are left out, because orders have no time.
"""

from __future__ import annotations

import csv
from pathlib import Path

from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Orders

__all__ = ["read_csv", "write_csv"]


def read_csv(path: str | Path) -> Orders:
    """Read and validate the orders of one training step.

    Parameters
    ----------
    path : str or Path
        One row a rank, rank 0 first; cells such as ``3F0``.

    Raises
    ------
    ScheduleError
        If the file cannot be read, or is not one whole training step; the message names the file.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
        tokens = [[cell for cell in row if cell] for row in rows]
        while tokens and not tokens[-1]:
            tokens.pop()
        return Orders.from_tokens(tokens, schedule=Path(path).stem).validate()
    except OSError as error:
        raise ScheduleError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(
            f"{path}: not a text file of comma-separated tokens: {error}"
        ) from error
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from error


def write_csv(orders: Orders, path: str | Path) -> None:
    """Write orders so that `read_csv` and PyTorch read them back."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(orders.tokens())
