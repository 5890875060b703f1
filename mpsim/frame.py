"""Rows as CSV, and as a pandas DataFrame where pandas is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.errors import MissingExtraError
from mpsim.output import write_whole
from mpsim.stamp import stamp

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


def to_frame(
    rows: Sequence[Mapping[str, object]] | Mapping[str, Sequence[object] | NDArray[np.generic]],
) -> pd.DataFrame:
    """A table of rows, or of columns by name. MissingExtraError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "data") from error
    return pd.DataFrame(dict(rows) if isinstance(rows, Mapping) else list(rows))


def aligned(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Rows that all have the keys of any of them, in the order in which these come."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


class Tabular:
    """A value whose rows are flat mappings."""

    __slots__ = ()

    def table(self) -> Sequence[Mapping[str, object]]:
        """One flat mapping a row, units in the names."""
        raise NotImplementedError

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write the table as CSV, units in the column names; return the text."""
        rows, buffer = aligned(self.table()), io.StringIO()
        columns = [*rows[0], "mpsim"] if rows else []
        writer = csv.DictWriter(buffer, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "mpsim": stamp()} for row in rows)
        if path is not None:
            write_whole(path, buffer.getvalue())
        return buffer.getvalue()

    def to_pandas(self) -> pd.DataFrame:
        """The table as a DataFrame, units in the names. MissingExtraError without pandas."""
        return to_frame(self.table())
