"""Journals: finished work on disk, one JSON object a line, that a kill at any moment cannot spoil.

Lines are appended and forced to disk in chunks. A line that a crash cut off is dropped when the file is opened again; every line before it
counts. Names of entries are digests of everything they depend on, so an entry never stands for something else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpsim.errors import ScenarioError
from mpsim.version import __version__

__all__ = ["Journal", "name_of"]

_DIGEST = "digest"
_OPENING = b'{"digest": "'


def name_of(*parts: object) -> str:
    """Name of an entry that changes with any of `parts`, and with the version of mpsim."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Entries by name, in memory as the lines they are on disk, and with a path there too.

    Parameters
    ----------
    path : str or Path, optional
        Where to keep them; those there are read first.
    what : str
        What an entry is, for the message about a file that holds something else.
    chunk : int
        Entries between two times that the disk is waited for.

    Raises
    ------
    ScenarioError
        If the file is not a journal.
    """

    def __init__(
        self, path: str | Path | None, *, what: str = "a row of a sweep", chunk: int = 64
    ) -> None:
        self._path = None if path is None else Path(path)
        self._chunk = chunk
        self._fresh: list[bytes] = []
        self._lines: dict[str, bytes] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path, what)

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self._lines[name])
        del entry[_DIGEST]
        return entry

    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every entry with its name."""
        return ((name, self[name]) for name in self._lines)

    def add(self, name: str, entry: Mapping[str, Any]) -> None:
        """Keep an entry; it is on disk once a chunk is full, or after `flush`."""
        self._lines[name] = json.dumps({_DIGEST: name, **entry}).encode()
        if self._path is None:
            return
        self._fresh.append(self._lines[name])
        if len(self._fresh) >= self._chunk:
            self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet, and wait until it is."""
        if self._path is None or not self._fresh:
            return
        with self._path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in self._fresh))
            file.flush()
            os.fsync(file.fileno())
        self._fresh.clear()

    def _read(self, path: Path, what: str) -> None:
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:whole].splitlines(), start=1):
            try:
                name = json.loads(line)[_DIGEST]
            except (ValueError, TypeError, KeyError, AttributeError):
                raise _foreign(path, number, what) from None
            self._lines[str(name)] = line
        if whole < len(raw):
            if not whole and not _OPENING.startswith(raw[: len(_OPENING)]):
                raise _foreign(path, 1, what)
            with path.open("r+b") as file:  # drop the line that was cut off
                file.truncate(whole)
                os.fsync(file.fileno())


def _foreign(path: Path, number: int, what: str) -> ScenarioError:
    return ScenarioError(f"{path}:{number}: not {what}; give --resume a file that it wrote")
