"""How much of a host other processes use while something is measured."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

IDLE = (3, 4)
"""Columns of /proc/stat that are no work: idle, and waiting for input or output (proc(5))."""
GUEST = 8  # from this column on guests are counted a second time


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Time used until one moment [s]."""

    wall: float  # wall, own: time, and CPU time of this process
    own: float
    # CPU time of every process on the cores that this one may use; 0 where nothing tells
    busy: float
    cores: tuple[int, ...]


def read_usage() -> Usage:
    """Time used until now."""
    cores = _cores()
    return Usage(perf_counter(), process_time(), _busy(cores), cores)


def others_share(before: Usage, after: Usage, own: Sequence[float]) -> float:
    """Share of some cores that processes other than ours used between two moments.

    `before` and `after`: of one rank. `own`: CPU time that each of our ranks that may use these
    cores used between [s].

    Examples
    --------
    >>> others_share(Usage(0.0, 0.0, 5.0, (0, 1)), Usage(10.0, 9.0, 23.0, (0, 1)), [9.0, 8.0])
    0.05
    """
    wall = after.wall - before.wall
    if not before.busy or wall <= 0:
        return 0.0
    others = (after.busy - before.busy - sum(own)) / (wall * len(before.cores))
    return round(min(max(others, 0.0), 1.0), 3)


def _cores() -> tuple[int, ...]:
    """Cores that this process may use; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _busy(cores: tuple[int, ...]) -> float:
    """CPU time that some cores have worked [s]."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    wanted = {f"cpu{core}" for core in cores}
    ticks = 0.0
    for line in lines:
        name, *columns = line.split()
        if name in wanted:
            work = [float(column) for column in columns[:GUEST]]
            ticks += sum(value for place, value in enumerate(work) if place not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")
