"""Journals: finished work on disk, one JSON object a line, that a kill at any moment cannot spoil.

Lines are appended and forced to disk in chunks. Every line has a checksum: one that a crash cut off
or a disk damaged is dropped, said, and its work done again; every other line counts. Names of
entries are digests of everything they depend on, code and constants of mpsim included, so an entry
never stands for something else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

from mpsim.errors import ScenarioError
from mpsim.inputs import open_regular, read_lines
from mpsim.shipped import say
from mpsim.stamp import stamp

Entry: TypeAlias = dict[str, Any]  # what stands in a line of a journal: data of whoever wrote it

_DIGEST, _STAMP, _CHECKSUM = "digest", "mpsim", "crc"
_OPENING = b'{"digest": "'
_LARGEST = 1 << 31  # bytes, which memory holds


def name_of(*parts: object) -> str:
    """Name of an entry that changes with any of `parts`, and mpsim's code and constants."""
    return _name(stamp(), *parts)


def _name(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Entries by name, in memory as the lines they are on disk, and with a path there too.

    `path`: file to read and to append to; None keeps everything in memory only. `what`: an entry in
    words, for the refusal of a file of something else. `chunk`: entries between two times that the
    disk is waited for. ScenarioError if the file is not a journal.

    Attributes
    ----------
    stale : int
        Entries of another mpsim or other constants; their names match nothing.
    damaged : int
        Lines read that their checksum does not hold.
    """

    def __init__(
        self, path: str | Path | None, *, what: str = "a row of a sweep", chunk: int = 64
    ) -> None:
        self._path = None if path is None else Path(path)
        self._chunk = chunk
        self._fresh: list[bytes] = []
        self._lines: dict[str, bytes] = {}
        self.stale = self.damaged = self._read_bytes = 0
        if self._path is not None and self._path.exists():
            self._read(self._path, what)

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, name: str) -> Entry:
        entry: Entry = json.loads(self._lines[name])
        for key in (_DIGEST, _STAMP, _CHECKSUM):
            entry.pop(key, None)
        return entry

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Every entry with its name."""
        return ((name, self[name]) for name in self._lines)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for a person on the file that was read."""
        remarks = []
        if self.stale:
            remarks.append(
                say("study.stale_rows", path=self._path, stale=self.stale, stamp=stamp())
            )
        if self.damaged:
            remarks.append(f"{self._path}: {self.damaged} damaged lines are computed again")
        return tuple(remarks)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing to the same file; what is not on disk yet is at the
        end. ScenarioError if another process writes to it, or has since it was read.
        """
        if self._path is None:
            yield
            return
        with self._path.open("ab") as file:
            _lock(file, self._path)
            if file.tell() != self._read_bytes:
                raise ScenarioError(say("study.written_since", path=self._path))
            try:
                yield
            finally:
                self.flush()

    def name_of(self, *parts: object) -> str:
        """Name of an entry; what stays in memory meets no other mpsim."""
        return _name(*parts) if self._path is None else name_of(*parts)

    def add(self, name: str, entry: Mapping[str, object]) -> None:
        """Keep an entry; it is on disk once a chunk is full, or after `flush`."""
        if self._path is None:
            self._lines[name] = json.dumps(entry).encode()
            return
        body = {_DIGEST: name, _STAMP: stamp(), **entry}
        self._lines[name] = json.dumps({**body, _CHECKSUM: _checksum(body)}).encode()
        self._fresh.append(self._lines[name])
        if len(self._fresh) >= self._chunk:
            self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet, and wait until it is."""
        if self._path is None or not self._fresh:
            return
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(line + b"\n" for line in self._fresh))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._fresh.clear()
        self._read_bytes = self._path.stat().st_size

    def _read(self, path: Path, what: str) -> None:
        first = line = b""
        with open_regular(path, needed="a journal", error=ScenarioError, largest=_LARGEST) as file:
            for line in read_lines(file, path, needed="a journal", error=ScenarioError):
                first = first or line
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                if entry := _entry(line):
                    self.stale += entry.get(_STAMP) != stamp()
                    self._lines[str(entry[_DIGEST])] = line.rstrip()
                self.damaged += not entry
        if not first.startswith(_OPENING[: len(first)]) and not self._lines:
            raise ScenarioError(f"{path}:1: not {what}; give --resume a file that it wrote")
        if line and not line.endswith(b"\n"):
            with path.open("r+b") as file:  # drop the line that was cut off
                file.truncate(self._read_bytes)
                os.fsync(file.fileno())


def _entry(line: bytes) -> Entry | None:
    """The entry of a line; None where the line is none, or its checksum is another."""
    if not line.startswith(_OPENING):  # a file of something else is not parsed line by line
        return None
    try:
        entry: Entry = json.loads(line)
        body = {key: value for key, value in entry.items() if key != _CHECKSUM}
        return entry if str(entry[_DIGEST]) and entry[_CHECKSUM] == _checksum(body) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _checksum(body: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(body).encode()):08x}"


def _lock(file: IO[bytes], path: Path) -> None:
    """Take the file for this process, where the system can."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ScenarioError(say("study.locked", path=path)) from error
    except OSError:  # a file system without locks
        return
