"""Files of `mpsim measure`, written and read; what is damaged is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Annotated, Final, Self, TextIO

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from mpsim import structs
from mpsim.errors import CalibrationError, nearest
from mpsim.inputs import TEXT, open_text, read_lines, shown
from mpsim.measured.records import (
    Actions,
    End,
    Header,
    Line,
    Measured,
    Measurement,
    RankRecord,
    Skipped,
)
from mpsim.shipped import say

_NEEDED: Final = "a file of 'mpsim measure'"
_KINDS: Final = {"header": Header, "measurement": Measurement, "skipped": Skipped, "end": End}
_PARTS: Final = {"ranks": RankRecord, "actions": Actions}
_LINES: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


def parse_line(text: str) -> Line:
    """Read one line strictly. CalibrationError if it is not JSON, not of this schema, or holds no
    sample, a time at or below 0, or ranks that do not match.
    """
    try:
        return _LINES.validate_json(text)
    except ValidationError as error:
        raise CalibrationError(_first(error.errors(include_url=False)[0])) from error


def _first(mistake: ErrorDetails) -> str:
    """The first mistake of a line, in a sentence with its key."""
    kind, value, message = mistake["type"], mistake["input"], mistake["msg"]
    line, *keys = mistake["loc"] or ("",)
    key = ".".join(map(str, keys))
    if kind == "json_invalid":
        return f"not JSON ({message}); the file is damaged or truncated"
    if kind.startswith("union_tag") and isinstance(value, dict):
        return f"'kind' is {shown(value.get('kind'))}; needed {', '.join(_KINDS)}"
    if not keys and kind != "value_error":
        return f"got {type(value).__name__}; needed an object on each line"
    if kind == "missing":
        return f"field {shown(key)} is missing"
    if kind == "unexpected_keyword_argument":
        holder = _PARTS.get(str(keys[0]), _KINDS[str(line)])
        fields = [field.name for field in structs.fields(holder)]
        return f"unknown field {shown(key)}; {nearest(str(keys[-1]), fields)}"
    if kind == "finite_number":
        return f"{json.dumps(value)} is not a measured time; the run that wrote it went wrong"
    if kind == "value_error":
        return str(mistake["ctx"]["error"])
    return f"{shown(key)} is {json.dumps(value)[:60]}; {message[:1].lower()}{message[1:]}"


def to_line(line: Line) -> str:
    """One line of the file, without its end."""
    data = {"kind": line.kind, **structs.asdict(line)}
    if data.get("actions", 0) is None:
        del data["actions"]
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def read_measured(path: str | Path, *, partial: bool = False) -> Measured:
    """Read a file of measurements, line by line.

    `partial`: whether a file without its end line, or with a broken last line, is read as far as it
    goes; else it is refused. CalibrationError with the file and the line of the first mistake.
    """
    with open_text(path, needed=_NEEDED, error=CalibrationError, largest=TEXT) as stream:
        return _Reading(str(path), partial).read(stream)


class _Reading:
    """One pass over the lines of one file."""

    def __init__(self, file: str, partial: bool) -> None:
        self.file = file
        self.partial = partial
        self.header: Header | None = None
        self.measurements: dict[str, Measurement] = {}
        self.skipped: list[Skipped] = []
        self.end: End | None = None

    def read(self, stream: IO[str]) -> Measured:
        lines = read_lines(stream, self.file, needed=_NEEDED, error=CalibrationError)
        for number, text in enumerate(lines, start=1):
            try:
                self._take(text)
            except CalibrationError as error:
                if self.partial and self.header and not text.endswith("\n"):
                    break  # the line that was being written when the run ended
                raise CalibrationError(f"{self.file}:{number}: {error}") from error
        if self.header is None:
            raise CalibrationError(f"{self.file}: is empty; needed {_NEEDED}")
        if self.end is None and not self.partial:
            raise CalibrationError(
                say("measured.no_end", file=self.file, count=len(self.measurements))
            )
        return Measured(
            self.header, tuple(self.measurements.values()), tuple(self.skipped), self.end, self.file
        )

    def _take(self, text: str) -> None:
        if not text.endswith("\n") and text.strip() and self.header and '"end"' not in text[:20]:
            raise CalibrationError("the line breaks off; the file is truncated")
        line = parse_line(text)
        if self.header is None and not isinstance(line, Header):
            raise CalibrationError(f"the first line is no header; needed {_NEEDED}")
        if self.end is not None:
            raise CalibrationError(say("measured.after_end"))
        if isinstance(line, Header):
            if self.header is not None:
                raise CalibrationError(say("measured.second_header"))
            self.header = line
        elif isinstance(line, Measurement):
            self._take_measurement(line)
        elif isinstance(line, Skipped):
            self.skipped.append(line)
        else:
            self._take_end(line)

    def _take_measurement(self, measurement: Measurement) -> None:
        assert self.header is not None
        if measurement.id in self.measurements:
            raise CalibrationError(f"measurement {shown(measurement.id)} was given before")
        outside = [rank for rank in measurement.group if rank >= self.header.world_size]
        if outside:
            raise CalibrationError(
                f"rank {outside[0]} of {shown(measurement.id)} is not among the"
                f" {self.header.world_size} of the header"
            )
        self.measurements[measurement.id] = measurement

    def _take_end(self, end: End) -> None:
        assert self.header is not None
        if end.measurements != len(self.measurements):
            raise CalibrationError(
                f"the end line counts {end.measurements} measurements, the file has"
                f" {len(self.measurements)}; lines are missing"
            )
        if len(end.clocks_hz) != self.header.world_size:
            raise CalibrationError(
                f"the end line has clocks of {len(end.clocks_hz)} ranks; needed"
                f" {self.header.world_size}"
            )
        self.end = end


class RecordWriter:
    """Lines of a file that is being measured; ``with RecordWriter(path) as writer``.

    `path`: the file that will be written. Until `finish` the lines go to ``<path>.partial``, so
    that a file under its own name is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, partial_path(path)
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.partial.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def write(self, line: Line) -> None:
        """Add one line, on disk before this returns."""
        assert self._stream is not None
        self._stream.write(to_line(line) + "\n")
        self._stream.flush()

    def finish(self, end: End) -> None:
        """Write the end line and give the file its name."""
        self.write(end)
        self.__exit__()
        self.partial.replace(self.path)


def partial_path(path: Path) -> Path:
    """Where the lines of `path` are while it is being measured."""
    return path.with_name(path.name + ".partial")
