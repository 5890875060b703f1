"""The result of a training step: where every tick of every rank went, its memory and summary.

Each rank's compute stream is either busy or idle. Busy time counts as what the row's template says;
idle time is charged to what ended it:

* before a pipeline action: the transfer it waited for, from the moment the data was ready, counts
  as that transfer's part (``exposed_pp`` for a message, ``exposed_dp`` for a gather of parameters
  or a reduction of gradients), and so for the transfer that held up this one; all earlier idle time
  is ``bubble``, waiting for another stage to compute;
* after a rank's last action: what its own gradient collectives and copies to the host cover is
  ``exposed_dp``, what an optimizer on its host covers ``optimizer``; what lies before the last
  pipeline action anywhere is ``bubble``; of the rest what any rank's cover is counted likewise, and
  what remains ``other`` (waiting for a slower optimizer);
* after the last row of all, where links need longer than transfers that do not meet
  (`Program.least`): the communication that needs it.

A rank's parts are whole ticks and sum to the step time. `idle_waits` has idle time as intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.archive import Archive
from mpsim.arrays import Floats, Ints
from mpsim.engine.cover import Cover
from mpsim.engine.timeline import Timeline
from mpsim.hardware import Cluster
from mpsim.program import Stream
from mpsim.program.links import Links, links_of
from mpsim.program.program import Program
from mpsim.result import Memory, MemoryCurve, Result
from mpsim.result.intervals import Waits, idle_gaps, waits_before, waits_of
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.training.memory.account import account_memory
from mpsim.training.plan import Plan
from mpsim.training.summary import Needs, Work, headline, least_of, needs_of, summarise, work_of
from mpsim.training.vocabulary import PARTS, Kind

if TYPE_CHECKING:
    from mpsim.training.memory.trace import Played

_DP, _BUBBLE, _OPTIMIZER, _OTHER = (
    PARTS.index(name) for name in ("exposed_dp", "bubble", "optimizer", "other")
)
_DATA = (Stream.DP, Stream.REPLICA, Stream.EDP, Stream.COPY, Stream.HOST)
"""Streams on which model states move or are updated."""


def attribute(timeline: Timeline) -> Floats:
    """Split the step time of every rank class into `PARTS`, float64[R, parts] ticks."""
    result = timeline.program.busy_parts.copy()
    idle_waits(timeline).add_to(result)
    return result


def idle_waits(timeline: Timeline) -> Waits:
    """Split the idle time of every rank class into intervals of one part each."""
    gaps = idle_gaps(timeline)
    is_pipeline = timeline.program.vocabulary.is_action(timeline.program.kind)
    before_action = (gaps.row >= 0) & is_pipeline[np.maximum(gaps.row, 0)]
    before = waits_before(timeline, gaps.where(before_action), _BUBBLE)
    return Waits.join([before, *_waits_at_end(timeline, gaps.where(~before_action))])


def _flush(timeline: Timeline) -> float:
    """When the last action of all ends [ticks]."""
    is_pipeline = timeline.program.vocabulary.is_action(timeline.program.kind)
    return float(timeline.end[is_pipeline].max(initial=0.0))


def _waits_at_end(timeline: Timeline, gaps: Waits) -> Iterator[Waits]:
    """Charge idle time after the last action of a rank."""
    # what lies behind the last row of all waits for links to have carried all
    end = np.minimum(gaps.end, timeline.per_rank(lambda each: each.last)[gaps.rank])
    split = np.clip(timeline.per_rank(_flush)[gaps.rank], gaps.start, end)
    behind, before, after = (
        structs.replace(gaps, start=since, end=until).where(until > since)
        for since, until in (
            (np.maximum(gaps.start, end), gaps.end),
            (gaps.start, split),
            (split, end),
        )
    )
    held_by = timeline.per_rank(lambda each: each.program.least_part).astype(np.int64)
    yield waits_of(behind, held_by[behind.rank], np.full(len(behind.rank), -1))
    states = _states(timeline, float(gaps.start.min(initial=timeline.last)))
    yield _labelled(before, states, _BUBBLE)
    yield _labelled(after, [each.of_anybody(after.rank, timeline.lane) for each in states], _OTHER)


class _Spans(NamedTuple):
    """Intervals of rank classes, in any order; they may overlap."""

    rank: Ints
    start: Floats
    end: Floats

    def of_anybody(self, ranks: Ints, lane: Ints) -> _Spans:
        """Intervals of all in the lane of each of `ranks`. `lane` (int64[R]): of each rank."""
        ranks = np.flatnonzero(np.bincount(ranks))
        # lanes stand one after the other on one axis, on which moments have whole numbers
        moments = np.sort(np.concatenate([self.start, self.end]))
        width = len(moments) + 1
        base: Floats = lane[self.rank] * np.float64(width)
        start, end = (np.searchsorted(moments, edge) for edge in (self.start, self.end))
        cover = Cover(base + start, base + end)
        own = cover.start // width
        first, last = (np.searchsorted(own, lane[ranks], side) for side in ("left", "right"))
        count = last - first
        piece = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        places = ((edge[piece] % width).astype(np.int64) for edge in (cover.start, cover.end))
        return _Spans(np.repeat(ranks, count), *(moments[place] for place in places))


def _states(timeline: Timeline, since: float) -> list[_Spans]:
    """Intervals after `since` in which rows move model states, and move or update them."""
    program = timeline.program
    chosen = np.isin(np.arange(len(Stream)), _DATA)[program.slots.stream]
    row, rank, _ = (column[chosen] for column in program.slots)
    works = timeline.end[row] > np.maximum(timeline.start[row], since)
    moves = works & (program.kind[row] == Kind.COLLECTIVE)
    return [
        _Spans(rank[some], timeline.start[row[some]], timeline.end[row[some]])
        for some in (moves, works)
    ]


def _labelled(gaps: Waits, states: Sequence[_Spans], rest: int) -> Waits:
    """Cut gaps into pieces in which states move, in which they are updated, and the `rest`."""
    several = (_Spans(gaps.rank, gaps.start, gaps.end), *states)
    kind = np.tile(np.repeat(np.arange(len(several)), [len(each.rank) for each in several]), 2)
    rank = np.tile(np.concatenate([each.rank for each in several]), 2)
    time = np.concatenate([*(each.start for each in several), *(each.end for each in several)])
    order = np.lexsort((time, rank))
    rank, time, kind = rank[order], time[order], kind[order]
    # how many of each kind are open behind an edge; a rank's all close before the next
    change = np.where(order < len(order) // 2, 1, -1) * (kind == np.arange(len(several))[:, None])
    inside = np.cumsum(change, axis=1) > 0
    # of edges at one moment the last knows what follows; nothing is cut where that stays the same,
    # but where a gap begins or ends
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (rank[1:] != rank[:-1]) | (time[1:] > time[:-1])
    moment = np.cumsum(last) - last
    cuts = np.bincount(moment, weights=kind == 0) > 0
    rank, time, inside = rank[last], time[last], inside[:, last]
    cuts[1:] |= (inside[:, 1:] != inside[:, :-1]).any(axis=0)
    rank, time, (wanted, moves, works) = rank[cuts], time[cuts], inside[:, cuts]
    part, nobody = np.where(moves, _DP, np.where(works, _OPTIMIZER, rest)), np.full(len(rank), -1)
    pieces = Waits(rank[:-1], time[:-1], time[1:], part[:-1], nobody[:-1])
    return pieces.where(wanted[:-1])


@structs.dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """One simulated training step."""

    kind: ClassVar = "training"
    plan: Plan

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it."""
        return self.plan.class_clusters

    @functools.cached_property
    def parts(self) -> Floats:
        """Time of each rank class by part of the step [ticks]."""
        return self.measured("parts", lambda step: attribute(step.timeline))

    @functools.cached_property
    def idle(self) -> Waits:
        """Idle time of compute streams as intervals, each of one part of the step."""
        return idle_waits(self.timeline)

    def links_of(self, program: Program) -> Links:
        """Links that rows of one of its programs use."""
        return links_of(program, self.plan)

    @functools.cached_property
    def memory(self) -> Memory:
        """Memory of each pipeline rank at its fullest moment."""
        return account_memory(self.plan)

    def memory_curve(self, rank: int) -> MemoryCurve:
        """Memory of rank class `rank` (the pipeline rank, where replicas are alike) over time."""
        from mpsim.training.memory.curve import memory_curve

        return memory_curve(self.timeline, self.plan, self.memory, rank)

    def allocations(self, rank: int | None = None, *, expandable: bool = False) -> Played:
        """Play a rank class's allocations (the fullest's) through torch's caching allocator."""
        # like the snapshot, for those who ask: a run does without
        from mpsim.training.memory.trace import allocation_trace, play

        rank = self.memory.fullest if rank is None else rank
        changes = allocation_trace(self.timeline, self.plan, self.memory, rank)
        return play(changes, expandable=expandable)

    def write_memory_snapshot(self, path: str | Path, rank: int | None = None) -> Played:
        """Write `allocations` as the pickle that torch's memory_viz opens, and return them."""
        from mpsim.training.memory.snapshot import write_snapshot

        played = self.allocations(rank)
        write_snapshot(played, path)
        return played

    @functools.cached_property
    def work(self) -> Work:
        """FLOPs of all ranks."""
        return work_of(self.program)

    @functools.cached_property
    def needs(self) -> Needs:
        """Least time of each rank class and link by what is needed [s]."""
        return needs_of(self.program, self.plan, self.measured("least", least_of))

    @functools.cached_property
    def headline(self) -> Figures:
        """The figures that people measure, with their interval."""
        if self.saved_summary is not None:
            return self.saved_summary
        return headline(self, self.plan, self.work.hardware)

    def _figures(self) -> Figures:
        return summarise(self, self.plan, self.work, self.needs)

    @classmethod
    def _fields(cls, saved: Archive, scenario: Scenario) -> dict[str, object]:
        return {**super()._fields(saved, scenario), "plan": saved.part("plan", Plan)}
