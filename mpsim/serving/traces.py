"""Traces of requests: Azure and BurstGPT CSV, Mooncake JSONL, plain CSV; recognised by their columns."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpsim.errors import Problem, ScenarioError
from mpsim.serving.requests import Requests

__all__ = ["read_trace"]

_LONGEST = 100_000_000  # tokens of a request: more is a slip
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
    return datetime.fromisoformat(text.strip()[:26]).timestamp()


_FORMATS = {
    "azure": _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _azure_seconds),
    "burstgpt": _Columns("Timestamp", "Request tokens", "Response tokens", float),
    "plain": _Columns("arrival_s", "input_tokens", "output_tokens", float),
}


def read_trace(path: Path) -> Requests:
    """Requests of a file.

    Parameters
    ----------
    path : Path
        CSV with the columns of Azure's (``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``), BurstGPT's (``Timestamp``, ``Request tokens``, ``Response tokens``)
        or plain ones (``arrival_s``, ``input_tokens``, ``output_tokens``); or Mooncake's JSONL (``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids``).

    Raises
    ------
    ScenarioError
        With every malformed line, the order of arrivals included.

    Notes
    -----
    Requests without a response (failed ones of BurstGPT) are left out. Arrivals count from the first.
    """
    if not path.is_file():
        raise ScenarioError(
            [
                Problem(
                    f"no file {path.name!r} of requests; needed one relative to the scenario",
                    key="serving.workload.trace",
                )
            ]
        )
    problems: list[Problem] = []
    rows = list(_rows(path, problems))
    for before, (number, row) in itertools.pairwise(rows):
        if row.arrival < before[1].arrival:
            problems.append(
                _problem(
                    path, number, "arrives before the request above it; needed ascending times"
                )
            )
    if not rows and not problems:
        problems.append(_problem(path, 1, "has no requests"))
    if problems:
        raise ScenarioError(problems[:20])
    only = [row for _, row in rows if row.output > 0]
    arrival = np.array([row.arrival for row in only])
    return Requests(
        arrival - arrival[0],
        np.array([row.prompt for row in only], dtype=np.int64),
        np.array([row.output for row in only], dtype=np.int64),
        hashes=tuple(row.hashes for row in only) if any(row.hashes for row in only) else None,
    )


def _rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, _Row]]:
    with path.open(encoding="utf-8", newline="", errors="replace") as file:
        if file.read(1) == "{":
            file.seek(0)
            yield from _mooncake(path, file, problems)
            return
        file.seek(0)
        reader = csv.DictReader(file)
        columns = _recognise(reader.fieldnames or ())
        if columns is None:
            known = "; ".join(f"{c.arrival}, {c.prompt}, {c.output}" for c in _FORMATS.values())
            problems.append(
                _problem(
                    path,
                    1,
                    f"is no known trace; needed columns {known}; or JSON lines with timestamp, input_length, output_length",
                )
            )
            return
        for number, record in enumerate(reader, 2):
            try:
                yield (
                    number,
                    _row(
                        columns.seconds(record[columns.arrival]),
                        record[columns.prompt],
                        record[columns.output],
                    ),
                )
            except (ValueError, TypeError, KeyError) as error:
                problems.append(_problem(path, number, f"is malformed: {error}"))


def _recognise(names: Any) -> _Columns | None:
    for columns in _FORMATS.values():
        if {columns.arrival, columns.prompt, columns.output} <= set(names):
            return columns
    return None


def _row(arrival: float, prompt: Any, output: Any, hashes: tuple[int, ...] = ()) -> _Row:
    lengths = int(float(prompt)), int(float(output))
    if not (np.isfinite(arrival) and 1 <= lengths[0] <= _LONGEST and 0 <= lengths[1] <= _LONGEST):
        raise ValueError(
            f"got arrival {arrival}, {prompt} and {output} tokens; needed finite times and positive lengths"
        )
    return _Row(float(arrival), *lengths, hashes)


def _mooncake(
    path: Path, lines: Iterator[str], problems: list[Problem]
) -> Iterator[tuple[int, _Row]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Mapping[str, Any] = json.loads(line)
            hashes = tuple(int(value) for value in record.get("hash_ids", ()))
            arrival = float(record["timestamp"]) * _SECONDS_A_MILLISECOND
            yield number, _row(arrival, record["input_length"], record["output_length"], hashes)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(_problem(path, number, f"is malformed: {error!r}"))


def _problem(path: Path, line: int, message: str) -> Problem:
    return Problem(
        f"line {line} {message}", file=str(path), line=line, key="serving.workload.trace"
    )
