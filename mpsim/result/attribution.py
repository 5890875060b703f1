"""Attribution: where every tick of every rank went.

Each rank's compute stream is either busy or idle. Busy time counts as what the row's template says; idle time is charged to
what ended it:

* before a pipeline action: the transfer it waited for, from the moment the data was ready, counts as that transfer's part (``exposed_pp``
  for a message, ``exposed_dp`` for a gather of parameters or a reduction of gradients), and so for the transfer that held up this one;
  all earlier idle time is ``bubble``, waiting for another stage to compute;
* after a rank's last action: what its own gradient collectives and copies to the host cover is ``exposed_dp``, what an optimizer on its
  host covers ``optimizer``; what lies before the last pipeline action anywhere is ``bubble``; of the rest what any rank's cover is
  counted likewise, and what remains ``other`` (waiting for a slower optimizer).

The parts of a rank are whole ticks and sum to the step time exactly.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.program import COMPUTING, PARTS, PIPELINE, Kind, Program, Stream
from mpsim.program.csr import owners, stable_order
from mpsim.result.intervals import Cover

__all__ = ["Gaps", "attribute", "busy_ticks", "compute_rows", "idle_gaps"]

_DP, _BUBBLE, _OPTIMIZER, _OTHER = (
    PARTS.index(name) for name in ("exposed_dp", "bubble", "optimizer", "other")
)
_DATA = (Stream.DP, Stream.REPLICA, Stream.EDP, Stream.COPY, Stream.HOST)
"""Streams on which model states move or are updated."""
_TRANSFERS = (Kind.SEND, Kind.COLLECTIVE)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Idle intervals of compute streams: which rank, from when to when, before which row (-1: after the last)."""

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    row: NDArray[np.int64]


def attribute(timeline: Timeline) -> NDArray[np.float64]:
    """Split the step time of every rank class into `PARTS`.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    float64[R, len(PARTS)]
        Ticks; every row sums to the makespan.
    """
    result = _busy(timeline)
    gaps = idle_gaps(timeline)
    is_pipeline = np.isin(timeline.program.kind, PIPELINE)
    before_action = (gaps.row >= 0) & is_pipeline[np.maximum(gaps.row, 0)]
    _charge_waits(result, timeline, _select(gaps, before_action))
    _charge_ends(result, timeline, _select(gaps, ~before_action))
    return result


def compute_rows(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rank and row of everything on compute streams, ordered by rank, then stream order."""
    owner = owners(program.slot_ptr)
    on_compute = program.slot % len(Stream) == Stream.COMPUTE
    rank = program.slot[on_compute].astype(np.int64) // len(Stream)
    order = stable_order(rank)  # owners ascend
    return rank[order], owner[on_compute][order]


def busy_ticks(timeline: Timeline) -> NDArray[np.float64]:
    """Ticks in which each rank's compute stream runs kernels [R]; waits inside an action are not busy."""
    busy: NDArray[np.float64] = _busy(timeline)[:, [*COMPUTING]].sum(axis=1)
    return busy


def _busy(timeline: Timeline) -> NDArray[np.float64]:
    program = timeline.program
    rank, row = compute_rows(program)
    template = program.template[row]
    plain = template < 0
    own, kinds = row[plain], len(program.templates)
    place = rank[plain] * len(PARTS) + program.part[own]
    size = program.ranks * len(PARTS)
    parts = np.bincount(place, weights=program.duration[own], minlength=size).astype(np.float64)
    parts = parts.reshape(program.ranks, len(PARTS))
    if kinds:
        count = np.bincount(
            rank[~plain] * kinds + template[~plain], minlength=program.ranks * kinds
        )
        parts += count.reshape(-1, kinds).astype(float) @ np.stack(
            [one.parts for one in program.templates]
        )
    return parts


def idle_gaps(timeline: Timeline) -> Gaps:
    """Every interval in which a rank's compute stream is idle: before each of its rows, then after its last."""
    program = timeline.program
    rank, row = compute_rows(program)
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
    return _select(gaps, gaps.end > gaps.start)


def _select(gaps: Gaps, chosen: NDArray[np.bool_]) -> Gaps:
    return Gaps(gaps.rank[chosen], gaps.start[chosen], gaps.end[chosen], gaps.row[chosen])


def _charge_waits(parts: NDArray[np.float64], timeline: Timeline, gaps: Gaps) -> None:
    """Charge idle time before pipeline actions to the transfers that ended last, one after the other, back to where they began."""
    program, left = timeline.program, gaps
    while len(left.row):
        gate = _last_dependency(timeline, left.row)
        held = np.maximum(gate, 0)
        transfers = (gate >= 0) & np.isin(program.kind[held], _TRANSFERS)
        transfers &= timeline.end[held] >= left.end
        waits = _select(left, ~transfers)
        _charge(parts, waits.rank, _BUBBLE, waits.end - waits.start)
        left, gate = _select(left, transfers), gate[transfers]
        since = np.clip(_ready(timeline, gate), left.start, left.end)
        np.add.at(parts, (left.rank, program.part[gate]), left.end - since)
        # a transfer that others held up is followed to those
        left = dataclasses.replace(left, end=since, row=gate)
        left = _select(left, left.end > left.start)


def _charge(
    parts: NDArray[np.float64], rank: NDArray[np.int64], part: int, amount: NDArray[np.float64]
) -> None:
    parts[:, part] += np.bincount(rank, weights=amount, minlength=len(parts))


def _last_dependency(timeline: Timeline, row: NDArray[np.int64]) -> NDArray[np.int64]:
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


def _ready(timeline: Timeline, row: NDArray[np.int64]) -> NDArray[np.float64]:
    """When the data of each row was there: the latest end of its dependencies, 0 without any."""
    gate = _last_dependency(timeline, row)
    return np.where(gate >= 0, timeline.end[np.maximum(gate, 0)], 0.0)


def _charge_ends(parts: NDArray[np.float64], timeline: Timeline, gaps: Gaps) -> None:
    """Charge idle time after the last action of a rank."""
    program = timeline.program
    pipeline = np.isin(program.kind, PIPELINE)
    flush = float(timeline.end[pipeline].max(initial=0.0))
    states = _States(timeline)
    anybody = states.covers(states.row)
    for rank in set(gaps.rank.tolist()):
        mine = gaps.rank == rank
        start, end = gaps.start[mine], gaps.end[mine]
        split = np.clip(flush, start, end)
        before, after = states.covers(states.of(rank)), anybody
        moved = before[0].within(start, split) + after[0].within(split, end)
        covered = before[1].within(start, split)
        busy = covered + after[1].within(split, end)
        bubble = split - start - covered
        parts[rank, _DP] += moved.sum()
        parts[rank, _OPTIMIZER] += (busy - moved).sum()
        parts[rank, _BUBBLE] += bubble.sum()
        parts[rank, _OTHER] += (end - start - busy - bubble).sum()


class _States:
    """Rows that move or update model states beside the compute stream."""

    def __init__(self, timeline: Timeline) -> None:
        program = timeline.program
        chosen = np.isin(program.slot % len(Stream), _DATA)
        rank, row = program.slot[chosen] // len(Stream), owners(program.slot_ptr)[chosen]
        order = np.argsort(rank, kind="stable")
        self._rank, self.row = rank[order], row[order]
        self._timeline = timeline

    def of(self, rank: int) -> NDArray[np.int64]:
        """Rows of one rank."""
        return self.row[slice(*np.searchsorted(self._rank, [rank, rank + 1]))]

    def covers(self, rows: NDArray[np.int64]) -> tuple[Cover, Cover]:
        """When any of `rows` moves states, and when any moves or updates them."""
        start, end = self._timeline.start[rows], self._timeline.end[rows]
        moves = (self._timeline.program.kind[rows] == Kind.COLLECTIVE) & (end > start)
        works = end > start
        moving = Cover(start[moves], end[moves])
        return moving, moving if (moves == works).all() else Cover(start[works], end[works])
