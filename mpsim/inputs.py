"""Files that mpsim reads: opened in one place, so that no reader waits for a pipe, swells with a
bomb or falls over a broken disk.

`open_input` gives the bytes of a regular file, unpacked where it is gzipped and never more of them
than its reader can use; what goes wrong while they are read is one error of the class that the
reader names. Nothing else in mpsim opens a file of somebody (tested over the whole tree).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, AnyStr, Final, Never, TypeVar

from mpsim.errors import MpsimError, Problem, ScenarioError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TEXT: Final = 1 << 28  # bytes of a file that is read whole
DOCUMENT: Final = 1 << 25
"""Bytes of a JSON document: what is made of it takes up to 30 times as much."""
LINE: Final = 1 << 24  # characters of a line
LINES: Final = 10_000_000  # lines of a table, a trace or a journal
CELLS: Final = 8_000_000  # cells of a table that is held whole, of 100 bytes or so each
RECORDING: Final = 1 << 36  # bytes of a recording that is streamed: 64 GiB, unpacked
DEEPEST: Final = 48  # levels of nesting in a document
_GZIP: Final = b"\x1f\x8b"
_RATIO: Final = 300
"""Times that a packed file may grow: traces grow 10 to 50 times, a bomb 1000 times."""
_FREE: Final = 1 << 24  # bytes unpacked before the ratio counts: a few repeated lines pack well
_BUFFER: Final = 1 << 18
_SHOWN: Final = 40  # characters of somebody's value in a message
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# a pipe that replaced the file since it was looked at must not be waited for
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def refusal(error: type[MpsimError], path: str | Path, reason: str, line: int = 0) -> MpsimError:
    """An error of a class about a file, or a line of it."""
    if issubclass(error, ScenarioError):
        return error([Problem(reason, file=str(path), line=line)])
    return error(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")


def shown(value: object) -> str:
    """A value of somebody's file in a message: short, on one line, without its content.

    Examples
    --------
    >>> shown("x" * 100), shown([[1]]), shown(2.5)
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", 'a list', '2.5')
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return "a number of many digits"
    text = repr(value)  # which spells out what cannot be printed
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_regular(path: str | Path, *, needed: str, error: type[MpsimError]) -> os.stat_result:
    """Refuse what is no regular file: a folder, a pipe or a device would fail later, block or never
    end. `needed`: a file that the reader takes, in words. MpsimError of the class `error`.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a path that is no text is the caller's to see
    except OSError as problem:
        mend = f"; needed {needed}" if isinstance(problem, FileNotFoundError) else ""
        raise refusal(error, path, f"cannot be read: {_reason(problem)}{mend}") from problem
    except ValueError as problem:  # a null character in the path
        raise refusal(error, ascii(str(path)), f"cannot be read: {problem}") from problem
    _check_kind(status, path, needed=needed, error=error)
    return status


def _check_kind(
    status: os.stat_result, path: str | Path, *, needed: str, error: type[MpsimError]
) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for holds, name in _KINDS if holds(status.st_mode)), "no regular file")
    raise refusal(error, path, f"is {kind}; needed {needed} in a regular file")


@contextlib.contextmanager
def open_regular(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int = RECORDING
) -> Iterator[IO[bytes]]:
    """Open a regular file for reading anywhere in it, as it lies on disk.

    `needed`: a file that the reader takes, in words. `error`: class of what goes wrong while it is
    opened. `largest`: bytes that it may have.
    """
    check_regular(path, needed=needed, error=error)
    try:
        stream = open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115
    except OSError as problem:
        raise refusal(error, path, f"cannot be read: {_reason(problem)}") from problem
    with stream:
        status = os.fstat(stream.fileno())
        _check_kind(status, path, needed=needed, error=error)
        if status.st_size > largest:
            raise refusal(
                error, path, f"is over {_size(largest)}; needed {needed}, which is less: split it"
            )
        yield stream


@contextlib.contextmanager
def open_input(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int
) -> Iterator[IO[bytes]]:
    """Open a file for reading from its beginning, unpacked where it is gzipped.

    `needed`: a file that the reader takes, in words. `error`: class of everything that goes wrong,
    then and while the stream is read. `largest`: bytes that are read, unpacked; one more is an
    error. MpsimError of the class `error`: if there is no such file, it is a folder, a pipe or a
    device, it cannot be read, it is too large or unpacks to far more than it has, or its packing is
    damaged.
    """
    with open_regular(path, needed=needed, error=error, largest=largest) as raw:
        packed = raw.peek(len(_GZIP))[: len(_GZIP)] == _GZIP  # type: ignore[attr-defined]
        source = gzip.GzipFile(fileobj=raw, mode="rb") if packed else raw
        bounded = _Bounded(source, path, needed, error, largest)
        bounded.packed = os.fstat(raw.fileno()).st_size if packed else 0
        with io.BufferedReader(bounded, _BUFFER) as stream:
            yield stream


class _Bounded(io.RawIOBase):
    """Bytes of a stream up to a limit; errors of system and unpacking are the reader's."""

    def __init__(
        self,
        source: IO[bytes] | gzip.GzipFile,
        path: str | Path,
        needed: str,
        error: type[MpsimError],
        largest: int,
    ) -> None:
        self.source, self.path, self.needed = source, path, needed
        self.error, self.largest = error, largest
        self.packed = 0
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._next(_BUFFER), b""))

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer)
        data = self._next(len(room))
        room[: len(data)] = data
        return len(data)

    def _next(self, count: int) -> bytes:
        data = b""
        try:
            data = self.source.read(min(count, self.largest + 1 - self.read_bytes)) or b""
        except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
            self._refuse("truncated or damaged, the gzip stream breaks off", problem)
        except OSError as problem:
            self._refuse(f"cannot be read: {_reason(problem)}", problem)
        self.read_bytes += len(data)
        if self.read_bytes > self.largest:
            over = f"is over {_size(self.largest)}, unpacked"
            self._refuse(f"{over}; needed {self.needed}, which is less: split it")
        if self.packed and self.read_bytes > max(_FREE, _RATIO * self.packed):
            over = f"unpacks to over {_RATIO} times its size"
            self._refuse(f"{over}; needed {self.needed}: give it unpacked")
        return data

    def _refuse(self, reason: str, cause: BaseException | None = None) -> Never:
        raise refusal(self.error, self.path, reason) from cause


@contextlib.contextmanager
def open_text(
    path: str | Path,
    *,
    needed: str,
    error: type[MpsimError],
    largest: int = RECORDING,
    newline: str | None = None,
    errors: str = "strict",
) -> Iterator[IO[str]]:
    """Open a text file in UTF-8; see `open_input`. `error`: also for what is no text. `largest`:
    bytes, unpacked. `newline` and `errors`: as for `open`.
    """
    with open_input(path, needed=needed, error=error, largest=largest) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline=newline, errors=errors)
        try:
            yield text
        except UnicodeDecodeError as problem:
            raise refusal(error, path, f"is not text in UTF-8; needed {needed}") from problem


def read_bytes(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int = TEXT
) -> bytes:
    """All bytes of a file; see `open_input`."""
    with open_input(path, needed=needed, error=error, largest=largest) as stream:
        return stream.read()


def hash_file(path: str | Path, *, needed: str, error: type[MpsimError]) -> str:
    """sha256 of a file as it lies on disk; see `open_regular`."""
    import hashlib  # here, as OpenSSL takes a hundredth of a start

    with open_regular(path, needed=needed, error=error) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def read_text(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int = TEXT
) -> str:
    """The whole text of a file in UTF-8, ends of lines as one newline; see `open_text`."""
    with open_text(path, needed=needed, error=error, largest=largest) as stream:
        return stream.read()


def read_lines(
    stream: IO[AnyStr], path: str | Path, *, needed: str, error: type[MpsimError]
) -> Iterator[AnyStr]:
    """Lines of an open file with their ends, of bounded size and number; messages name `path`."""
    for number in itertools.count(1):
        if not (line := stream.readline(LINE + 1)):
            return
        if len(line) > LINE:
            reason = f"a line of over {LINE:,} characters; needed {needed} of shorter lines"
            raise refusal(error, path, reason, number)
        if number > LINES:
            reason = f"over {LINES:,} lines; needed {needed} of fewer: split it"
            raise refusal(error, path, reason, number)
        yield line


def read_cells(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int = TEXT
) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file that are not empty, with the number of their last line."""
    import csv  # here, as few commands read a table

    count = 0
    with open_text(path, needed=needed, error=error, largest=largest, newline="") as file:
        rows = csv.reader(read_lines(file, path, needed=needed, error=error))
        try:
            for row in filter(None, rows):
                count += len(row)
                if count > CELLS and largest < RECORDING:
                    reason = f"over {CELLS:,} cells so far; needed {needed} of fewer: split it"
                    raise refusal(error, path, reason, rows.line_num)
                yield rows.line_num, row
        except csv.Error as problem:
            reason = f"no CSV, {problem}; needed {needed}"
            raise refusal(error, path, reason, rows.line_num) from problem


def read_json(
    path: str | Path, *, needed: str, error: type[MpsimError], largest: int = DOCUMENT
) -> object:
    """A JSON document, read as `parse_json` does."""
    text = read_text(path, needed=needed, error=error, largest=largest)
    return parse_json(text, path, error=error)


def parse_json(text: str, path: str | Path, *, error: type[MpsimError]) -> object:
    """A JSON document of which no key is repeated in an object, and which is not nested deeper than
    documents are.

    `path`: file that messages name. MpsimError of the class `error`, with the line where it breaks
    off.
    """
    try:
        data: object = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as problem:
        reason = f"not whole JSON ({problem.msg}); the file is truncated or not JSON"
        raise refusal(error, path, reason, problem.lineno) from problem
    except _RepeatedError as problem:
        raise refusal(error, path, str(problem)) from problem
    except RecursionError as problem:
        raise refusal(error, path, f"JSON nested deeper than {DEEPEST} levels") from problem
    except ValueError as problem:  # Python reads no integers of thousands of digits
        raise refusal(error, path, "JSON with a number too long to read") from problem
    if _depth(data) > DEEPEST:
        raise refusal(error, path, f"JSON nested deeper than {DEEPEST} levels")
    return data


class _RepeatedError(ValueError):
    """A key that stands twice in one object."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedError(f"key {shown(key)} is repeated in one object; keep one")
            seen.add(key)
    return data


def _depth(data: object) -> int:
    """Levels of nesting, counted level by level: recursion would break off at many."""
    level, depth = [data], 0
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        if depth > DEEPEST:
            break
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return depth


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; check the path"
    return error.strerror or type(error).__name__


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (10**6, "MB")):
        if count >= unit:
            return f"{count // unit:,} {name}"
    return f"{count:,} bytes"


MOST: Final = 1 << 63
"""Bound of whole numbers in files: what is larger is damage, and fits no array."""
T = TypeVar("T")


class Record:
    """One object of a file; a value of another type than asked for is one error with its place,
    never a slip further on.

    Every method takes a key, and what to give where the key is absent; without that an absent key
    is an error too. `data`: what should be an object. `place`: where it stands, such as
    ``trace.json: results.3``. `error`: class of every error.

    Examples
    --------
    >>> from mpsim.errors import FormatError
    >>> row = Record({"size": 8, "time": "fast"}, "a.json: results.0", error=FormatError)
    >>> row.whole("size"), row.whole("count", 1)
    (8, 1)
    >>> row.number("time")
    Traceback (most recent call last):
    mpsim.errors.FormatError: a.json: results.0: time is 'fast'; needed a finite number
    """

    __slots__ = ("_data", "_error", "place")

    def __init__(self, data: object, place: str, *, error: type[MpsimError]) -> None:
        self.place, self._error = place, error
        if not isinstance(data, dict):
            raise error(f"{place}: got {shown(data)}; needed an object")
        self._data: dict[str, object] = data

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def __len__(self) -> int:
        return len(self._data)

    def wrong(self, key: str, needed: str) -> MpsimError:
        """The error of a value that is not what is needed."""
        if key not in self._data:
            return self._error(f"{self.place}: {key} is missing; needed {needed}")
        return self._error(f"{self.place}: {key} is {shown(self._data[key])}; needed {needed}")

    def value(self, key: str) -> object:
        """Value as it is; None where it is absent."""
        return self._data.get(key)

    def _read(self, key: str, kind: type[T], default: T | None, needed: str) -> T:
        """Value of a key, which has to be of a kind, or the default."""
        value = self._data.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(key, needed)
        return value

    def whole(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = MOST
    ) -> int:
        """Whole number within its bounds."""
        needed = f"a whole number of {least} to {most}" if most < MOST else "a whole number"
        whole = self._read(key, int, default, needed)
        if key in self and not least <= whole <= most:
            raise self.wrong(key, needed)
        return whole

    def number(self, key: str) -> float:
        """Finite number."""
        value = self._data.get(key)
        kind = int if isinstance(value, int) else float
        number = self._read(key, kind, None, "a finite number")
        if not -sys.float_info.max <= number <= sys.float_info.max:
            raise self.wrong(key, "a finite number")
        return float(number)

    def text(self, key: str, default: str | None = None) -> str:
        """Text."""
        return self._read(key, str, default, "a text")

    def record(self, key: str, default: dict[str, object] | None = None) -> Record:
        """Object."""
        value = self._read(key, dict, default, "an object")
        return Record(value, f"{self.place}: {key}", error=self._error)

    def items(self, key: str, default: list[object] | None = None) -> list[object]:
        """List of anything."""
        return self._read(key, list, default, "a list")

    def records(self, key: str, default: list[object] | None = None) -> list[Record]:
        """List of objects."""
        return [
            Record(item, f"{self.place}: {key}.{index}", error=self._error)
            for index, item in enumerate(self.items(key, default))
        ]

    def wholes(self, key: str, default: list[object] | None = None) -> tuple[int, ...]:
        """List of whole numbers."""
        wholes: list[int] = []
        for value in self.items(key, default):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
                raise self._error(f"{self.place}: {key} holds {shown(value)}; needed whole numbers")
            wholes.append(value)
        return tuple(wholes)
