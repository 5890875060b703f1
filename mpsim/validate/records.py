"""Records: what was measured, what was predicted, and the error of families of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from mpsim.importers.cells import Cells
from mpsim.validate.decisions import Decisions, decisions_of, summarise_decisions

__all__ = ["Family", "Record", "Row", "Validation", "summarise"]

_TAIL = 0.9  # the quantile of absolute errors that a family reports besides mean and median


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured figure and its prediction.

    Parameters
    ----------
    id : str
        The row's ``id`` or ``record_id``, else its number in the file from 1; ``#memory`` is added for a peak memory.
    family : str
        What it is summarised with.
    kind : str
        ``training``, ``memory``, ``collective``, ``kernel`` or ``schedule``.
    unit : str
        Of both figures: that of the file's own column (bytes for a memory).
    measured, predicted : float or None
        None where there is none.
    mismatched : tuple of str
        Columns of a schedule's oracle that differ; empty for other kinds.
    skipped_because : str or None
        Why there is no prediction; None for a predicted row.
    size : float or None
        What the error is drawn against: bytes, FLOPs, accelerators or chunks.
    assumed : tuple of str
        What the prediction takes for granted and the row does not say.
    group : str
        Model, sequence length and number of accelerators of a training run: runs of one group differ in layout. "" for other kinds.
    sequences : float
        Of a step; 0 for other kinds.
    """

    id: str
    family: str
    kind: str
    unit: str
    measured: float | None
    predicted: float | None = None
    mismatched: tuple[str, ...] = ()
    skipped_because: str | None = None
    size: float | None = None
    assumed: tuple[str, ...] = ()
    group: str = ""
    sequences: float = 0.0

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``; None where either is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, object]:
        """The keys of the outside contract."""
        return {
            "id": self.id,
            "family": self.family,
            "kind": self.kind,
            "unit": self.unit,
            "measured": self.measured,
            "predicted": self.predicted,
            "error": self.error,
            "mismatched": list(self.mismatched),
            "skipped_because": self.skipped_because,
            "assumed": list(self.assumed),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Errors of the rows of one family.

    Parameters
    ----------
    rows, predicted : int
        In the files, and predicted.
    mean_abs_error, median_abs_error, p90_abs_error, bias : float or None
        Fractions; bias is the mean with its sign. None where nothing was scored.
    worst : float or None
        The error that is largest in absolute value, with its sign.
    worst_id : str
        Whose it is.
    mismatched : int
        Rows whose oracle differs in some column (schedules).
    """

    family: str
    kind: str
    rows: int
    predicted: int
    mean_abs_error: float | None
    median_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None
    worst: float | None
    worst_id: str
    mismatched: int

    def to_json(self) -> dict[str, object]:
        """The keys of the outside contract."""
        data = dataclasses.asdict(self)
        return {key: data[key] for key in data if key not in ("worst_id", "mismatched")}


@dataclasses.dataclass(frozen=True, slots=True)
class Validation:
    """Every record of some files."""

    records: tuple[Record, ...]

    @property
    def families(self) -> tuple[Family, ...]:
        """One for each family and kind, in the order they come."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record.family, record.kind), []).append(record)
        return tuple(summarise(group) for group in groups.values())

    @property
    def kinds(self) -> tuple[Family, ...]:
        """All records of a kind as one family each."""
        groups: dict[str, list[Record]] = {}
        for record in self.records:
            groups.setdefault(record.kind, []).append(dataclasses.replace(record, family="all"))
        return tuple(summarise(group) for group in groups.values())

    @property
    def decisions(self) -> tuple[Decisions, ...]:
        """Of each family, how good a choice among its runs of one model on as many accelerators would be."""
        return summarise_decisions(decisions_of(self.records))

    def worst(self, kind: str, count: int) -> list[Record]:
        """Records of a kind with the largest absolute errors."""
        scored = [one for one in self.records if one.kind == kind and one.error is not None]
        return sorted(scored, key=lambda one: -abs(one.error or 0.0))[:count]

    def to_json(self) -> dict[str, object]:
        """The object of the outside contract."""
        return {
            "families": [family.to_json() for family in self.families],
            "rows": [record.to_json() for record in self.records],
            "decisions": [one.to_json() for one in self.decisions],
        }


def summarise(records: Sequence[Record]) -> Family:
    """Sum up records of one family and kind, at least one."""
    scored = [(record.error, record.id) for record in records if record.error is not None]
    errors = [error for error, _ in scored]
    sizes = sorted(map(abs, errors))
    worst, worst_id = max(scored, key=lambda pair: abs(pair[0]), default=(None, ""))
    return Family(
        family=records[0].family,
        kind=records[0].kind,
        rows=len(records),
        predicted=sum(record.predicted is not None for record in records),
        mean_abs_error=_mean(sizes),
        median_abs_error=statistics.median(sizes) if sizes else None,
        p90_abs_error=sizes[min(len(sizes) - 1, int(_TAIL * len(sizes)))] if sizes else None,
        bias=_mean(errors),
        worst=worst,
        worst_id=worst_id,
        mismatched=sum(bool(record.mismatched) for record in records),
    )


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None
