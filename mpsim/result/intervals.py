"""Intervals of time: when compute streams are busy and idle, what idle ones wait for, and covers.

Idle time before a row counts as the part of the transfer that ended last before it, from the moment
the transfer's data was ready, and so for the transfer that held up this one; all earlier idle time
was waiting for something to be computed.

Shapes: R rank classes, W waits, n intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.program import COLLECTIVE, SEND

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Cover:
    """The union of intervals, ready to say how much of a window it covers. `start` and `end`
    (float64[n]): in any order; they may overlap.

    Examples
    --------
    >>> cover = Cover(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> cover.within(np.array([1.0]), np.array([5.5]))
    array([2.5])
    """

    def __init__(self, start: Floats, end: Floats) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reach = np.maximum.accumulate(end) if len(end) else end
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > reach[:-1]
        first = np.flatnonzero(opens)
        self.start = start[first]
        self.end = reach[np.append(first[1:] - 1, len(start) - 1)] if len(first) else reach
        self._edges = np.stack([self.start, self.end], axis=1).ravel()
        self._covered = np.repeat(np.append(0.0, np.cumsum(self.end - self.start)), 2)[1:-1]

    def until(self, time: Floats) -> Floats:
        """Covered time before each of `time`."""
        if not len(self.start):
            return np.zeros_like(time)
        # slopes are 0 and 1, so that whole ticks stay exact
        covered: Floats = np.interp(time, self._edges, self._covered)
        return covered

    def within(self, start: Floats, end: Floats) -> Floats:
        """Covered time inside each window; 0 for a window that ends before it starts."""
        before = self.until(np.concatenate([start, np.maximum(end, start)]))
        return np.maximum(before[len(start) :] - before[: len(start)], 0.0)

    def contains(self, time: Floats) -> NDArray[np.bool_]:
        """Whether each moment is covered, an interval's end not included."""
        index = np.searchsorted(self.start, time, side="right")
        if not len(self.start):
            return np.zeros(len(time), dtype=bool)
        covered: NDArray[np.bool_] = (index > 0) & (time < self.end[index - 1])
        return covered

    def cut(self, start: Floats, end: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Covered pieces of each window: its number, start and end, in order within it.

        Examples
        --------
        >>> Cover(np.array([0.0, 5.0]), np.array([2.0, 6.0])).cut(np.array([1.0]), np.array([5.5]))
        (array([0, 0]), array([1., 5.]), array([2. , 5.5]))
        """
        first = np.searchsorted(self.end, start, side="right")
        count = np.maximum(np.searchsorted(self.start, end, side="left") - first, 0)
        window = np.repeat(np.arange(len(start)), count)
        piece = np.arange(len(window)) + np.repeat(first - (np.cumsum(count) - count), count)
        begins = np.maximum(self.start[piece], start[window])
        return window, begins, np.minimum(self.end[piece], end[window])

    @property
    def rest(self) -> Cover:
        """All other time."""
        return Cover(np.append(-np.inf, self.end), np.append(self.start, np.inf))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Idle intervals of compute streams: rank, from, to, before which row (-1: the end)."""

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    row: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> Gaps:
        """Some of them."""
        return Gaps(self.rank[chosen], self.start[chosen], self.end[chosen], self.row[chosen])


def idle_gaps(timeline: Timeline) -> Gaps:
    """Every idle interval of a rank's compute stream: before its rows, then after the last."""
    program = timeline.program
    rank, row = program.compute_rows
    start, end = timeline.start[row], timeline.end[row]
    first = np.ones(len(row), dtype=bool)
    first[1:] = rank[1:] != rank[:-1]
    previous = np.where(first, 0.0, np.roll(end, 1))
    last = np.zeros(program.ranks)
    np.maximum.at(last, rank, end)
    everyone = np.arange(program.ranks)
    gaps = Gaps(
        rank=np.concatenate([rank, everyone]),
        start=np.concatenate([previous, last]),
        end=np.concatenate([start, np.full(program.ranks, timeline.makespan)]),
        row=np.concatenate([row, np.full(program.ranks, -1)]),
    )
    return gaps.where(gaps.end > gaps.start)


def busy_ticks(timeline: Timeline) -> NDArray[np.float64]:
    """Ticks of kernels on each rank's compute stream [R]; waits in actions are not busy."""
    program = timeline.program
    busy: NDArray[np.float64] = program.busy_parts[:, program.vocabulary.computing_parts].sum(
        axis=1
    )
    return busy


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Intervals in which a compute stream stands idle, each counted as one part of the account."""

    rank: Ints  # int64[W], rank class
    # start, end: float64[W], ticks since the step began; those of one rank do not overlap
    start: Floats
    end: Floats
    part: Ints  # int64[W], by the vocabulary of the program
    # int64[W], row that is waited for: a transfer, or what is computed elsewhere; -1 where it is no
    # single one
    row: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def join(cls, several: Sequence[Waits]) -> Waits:
        """All waits of several."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(
            **{name: np.concatenate([getattr(waits, name) for waits in several]) for name in names}
        )

    def where(self, chosen: NDArray[np.bool_]) -> Waits:
        """Some of them."""
        columns = {f.name: getattr(self, f.name)[chosen] for f in dataclasses.fields(self)}
        return Waits(**columns)

    def add_to(self, parts: Floats) -> None:
        """Add the ticks of each wait to the part it counts as [R, parts]."""
        ranks, width = parts.shape
        took = np.bincount(
            self.rank * width + self.part, weights=self.end - self.start, minlength=ranks * width
        )
        parts += took.reshape(ranks, width)


def waits_before(timeline: Timeline, gaps: Gaps, waiting: int) -> Waits:
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
        moving = dataclasses.replace(left, start=since)
        kept = moving.end > moving.start
        found.append(waits_of(moving.where(kept), program.part[gate[kept]], gate[kept]))
        # a transfer that others held up is followed to those
        left = dataclasses.replace(left, end=since, row=gate)
        left = left.where(left.end > left.start)
    return Waits.join(found)


def waits_of(gaps: Gaps, part: int | NDArray[np.integer], row: Ints) -> Waits:
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
    """Time at which the data of each row was there: the end of its last dependency, 0 without
    any.
    """
    gate = last_dependency(timeline, row)
    return np.where(gate >= 0, timeline.end[np.maximum(gate, 0)], 0.0)
