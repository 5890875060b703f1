"""Rows: a table whose columns are dotted keys of a scenario and figures that were measured of it;
each row is simulated and scored.

``mpsim sweep --csv`` writes such a table: beside a column of measured values it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from mpsim import structs
from mpsim.document import Document, parse_scalar
from mpsim.errors import CalibrationError, MpsimError, UnitError
from mpsim.formats.tables import Cells, read_rows, tidied, without_thousands
from mpsim.inputs import shown
from mpsim.memo import remembered
from mpsim.result import Result
from mpsim.result.residuals import Interval
from mpsim.scenario import Scenario, load
from mpsim.scenario.layers import ground, lay_values
from mpsim.serving import ServiceResult, make_service
from mpsim.serving.confidence import setting_of as setting_of_service
from mpsim.serving.result import ServedPoint
from mpsim.shipped import read_shipped, say
from mpsim.simulate import simulate
from mpsim.study.rows import COLUMNS, SERVICE_COLUMNS, column_of, figure_of
from mpsim.training.intervals import residuals_of, told
from mpsim.units import Dimension, parse_quantity
from mpsim.validate.records import Record, Validation

Progress = Callable[[int, int], None]
_PERCENT: Final = 100.0
_TOKENS: Final = "tokens/s"
_LABELS: Final = ("id", "record_id", "family", "scenario")
_UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {unit.lower(): unit for unit in "s ms us ns B kB MB GB TB KiB MiB GiB TiB".split()}
    | {"bytes": "B", "pct": "%", "%": "%"}
)
_LEAST: Final = 1e-30
_RAN_OUT: Final = re.compile(r"(?i)\s*(cuda |hip )?(oom|out[- ]of[- ]memory)( error)?\s*")
_PREFIX: Final = re.compile("measured[._ ]", re.IGNORECASE)
_UNIT: Final = re.compile(rf"[_ ]?[(\[]?({'|'.join(_UNITS)})[)\]]?", re.IGNORECASE)


@structs.dataclass(frozen=True, slots=True)
class Figure:
    """A figure that people measure."""

    kind: str  # what its records are summarised with
    unit: str  # of its records: the SI unit, ``tokens/s``, or 1 for a share
    place: str  # in the summary of a run, after a dot a figure of a mapping
    # whose residuals give the interval of a service; a training step has its own
    residual: str = ""
    point: str = ""  # name in a `ServedPoint`; empty where nothing is fitted to it

    def read(self, text: str, unit: str) -> float:
        """A cell in the figure's unit: a plain number in that of the column, or a quantity with its
        own. CalibrationError if it is no number above 0, or has no unit of this figure.
        """
        text = without_thousands(text.strip())
        try:
            value = float(text)
        except ValueError:
            number, _, own = text.rpartition(" ")
            if text.endswith("%"):
                number, own = text.removesuffix("%"), "%"
            return self._scaled(number or text, own, text)
        return self._scaled(repr(value), unit or self.unit, text)

    def _scaled(self, number: str, unit: str, text: str) -> float:
        value = 0.0
        try:
            if unit == self.unit or (unit == "%" and self.unit == "1"):
                value = float(number) / (_PERCENT if unit == "%" else 1.0)
            elif self.unit in ("s", "B"):
                value = parse_quantity(f"{number} {unit}", Dimension(self.unit))
        except (UnitError, ValueError):
            value = 0.0
        if not _LEAST < value < 1.0 / _LEAST:  # errors relative to it are numbers
            raise CalibrationError(f"got {shown(text)}; needed a number above 0 in {self.unit}")
        return value


FIGURES: Final[Mapping[str, Figure]] = {
    name: Figure(*row) for name, row in read_shipped("mpsim.validate.data", "measured.yaml").items()
}
"""Measured columns by name. The first of a training step's own (time, rates, MFU) that a row fills
is scored: the others say the same in other units."""
_ALSO: Final[Mapping[str, str]] = MappingProxyType(
    {"peak_memory": "memory"} | {f"{name}_mean": name for name in ("ttft", "tpot", "e2e")}
)
_OWN: Final = frozenset(
    {*map(column_of, (*COLUMNS, *SERVICE_COLUMNS)), "warnings", "reason", "mpsim"}
)
_OWN_PART: Final = re.compile(r"[a-z_]+_s")  # of a breakdown


@structs.dataclass(frozen=True, slots=True)
class Table:
    """A table of rows, its columns sorted by what they are."""

    path: Path
    rows: Sequence[Mapping[str, str]]
    keys: tuple[str, ...]  # columns that are dotted keys of a scenario
    measured: Mapping[str, tuple[str, str]]  # name of the figure and unit by column
    ignored: tuple[str, ...]  # other columns, those that mpsim wrote itself left out

    @property
    def serves(self) -> bool:
        """Whether a figure of a service was measured."""
        return any(FIGURES[name].point for name, _ in self.measured.values())

    def figures(self, row: Mapping[str, str]) -> dict[str, float | None]:
        """Measured figures of a row by name, the first of the same; a memory of None: it ran out.
        CalibrationError: no figure.
        """
        cells = {name: (column, unit) for column, (name, unit) in self.measured.items()}
        if any(_RAN_OUT.fullmatch(row.get(column, "")) for column in self.measured):
            return {"memory": None}
        figures: dict[str, float | None] = {}
        for name, figure in FIGURES.items():
            column, unit = cells.get(name, ("", ""))
            if not row.get(column, "").strip():
                continue
            if figure.kind == "training" and any(FIGURES[k].kind == "training" for k in figures):
                continue
            try:
                figures[name] = figure.read(row[column], unit)
            except CalibrationError as error:
                raise CalibrationError(f"{column}: {error}") from error
        return figures

    def scenario(self, row: Mapping[str, str], base: Scenario | None) -> Scenario:
        """The scenario of a row: its file, or `base`, or nothing, with the row's keys on top.
        CalibrationError, ScenarioError if a cell or the whole is none.
        """
        cells = {key: tidied(key.rpartition(".")[2], row[key]) for key in self.keys}
        values = {key: parse_scalar(cell) for key, cell in cells.items() if cell}
        file = row.get("scenario", "").strip()
        under = _loaded(str(self.path.parent / file)) if file else base
        if under is not None:
            return under.with_values(values) if values else under
        empty = ground(Document({"schema": 1}, {}, ""))
        return Scenario.from_mapping(lay_values(empty, values).data)


@remembered(64)
def _loaded(path: str) -> Scenario:
    return load(path)


def read_table(path: str | Path) -> Table:
    """Read a CSV file, sort its columns. CalibrationError without header or measured column."""
    rows = read_rows(Path(path))
    columns = list(rows[0])
    measured = _measured(columns)
    keys = tuple(
        column
        for column in columns
        if column not in measured and column.partition(".")[0] in _sections()
    )
    used = {*measured, *keys, *_LABELS, *(_own(columns))}
    ignored = tuple(column for column in columns if column not in used)
    if not measured:
        raise CalibrationError(
            f"{path}: no column was measured; needed one of {', '.join(FIGURES)} beside dotted keys"
            " of a scenario (measured.tokens_per_s in a table that mpsim sweep wrote)"
        )
    return Table(Path(path), rows, keys, measured, ignored)


@remembered(1)
def _sections() -> frozenset[str]:
    """First parts of dotted keys."""
    return frozenset(Scenario.model_fields.keys() - {"sweep", "design", "overrides"})


def _own(columns: Sequence[str]) -> set[str]:
    """Columns that ``mpsim sweep`` wrote, whose stamp tells such a table."""
    if "mpsim" not in columns:
        return set()
    return {c for c in columns if c in _OWN or (_OWN_PART.fullmatch(c) and c != "step_time_s")}


def _measured(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Figure and unit by column; of two of a figure the one that says it was measured."""
    own = _own(columns)
    measured: dict[str, tuple[str, str]] = {}
    for column in sorted(columns, key=lambda name: not _PREFIX.match(name)):
        figure = None if column in own else _figure_of(_PREFIX.sub("", column, count=1).lower())
        if figure and figure[0] not in (name for name, _ in measured.values()):
            measured[column] = figure
    return measured


def _figure_of(name: str) -> tuple[str, str] | None:
    """Figure and unit of a column's name: ``step_time``, ``ttft_mean_ms``, ``memory [GiB]``."""
    for figure in sorted((*FIGURES, *_ALSO), key=len, reverse=True):
        unit = _UNIT.fullmatch(name.removeprefix(figure)) if name.startswith(figure) else None
        if unit or name == figure:
            return _ALSO.get(figure, figure), _UNITS[unit[1].lower()] if unit else ""
    return None


def validate_files(
    paths: Iterable[str | Path],
    *,
    scenario: Scenario | None = None,
    values: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Simulate every row of some tables that describes a scenario, and score it.

    Parameters
    ----------
    paths : iterable of str or Path
        CSV files: columns are dotted keys of a scenario, or ``scenario`` for its file, and measured
        values (`FIGURES`), with a unit in the cell or at the end of the name. ``id`` and ``family``
        name a row and what it is summarised with.
    scenario : Scenario, optional
        What rows change that name no file.
    values : mapping of str to object, optional
        Values by dotted key on top of every row.
    progress : callable, optional
        Called with rows done and rows in all.

    Returns
    -------
    Validation
        One record a measured value, in the order of the files.

    Raises
    ------
    CalibrationError
        If a file is no such table.
    KeyboardInterrupt
        If no row was predicted until then; else the records of those that were are returned.
    """
    tables = [read_table(path) for path in paths]
    work = [(table, number) for table in tables for number in range(len(table.rows))]
    records: list[Record] = []
    done = 0
    try:
        for done, (table, number) in enumerate(work, start=1):
            records += _records(table, number, scenario, values or {})
            if progress is not None:
                progress(done, len(work))
    except KeyboardInterrupt:
        if not records:
            raise
        done -= 1
    remarks = tuple(
        f"{table.path}: ignored columns: {', '.join(table.ignored)}"
        for table in tables
        if table.ignored
    )
    return Validation(tuple(records), interrupted=done < len(work), remarks=remarks)


def _id_of(row: Mapping[str, str], number: int) -> str:
    return row.get("id") or row.get("record_id") or str(number + 1)


def _records(
    table: Table, number: int, base: Scenario | None, values: Mapping[str, object]
) -> list[Record]:
    """Records of a row, with predictions or with the reason why there are none."""
    row = table.rows[number]
    name, family = _id_of(row, number), row.get("family", "").strip() or table.path.stem
    blanks = [blank := Record(id=name, family=family, kind="training", unit="", measured=None)]
    try:
        figures = table.figures(row) or {"step_time": None}  # predicted all the same
        blanks = [
            structs.replace(
                blank,
                id=name if figure.kind == "training" else f"{name}#{key}",
                kind=figure.kind,
                unit=figure.unit,
                measured=figures[key],
            )
            for key, figure in FIGURES.items()
            if key in figures
        ]
        scenario = table.scenario(row, base)
        result = simulate(scenario.with_values(values) if values else scenario)
    except MpsimError as error:
        why = "; ".join(str(error).splitlines())
        return [structs.replace(blank, skipped_because=why) for blank in blanks]
    return [
        _filled_step(blank, FIGURES[key], result)
        if isinstance(result, Result)
        else _filled_service(blank, FIGURES[key], result)
        for key, blank in zip(figures, blanks, strict=True)
    ]


def _filled_step(blank: Record, figure: Figure, result: Result) -> Record:
    """A record of a training step with its prediction."""
    head = result.headline
    value = figure_of(head, figure.place)
    if not isinstance(value, float | int):
        return structs.replace(blank, skipped_because="a training step has no such result")
    setting, step = told(head), result.scenario.training_step
    low, high = head["interval"][figure.place]
    memory = figure.kind == "memory"
    residual = "memory" if memory else residuals_of(setting).figure
    basis = head["interval"]["memory_basis" if memory else "basis"]
    many = f"{head['accelerators']} x {result.plan.layout.cluster.accelerator.name}"
    group = f"{result.plan.layout.model.name}, {step.sequence_length} tokens, {many}"
    timed = figure.unit == "s"  # what choices are judged by
    return structs.replace(
        blank,
        predicted=float(value),
        size=float(head["accelerators"]),
        group=group if timed else "",
        sequences=float(step.global_batch) if timed else 0.0,
        figure=residual,
        setting=setting,
        ends=Interval(low, high, basis),
        ran_out=1.0 - result.summary["fits_probability"]
        if blank.measured is None and memory
        else None,
    )


def _filled_service(blank: Record, figure: Figure, result: ServiceResult) -> Record:
    """A record of a service with its prediction."""
    value = figure_of(result.summary, figure.place)
    if not figure.residual or not isinstance(value, float | int):
        return structs.replace(blank, skipped_because="a service has no such result")
    return structs.replace(
        blank,
        predicted=float(value),
        size=float(result.summary["accelerators"]),
        figure=figure.residual,
        setting=setting_of_service(result.plan),
        ends=Interval(*result.summary["interval"]["e2e_s"]) if figure.residual == "e2e" else None,
    )


class ServedRows(NamedTuple):
    """Measured services of a table, and why other rows are none."""

    points: list[ServedPoint]
    skipped: list[str]


def served_points(path: str | Path, *, only: Mapping[str, str] | None = None) -> ServedRows | None:
    """Measured services of a table, to be fitted, or None. `only`: values of columns.
    CalibrationError for a table of training steps.
    """
    try:
        table = read_table(path)
    except CalibrationError:
        return None
    if not table.serves:
        if table.measured and (table.keys or any("scenario" in row for row in table.rows)):
            raise CalibrationError(say("validate.steps_alone", path=table.path))
        return None
    points: list[ServedPoint] = []
    skipped: list[str] = []
    for number, row in enumerate(table.rows):
        if any(Cells(row).text(column) != value for column, value in (only or {}).items()):
            continue
        name = _id_of(row, number)
        try:
            figures = table.figures(row)
            plan = make_service(table.scenario(row, None))
        except MpsimError as error:
            skipped.append(f"{name}: {'; '.join(str(error).splitlines())}")
            continue
        measured = {FIGURES[key].point: value for key, value in figures.items() if value}
        if measured.pop("", None) is None and measured:
            points.append(ServedPoint(name, plan, measured))
    return ServedRows(points, skipped)
