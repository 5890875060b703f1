"""Output of the commands: results on stdout, notes on stderr."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from mpsim.accessors import Drawn
from mpsim.errors import ScenarioError
from mpsim.output import printable
from mpsim.table import RULE, WIDTH, Sheet, lay_out

if TYPE_CHECKING:
    from mpsim.study import Search, Sweep
    from mpsim.study.design import Design
    from mpsim.study.search import ServiceSearch

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
STDOUT = "standard output"
_NARROWEST: Final = 40  # columns of a terminal below which tables run over


def note(text: str) -> None:
    """One or more plain lines on stderr."""
    if sys.stderr is not None:  # closed by whoever called
        sys.stderr.write(printable(text.rstrip("\n")) + "\n")
        sys.stderr.flush()


def wrote(path: Path) -> None:
    """Say on stderr that a file was written."""
    note(f"wrote {path}")


def print_text(text: str) -> None:
    """Plain lines on stdout. OSError of a file called "standard output" if that fails."""
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
        return text.replace(RULE, "-").encode(encoding, "replace").decode(encoding)
    return text


def print_json(value: object, *, stamped: bool = True) -> None:
    """One JSON object on one line of stdout, `stamped` with who made it; NaN is no output."""
    from mpsim.stamp import stamp

    if stamped and isinstance(value, Mapping):
        value = {**value, "mpsim": stamp()}
    try:
        plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        message = "a result has more than 308 digits; give smaller prices, counts and times"
        raise ScenarioError(message) from error
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
    """A table on stdout, no wider than the terminal, or than a page where it goes elsewhere.
    `header`: column names, with units. `right`: columns set flush right.
    """
    if title:
        print_text(title)
    _write("\n".join(lay_out(rows, header=header, right=right, room=_room())))


def print_sheet(sheet: Sheet) -> None:
    """Tables and sentences on stdout."""
    _write(sheet.text(_room()))


def _room() -> int:
    """Columns of the page: those of the terminal, or what a page has."""
    if sys.stdout is not None and sys.stdout.isatty():
        return max(_NARROWEST, shutil.get_terminal_size().columns)
    return WIDTH


class Answer(Protocol):
    """Outcome of a study."""

    def to_json(self) -> Mapping[str, object]:
        """Plain data, SI units."""

    def sheet(self) -> Sheet:
        """Tables and sentences."""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print the outcome of a study on stdout."""
    if as_json:
        print_json(answer.to_json())
    else:
        print_sheet(answer.sheet())


def draw(chart: Drawn, file: Path) -> None:
    """Write a picture, into a folder that is made if need be, and say so on stderr."""
    file.parent.mkdir(parents=True, exist_ok=True)
    wrote(chart.save(file))


def write_table(answer: Sweep | Search | ServiceSearch | Design, file: Path) -> None:
    """Write the rows of a study as CSV; ``.partial`` ends the name where some are missing."""
    path = file.with_name(f"{file.name}.partial") if answer.interrupted else file
    answer.to_csv(path)
    wrote(path)


def end_early(interrupted: bool) -> None:
    """Leave where Ctrl-C or SIGTERM cut the work short and what there was has been printed."""
    if interrupted:
        from typer import Exit

        note("mpsim: interrupted; this is what was found until then")
        raise Exit(INTERRUPTED)
