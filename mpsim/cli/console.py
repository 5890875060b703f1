"""Output of the commands: results on stdout, notes on stderr, and after a second progress there: a
bar on a terminal, lines elsewhere.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from mpsim import structs
from mpsim.accessors import Drawn
from mpsim.errors import ScenarioError
from mpsim.limits import rough_time
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


_LINES: Final = (1.5, 10.0, 30.0, 60.0)
"""Seconds of work after which a line says how far it is; then at every further minute."""
_KNOWN: Final = 0.1
"""Share of the work that has to be done before its rate says how long the rest takes."""
_PARTS, _STEADY = 4, 2.0
"""Parts of what is done that have to take about as long a piece, the longest over the shortest:
then the rate is known."""
_MARKS = 256  # pieces that are remembered


@structs.dataclass(slots=True)
class _Work:
    """How far a command is; pieces of a search's `phase` take as they take, others alike."""

    what: str
    clock: Callable[[], float] = time.monotonic
    phase: str = ""
    done: int = 0
    total: int | None = None
    has_bar: bool = False
    begun: float = structs.field(init=False)
    _marks: list[tuple[int, float]] = structs.field(default_factory=list, init=False)
    """How many pieces were done, and when; what the first report of a phase has took no time."""

    def __post_init__(self) -> None:
        self.begun = self.clock()

    def report(self, phase: str, done: int, total: int | None) -> None:
        """Take how far the phase is; `total` None or 0 where nobody knows how much it is."""
        if phase != self.phase or done < self.done:
            self._marks.clear()
        if done > (self._marks[-1][0] if self._marks else -1):
            self._marks.append((done, self.clock()))
        if len(self._marks) > _MARKS:
            del self._marks[1:-1:2]
        self.phase, self.done, self.total = phase, done, total

    @property
    def left(self) -> float | None:
        """Seconds that the work takes yet; None where its rate is not known."""
        # layouts that fit take far longer to bound, and nobody knows beforehand where they stand
        if self.phase or not self.total or not _KNOWN <= self.done / self.total < 1:
            return None
        (before, begun), (_, ended) = self._marks[0], self._marks[-1]
        fresh, pending = self.done - before, self.clock() - ended
        ends = [before + fresh * part / _PARTS for part in range(_PARTS + 1)]
        parts = dict.fromkeys(self._marks[bisect.bisect_left(self._marks, (end,))] for end in ends)
        took = [(t - s) / (b - a) for (a, s), (b, t) in itertools.pairwise(parts)]
        longest = max((t - s for (_, s), (_, t) in itertools.pairwise(self._marks)), default=0.0)
        if len(took) < 2 or max(took) > _STEADY * min(took) or pending > _STEADY * longest:
            return None
        rate = (ended - begun) / fresh
        left = rate * (self.total - self.done) - pending
        return left if left > rate / 2 else None  # the last piece may take longer than others

    @property
    def name(self) -> str:
        """The command and its phase."""
        return f"{self.what}: {self.phase}" if self.phase else self.what

    def __str__(self) -> str:
        seconds = self.clock() - self.begun
        if not self.done and not self.total:
            return f"{self.name}: at work for {rough_time(seconds)}"
        of = f" of {self.total:,}" if self.total else ""
        line = f"{self.name}: {self.done:,}{of} in {rough_time(seconds)}"
        return line if self.left is None else f"{line}, about {rough_time(self.left)} more"


_at_work: list[_Work] = []  # the innermost last; one command at a time


@contextmanager
def working(what: str) -> Iterator[None]:
    """Lines on stderr while a command works without a sign; none with ``MPSIM_PROGRESS=off``."""
    if os.environ.get("MPSIM_PROGRESS") == "off":
        yield
        return
    ended = threading.Event()
    _at_work.append(_Work(what))
    watch = threading.Thread(target=_tell, args=(ended,), daemon=True, name="progress")
    watch.start()
    try:
        yield
    finally:
        ended.set()
        _at_work.pop()


def _tell(ended: threading.Event) -> None:
    begun = time.monotonic()
    for at in itertools.chain(_LINES, itertools.count(2 * _LINES[-1], _LINES[-1])):
        if ended.wait(begun + at - time.monotonic()):
            return
        work = _at_work[-1] if _at_work else None
        if work is not None and not work.has_bar:
            note(str(work))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Say how far a command is; yields ``report(done, total)``."""
    with phases_bar(what) as report:
        yield lambda done, total: report("", done, total)


@contextmanager
def phases_bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Say how far work in phases is; yields ``report(phase, done, total)``."""
    work = _Work(what, has_bar=sys.stderr is not None and sys.stderr.isatty())
    _at_work.append(work)
    try:
        with _bar(what) if work.has_bar else nullcontext(lambda _: None) as draw:

            def report(phase: str, done: int, total: int) -> None:
                work.report(phase, done, total)
                draw(work)

            yield report
    finally:
        _at_work.remove(work)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[_Work], None]]:
    """A bar on the terminal, gone when the work has ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None, left="")

        def draw(work: _Work) -> None:
            left = "" if work.left is None else f"about {rough_time(work.left)} more"
            bar.update(
                task,
                description=work.name,
                completed=work.done,
                total=work.total or None,
                left=left,
            )

        yield draw
