"""Blame: on whose account every rank waits.

An idle interval of a rank's compute stream is followed back along what held it up: the row that
ended last among those it waited for, what that one waited for, and so on to the start of the
interval. Each piece of it belongs to whoever computed then, or to the transfer under way. So the
pieces of a rank sum to all its idle time, exactly. Of a piece in which something ran longer than it
does undisturbed, that share is *lateness*, on the account of whoever ran late. What a rank waits
beyond the undisturbed step is *suffered*, and shared among those who are to blame for it as the
lateness on the way to its idle intervals is.

Shapes: N rows, R rank classes, G gaps.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine import Timeline
from mpsim.engine.chains import precedence
from mpsim.program import TICK
from mpsim.result.intervals import idle_gaps
from mpsim.training.vocabulary import Kind

TRANSFERS = "transfers"  # the cause that is no rank: messages and collectives on their way


@structs.dataclass(frozen=True, slots=True, eq=False)
class Blame:
    """Waiting by who caused it and who suffered it."""

    names: tuple[str, ...]  # rank classes [R]
    size: Ints  # int64[R], ranks of each class
    # float64[R + 1, R], seconds that a rank of each class (columns) waited while each class
    # computed, and while transfers were under way (last row)
    waiting: Floats
    # float64[R + 1, R], of these, while something ran longer than it does undisturbed, by who did
    late: Floats
    # float64[R], seconds that a rank of each class waited beyond the undisturbed step
    suffered: Floats

    @property
    def caused(self) -> Floats:
        """Rank-seconds of waiting beyond the undisturbed step by class, and transfers [R + 1]."""
        return np.asarray(self.matrix @ self.size, dtype=np.float64)

    @property
    def matrix(self) -> Floats:
        """Waiting of a rank of each class (columns) by who is to blame [R + 1, R], seconds."""
        whole = self.late.sum(axis=0)
        everywhere = self.late @ self.size
        # a class that waits for what became late earlier blames as all do together
        late = np.where(whole > 0, self.late, everywhere[:, None])
        total = late.sum(axis=0)
        share = np.divide(late, total, out=np.zeros_like(late), where=total > 0)
        return np.asarray(share * self.suffered, dtype=np.float64)

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of the rows."""
        return (*self.names, TRANSFERS)

    def worst(self, count: int = 5) -> list[tuple[str, float]]:
        """Classes that caused most waiting, with its rank-seconds; nobody who was not late."""
        order = np.argsort(-self.caused, kind="stable")[:count].tolist()
        order = [cause for cause in order if self.caused[cause] > 0]
        return [(self.causes[cause], float(self.caused[cause])) for cause in order]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "ranks": list(self.names),
            "caused_rank_s": dict(zip(self.causes, self.caused.tolist(), strict=True)),
            "suffered_s": dict(zip(self.names, self.suffered.tolist(), strict=True)),
        }


def measure_blame(timeline: Timeline, undisturbed: Timeline, culprit: Ints | None = None) -> Blame:
    """Waiting of every rank class by who caused it.

    `undisturbed`: of the same program where nothing varies. `culprit` (int64[N]): rank class whose
    link makes a transfer late; -1 (and without it) nobody's.

    Returns: columns of `waiting` sum to the time in which a class's compute stream runs nothing.
    """
    program = timeline.program
    binding = _binding(timeline)
    transfers = np.isin(program.kind, (Kind.SEND, Kind.COLLECTIVE))
    owner = np.where(transfers, program.ranks, program.rank).astype(np.int64)
    behind = owner if culprit is None else np.where(transfers & (culprit >= 0), culprit, owner)
    longer = np.maximum(program.duration - undisturbed.program.duration, 0.0)
    share = np.divide(longer, program.duration, out=longer, where=program.duration > 0)
    gaps = idle_gaps(timeline)
    rank, since, until = gaps.rank, gaps.start, gaps.end
    # what ended the gap is followed back; at the end of the step that is the row that ended last
    row = np.where(gaps.row >= 0, binding[gaps.row], int(np.argmax(timeline.end)))
    waiting = np.zeros((program.ranks + 1, program.ranks))
    late = np.zeros_like(waiting)
    while len(row):
        begin = np.maximum(timeline.start[row], since)
        np.add.at(waiting, (owner[row], rank), until - begin)
        np.add.at(late, (behind[row], rank), (until - begin) * share[row])
        following = binding[row]
        more = (begin > since) & (following >= 0)
        rank, since, until, row = rank[more], since[more], begin[more], following[more]
    more_idle = np.maximum(_idle(timeline) - _idle(undisturbed), 0.0)
    return Blame(
        program.rank_name, program.class_size, waiting * TICK, late * TICK, more_idle * TICK
    )


def _idle(timeline: Timeline) -> Floats:
    """Ticks in which each rank class runs nothing [R]."""
    rank, row = timeline.program.compute_rows
    busy = np.bincount(rank, timeline.program.duration[row], minlength=timeline.program.ranks)
    return np.asarray(timeline.makespan - busy, dtype=np.float64)


def _binding(timeline: Timeline) -> Ints:
    """The row that each row waited for longest; -1 where it waited for nothing."""
    waits = precedence(timeline.program)
    result = np.full(len(timeline.program), -1, dtype=np.int64)
    has = np.flatnonzero(np.diff(waits.ptr))
    if len(has):
        end = timeline.end[waits.value]
        owner = np.repeat(np.arange(len(result)), np.diff(waits.ptr))
        order = np.lexsort((end, owner))
        result[has] = waits.value[order][waits.ptr[has + 1] - 1]
    return result
