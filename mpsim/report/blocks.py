"""Blocks of a page: figures, tables and charts as plain data, which the page draws and writes out as tables.

Numbers are SI; a block says its unit, and the page writes it as a person would. A chart says in a sentence what it shows, for those who do not see it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bars",
    "Block",
    "Chart",
    "Column",
    "Figure",
    "Figures",
    "Heat",
    "Limit",
    "Lines",
    "Note",
    "Part",
    "Quantity",
    "Scatter",
    "Section",
    "Series",
    "Table",
]

Floats = NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """A cell of a table with a unit of its own.

    Parameters
    ----------
    value : float or None
    unit : str
        As of a Figure.
    """

    value: float | None
    unit: str


Cell: TypeAlias = float | str | bool | Quantity | None
"""What stands in a table."""

_DIGITS = 7  # of numbers of charts: more than any screen shows


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One number of a summary, by its dotted key.

    Parameters
    ----------
    label : str
    key : str
        Such as ``memory.total``.
    unit : str
        ``s``, ``B``, ``share``, ``FLOP/s``, ``USD``, ``count`` or any other word that is written behind the number.
    range_key : str
        Key of its interval; empty without one.
    note : str
        A few words below it.
    factor : float
        From the number in the summary to the unit.
    """

    label: str
    key: str
    unit: str
    range_key: str = ""
    note: str = ""
    factor: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Headline figures in a row.

    Parameters
    ----------
    items : sequence of Figure
    """

    block: ClassVar[str] = "figures"
    items: Sequence[Figure]


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """A paragraph.

    Parameters
    ----------
    text : str
    mood : str
        ``plain``, ``good`` or ``warning``.
    """

    block: ClassVar[str] = "note"
    text: str
    mood: str = "plain"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
    unit : str
        As of a Figure; empty for text.
    """

    name: str
    unit: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows of text and numbers.

    Parameters
    ----------
    title : str
    columns : sequence of Column
    rows : sequence of sequence
        One cell a column.
    folded : bool
        Whether the page shows it only when asked.
    """

    block: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One part of stacked bars.

    Parameters
    ----------
    name : str
    values : sequence of float
        One a bar.
    colour : str
        A word of the page's palette.
    hatched : bool
    """

    name: str
    values: Numbers
    colour: str = ""
    hatched: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A line across a chart.

    Parameters
    ----------
    value : float
    label : str
    """

    value: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The parts that every chart has.

    Parameters
    ----------
    title : str
    alt : str
        What it shows, in a sentence.
    """

    title: str
    alt: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Chart):
    """Horizontal bars, cut into parts.

    Parameters
    ----------
    title, alt : str
        As of a Chart.
    names : sequence of str
        One a bar, from top to bottom.
    parts : sequence of Part
    unit : str
    axis : str
        What the numbers are.
    limit : Limit or None
    """

    block: ClassVar[str] = "bars"
    names: Sequence[str]
    parts: Sequence[Part]
    unit: str
    axis: str
    limit: Limit | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Parameters
    ----------
    name : str
    x, y : sequence of float
    colour : str
        A word of the page's palette; empty for the next of its series.
    step : bool
        Whether it keeps each value until the next.
    """

    name: str
    x: Numbers
    y: Numbers
    colour: str = ""
    step: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Chart):
    """Lines over a common axis; stacked areas where they are parts of a whole.

    Parameters
    ----------
    title, alt : str
        As of a Chart.
    series : sequence of Series
    x, y : Column
        What the axes are.
    limit : Limit or None
        Across y.
    stacked : bool
    log_x : bool
    """

    block: ClassVar[str] = "lines"
    series: Sequence[Series]
    x: Column
    y: Column
    limit: Limit | None = None
    stacked: bool = False
    log_x: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Chart):
    """A grid of cells, darker where there is more.

    Parameters
    ----------
    title, alt : str
        As of a Chart.
    names : sequence of str
        One a row, from top to bottom.
    edges : sequence of float
        Of the columns; one more than there are.
    values : sequence of sequence of float
        By row and column.
    x, z : Column
        What the axis and the cells are.
    """

    block: ClassVar[str] = "heat"
    names: Sequence[str]
    edges: Numbers
    values: Sequence[Numbers] | Floats
    x: Column
    z: Column


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scatter(Chart):
    """Points with names, over lines that bound them.

    Parameters
    ----------
    title, alt : str
        As of a Chart.
    groups : mapping of str to sequence of (str, float, float)
        Name, x and y of points, by what the legend calls them.
    x, y : Column
        What the axes are.
    lines : sequence of Series
    log : bool
        Whether both axes are logarithmic.
    labelled : sequence of str
        Names of points that are written beside them.
    """

    block: ClassVar[str] = "scatter"
    groups: Mapping[str, Sequence[tuple[str, float, float]]]
    x: Column
    y: Column
    lines: Sequence[Series] = ()
    log: bool = False
    labelled: Sequence[str] = ()


Block: TypeAlias = Any
"""A block of a section: any class of this module with a name in ``block``, or a mapping that has one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A section of a page.

    Parameters
    ----------
    id : str
        Letters and dashes; unique within its part of the page.
    title : str
    lead : str
        A sentence that says what is to be seen.
    blocks : sequence of Block
    """

    id: str
    title: str
    lead: str
    blocks: Sequence[Block]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id,
            "title": self.title,
            "lead": self.lead,
            "blocks": [plain(block) for block in self.blocks],
        }


def plain(value: object) -> Any:
    """`value` as JSON holds it: blocks as mappings, arrays as lists of rounded numbers, None for what is not finite."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        kind = getattr(value, "block", None)
        return fields if kind is None else {"block": kind, **fields}
    if isinstance(value, np.ndarray):
        return _short(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _short(column: NDArray[Any]) -> list[Any]:
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
