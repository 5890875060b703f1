"""Sheets: what a value says of itself, as tables and sentences of consoles and notebooks.

One description, two renderings: text and HTML have the same sections, rows and words.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Final

from mpsim import structs
from mpsim.output import printable
from mpsim.table import WIDTH, lay_out

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
    return html.escape(printable(text)).replace("\n", "<br>")


def _shortened(text: str, most: int = _CELL) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
