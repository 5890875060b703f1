"""Tables of studies as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["write_csv"]


def write_csv(table: Sequence[Mapping[str, object]], path: str | Path | None = None) -> str:
    """Write rows of equal columns as CSV; return the text.

    Parameters
    ----------
    table : sequence of mapping
        The first row names the columns.
    path : str or Path, optional
        Where to write it; left out: nowhere.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    if path is not None:
        Path(path).write_text(buffer.getvalue(), encoding="utf-8")
    return buffer.getvalue()
