"""Output of the commands: results on stdout, notes and progress on stderr."""

from __future__ import annotations

import errno
import itertools
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from mpsim.output import printable

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "INTERRUPTED",
    "note",
    "phases_bar",
    "print_json",
    "print_table",
    "print_text",
    "progress_bar",
    "wrote",
]

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
STDOUT = "standard output"
_RULE = "\u2500"  # under the header of a table


def note(text: str) -> None:
    """One or more plain lines on stderr."""
    if sys.stderr is not None:  # closed by whoever called
        sys.stderr.write(printable(text.rstrip("\n")) + "\n")
        sys.stderr.flush()


def wrote(path: Path) -> None:
    """Say on stderr that a file was written."""
    note(f"wrote {path}")


def print_text(text: str) -> None:
    """Plain lines on stdout.

    Raises
    ------
    OSError
        If they cannot be written; its file name is "standard output".
    """
    _write(printable(text))


def _write(text: str) -> None:
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", STDOUT)
    try:
        sys.stdout.write(_encodable(text.rstrip("\n") + "\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error


def _encodable(text: str) -> str:
    """`text` as far as stdout has letters for it; rules of tables become dashes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace(_RULE, "-").encode(encoding, "replace").decode(encoding)
    return text


def print_json(value: object, *, stamped: bool = True) -> None:
    """One JSON object on one line of stdout, an object `stamped` with who made it; NaN and infinities are bugs, not output."""
    from mpsim.stamp import stamp

    if stamped and isinstance(value, Mapping):
        value = {**value, "mpsim": stamp()}
    plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if plain != _encodable(plain):
        plain = json.dumps(value, allow_nan=False)
    print_text(plain)


def print_table(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] = (),
    title: str = "",
    right: Iterable[int] = (),
) -> None:
    """A table on stdout, as wide as it needs to be.

    Parameters
    ----------
    rows : iterable of sequence of str
    header : sequence of str
        Column names, with units.
    title : str
    right : iterable of int
        Columns set flush right.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    count = max([len(header), *map(len, cells)], default=0)
    for row in cells:
        row.extend([""] * (count - len(row)))
    terminal = sys.stdout is not None and sys.stdout.isatty()
    draw = _on_terminal if terminal else _in_file
    if title:
        print_text(title)
    lines = draw(cells, [*header, *[""] * (count - len(header))] if header else [], set(right))
    _write("\n".join(line.rstrip() for line in lines))


def _in_file(rows: list[list[str]], header: list[str], right: set[int]) -> Iterator[str]:
    """Lines of a table, nothing folded: as `_on_terminal` draws it where there is room."""
    lines = [_lines_of(row) for row in rows]
    head = _lines_of(header) if header else []
    width = [
        max(map(_width, column)) for column in zip(*itertools.chain(head, *lines), strict=True)
    ]
    flush = [column in right for column in range(len(width))]
    apart = "   " if header else "  "
    for line in head:
        yield apart.join(map(_fill, line, width, flush))
    if header:
        yield _RULE * (sum(width) + len(apart) * (len(width) - 1))
    for line in itertools.chain.from_iterable(lines):
        yield apart.join(map(_fill, line, width, flush))


def _lines_of(row: list[str]) -> list[tuple[str, ...]]:
    """A row of cells, one line of each at a time."""
    if not any("\n" in cell for cell in row):
        return [tuple(row)]
    return list(itertools.zip_longest(*(cell.split("\n") for cell in row), fillvalue=""))


def _width(text: str) -> int:
    """Columns that a text takes: two for a wide letter, none for a mark on another one."""
    if text.isascii():
        return len(text)
    wide = (2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return sum(wide) - sum(unicodedata.combining(letter) > 0 for letter in text)


def _fill(text: str, width: int, right: bool) -> str:
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _on_terminal(rows: list[list[str]], header: list[str], right: set[int]) -> Iterable[str]:
    """Lines of a table as wide as the terminal, long cells folded."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD if header else None,
        show_header=bool(header),
        show_edge=False,
        pad_edge=False,
    )
    count = len(header or (rows[0] if rows else ()))
    for column in range(count):
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(Text(header[column] if header else ""), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, shown on a terminal only; yields ``report(done, total)``."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int, phase: str = what) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        yield report


@contextmanager
def phases_bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work in phases; yields ``report(phase, done, total)``."""
    with progress_bar(what) as report:
        phased: Callable[..., None] = report
        yield lambda phase, done, total: phased(done, total, f"{what}: {phase}")
