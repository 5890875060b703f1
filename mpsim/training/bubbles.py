"""Bubble by cause: why the compute stream of a rank waits for other stages.

The bubble of a rank (`mpsim.training.result`) is cut into the intervals in which

* ``warm-up``: it has not begun its first backward, and waits for the pipeline to fill;
* ``drain``: it has run its last forward, and waits for the pipeline to empty;
* ``imbalance``: in between it waits for another stage that computes longer;
* ``message``: whatever the phase, the action it waits for was itself held up by a message or an
  exchange of model states on its way to another stage.

What an action waited for is followed back through the step as far as the interval reaches: from the
row that ended it to the last of those that this one waited for, and so on. Messages to the rank
itself are no bubble: they count as ``exposed_pp``.

Shapes: R rank classes, W intervals, C causes.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine.timeline import Timeline
from mpsim.program import COLLECTIVE, SEND
from mpsim.result.intervals import Waits
from mpsim.training.vocabulary import PARTS, Kind

CAUSES = ("warm-up", "drain", "imbalance", "message")  # causes of the bubble

_WARM_UP, _DRAIN, _IMBALANCE, _MESSAGE = range(len(CAUSES))
_BUBBLE = PARTS.index("bubble")


@structs.dataclass(frozen=True, slots=True, eq=False)
class BubbleCauses:
    """Intervals of the bubble, each of one cause."""

    rank: Ints  # int64[W], rank class
    start: Floats  # start, end: float64[W], ticks since the step began
    end: Floats
    cause: Ints  # int64[W], index into `CAUSES`
    # float64[R, C], bubble of each rank class by cause; sums to its part of the account exactly
    ticks: Floats


def bubble_causes(timeline: Timeline, idle: Waits) -> BubbleCauses:
    """Cut the bubble of every rank class by cause. `idle`: of its compute streams."""
    bubble = idle.where(idle.part == _BUBBLE)
    phase = _phases(timeline, bubble)
    critical, transfers = _critical(timeline), _transfers(timeline)
    end, row = bubble.end.copy(), bubble.row.copy()
    left = np.arange(len(bubble))
    pieces: list[tuple[Ints, Floats, Floats, Ints]] = []
    while len(left):
        known = row[left] >= 0
        held = np.maximum(row[left], 0)
        # what began in the interval explains it from there on, what ended before not at all
        since = np.where(
            known, np.maximum(timeline.start[held], bubble.start[left]), bubble.start[left]
        )
        until = np.where(known, np.minimum(timeline.end[held], end[left]), end[left])
        pieces.append(
            (left, since, until, np.where(known & transfers[held], _MESSAGE, phase[left]))
        )
        pieces.append((left, np.maximum(until, since), end[left], phase[left]))
        end[left] = np.minimum(since, end[left])
        row[left] = np.where(known, critical[held], -1)
        left = left[end[left] > bubble.start[left]]
    number, since, until, cause = (
        (np.concatenate(column) for column in zip(*pieces, strict=True))
        if pieces
        else (left, bubble.start, bubble.end, phase)
    )
    lasts = until > since
    rank, cause = bubble.rank[number[lasts]], cause[lasts]
    since, until = since[lasts], until[lasts]
    size = timeline.program.ranks * len(CAUSES)
    ticks = np.bincount(rank * len(CAUSES) + cause, weights=until - since, minlength=size)
    return BubbleCauses(
        rank, since, until, cause, ticks.reshape(-1, len(CAUSES)).astype(np.float64)
    )


def _phases(timeline: Timeline, bubble: Waits) -> Ints:
    """Cause of each interval by the phase of its rank alone."""
    program = timeline.program
    rank, row = program.compute_rows
    kind = program.kind[row]
    filled = np.full(program.ranks, np.inf)
    emptied = np.full(program.ranks, -np.inf)
    backward = np.isin(kind, (Kind.BACKWARD, Kind.INPUT_GRADIENT))
    np.minimum.at(filled, rank[backward], timeline.start[row[backward]])
    # without backwards the pipeline is full when the rank has begun
    first = np.full(program.ranks, np.inf)
    np.minimum.at(first, rank, timeline.start[row])
    filled = np.where(np.isinf(filled), first, filled)
    forward = kind == Kind.FORWARD
    np.maximum.at(emptied, rank[forward], timeline.end[row[forward]])
    warms, drains = bubble.end <= filled[bubble.rank], bubble.start >= emptied[bubble.rank]
    return np.where(warms, _WARM_UP, np.where(drains, _DRAIN, _IMBALANCE))


def _critical(timeline: Timeline) -> Ints:
    """The row that ended last of those each waited for, on its streams or not; or -1."""
    program = timeline.program
    row, before = program.waits()
    order = np.lexsort((before, timeline.end[before], row))
    row, before = row[order], before[order]
    result = np.full(len(program), -1, dtype=np.int64)
    result[row] = before  # the last assignment to a row stays: the latest end
    return result


def _transfers(timeline: Timeline) -> Flags:
    """Rows that move data between actions, without collectives inside actions."""
    program = timeline.program
    between: Flags = (program.kind == SEND) | (
        (program.kind == COLLECTIVE) & (program.microbatch < 0)
    )
    return between
