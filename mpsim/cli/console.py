"""What the commands print, and where: results on stdout, notes and progress on stderr."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
UNFOLDED = 1000
"""Columns of a table that goes into a file or a pipe, where nothing should be folded."""


def note(text: str) -> None:
    """One or more plain lines on stderr."""
    if sys.stderr is not None:  # closed by whoever called
        sys.stderr.write(text.rstrip("\n") + "\n")
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
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", STDOUT)
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error


def print_json(value: object) -> None:
    """One JSON object on one line of stdout; NaN and infinities are bugs, not output."""
    print_text(json.dumps(value, allow_nan=False, ensure_ascii=False))


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
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(map(str, row)) for row in rows]
    count = max([len(header), *map(len, cells)], default=0)
    flush_right = frozenset(right)
    table = Table(
        box=box.SIMPLE_HEAD if header else None,
        show_header=bool(header),
        show_edge=False,
        pad_edge=False,
    )
    for column in range(count):
        name = header[column] if column < len(header) else ""
        table.add_column(
            Text(name), justify="right" if column in flush_right else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    terminal = Console(file=sys.stdout, highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=UNFOLDED)
    with console.capture() as captured:
        console.print(table)
    if title:
        print_text(title)
    print_text("\n".join(line.rstrip() for line in captured.get().splitlines()))


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
