"""Intervals of time: when compute streams are busy and idle, and what idle ones wait for.

Idle time before a row counts as the part of the transfer that ended last before it, from the moment
the transfer's data was ready, and so for the transfer that held up this one; all earlier idle time
was waiting for something to be computed.

Shapes: R rank classes, W waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine.timeline import Timeline
from mpsim.program import COLLECTIVE, SEND


@structs.dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Intervals in which a compute stream stands idle, each counted as one part of the account."""

    rank: Ints  # int64[W], rank class
    # start, end: float64[W], ticks since the step began; those of one rank do not overlap
    start: Floats
    end: Floats
    part: Ints  # int64[W], by the vocabulary of the program
    # int64[W], row that is waited for, a transfer or computation; -1 if no single one
    row: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def join(cls, several: Sequence[Waits]) -> Waits:
        """All waits of several."""
        names = [field.name for field in structs.fields(cls)]
        return cls(
            **{name: np.concatenate([getattr(waits, name) for waits in several]) for name in names}
        )

    def where(self, chosen: Flags) -> Waits:
        """Some of them."""
        columns = {f.name: getattr(self, f.name)[chosen] for f in structs.fields(self)}
        return Waits(**columns)

    def between(self, since: float, until: float) -> Waits:
        """The part of each that lies between two moments [ticks]."""
        start, end = (np.clip(edge, since, until) for edge in (self.start, self.end))
        return structs.replace(self, start=start, end=end)

    def add_to(self, parts: Floats) -> None:
        """Add the ticks of each wait to the part it counts as [R, parts]."""
        ranks, width = parts.shape
        took = np.bincount(
            self.rank * width + self.part, weights=self.end - self.start, minlength=ranks * width
        )
        parts += took.reshape(ranks, width)


def idle_gaps(timeline: Timeline) -> Waits:
    """Idle intervals of compute streams, before rows and after the last (-1); of no part yet."""
    program = timeline.program
    rank, row = program.compute_rows
    start, end = timeline.start[row], timeline.end[row]
    first = np.ones(len(row), dtype=bool)
    first[1:] = rank[1:] != rank[:-1]
    previous = np.where(first, 0.0, np.roll(end, 1))
    last = np.zeros(program.ranks)
    np.maximum.at(last, rank, end)
    everyone = np.arange(program.ranks)
    gaps = Waits(
        rank=np.concatenate([rank, everyone]),
        start=np.concatenate([previous, last]),
        end=np.concatenate([start, timeline.per_rank(lambda each: each.makespan)]),
        part=np.full(len(rank) + program.ranks, -1),
        row=np.concatenate([row, np.full(program.ranks, -1)]),
    )
    return gaps.where(gaps.end > gaps.start)


def busy_ticks(timeline: Timeline) -> Floats:
    """Ticks of kernels on each rank's compute stream [R]; waits in actions are not busy."""
    program = timeline.program
    busy: Floats = program.busy_parts[:, program.vocabulary.computing_parts].sum(axis=1)
    return busy


def waits_before(timeline: Timeline, gaps: Waits, waiting: int) -> Waits:
    """Charge idle time before rows to the transfers that ended last, one after the other, back to
    where they began.

    `gaps`: each before a row. `waiting`: part that waiting for a computation counts as.

    Returns Waits: they fill the gaps.
    """
    program, left = timeline.program, gaps
    found: list[Waits] = [
        waits_of(left.where(np.zeros(len(left.row), dtype=bool)), waiting, left.row[:0])
    ]
    while len(left.row):
        gate = last_dependency(timeline, left.row)
        held = np.maximum(gate, 0)
        kind = program.kind[held]
        transfers = (gate >= 0) & ((kind == SEND) | (kind == COLLECTIVE))
        transfers &= timeline.end[held] >= left.end
        found.append(waits_of(left.where(~transfers), waiting, gate[~transfers]))
        left, gate = left.where(transfers), gate[transfers]
        since = np.clip(_ready(timeline, gate), left.start, left.end)
        moving = structs.replace(left, start=since)
        kept = moving.end > moving.start
        found.append(waits_of(moving.where(kept), program.part[gate[kept]], gate[kept]))
        # a transfer that others held up is followed to those
        left = structs.replace(left, end=since, row=gate)
        left = left.where(left.end > left.start)
    return Waits.join(found)


def waits_of(gaps: Waits, part: int | NDArray[np.integer], row: Ints) -> Waits:
    """Gaps that count as one part, or each as its own, with the row that each waits for."""
    parts = np.broadcast_to(np.asarray(part, dtype=np.int64), gaps.rank.shape)
    return Waits(gaps.rank, gaps.start, gaps.end, parts, row)


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
    """Time at which the data of each row was there: its last dependency's end, or 0."""
    gate = last_dependency(timeline, row)
    return np.where(gate >= 0, timeline.end[np.maximum(gate, 0)], 0.0)
