"""The table of a sweep: one row a combination, with what it gave or why it gave nothing; figures of
results in words, as people write them.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

from mpsim import structs
from mpsim.errors import MpsimError
from mpsim.frame import Tabular
from mpsim.result.words import odds_words
from mpsim.shipped import read_shipped
from mpsim.study.journal import Journal
from mpsim.study.ties import tie
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.units import Dimension, format_quantity, percent, price

_SHARE, _COUNT, _PRICE = "share", "count", "USD"
_PERCENTS: Final = re.compile(r"\d+(?:\.\d+)?(?= ?%)")
_USUAL: Final = 4  # digits of a figure; counts have another


def _figures(job: str) -> dict[str, tuple[str, str | Dimension]]:
    """Words and kind of what is compared of a job, by the name of the figure."""
    rows = read_shipped("mpsim.study.data", "columns.yaml")[job].items()
    own = (_SHARE, _COUNT, _PRICE)
    return {name: (words, kind if kind in own else Dimension(kind)) for name, (words, kind) in rows}


FIGURES, SERVICE_FIGURES, PLAN_FIGURES = map(_figures, ("steps", "services", "plans"))
_KNOWN: Final = {**FIGURES, **SERVICE_FIGURES, **PLAN_FIGURES}


def title_of(name: str) -> str:
    """A figure in words; parts of a step have none but their name."""
    return _KNOWN[name][0] if name in _KNOWN else name.replace("_", " ")


def unit_of(name: str) -> str:
    """Unit of a figure: SI, ``share``, ``USD``, ``count`` of things, ``1`` of a number."""
    kind = _KNOWN[name][1]
    if isinstance(kind, Dimension):
        return kind.value
    return "1" if kind == _COUNT and name != "accelerators" else kind


def figure_text(name: str, value: float | None, *, signed: bool = False, digits: int = 4) -> str:
    """A figure as people write it; parts are times. Differences are `signed`, shares in points."""
    if value is None:
        return "-"
    kind = _KNOWN[name][1] if name in _KNOWN else Dimension.TIME
    sign = "+" if signed and value > 0 else ""
    if kind == _SHARE:
        return f"{100 * value:+.1f} points" if signed else percent(value)
    if isinstance(kind, Dimension):
        return format_quantity(value, kind, digits=digits, signed=signed)
    if kind == _PRICE:
        return f"{sign}{price(value)}"
    if value == int(value) or abs(value) >= 10 ** (digits if digits < _USUAL else 4):
        return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.{digits + 1}g}"


def part_text(seconds: float | None) -> str:
    """Seconds as people write them."""
    return "?" if seconds is None else format_quantity(seconds, Dimension.TIME)


def share_text(value: float | None) -> str:
    """A relative difference."""
    return "-" if value is None else percent(value, signed=True)


def worded(value: object) -> str:
    """A value of a setting; null leaves it to its default."""
    return "default" if value is None else str(value)


def _ranged(texts: Sequence[str]) -> str:
    """Texts that differ in percentages alone as one: ``8.1 to 9.4 %``."""
    shares = zip(*map(_PERCENTS.findall, texts), strict=True)
    ends = ((min(share, key=float), max(share, key=float)) for share in shares)
    spans = (low if low == high else f"{low} to {high}" for low, high in ends)
    return _PERCENTS.sub(lambda _: next(spans), texts[0])


def warned(warnings: Mapping[str, object]) -> tuple[str, ...]:
    """Warnings of several results, each once with the names that it is of, unless of all.

    Examples
    --------
    >>> warned({"A": ["hot", "late"], "B": ["hot"]})
    ('warning: hot', 'warning (A): late')
    """
    of: dict[str, list[str]] = {}
    for name, each in warnings.items():
        for warning in each if isinstance(each, list | tuple) else ():
            of.setdefault(str(warning), []).append(name)
    return tuple(
        f"warning: {text}"
        if len(names) == len(warnings)
        else f"warning ({', '.join(names)}): {text}"
        for text, names in of.items()
    )


_AT_METER = "meter_energy_j_per_token"
COLUMNS, SERVICE_COLUMNS = (
    tuple(read_shipped("mpsim.study.data", "columns.yaml")[name])
    for name in ("columns", "service_columns")
)
"""What a table of results shows of each summary, of a training step and of a service."""


@structs.dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One combination of a sweep."""

    values: Mapping[str, object]  # dotted key to the value it was given
    # as ``mpsim run --json`` has it, without ``calibration.constants``; None if not simulated
    summary: Mapping[str, object] | None
    # why it could not be simulated, or that it does not fit into memory; None for a good row
    reason: str | None

    @property
    def usable(self) -> bool:
        """Whether it was simulated and fits into memory."""
        return self.summary is not None and self.reason is None

    @property
    def serves(self) -> bool:
        """Whether it is of a service."""
        return self.summary is not None and self.summary.get("job") == "serving"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the result; none where there is no result."""
        known = (self.summary or {}).get("warnings")
        return tuple(map(str, known)) if isinstance(known, Sequence) else ()

    def number(self, column: str) -> float:
        """One figure of the summary as a float; NaN when there is none."""
        return number_of(self.summary, column)

    def __repr__(self) -> str:
        what = self.reason or f"{len(self.summary or {})} results"
        return f"<Row {assigned(self.values)}: {what[:200]}>"

    def flat(self, *, serves: bool | None = None) -> dict[str, object]:
        """Values, figures and reason in one mapping, in the order of the columns: those of a
        service if it `serves`, which a row without a summary cannot know.
        """
        summary = self.summary or {}
        columns = SERVICE_COLUMNS if (self.serves if serves is None else serves) else COLUMNS
        figures = {column_of(name): figure_of(summary, name) for name in columns}
        times = {f"{name}_s": part for name, part in times_of(summary).items()}
        warnings = "; ".join(self.warnings)
        return {**self.values, **figures, **times, "warnings": warnings, "reason": self.reason}


def figure_of(summary: object, name: str) -> Any:
    """A figure of a summary; after a dot one of a mapping in it; None where there is none."""
    for part in name.split("."):
        summary = summary.get(part) if isinstance(summary, Mapping) else None
    return summary


def number_of(summary: object, name: str) -> float:
    """The same as a float; NaN where it is no number."""
    value = figure_of(summary, name)
    return float(value) if isinstance(value, int | float) else float("nan")


def times_of(summary: object) -> dict[str, float]:
    """Parts of the time of a step, or of a service's accelerators [s]; empty without a summary."""
    serves = figure_of(summary, "job") == "serving"
    return {**(figure_of(summary, "account_s" if serves else "breakdown_s") or {})}


def column_of(name: str) -> str:
    """Name of a figure as a column, its unit at the end: ``ttft_p99_s``."""
    head, dot, which = name.partition(".")
    if not dot:
        return name
    return f"{head.removesuffix('_s')}_{which}_s" if head.endswith("_s") else f"{head}_{which}"


@structs.dataclass(frozen=True, slots=True, repr=False)
class Sweep(Shown, Tabular):
    """The results of a sweep, one row a combination."""

    scenario: str  # name of the one that was varied
    keys: tuple[str, ...]  # dotted, in the order they were given; the last varies fastest
    rows: Sequence[Row]
    remarks: tuple[str, ...] = ()  # rows of a resumed file that were computed again, and why
    interrupted: bool = False  # whether a KeyboardInterrupt left rows out

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def sheet(self) -> Sheet:
        """A line a combination, as ``mpsim sweep`` prints them; refusals and warnings below."""
        keys, rows, best, thriftiest = self.keys, self.rows, self.best, self.thriftiest
        serves = any(row.serves for row in rows)
        ties = 0 if serves else len(self.ties)
        # layouts of one cluster differ little in energy, and their keys need the room
        hardware = any(key.startswith("cluster.") for key in keys)
        columns = dict(_SERVICE_COLUMNS if serves else _STEP_COLUMNS)
        if hardware:
            columns |= _SERVICE_ENERGIES if serves else _ENERGIES
        notes: dict[str, int] = {}
        lines = []
        for row in rows:
            # rows that cannot run lack figures, and those stored by an older version some
            figures = tuple(
                "-" if math.isnan(value := row.number(name)) else shown(value)
                for name, shown in columns.values()
            )
            mark = f"[{notes.setdefault(row.reason, len(notes) + 1)}]" if row.reason else ""
            lines.append((*map(worded, row.values.values()), *figures, mark))
        right = tuple(range(len(keys), len(keys) + len(columns)))
        header = (*keys, *columns, *(("note",) if notes else ()))
        below = [f"[{number}] {reason}" for reason, number in notes.items()]
        if best is not None:
            kind, limit = ("output ", "within the limits") if serves else ("", "that fit")
            what = f"{kind}tokens/s per accelerator {limit}"
            tie = f"; tie with {plural(ties, 'other')} within the error of such differences"
            odds = odds_words(best.summary or {})
            below.append(f"most {what}: {assigned(best.values)}{odds}{tie if ties else ''}")
        if hardware and not serves and thriftiest and thriftiest.values != (best and best.values):
            below.append(f"least energy a token at the meter: {assigned(thriftiest.values)}")
        for warning, count in self.warnings.items():
            below.append(f"warning of {count:,} of {plural(len(rows), 'row')}: {warning}")
        return Sheet("", (Section(tuple(lines), header, right, lines=tuple(below)),))

    @property
    def best(self) -> Row | None:
        """Usable row with most tokens/s an accelerator; of services one that keeps its limits."""
        usable = [row for row in self.rows if row.usable]
        if any(row.serves for row in usable):
            kept = [row for row in usable if figure_of(row.summary, "slo.met")]
            figure = "output_tokens_per_s_per_accelerator"
            return max(kept, key=lambda row: row.number(figure), default=None)
        return max(usable, key=lambda row: row.number("tokens_per_s_per_accelerator"), default=None)

    @property
    def thriftiest(self) -> Row | None:
        """The usable row of a step with least energy a token at the meter; None of services."""
        usable = [row for row in self.rows if row.usable and not math.isnan(row.number(_AT_METER))]
        return min(usable, key=lambda row: row.number(_AT_METER), default=None)

    @property
    def ties(self) -> tuple[Row, ...]:
        """Usable rows that cannot be told from the best: their difference may be zero."""
        best = self.best
        if best is None or best.summary is None:
            return ()
        others = (row for row in self.rows if row.usable and row.values != best.values)
        return tuple(row for row in others if row.summary and tie(best.summary, row.summary))

    @property
    def warnings(self) -> dict[str, int]:
        """Warnings of rows that have no reason to be left out, and how many rows have each; those
        that differ in percentages alone are one, with their ranges.
        """
        usable = (row for row in self.rows if not row.reason)
        alike: dict[str, list[str]] = {}
        for warning in (warning for row in usable for warning in row.warnings):
            alike.setdefault(_PERCENTS.sub("", warning), []).append(warning)
        return {_ranged(texts): len(texts) for texts in alike.values()}

    def table(self) -> list[dict[str, object]]:
        """One flat mapping a row, all with the same keys in the same order."""
        serves = any(row.serves for row in self.rows)
        flat = [row.flat(serves=serves) for row in self.rows]
        reasonless = dict.fromkeys(key for row in flat for key in row if key != "reason")
        return [{key: row.get(key) for key in [*reasonless, "reason"]} for row in flat]

    def to_json(self) -> dict[str, object]:
        """Plain data: scenario, keys, rows of values, summary, reason, ties with the best."""
        return {
            "scenario": self.scenario,
            "keys": list(self.keys),
            "rows": [structs.asdict(row) for row in self.rows],
            "ties": [dict(row.values) for row in self.ties],
            "interrupted": self.interrupted,
        }


T_co = TypeVar("T_co", covariant=True)


class Lazy(Sequence[T_co]):
    """A sequence whose items are made when they are asked for."""

    @abstractmethod
    def made(self, place: int) -> T_co:
        """The item at a place from 0."""

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        places = range(len(self))[index]  # which refuses what is outside
        return self.made(places) if isinstance(places, int) else tuple(map(self.made, places))


class StoredRows(Lazy[Row]):
    """Rows of a sweep: a finished one takes two kilobytes of text, five times that as mappings."""

    def __init__(
        self, values: Sequence[Mapping[str, object]], names: Sequence[str], journal: Journal
    ) -> None:
        self._values, self._names, self._journal = values, names, journal

    def __len__(self) -> int:
        return len(self._names)

    def made(self, place: int) -> Row:
        """A row, read from the journal."""
        entry = self._journal[self._names[place]]
        return Row(self._values[place], entry["summary"], entry["reason"])

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


def assigned(values: Mapping[str, object]) -> str:
    """Values by dotted key in one line."""
    return ", ".join(f"{key} {worded(value)}" for key, value in values.items())


_digits = "{:.5g}".format


def _milli(seconds: float) -> str:
    return _digits(seconds * 1e3)


_Shown = tuple[str, Callable[[float], str]]
_STEP_COLUMNS: Final[Mapping[str, _Shown]] = {
    "step (s)": ("step_time_s", _digits),
    "tokens/s/acc.": ("tokens_per_s_per_accelerator", _digits),
    "MFU": ("mfu", percent),
    "bubble": ("bubble_fraction", percent),
    "memory (GB)": ("peak_memory_bytes", lambda size: f"{size / 1e9:.1f}"),
}
_SERVICE_COLUMNS: Final[Mapping[str, _Shown]] = {
    "TTFT p99 (ms)": ("ttft_s.p99", _milli),
    "TPOT p99 (ms)": ("tpot_s.p99", _milli),
    "tokens/s": ("output_tokens_per_s", _digits),
    "tokens/s/acc.": ("output_tokens_per_s_per_accelerator", _digits),
    "goodput (1/s)": ("goodput_per_s", _digits),
}
_ENERGIES: Final[Mapping[str, _Shown]] = {
    "J/token": ("energy_j_per_token", "{:.3g}".format),
    "at meter": ("meter_energy_j_per_token", "{:.3g}".format),
}
_SERVICE_ENERGIES: Final[Mapping[str, _Shown]] = {
    "J/token": ("energy_j_per_output_token", "{:.3g}".format)
}
