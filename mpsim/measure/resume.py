"""Lines that an earlier run left behind, and whether a run can go on with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from mpsim.errors import CalibrationError
from mpsim.measured.files import partial_path, read_measured
from mpsim.measured.records import Header, Line, Measured

SAME = ("torch", "cuda", "nccl", "driver", "backend", "world_size")


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """Measurements of an earlier run."""

    lines: tuple[Line, ...] = ()  # header and measurements to keep; empty where there are none
    done: frozenset[str] = frozenset()  # ids of the measurements
    whole: Measured | None = None  # the file, where nothing is left to do


def take_up(path: Path, header: Header, families: Sequence[str]) -> Past:
    """Read what was begun at `path`, if anything; what was skipped is tried again. CalibrationError
    if it was measured on another machine, with other software or on other ranks.
    """
    partial = partial_path(path)
    source = partial if partial.exists() else path
    if not source.exists() or not source.stat().st_size:
        return Past()
    past_run = read_measured(source, partial=True)
    _check_same(source, past_run.header, header)
    if past_run.end is not None and past_run.end.complete:
        measured = {measurement.family for measurement in past_run.measurements}
        if measured.issuperset(families):
            return Past(whole=past_run)
    return Past(
        (past_run.header, *past_run.measurements), frozenset(m.id for m in past_run.measurements)
    )


def _check_same(source: Path, old: Header, new: Header) -> None:
    for name in SAME:
        if getattr(old, name) != getattr(new, name):
            raise CalibrationError(
                f"{source}: {name} was {getattr(old, name)!r} and is {getattr(new, name)!r} now; "
                "measure into another file, or remove this one"
            )
    for before, now in zip(old.ranks, new.ranks, strict=True):
        if (before.device_name, before.threads) != (now.device_name, now.threads):
            raise CalibrationError(
                f"{source}: rank {now.rank} ran on {before.device_name} with {before.threads}"
                f" threads and is on {now.device_name} with {now.threads} now; measure into another"
                " file, or remove this one"
            )
