"""Traces of requests, told by their columns: Azure, BurstGPT and plain CSV, Mooncake JSONL."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpsim import inputs
from mpsim.errors import Problem, ScenarioError
from mpsim.inputs import Record, open_text, parse_json, read_cells, read_lines, refusal
from mpsim.serving.requests import Requests

_LONGEST = 100_000_000  # tokens of a request: more is a slip
_LATEST = 1e11  # s after the epoch: three thousand years
_MOST_PROBLEMS = 20
_NEEDED = "a trace of requests"
_WANTED = "a finite time of arrival and positive numbers of tokens"
_SECONDS_A_MILLISECOND = 1e-3


class _Row(NamedTuple):
    """One request of a trace."""

    arrival: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


class _Columns(NamedTuple):
    """Columns of a format, and how its times are written."""

    arrival: str
    prompt: str
    output: str
    seconds: Callable[[str], float]


def _azure_seconds(text: str) -> float:
    return datetime.fromisoformat(text.strip()[:26]).replace(tzinfo=UTC).timestamp()


_FORMATS = (
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _azure_seconds),
    _Columns("Timestamp", "Request tokens", "Response tokens", float),
    _Columns("arrival_s", "input_tokens", "output_tokens", float),
)


def read_trace(path: Path) -> Requests:
    """Requests of a file: CSV with the columns of Azure's (``TIMESTAMP``, ``ContextTokens``,
    ``GeneratedTokens``), BurstGPT's (``Timestamp``, ``Request tokens``, ``Response tokens``) or
    plain ones (``arrival_s``, ``input_tokens``, ``output_tokens``); or Mooncake's JSONL
    (``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids``).

    ScenarioError names every malformed line, the order of arrivals included. Requests without a
    response (failed ones of BurstGPT) are left out. Arrivals count from the first.
    """
    if not path.exists():
        missing = f"no file {path.name!r} of requests; needed one relative to the scenario"
        raise ScenarioError([Problem(missing, key="serving.workload.trace")])
    problems: list[Problem] = []
    # a million requests are 24 MB as arrays, and ten times that as rows
    arrival, prompt, output = array("d"), array("q"), array("q")
    hashes: list[tuple[int, ...]] = []
    number, latest, units = 0, -math.inf, 0
    for number, row in _rows(path, problems):
        if row.arrival < latest:
            late = "arrives before the request above it; needed ascending times"
            problems.append(_problem(path, number, late))
        latest, units = row.arrival, units + len(row.hashes)
        if units > inputs.CELLS:
            reason = f"over {inputs.CELLS:,} hash_ids so far; needed {_NEEDED} with fewer: split it"
            raise refusal(ScenarioError, path, reason, number)
        if row.output > 0:
            arrival.append(row.arrival)
            prompt.append(row.prompt)
            output.append(row.output)
            if row.hashes or hashes:
                hashes += [()] * (len(arrival) - 1 - len(hashes))
                hashes.append(row.hashes)
    if not number and not problems:
        problems.append(_problem(path, 1, "has no requests"))
    if problems:
        raise ScenarioError(problems[:_MOST_PROBLEMS])
    if not arrival:
        raise ScenarioError([_problem(path, 1, "and all others have no response")])
    times = np.array(arrival)
    return Requests(
        times - times[0], np.array(prompt), np.array(output), hashes=tuple(hashes) or None
    )


def _rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, _Row]]:
    with open_text(path, needed=_NEEDED, error=ScenarioError, newline="") as file:
        lines = read_lines(file, path, needed=_NEEDED, error=ScenarioError)
        first = next(lines, "")
        if first.startswith("{"):
            yield from _mooncake(path, itertools.chain((first,), lines), problems)
            return
    records = read_cells(path, needed=_NEEDED, error=ScenarioError, largest=inputs.RECORDING)
    _, names = next(records, (1, []))
    known_columns = (c for c in _FORMATS if {c.arrival, c.prompt, c.output} <= set(names))
    if (columns := next(known_columns, None)) is None:
        known = "; ".join(f"{c.arrival}, {c.prompt}, {c.output}" for c in _FORMATS)
        other = "or JSON lines with timestamp, input_length, output_length"
        problems.append(_problem(path, 1, f"is no known trace; needed columns {known}; {other}"))
        return
    places = [names.index(name) for name in columns[:3]]
    for number, cells in records:
        try:
            time, prompt, output = (cells[place] for place in places)
            yield number, _row(columns.seconds(time), prompt, output)
        except (ValueError, TypeError, IndexError):
            problems.append(_problem(path, number, f"is malformed; needed {_WANTED}"))
        if len(problems) > _MOST_PROBLEMS:
            return


def _row(
    arrival: float, prompt: str | float, output: str | float, hashes: tuple[int, ...] = ()
) -> _Row:
    sizes = float(prompt), float(output)
    if not (abs(arrival) < _LATEST and 1 <= sizes[0] <= _LONGEST and 0 <= sizes[1] <= _LONGEST):
        raise ValueError(_WANTED)
    return _Row(float(arrival), int(sizes[0]), int(sizes[1]), hashes)


def _mooncake(
    path: Path, lines: Iterator[str], problems: list[Problem]
) -> Iterator[tuple[int, _Row]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = Record(
                parse_json(line, path, error=ScenarioError), f"line {number}", error=ScenarioError
            )
            arrival = record.number("timestamp") * _SECONDS_A_MILLISECOND
            prompt, output = record.whole("input_length"), record.whole("output_length")
            yield number, _row(arrival, prompt, output, record.wholes("hash_ids", []))
        except ScenarioError as error:
            reason = error.problems[0].message.removeprefix(f"line {number}: ")
            problems.append(_problem(path, number, f"is malformed: {reason}"))
        except ValueError:
            problems.append(_problem(path, number, f"is malformed; needed {_WANTED}"))
        if len(problems) > _MOST_PROBLEMS:
            return


def _problem(path: Path, line: int, message: str) -> Problem:
    return Problem(
        f"line {line} {message}", file=str(path), line=line, key="serving.workload.trace"
    )
