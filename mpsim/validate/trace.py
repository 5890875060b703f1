"""One Perfetto file with measured and simulated timelines, a pair of processes for each rank of each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mpsim.formats import write_events
from mpsim.validate.steps import Comparison, StepComparison

__all__ = ["write_both"]

_MICRO = 1e6
_DIGITS = 3
_GAP_S = 1e-3  # between the steps of a file


def write_both(comparison: Comparison, path: str | Path) -> Path:
    """Write every step, one after the other, measured above simulated; gzipped when `path` ends in ``.gz``."""
    file = Path(path)
    write_events(_events(comparison.scored), file, separators=(", ", ": "), compresslevel=9)
    return file


def _events(steps: Iterable[StepComparison]) -> Iterator[dict[str, Any]]:
    named: set[int] = set()
    begin = 0.0
    for step in steps:
        longest = max(step.measured, step.predicted or 0.0)
        yield _event("step", 1, begin, longest, step.title)
        for what, slices, shift in (
            ("measured", step.measured_slices, 0),
            ("simulated", step.predicted_slices, 1),
        ):
            for piece in slices:
                process = 2 * piece.rank + shift + 2
                if process not in named:
                    named.add(process)
                    yield _name(process, f"rank {piece.rank} {what}")
                length = piece.end - piece.start
                yield _event(piece.part, process, begin + piece.start, length, piece.token)
        begin += longest + _GAP_S
    yield _name(1, "steps")


def _event(category: str, process: int, start: float, length: float, name: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "pid": process,
        "tid": 1,
        "ts": round(start * _MICRO, _DIGITS),
        "dur": round(length * _MICRO, _DIGITS),
        "name": name,
    }


def _name(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 1, "args": {"name": name}}
