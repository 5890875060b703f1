"""Waits: idle time of compute streams charged to the transfers that were waited for.

Idle time before a row counts as the part of the transfer that ended last before it, from the moment the transfer's data was ready, and so for the transfer
that held up this one; all earlier idle time was waiting for something to be computed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.program import COLLECTIVE, SEND
from mpsim.result.intervals import Gaps

__all__ = ["charge_waits", "last_dependency"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def charge_waits(parts: Floats, timeline: Timeline, gaps: Gaps, waiting: int) -> None:
    """Charge idle time before rows to the transfers that ended last, one after the other, back to where they began.

    Parameters
    ----------
    parts : float64[R, parts]
        Added to [ticks].
    timeline : Timeline
    gaps : Gaps
        Each before a row.
    waiting : int
        Part that waiting for a computation counts as.
    """
    program, left = timeline.program, gaps
    while len(left.row):
        gate = last_dependency(timeline, left.row)
        held = np.maximum(gate, 0)
        transfers = (gate >= 0) & np.isin(program.kind[held], (SEND, COLLECTIVE))
        transfers &= timeline.end[held] >= left.end
        waits = left.where(~transfers)
        amount = np.bincount(waits.rank, weights=waits.end - waits.start, minlength=len(parts))
        parts[:, waiting] += amount
        left, gate = left.where(transfers), gate[transfers]
        since = np.clip(_ready(timeline, gate), left.start, left.end)
        np.add.at(parts, (left.rank, program.part[gate]), left.end - since)
        # a transfer that others held up is followed to those
        left = dataclasses.replace(left, end=since, row=gate)
        left = left.where(left.end > left.start)


def last_dependency(timeline: Timeline, row: Ints) -> Ints:
    """For each row, the dependency that ended last, -1 where it has none."""
    program = timeline.program
    result = np.full(len(row), -1, dtype=np.int64)
    latest = np.full(len(row), -np.inf)
    begin, count = program.dep_ptr[row], np.diff(program.dep_ptr)[row]
    for k in range(int(count.max(initial=0))):
        has = count > k
        candidate = program.dep[begin[has] + k]
        later = timeline.end[candidate] > latest[has]
        place = np.flatnonzero(has)[later]
        result[place] = candidate[later]
        latest[place] = timeline.end[candidate[later]]
    return result


def _ready(timeline: Timeline, row: Ints) -> Floats:
    """Time at which the data of each row was there: the latest end of its dependencies, 0 without any."""
    gate = last_dependency(timeline, row)
    return np.where(gate >= 0, timeline.end[np.maximum(gate, 0)], 0.0)
