"""A file of somebody else: opened, bounded and unpacked in one place for every reader."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from mpsim.errors import CalibrationError
from mpsim.importers.imported import Imported, Points, Recorded

__all__ = ["Format", "Head", "Options", "open_text", "read_head", "read_text"]

_HEAD = 1 << 16
_GZIP = b"\x1f\x8b"
LARGEST_TEXT = 1 << 28
"""Characters of a file that is read whole; recordings of gigabytes are streamed instead."""


@contextlib.contextmanager
def open_text(path: Path, *, needed: str, newline: str | None = None) -> Iterator[IO[str]]:
    """Open a text file, unpacked where it is gzipped; what fails while it is read is a CalibrationError.

    Parameters
    ----------
    path : Path
    needed : str
        What the file should be, for the message.
    newline : str, optional
        As for `open`.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
        opened: Any = gzip.open if packed else open
        with opened(path, "rt", encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CalibrationError(
            f"{path}: truncated or damaged, the gzip stream breaks off"
        ) from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: not text in UTF-8; needed {needed}") from error


def read_text(path: Path, *, needed: str, largest: int = LARGEST_TEXT) -> str:
    """The whole text of a file.

    Parameters
    ----------
    path : Path
    needed : str
        What the file should be, for the message.
    largest : int
        Characters that are read, unpacked.

    Raises
    ------
    CalibrationError
        If it is no text, breaks off, or is longer.
    """
    with open_text(path, needed=needed) as stream:
        text = stream.read(largest + 1)
    if len(text) > largest:
        raise CalibrationError(
            f"{path}: is over {largest:,} characters, unpacked; needed {needed}, which are shorter"
        )
    return text


@dataclasses.dataclass(
    frozen=True
)  # no slots: the document is parsed once, by the first format that asks
class Head:
    """How a file begins, from which formats recognise their own.

    Parameters
    ----------
    path : Path
    text : str
        Its first 65,536 characters.
    """

    path: Path
    text: str

    @property
    def first_line(self) -> str:
        """The first line, without its end."""
        return self.text.partition("\n")[0]

    @property
    def is_object(self) -> bool:
        """Whether the file begins as a JSON object."""
        return self.text.lstrip().startswith("{")

    @functools.cached_property
    def document(self) -> Mapping[str, Any]:
        """The whole file as a JSON object; empty where it does not begin as one.

        Raises
        ------
        CalibrationError
            If it breaks off, with the line.
        """
        if not self.is_object:
            return {}
        try:
            data = json.loads(read_text(self.path, needed="a report in JSON"))
        except json.JSONDecodeError as error:
            raise CalibrationError(
                f"{self.path}:{error.lineno}: not whole JSON ({error.msg}); the file is truncated or not JSON"
            ) from error
        except RecursionError as error:
            raise CalibrationError(f"{self.path}: JSON nested deeper than can be read") from error
        except ValueError as error:  # Python reads no integers of thousands of digits
            raise CalibrationError(f"{self.path}: JSON with a number too long to read") from error
        document: Mapping[str, Any] = data
        return document


def read_head(path: Path, *, binary: bool = False) -> Head:
    """The beginning of a file.

    Parameters
    ----------
    path : Path
    binary : bool
        Whether it may be something else than text.

    Raises
    ------
    CalibrationError
        If it cannot be read, is empty, or is no text.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would be waited for
            kind = "a folder" if path.is_dir() else "no regular file"
            raise CalibrationError(f"{path}: is {kind}; needed a file")
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            with gzip.open(raw) if packed else raw as stream:
                text = stream.read(_HEAD).decode("utf-8-sig", errors="replace")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CalibrationError(
            f"{path}: truncated or damaged, the gzip stream breaks off"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise CalibrationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not text.strip():
        raise CalibrationError(f"{path}: is empty; needed measurements")
    if "\0" in text and not binary:
        raise CalibrationError(f"{path}: is a binary file; needed text")
    return Head(path, text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Facts about a file that its user adds because the file lacks them.

    Parameters
    ----------
    only : mapping of str to str
        Value that a column of a table must have.
    ranks : int, optional
        Accelerators of the job, or ranks of a benchmark.
    cluster : str, optional
        System of the catalog that the job runs on.
    spans : bool
        Whether a recording keeps what each rank did and when.
    """

    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ranks: int | None = None
    cluster: str | None = None
    spans: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A format that files of one tool have.

    Parameters
    ----------
    name : str
        As commands take it.
    title : str
        In words.
    gives : str
        What reading gives: ``points``, ``scenario``, ``timeline``, or ``recording`` for the files of `mpsim measure`, which
        `mpsim.measured` reads.
    recognises : callable
        Whether a file that begins like this has the format.
    read : callable or None
        Reader of the file; None for recordings of `mpsim measure`.
    record : callable, optional
        Reader of the whole step, where `read` gives the kernels it was made of as points.
    """

    name: str
    title: str
    gives: Literal["points", "scenario", "timeline", "recording"]
    recognises: Callable[[Head], bool]
    read: Callable[[Head, Options], Imported | Points | Recorded] | None = None
    record: Callable[[Head, Options], Recorded] | None = None
