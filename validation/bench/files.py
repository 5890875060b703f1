"""Files: which kind of measured data a file holds, and all its rows predicted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench import collectives, inference, kernels, peaks, plans, schedules, training
from bench.columns import TABLES, table_kind
from bench.rows import Row
from bench.tables import table
from mpsim.errors import CalibrationError, MpsimError
from mpsim.formats.tables import Cells, read_rows, tidied
from mpsim.hardware import Cluster
from mpsim.serving.result import ServedPoint
from mpsim.validate.records import Record, Validation

__all__ = ["KINDS", "FileKind", "opened", "recognise", "served_points", "validate_files"]

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of measured data.

    Parameters
    ----------
    title : str
    columns : frozenset of str
        Those that tell it from the others.
    measured : tuple of str
        Columns that only the score may read.
    blank : callable
        Records of a row without predictions.
    predict : callable
        The same records with predictions; MpsimError where the row cannot be predicted.
    """

    title: str
    columns: frozenset[str]
    measured: tuple[str, ...]
    blank: Callable[[Row], list[Record]]
    predict: Callable[[Row, Sequence[Record]], list[Record]]


_CHIPS = ("accelerator", "gpu")
_ON_NODE = "training runs on one node"
# a cell that says so is empty
_SILENT = re.compile(
    r"\s*(-+|n/?a|nan|unknown|unspecified|(not|un) ?(stated|known|given|reported))\s*",
    re.IGNORECASE,
)
KINDS: tuple[FileKind, ...] = (
    *(
        FileKind(title, TABLES[title], module.MEASURED, module.blank, module.predict)
        for title, module in (
            ("training runs", training),
            ("collectives", collectives),
            ("kernels", kernels),
            ("schedules", schedules),
            ("inference", inference),
            ("peak memory", peaks),
            ("whole trainings", plans),
        )
    ),
    FileKind(
        _ON_NODE,
        TABLES[_ON_NODE],
        training.MEASURED_ON_NODE,
        training.blank_on_node,
        training.predict_on_node,
    ),
)


def validate_files(
    paths: Iterable[str | Path],
    *,
    machine: Cluster | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Predict every row of every file that can be predicted.

    Parameters
    ----------
    paths : iterable of str or Path
        CSV files; their columns say what they hold.
    machine : Cluster, optional
        Of a machine file, whose constants of serving count for measured services on its accelerator.
    progress : callable, optional
        Called with rows done and rows in all.

    Returns
    -------
    Validation
        One record a row (two where a training run has a measured peak memory, one a quantity of inference), in the order of the files.

    Raises
    ------
    CalibrationError
        If a file holds none of the known kinds.
    OSError
        If a file cannot be read.
    KeyboardInterrupt
        If no row was predicted until then; else the records of those that were are returned.
    """
    files = [opened(Path(path), machine) for path in paths]
    total, done = sum(len(rows) for _, rows in files), 0
    records: list[Record] = []
    try:
        for kind, row in ((kind, row) for kind, rows in files for row in rows):
            records += predict_row(kind, row)
            done += 1
            if progress is not None:
                progress(done, total)
    except KeyboardInterrupt:
        if not records:
            raise
    return Validation(tuple(records), interrupted=done < total)


def recognise(path: Path, columns: Iterable[str]) -> FileKind:
    """The kind of data that a file with these columns holds; CalibrationError if none is known."""
    title = table_kind(path, columns)
    return next(kind for kind in KINDS if kind.title == title)


def predict_row(kind: FileKind, row: Row) -> list[Record]:
    """The records of a row, with predictions or with the reason why there are none."""
    try:
        blanks = kind.blank(row)
    except MpsimError as error:
        return [
            Record(
                id=row.id,
                family="unreadable",
                kind=kind.title,
                unit="",
                measured=None,
                skipped_because=_line(error),
            )
        ]
    try:
        return kind.predict(row, blanks)
    except (MpsimError, ArithmeticError, ValueError) as error:
        return [dataclasses.replace(blank, skipped_because=_line(error)) for blank in blanks]


def served_points(
    path: str | Path, *, only: Mapping[str, str] | None = None
) -> tuple[list[ServedPoint], list[str]] | None:
    """Measured services of a file as points for a fit, and why others are none; None where it holds something else.

    Parameters
    ----------
    path : str or Path
    only : mapping of str to str, optional
        Value that a column must have.
    """
    try:
        kind, rows = opened(Path(path))
    except CalibrationError:
        return None
    if kind.title != "inference":
        return None
    points: list[ServedPoint] = []
    skipped: list[str] = []
    for row in rows:
        if any(row.configuration.text(column) != value for column, value in (only or {}).items()):
            continue
        try:
            point = inference.served_point(row)
        except (MpsimError, ArithmeticError, ValueError) as error:
            skipped.append(f"{row.id}: {_line(error)}")
            continue
        if point is not None:
            points.append(point)
    return points, skipped


def opened(path: Path, machine: Cluster | None = None) -> tuple[FileKind, list[Row]]:
    rows = read_rows(path)
    kind = recognise(path, rows[0])
    return kind, [
        dataclasses.replace(_row(kind, values, number, path.parent), machine=machine)
        for number, values in enumerate(rows, start=1)
    ]


def _row(kind: FileKind, values: Mapping[str, str], number: int, folder: Path) -> Row:
    values = {column: _spelt(column, tidied(column, cell or "")) for column, cell in values.items()}
    measured = {column: values[column] for column in kind.measured if column in values}
    configuration = {
        column: "" if _SILENT.fullmatch(cell) else cell
        for column, cell in values.items()
        if column not in measured
    }
    name = values.get("id") or values.get("record_id") or str(number)
    return Row(name, Cells(configuration), Cells(measured), folder)


def _spelt(column: str, text: str) -> str:
    """A cell with its accelerator, if it holds one, by its usual name."""
    for entry in table("hardware")["spellings"] if column in _CHIPS else ():
        text = re.sub(entry["pattern"], entry["means"], text, flags=re.IGNORECASE)
    return text


def _line(error: Exception) -> str:
    """An error as one line; what is no error of the row says that it is a bug."""
    text = " ".join(str(error).split())
    if isinstance(error, MpsimError):
        return text or type(error).__name__
    return f"internal error, a bug of mpsim: {type(error).__name__}: {text}"
