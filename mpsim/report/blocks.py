"""Blocks of a page beside its charts (`mpsim.plot.chart`): figures, notes and tables; and all of
them as plain data, and back.

Numbers are SI; a block says its unit, and the page writes it as a person would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.plot.chart import Axis, Bars, Chart, Heat, Limit, Lines, Part, Series
from mpsim.study.rows import column_of, title_of, unit_of

R = TypeVar("R")


@structs.dataclass(frozen=True, slots=True)
class Quantity:
    """A cell of a table with a unit of its own, as of a Figure."""

    value: float | None
    unit: str


Cell: TypeAlias = float | str | bool | Quantity | None  # what stands in a table

_CHARTED = (Chart, Axis, Limit, Part, Series)
_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("x", "y", "z", "value"), Axis),
    "parts": Part,
    "series": Series,
    "limits": Limit,
}
_DIGITS = 7  # of numbers of charts: more than any screen shows


@structs.dataclass(frozen=True, slots=True)
class Figure:
    """One number of a summary, by its dotted key, such as ``memory.total``."""

    label: str
    key: str
    # ``s``, ``B``, ``share``, ``FLOP/s``, ``USD``, ``count``, or a word to stand behind the number
    unit: str
    range_key: str  # key of its interval, where there is one
    note: str = ""  # a few words below it


def figure(key: str, note: str = "") -> Figure:
    """A figure in the words and the unit that comparisons have for it."""
    column, (head, _, which) = column_of(key), key.partition(".")
    range_key = f"{key}_interval" if which == "p99" else f"interval.{head}"
    return Figure(title_of(column), key, unit_of(column).strip("1"), range_key, note)


@structs.dataclass(frozen=True, slots=True)
class Figures:
    """Headline figures in a row."""

    block: ClassVar[str] = "figures"
    items: Sequence[Figure]


@structs.dataclass(frozen=True, slots=True)
class Note:
    """A paragraph whose mood is ``plain``, ``good`` or ``warning``."""

    block: ClassVar[str] = "note"
    text: str
    mood: str = "plain"


@structs.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; the unit is as of a Figure, or empty for text."""

    name: str
    unit: str = ""


@structs.dataclass(frozen=True, slots=True)
class Table:
    """Rows of text and numbers; one that is folded is shown only when asked for."""

    block: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False


Block: TypeAlias = Any
"""A block of a section: a chart, a class with a name in ``block``, or a mapping with one."""


@structs.dataclass(frozen=True, slots=True)
class Section:
    """A section of a page."""

    id: str  # letters and dashes; unique within its part of the page
    title: str
    lead: str  # a sentence that says what is to be seen
    blocks: Sequence[Block]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"id": self.id, "title": self.title, "lead": self.lead, "blocks": plain(self.blocks)}


class Sections(Generic[R]):
    """Sections of a kind of result, in the order of the functions that make their blocks."""

    def __init__(self) -> None:
        self._entries: list[_Entry[R]] = []

    def add(
        self, name: str, title: str, lead: Callable[[R], str] | None = None, *, slow: bool = False
    ) -> Callable[[_Maker[R]], _Maker[R]]:
        """Add a section, as a decorator.

        `name`: id of the section. `lead`: makes it of the result; left out, it is the docstring of
        the function. `slow`: whether it takes longer to work out than a slider may wait.
        """

        def added(blocks: _Maker[R]) -> _Maker[R]:
            self._entries.append(_Entry(name, title, lead, blocks, slow))
            return blocks

        return added

    def of(self, result: R, *, whole: bool = True) -> list[Section]:
        """The sections of a result that have any blocks; without what takes long unless `whole`."""
        sections = []
        for entry in self._entries:
            blocks = list(entry.blocks(result)) if whole or not entry.slow else []
            if blocks:
                lead = entry.lead(result) if entry.lead else entry.blocks.__doc__ or ""
                sections.append(Section(entry.id, entry.title, lead, blocks))
        return sections


_Maker: TypeAlias = Callable[[R], Iterable[Block]]


class _Entry(NamedTuple, Generic[R]):
    """A section before there is a result."""

    id: str
    title: str
    lead: Callable[[R], str] | None
    blocks: _Maker[R]
    slow: bool


def plain(value: object) -> Any:
    """`value` as JSON: blocks as mappings, arrays as rounded lists, None for not finite."""
    if structs.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: plain(getattr(value, field.name))
            for field in structs.fields(value)
            if not _is_left_out(value, field)
        }
        kind = getattr(value, "block", None)
        return fields if kind is None else {"block": kind, **fields}
    if isinstance(value, np.ndarray):
        return _short(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return value


def _is_left_out(value: object, field: structs.Field[object]) -> bool:
    """Whether a field of a chart, or of a part of one, is as it is when nobody gives it."""
    own = getattr(value, field.name)
    return isinstance(value, _CHARTED) and type(own) is type(field.default) and own == field.default


def chart_of(block: Mapping[str, Any]) -> Chart:
    """The chart that `plain` made a block of."""
    fields: dict[str, Any] = {key: value for key, value in block.items() if key != "block"}
    for key, kind in _FIELDS.items():
        if key in fields:
            given = fields[key]
            fields[key] = [kind(**e) for e in given] if isinstance(given, list) else kind(**given)
    kinds: Mapping[str, type[Chart]] = {"bars": Bars, "lines": Lines, "heat": Heat}
    return kinds[block["block"]](**fields)


def setting_text(value: object) -> str:
    """A setting as a file would say it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:.6g}"
        return short if float(short) == value else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    return "none" if value is None else str(value)


def _short(column: NDArray[np.generic]) -> list[object]:
    """Numbers of a chart, rounded to what can be seen."""
    if column.ndim > 1:
        return [_short(row) for row in column]
    values: list[Any] = column.tolist()
    if column.dtype.kind != "f":
        return values
    if not np.isfinite(column).all():
        return [_short(np.array([value]))[0] if math.isfinite(value) else None for value in values]
    # one formatting of all is several times faster than one of each
    return list(map(float, (f"%.{_DIGITS}g " * len(values) % tuple(values)).split()))
