"""A file of somebody else: opened, bounded and unpacked in one place for every reader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpsim import inputs, structs
from mpsim.errors import CalibrationError
from mpsim.formats.imported import Imported, Points, Recorded
from mpsim.shipped import read_shipped

HEAD = 1 << 16  # characters from which formats recognise their own
FORMATS: Mapping[str, Any] = read_shipped("mpsim.formats.data", "formats.yaml")
"""What formats that are read and written are called, by name, and their further names."""

open_text = functools.partial(inputs.open_text, error=CalibrationError)
"""Open a text file to stream, unpacked if gzipped; CalibrationError if that fails."""
read_text = functools.partial(inputs.read_text, error=CalibrationError)
"""The whole text of a file; what goes wrong is a CalibrationError."""


@structs.dataclass(
    frozen=True
)  # no slots: the document is parsed once, by the first format that asks
class Head:
    """How a file begins, from which formats recognise their own."""

    path: Path
    text: str  # its first 65,536 characters
    content: str | None = None  # all of it, where it stands in no file

    def read(self, needed: str, largest: int) -> str:
        """The whole text."""
        if self.content is not None:
            return self.content
        return read_text(self.path, needed=needed, largest=largest)

    @property
    def first_line(self) -> str:
        """The first line, without its end."""
        return self.text.partition("\n")[0]

    @property
    def is_object(self) -> bool:
        """Whether the file begins as a JSON object."""
        return self.text.lstrip().startswith("{")

    @functools.cached_property
    def document(self) -> Mapping[str, object]:
        """The whole file as a JSON object, empty if it is none; CalibrationError if it is cut."""
        if not self.is_object:
            return {}
        data = inputs.read_json(self.path, needed="a report in JSON", error=CalibrationError)
        return data if isinstance(data, dict) else {}


def read_head(path: Path, *, binary: bool = False) -> Head:
    """The beginning of a file, `binary` or text; CalibrationError if it is empty or unread."""
    with inputs.open_input(
        path, needed="measurements", error=CalibrationError, largest=inputs.RECORDING
    ) as stream:
        text = stream.read(HEAD).decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise CalibrationError(f"{path}: is empty; needed measurements")
    if "\0" in text and not binary:
        raise CalibrationError(f"{path}: is a binary file; needed text")
    return Head(path, text)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Facts about a file that its user adds because the file lacks them."""

    # value that a column of a table must have
    only: Mapping[str, str] = structs.field(default_factory=dict)
    ranks: int | None = None  # accelerators of the job, or ranks of a benchmark
    cluster: str | None = None  # system of the catalog that the job runs on
    spans: bool = False  # whether a recording keeps what each rank did and when


@structs.dataclass(frozen=True, slots=True)
class Format:
    """A format that files of one tool have."""

    name: str  # as commands take it
    recognises: Callable[[Head], bool]  # whether a file that begins like this has the format
    # reader of the file; None for recordings of `mpsim measure`
    read: Callable[[Head, Options], Imported | Points | Recorded] | None = None
    # reader of the whole step, where `read` gives the kernels it was made of as points
    record: Callable[[Head, Options], Recorded] | None = None

    @property
    def title(self) -> str:
        """Title of the format."""
        return str(FORMATS["read"][self.name]["title"])

    @property
    def gives(self) -> str:
        """Kind of what reading gives: ``points``, ``scenario``, ``timeline`` or ``recording``."""
        return str(FORMATS["read"][self.name]["gives"])
