"""Reading the files of `mpsim measure` strictly: what is truncated, joined, of another version or impossible is refused with its line."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from mpsim.errors import CalibrationError
from mpsim.measured.fields import FieldReader
from mpsim.measured.records import (
    DTYPES,
    FAMILIES,
    KINDS,
    PHASES,
    SCHEMA,
    SIZES,
    Actions,
    End,
    Header,
    Line,
    Measured,
    Measurement,
    RankRecord,
    Skipped,
)

__all__ = ["check_alike", "parse_line", "read_measured"]

LONGEST_LINE: Final = (
    64_000_000  # characters: a line of ours is far below, a trace of one object is not read
)
_TOKEN = re.compile(r"\d+[FBIW]\d+|gradients|optimizer")


def parse_line(text: str) -> Line:
    """Read one line strictly.

    Raises
    ------
    CalibrationError
        If it is not JSON, not of this schema, or holds no sample, a time at or below 0, or ranks that do not match.
    """
    data = _json(text)
    kind = data.pop("kind", None)
    if kind == "header":
        return _header(data)
    if kind == "measurement":
        return _measurement(FieldReader(data, Measurement))
    if kind == "skipped":
        return _skipped(FieldReader(data, Skipped))
    if kind == "end":
        return _end(FieldReader(data, End))
    raise CalibrationError(f"'kind' is {kind!r}; needed {', '.join(KINDS.values())}")


def read_measured(path: str | Path, *, partial: bool = False) -> Measured:
    """Read a file of measurements, line by line.

    Parameters
    ----------
    path : str or Path
    partial : bool
        Whether a file without its end line, or with a broken last line, is read as far as it goes; else it is refused.

    Raises
    ------
    CalibrationError
        With the file and the line of the first mistake.
    """
    try:
        with Path(path).open(encoding="utf-8-sig") as stream:
            return _Reading(str(path), partial).read(stream)
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CalibrationError(
            f"{path}: not text in UTF-8; needed a file of 'mpsim measure'"
        ) from error


def check_alike(files: Sequence[Measured]) -> None:
    """Refuse files that were not measured on the same kind of machine with the same software.

    Raises
    ------
    CalibrationError
        Naming the first field that differs, both values and both files.
    """
    for other in files[1:]:
        for field in ("device_name", "torch", "nccl", "cuda", "driver", "backend"):
            a, b = getattr(files[0].header, field), getattr(other.header, field)
            if a != b and not (field == "backend" and "none" in (a, b)):
                raise CalibrationError(
                    f"{other.file}: {field} is {b!r}, but {a!r} in {files[0].file}; calibrate each on its own"
                )


class _Reading:
    """One pass over the lines of one file."""

    def __init__(self, file: str, partial: bool) -> None:
        self.file = file
        self.partial = partial
        self.header: Header | None = None
        self.measurements: dict[str, Measurement] = {}
        self.skipped: list[Skipped] = []
        self.end: End | None = None

    def read(self, stream: TextIO) -> Measured:
        for number, text in enumerate(_lines(stream), start=1):
            try:
                self._take(text)
            except CalibrationError as error:
                if self.partial and self.header and not text.endswith("\n"):
                    break  # the line that was being written when the run ended
                raise CalibrationError(f"{self.file}:{number}: {error}") from error
        if self.header is None:
            raise CalibrationError(f"{self.file}: is empty; needed a file of 'mpsim measure'")
        if self.end is None and not self.partial:
            raise CalibrationError(
                f"{self.file}: truncated, it has no end line after {len(self.measurements)} measurements; "
                "finish it with 'mpsim measure --resume'"
            )
        return Measured(
            self.header,
            tuple(self.measurements.values()),
            tuple(self.skipped),
            self.end,
            self.file,
        )

    def _take(self, text: str) -> None:
        if not text.endswith("\n") and text.strip() and self.header and '"end"' not in text[:20]:
            raise CalibrationError("the line breaks off; the file is truncated")
        line = parse_line(text)
        if self.header is None and not isinstance(line, Header):
            raise CalibrationError("the first line is no header; needed a file of 'mpsim measure'")
        if self.end is not None:
            raise CalibrationError(
                "a line after the end line; two files were joined, give each by itself"
            )
        if isinstance(line, Header):
            self._take_header(line)
        elif isinstance(line, Measurement):
            self._take_measurement(line)
        elif isinstance(line, Skipped):
            self.skipped.append(line)
        else:
            self._take_end(line)

    def _take_header(self, header: Header) -> None:
        if self.header is not None:
            raise CalibrationError("a second header; two files were joined, give each by itself")
        self.header = header

    def _take_measurement(self, one: Measurement) -> None:
        assert self.header is not None
        if one.id in self.measurements:
            raise CalibrationError(f"measurement {one.id!r} was given before")
        outside = [rank for rank in one.group if rank >= self.header.world_size]
        if outside:
            raise CalibrationError(
                f"rank {outside[0]} of {one.id!r} is not among the {self.header.world_size} of the header"
            )
        self.measurements[one.id] = one

    def _take_end(self, end: End) -> None:
        assert self.header is not None
        if end.measurements != len(self.measurements):
            raise CalibrationError(
                f"the end line counts {end.measurements} measurements, the file has {len(self.measurements)}; lines are missing"
            )
        if len(end.clocks_hz) != self.header.world_size:
            raise CalibrationError(
                f"the end line has clocks of {len(end.clocks_hz)} ranks; needed {self.header.world_size}"
            )
        self.end = end


def _lines(stream: TextIO) -> Iterator[str]:
    while text := stream.readline(LONGEST_LINE):
        if len(text) == LONGEST_LINE:
            raise CalibrationError(
                f"{stream.name}: a line of over {LONGEST_LINE // 10**6} MB; needed a file of 'mpsim measure'"
            )
        yield text


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CalibrationError(f"not JSON ({error}); the file is damaged or truncated") from error
    if not isinstance(data, dict):
        raise CalibrationError(f"got {type(data).__name__}; needed an object on each line")
    return data


def _refuse_constant(name: str) -> float:
    raise CalibrationError(f"{name} is not a measured time; the run that wrote it went wrong")


def _header(data: dict[str, Any]) -> Header:
    schema = data.get("schema")
    if (
        type(schema) is not int or schema != SCHEMA
    ):  # before anything else: other versions have other fields
        raise CalibrationError(
            f"schema {schema!r}; this mpsim reads schema {SCHEMA}: measure again, or install the mpsim that wrote it"
        )
    fields = FieldReader(data, Header)
    ranks = tuple(_rank(one) for one in fields.objects("ranks", RankRecord))
    world = fields.count("world_size", least=1)
    missing = sorted(set(range(world)) - {one.rank for one in ranks})
    if missing:
        raise CalibrationError(
            f"rank {missing[0]} of {world} is missing from the header; measure again with every rank alive"
        )
    if [one.rank for one in ranks] != list(range(world)):
        raise CalibrationError(f"ranks are not 0 to {world - 1}, each once and in order")
    words = {
        name: fields.text(name)
        for name in "mpsim torch python os cuda nccl driver created backend".split()
    }
    return Header(
        schema=SCHEMA,
        world_size=world,
        ranks=ranks,
        cores=fields.count("cores", least=1),
        seed=fields.count("seed"),
        **words,
    )


def _rank(fields: FieldReader) -> RankRecord:
    return RankRecord(
        rank=fields.count("rank"),
        host=fields.text("host"),
        device=fields.text("device"),
        device_name=fields.text("device_name"),
        threads=fields.count("threads", least=1),
        memory_bytes=fields.number("memory_bytes"),
        clock_hz=fields.number("clock_hz"),
    )


def _check_case(fields: FieldReader) -> None:
    """Refuse what no fit and no scenario could be made of: an unknown number format, or a case without its sizes."""
    dtype, op, sizes = fields.text("dtype"), fields.text("op"), fields.sizes("shape")
    if fields.text("family") != "collectives" and dtype not in DTYPES:
        raise CalibrationError(f"'dtype' is {dtype!r}; known: {', '.join(DTYPES)}")
    lacking = [name for name in SIZES.get(op, ()) if sizes.get(name, 0) < 1]
    if lacking:
        raise CalibrationError(
            f"'shape' of {fields.text('id')!r} lacks {', '.join(lacking)}; {op} needs {', '.join(SIZES[op])}, each above 0"
        )


def _measurement(fields: FieldReader) -> Measurement:
    _check_case(fields)
    group = tuple(fields.counts("group"))
    if not group or len(set(group)) != len(group):
        raise CalibrationError(f"'group' is {list(group)}; needed ranks, each once")
    actions = fields.optional_object("actions", Actions)
    return Measurement(
        id=fields.text("id"),
        family=fields.word("family", FAMILIES),
        op=fields.text("op"),
        shape=fields.sizes("shape"),
        variant=fields.words("variant"),
        dtype=fields.text("dtype"),
        group=group,
        domains=fields.count("domains", least=1),
        synchronous=fields.switch("synchronous"),
        phase=fields.word("phase", PHASES),
        method=fields.text("method"),
        seconds=_seconds(fields, group),
        flops=fields.number("flops"),
        bytes=fields.number("bytes"),
        calls=fields.count("calls", least=1),
        check=fields.text("check"),
        peak_memory_bytes=fields.number("peak_memory_bytes"),
        others=fields.number("others"),
        actions=None if actions is None else _actions(actions, group),
    )


def _seconds(fields: FieldReader, group: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    table = tuple(tuple(row) for row in fields.rows("seconds"))
    where = f"'seconds' of {fields.text('id')!r}"
    if len(table) != len(group):
        raise CalibrationError(
            f"{where} holds {len(table)} ranks, its group {len(group)}; a rank is missing, measure again"
        )
    if not all(table):
        raise CalibrationError(f"{where} has no sample; needed at least one for each rank")
    if len({len(row) for row in table}) > 1:
        raise CalibrationError(f"{where} has more samples of one rank than of another")
    if not all(math.isfinite(value) and value > 0 for row in table for value in row):
        raise CalibrationError(f"{where} holds a time that is not a finite number above 0")
    return table


def _actions(fields: FieldReader, group: tuple[int, ...]) -> Actions:
    found = Actions(
        step=tuple(fields.counts("step")),
        rank=tuple(fields.counts("rank")),
        token=tuple(fields.texts("token")),
        start=tuple(fields.numbers("start")),
        end=tuple(fields.numbers("end")),
    )
    lengths = {len(getattr(found, one.name)) for one in dataclasses.fields(Actions)}
    if len(lengths) != 1:
        raise CalibrationError("columns of 'actions' differ in length")
    unknown = next((one for one in found.token if not _TOKEN.fullmatch(one)), None)
    if unknown is not None:
        raise CalibrationError(
            f"'actions' holds the token {unknown!r}; known: 3F0 and the like with F, B, I or W, gradients, optimizer"
        )
    strangers = sorted(set(found.rank) - set(group))
    if strangers:
        raise CalibrationError(f"'actions' holds rank {strangers[0]}, which is not in the group")
    if any(b < a for a, b in zip(found.start, found.end, strict=True)):
        raise CalibrationError("an action ends before it begins")
    return found


def _skipped(fields: FieldReader) -> Skipped:
    return Skipped(id=fields.text("id"), reason=fields.text("reason"))


def _end(fields: FieldReader) -> End:
    yardstick = fields.numbers("yardstick")
    if len(yardstick) != 2 or min(yardstick) <= 0:
        raise CalibrationError("'yardstick' has to be two times above 0")
    return End(
        measurements=fields.count("measurements"),
        complete=fields.switch("complete"),
        elapsed=fields.number("elapsed"),
        yardstick=(yardstick[0], yardstick[1]),
        clocks_hz=tuple(fields.numbers("clocks_hz")),
    )
