"""The table of a sweep: one row a combination, with what it gave or why it gave nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from mpsim.errors import MpsimError
from mpsim.frame import Tabular
from mpsim.output import write_whole
from mpsim.sheet import Sheet, Shown
from mpsim.stamp import stamp
from mpsim.study.journal import Journal
from mpsim.study.row import COLUMNS, SERVICE_COLUMNS, Row, figure_of
from mpsim.study.ties import ties
from mpsim.study.words import sweep_sheet

__all__ = [
    "COLUMNS",
    "SERVICE_COLUMNS",
    "Row",
    "StoredRows",
    "Sweep",
    "reason_of",
    "write_csv",
]


_AT_METER = "meter_energy_j_per_token"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Sweep(Shown, Tabular):
    """The results of a sweep, one row a combination.

    Parameters
    ----------
    scenario : str
        Name of the scenario that was varied.
    keys : tuple of str
        Dotted keys, in the order they were given; the last varies fastest.
    remarks : tuple of str
        Rows of a resumed file that were computed again, and why.
    interrupted : bool
        Whether a KeyboardInterrupt left rows out.
    """

    scenario: str
    keys: tuple[str, ...]
    rows: Sequence[Row]
    remarks: tuple[str, ...] = ()
    interrupted: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def sheet(self) -> Sheet:
        """One line a combination, as ``mpsim sweep`` prints them."""
        return sweep_sheet(
            self.keys,
            self.rows,
            best=self.best,
            thriftiest=self.thriftiest,
            ties=0 if any(row.serves for row in self.rows) else len(self.ties),
            warnings=self.warnings,
        )

    @property
    def best(self) -> Row | None:
        """The usable row with the most tokens per second and accelerator (of services that keep their limits, with output tokens); the first of equals."""
        usable = [row for row in self.rows if row.usable]
        if any(row.serves for row in usable):
            kept = [row for row in usable if figure_of(row.summary or {}, "slo.met")]
            figure = "output_tokens_per_s_per_accelerator"
            return max(kept, key=lambda row: row.number(figure), default=None)
        return max(usable, key=lambda row: row.number("tokens_per_s_per_accelerator"), default=None)

    @property
    def thriftiest(self) -> Row | None:
        """The usable row of a training step that takes the least energy a token, as the meter sees it; the first of equals, None of services."""
        usable = [row for row in self.rows if row.usable and not math.isnan(row.number(_AT_METER))]
        return min(usable, key=lambda row: row.number(_AT_METER), default=None)

    @property
    def ties(self) -> tuple[Row, ...]:
        """Usable rows that cannot be told from the best: the interval of the difference holds zero."""
        best = self.best
        if best is None or best.summary is None:
            return ()
        return tuple(
            row
            for row in self.rows
            if row.usable
            and row.values != best.values
            and row.summary is not None
            and ties(best.summary, [row.summary])
        )

    @property
    def warnings(self) -> dict[str, int]:
        """Warnings of rows, and how many rows have each."""
        return dict(Counter(warning for row in self.rows for warning in row.warnings))

    def table(self) -> list[dict[str, object]]:
        """One flat mapping a row, all with the same keys in the same order."""
        serves = any(row.serves for row in self.rows)
        flat = [row.flat(serves=serves) for row in self.rows]
        reasonless = dict.fromkeys(key for row in flat for key in row if key != "reason")
        return [{key: row.get(key) for key in [*reasonless, "reason"]} for row in flat]

    def to_json(self) -> dict[str, object]:
        """Plain data: scenario, keys, rows of values, summary and reason, and the values of those that tie with the best."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        tied = [dict(row.values) for row in self.ties]
        return {"scenario": self.scenario, "keys": list(self.keys), "rows": rows, "ties": tied}

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write the table as CSV, units in the column names; return the text.

        Parameters
        ----------
        path : str or Path, optional
            Where to write it; left out: nowhere.
        """
        return write_csv(self.table(), path)


class StoredRows(Sequence[Row]):
    """Rows made when they are asked for: a finished one takes two kilobytes of text, and five times that as mappings."""

    def __init__(
        self, values: Sequence[Mapping[str, object]], names: Sequence[str], journal: Journal
    ) -> None:
        self._values = values
        self._names = names
        self._journal = journal

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        entry = self._journal[self._names[index]]
        return Row(self._values[index], entry["summary"], entry["reason"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # a sequence of mappings

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


def reason_of(error: MpsimError) -> str:
    """A mistake in one line, as a row has it."""
    return "; ".join(str(error).splitlines())


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
    columns = [*table[0], "mpsim"] if table else []
    writer = csv.DictWriter(buffer, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "mpsim": stamp()} for row in table)
    if path is not None:
        write_whole(path, buffer.getvalue())
    return buffer.getvalue()
