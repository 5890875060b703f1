"""Which tool wrote a file, by what it holds, and its measurements."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

from mpsim.errors import CalibrationError
from mpsim.importers.kineto import is_trace, read_trace
from mpsim.importers.nccl_tests import (
    is_json_report,
    is_text_report,
    parse_report,
    read_json_report,
    read_text_report,
)
from mpsim.importers.source import Source
from mpsim.importers.tables import read_table
from mpsim.measured.reading import read_measured

__all__ = ["read_any"]

_HEAD = 1 << 16
_LARGEST_REPORT = 1 << 28
_BACKENDS = {"gloo": "gloo", "nccl": "nccl", "mpi": "openmpi"}


def read_any(path: str | Path, *, only: Mapping[str, str] | None = None) -> Source:
    """Read a file of `mpsim measure`, nccl-tests, torch.profiler, or CSV.

    Parameters
    ----------
    path : str or Path
    only : mapping of str to str, optional
        Value that a column of a CSV table must have.

    Raises
    ------
    CalibrationError
        If nothing known wrote it, or it is truncated, mixed or impossible; it says which.
    """
    file = Path(path)
    head = _head(file)
    if head.lstrip().startswith("{") and '"kind"' in head.partition("\n")[0]:
        return _ours(file)
    if is_trace(head):
        return read_trace(file)
    if is_text_report(head):
        return read_text_report(file, _whole(file))
    if head.lstrip().startswith("{"):
        data = parse_report(file, _whole(file))
        if is_json_report(data):
            assert isinstance(data, dict)
            return read_json_report(file, data)
        raise CalibrationError(
            f"{file}: JSON that neither nccl-tests -J nor torch.profiler wrote; needed one of them"
        )
    if "," in head.partition("\n")[0]:
        return read_table(file, only or {})
    raise CalibrationError(
        f"{file}: nothing known wrote this; needed a file of 'mpsim measure', nccl-tests (text or -J), a trace of "
        "torch.profiler, or CSV with a header"
    )


def _head(file: Path) -> str:
    """The first characters of a file, unpacked where it is gzipped."""
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8", errors="replace") as stream:
                head = stream.read(_HEAD)
        else:
            with file.open("rb") as raw:
                head = raw.read(_HEAD).decode("utf-8-sig", errors="replace")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CalibrationError(
            f"{file}: truncated or damaged, the gzip stream breaks off"
        ) from error
    except OSError as error:
        raise CalibrationError(f"{file}: {error.strerror or error}") from error
    if not head.strip():
        raise CalibrationError(f"{file}: is empty; needed measurements")
    if "\0" in head:
        raise CalibrationError(f"{file}: is a binary file; needed text")
    return head


def _whole(file: Path) -> str:
    if file.stat().st_size > _LARGEST_REPORT:
        raise CalibrationError(
            f"{file}: is over {_LARGEST_REPORT >> 20} MiB; needed a report of nccl-tests"
        )
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{file}: not text in UTF-8") from error


def _ours(file: Path) -> Source:
    measured = read_measured(file)
    if not measured.measurements:
        raise CalibrationError(f"{file}: holds no measurement; measure with a larger --budget")
    header = measured.header
    return Source(
        str(file),
        "mpsim measure",
        measured.measurements,
        device_name=header.device_name,
        library=_BACKENDS.get(header.backend, ""),
        header=header,
        warnings=measured.warnings,
    )
