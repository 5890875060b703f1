"""Tables as plain text, and sheets of them: what a value says of itself, in text and in HTML.

Consoles and reports lay the same rows out: columns side by side, long cells folded at words.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mpsim import structs
from mpsim.output import printable

WIDTH: Final = 100
"""Columns of a page that is no terminal: to read, mail and paste without scrolling."""
RULE: Final = "\u2500"  # under the header of a table

_BETWEEN_WORDS: Final = re.compile(r" (?!(?<=\d )[%A-Za-z])")  # 932.9 ms, 40 %: no units alone
_INSIDE: Final = re.compile(r"(?<=[._/,;:=+-])(?=.)")  # where a word too long may be cut
_APART: Final = "   "  # between columns with names
_NARROW: Final = "  "  # between others, and where there is little room
_LEAST: Final = 18  # columns that a cell of words keeps as long as others can give way
_LAST: Final = 8  # columns that it keeps where nothing else helps

Cell = tuple[str, ...]


def lay_out(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] = (),
    right: Iterable[int] = (),
    room: int = WIDTH,
) -> list[str]:
    r"""Lines of a table that is no wider than `room` unless its figures alone are.

    `rows`: short ones are filled up. `header`: column names, with units. `right`: columns set flush
    right; figures, which are folded last. `room`: columns of the page.

    Examples
    --------
    >>> print("\n".join(lay_out([("step", "932.9 ms a step, 40 % MFU")], room=18)))
    step  932.9 ms a
          step, 40 %
          MFU
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    count = max([len(header), *map(len, cells)], default=0)
    for row in cells:
        row.extend([""] * (count - len(row)))
    head = [printable(cell) for cell in [*header, *[""] * (count - len(header))]]
    flush = [column in set(right) for column in range(count)]
    apart = _APART if header else _NARROW
    columns = [[row[column] for row in cells] for column in range(count)]
    whole = sum(_natural([name, *column]) for name, column in zip(head, columns, strict=True))
    if whole + len(apart) * (count - 1) > room:
        apart = _NARROW
    widths = _widths(columns, head, flush, room - len(apart) * (count - 1))
    lines = list(_lines(cells, widths, flush, apart))
    if header:
        rule = RULE * (sum(widths) + len(apart) * (count - 1))
        lines = [*_lines([head], widths, flush, apart), rule, *lines]
    return [line.rstrip() for line in lines]


def plural(count: float, noun: str, many: str = "") -> str:
    """A number with its noun.

    Examples
    --------
    >>> plural(1, "row"), plural(1200, "row"), plural(2, "batch", "batches")
    ('1 row', '1,200 rows', '2 batches')
    """
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def _widths(columns: list[list[str]], head: list[str], flush: list[bool], room: int) -> list[int]:
    """Width of each column: what it needs, less where all together need more than there is."""
    widths = [_natural([name, *cells]) for name, cells in zip(head, columns, strict=True)]
    names = [_longest_piece(name) for name in head]
    words = [max(map(_longest_word, cells), default=0) for cells in columns]
    # figures stay whole: their names alone are folded
    figures = [max(_natural(cells), name) for cells, name in zip(columns, names, strict=True)]
    folded = [
        (figure if right else min(width, _LEAST), min(max(word, name), _LAST))
        for figure, word, name, width, right in zip(
            figures, words, names, widths, flush, strict=True
        )
    ]
    for least in (0, 1):
        floors = [floor[least] for floor in folded]
        while sum(widths) > room:
            loose = [c for c, width in enumerate(widths) if width > floors[c]]
            if not loose:
                break
            widest = max(loose, key=widths.__getitem__)
            widths[widest] -= 1
    return widths


def _natural(cells: Iterable[str]) -> int:
    """Width of the widest line of some cells."""
    return max((_width(line) for cell in cells for line in cell.split("\n")), default=0)


def _longest_word(cell: str) -> int:
    return max(map(_width, _BETWEEN_WORDS.split(cell.replace("\n", " "))), default=0)


def _longest_piece(name: str) -> int:
    """Width of the longest part of a column's name that stays in one piece."""
    words = name.replace("\n", " ").split(" ")
    return max((_width(piece) for word in words for piece in _INSIDE.split(word)), default=0)


def _lines(rows: list[list[str]], widths: list[int], flush: list[bool], gap: str) -> Iterator[str]:
    for row in rows:
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*folded, fillvalue=""):
            yield gap.join(map(_fill, line, widths, flush))


def _fold(cell: str, width: int) -> list[str]:
    """Lines of a cell that are no wider than the column."""
    if "\n" not in cell and _width(cell) <= width:
        return [cell]
    return [line for part in cell.split("\n") for line in _fold_line(part, width)]


def _fold_line(text: str, width: int) -> list[str]:
    lines = [""]
    for word in _BETWEEN_WORDS.split(text):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(joined) <= width:
            lines[-1] = joined
            continue
        pieces = [word] if _width(word) <= width else _cut(word, width)
        lines = pieces if lines == [""] else [*lines, *pieces]
    return lines


def _cut(word: str, width: int) -> list[str]:
    """Pieces of a word that is wider than its column: at spaces and marks in it, else anywhere."""
    lines = [""]
    for piece in (part for bit in re.split(r"(?<= )", word) for part in _INSIDE.split(bit)):
        if _width(lines[-1] + piece) <= width:
            lines[-1] += piece
            continue
        for letter in piece if _width(piece) > width else [piece]:
            if lines[-1] and _width(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return [line.strip() for line in lines]


def _width(text: str) -> int:
    """Columns that a text takes: two for a wide letter, none for a mark on another one."""
    if text.isascii():
        return len(text)
    wide = (2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return sum(wide) - sum(unicodedata.combining(letter) > 0 for letter in text)


def _fill(text: str, width: int, right: bool) -> str:
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


BRIEF: Final = 2900
"""Most characters of a value's representation: one at a prompt must not flood it."""
_ROWS: Final = (100, 50, 30, 24, 20, 16, 12, 8, 5, 3, 1)
"""Rows of a section to try in turn, where all of them are too long."""
_CELL: Final = 160  # characters of a cell of a short representation
_LINE: Final = 400  # of a sentence


@structs.dataclass(frozen=True, slots=True)
class Section:
    """A table and sentences below it."""

    rows: tuple[tuple[str, ...], ...] = ()  # cells with units
    header: tuple[str, ...] = ()  # names of the columns
    right: tuple[int, ...] = ()  # columns set flush right
    title: str = ""
    lines: tuple[str, ...] = ()  # sentences

    def text(self, room: int = WIDTH) -> str:
        """Plain text in so many columns; sentences run on."""
        table = lay_out(self.rows, header=self.header, right=self.right, room=room)
        title = [printable(self.title)] if self.title else []
        return "\n".join([*title, *(table if self.rows else ()), *map(printable, self.lines)])

    def html(self) -> str:
        """The same as HTML, every text escaped."""
        title = f"<p><b>{_escaped(self.title)}</b></p>" if self.title else ""
        body = "".join(f"<tr>{''.join(self._cells(row))}</tr>" for row in self.rows)
        if self.header and self.rows:
            names = "".join(f"<th>{_escaped(name)}</th>" for name in self.header)
            body = f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody>"
        table = f"<table>{body}</table>" if body else ""
        return title + table + "".join(f"<p>{_escaped(line)}</p>" for line in self.lines)

    def _cells(self, row: tuple[str, ...]) -> Iterator[str]:
        for column, cell in enumerate(row):
            kind = "td" if self.header or column else "th"  # a row of figures begins with its name
            left = " align=left" if column not in self.right else ""
            yield f"<{kind}{left}>{_escaped(cell)}</{kind}>"

    def at_most(self, rows: int) -> Section:
        """The section with its first rows and sentences, how many are left out; long cells cut."""
        kept = tuple(tuple(map(_shortened, row)) for row in self.rows[:rows])
        lines = tuple(_shortened(line, _LINE) for line in self.lines[:rows])
        left_out = max(len(self.rows) - rows, 0) or max(len(self.lines) - rows, 0)
        if left_out:
            lines = (*lines, f"... {left_out:,} more")
        return structs.replace(self, rows=kept, lines=lines, title=_shortened(self.title))


@structs.dataclass(frozen=True, slots=True)
class Sheet:
    """Everything a value says of itself.

    Examples
    --------
    >>> sheet = Sheet("a & b", (Section((("step time", "1 s"),)),))
    >>> print(sheet.text())
    a & b
    step time  1 s
    >>> sheet.html().removeprefix("<p><b>a &amp; b</b></p>")
    '<table><tr><th align=left>step time</th><td align=left>1 s</td></tr></table>'
    """

    title: str  # such as the name of the scenario
    sections: tuple[Section, ...]

    def text(self, room: int = WIDTH) -> str:
        """Plain text; an empty line before every section that has a title."""
        lead = [printable(self.title)] if self.title else []
        parts = [
            "\n" * bool(section.title and (lead or number)) + section.text(room)
            for number, section in enumerate(self.sections)
        ]
        return "\n".join(part for part in [*lead, *parts] if part)

    def html(self) -> str:
        """The same as HTML, every text escaped."""
        lead = f"<p><b>{_escaped(self.title)}</b></p>" if self.title else ""
        return lead + "".join(section.html() for section in self.sections)

    def brief(self, render: Callable[[Sheet], str]) -> str:
        """A rendering no longer than `BRIEF`: fewer rows or sections, and how many are left out."""
        if len(whole := render(self)) <= BRIEF:
            return whole
        for rows in _ROWS:
            short = tuple(section.at_most(rows) for section in self.sections)
            text = render(Sheet(_shortened(self.title), short))
            if len(text) <= BRIEF:
                return text
        for kept in range(len(short) - 1, 0, -1):
            more = Section(lines=(f"... {len(short) - kept} more tables",))
            text = render(Sheet(_shortened(self.title), (*short[:kept], more)))
            if len(text) <= BRIEF:
                return text
        return render(Sheet(_shortened(self.title), ()))


class Shown:
    """A value that a prompt prints and a notebook lays out: both from its sheet, both short."""

    __slots__ = ()

    def sheet(self) -> Sheet:
        """The value in tables and sentences, as the command line prints it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.sheet().brief(Sheet.text)

    def _repr_html_(self) -> str:
        return self.sheet().brief(Sheet.html)


def _escaped(text: str) -> str:
    import html  # not before: a terminal shows none

    return html.escape(printable(text)).replace("\n", "<br>")


def _shortened(text: str, most: int = _CELL) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
