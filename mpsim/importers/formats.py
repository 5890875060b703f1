"""The formats that can be read, and which of them a file has by what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpsim.errors import CalibrationError
from mpsim.importers.imported import Imported, Points
from mpsim.importers.kineto import KINETO
from mpsim.importers.nccl_tests import NCCL_TESTS, NCCL_TESTS_JSON
from mpsim.importers.source import Format, Head, read_head
from mpsim.importers.tables import TABLE

__all__ = ["FORMATS", "RECORDING", "read", "recognise"]

RECORDING: Final = Format(
    "mpsim-measure",
    "recording of mpsim measure",
    "recording",
    lambda head: head.is_object and '"kind"' in head.first_line,
)
FORMATS: Final = (RECORDING, KINETO, NCCL_TESTS, NCCL_TESTS_JSON, TABLE)
"""Every format, in the order in which a file is tried: those that their first characters give away come first."""


def recognise(path: str | Path) -> Format:
    """The format of a file.

    Raises
    ------
    CalibrationError
        If the file cannot be read, or nothing known wrote it.
    """
    return _recognise(read_head(Path(path)))


def read(path: str | Path, *, only: Mapping[str, str] | None = None) -> Imported | Points:
    """Read a file of another tool.

    Parameters
    ----------
    path : str or Path
    only : mapping of str to str, optional
        Value that a column of a table must have.

    Raises
    ------
    CalibrationError
        If nothing known wrote it, or it is truncated, mixed or impossible; it says which.
    """
    head = read_head(Path(path))
    reader = _recognise(head).read
    if reader is None:
        raise CalibrationError(f"{path}: is a recording; read it with mpsim.measured")
    return reader(head, only or {})


def _recognise(head: Head) -> Format:
    for known in FORMATS:
        if known.recognises(head):
            return known
    if head.is_object:
        raise CalibrationError(
            f"{head.path}: JSON that neither nccl-tests -J nor torch.profiler wrote; needed one of them"
        )
    raise CalibrationError(
        f"{head.path}: nothing known wrote this; needed a file of 'mpsim measure', nccl-tests (text or -J), a trace of "
        "torch.profiler, or CSV with a header"
    )
