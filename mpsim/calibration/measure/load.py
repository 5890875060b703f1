"""How much of a host other processes use while something is measured."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

__all__ = ["Usage", "others_share", "read_usage"]

IDLE = (3, 4)
"""Columns of /proc/stat that are no work: idle, and waiting for input or output (proc(5))."""
GUEST = 8
"""From this column on guests are counted a second time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What had been used at one moment [s].

    Parameters
    ----------
    wall, own : float
        Time, and CPU time of this process.
    busy : float
        CPU time of every process on the host; 0 where nothing tells.
    """

    wall: float
    own: float
    busy: float


def read_usage() -> Usage:
    """What has been used until now."""
    return Usage(perf_counter(), process_time(), _busy())


def others_share(before: Usage, after: Usage, own: Sequence[float], cores: int) -> float:
    """Share of the host that processes other than ours used between two moments.

    Parameters
    ----------
    before, after : Usage
        Of one rank of the host.
    own : sequence of float
        CPU time that each of our ranks on the host used between [s].
    cores : int
        Of the host.

    Examples
    --------
    >>> others_share(Usage(0.0, 0.0, 5.0), Usage(10.0, 9.0, 23.0), [9.0, 8.0], 2)
    0.05
    """
    wall = after.wall - before.wall
    if not before.busy or wall <= 0:
        return 0.0
    others = (after.busy - before.busy - sum(own)) / (wall * cores)
    return round(min(max(others, 0.0), 1.0), 3)


def _busy() -> float:
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return 0.0
    columns = [float(one) for one in first.split()[1:]][:GUEST]
    work = sum(value for place, value in enumerate(columns) if place not in IDLE)
    return work / os.sysconf("SC_CLK_TCK")
