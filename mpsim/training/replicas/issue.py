"""The order in which each rank issues gathers and reductions, and the rows they hang on.

The communicator of a group of sharers is one queue. The gather for a segment is issued when the segment ``units_in_flight - 1`` before it
begins, a reduction when the segment it belongs to has ended. In a backward pass that is gather (n - 1), reduce (n),
gather (n - 2), reduce (n - 1), ...: the order of torch's FSDP.

Shapes: N actions, V runs of segments (each time a rank runs one), E exchanges (a gather or a reduction each).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.schedule import Action, Orders
from mpsim.training.messages import PipelineRows
from mpsim.training.plan import Plan
from mpsim.training.replicas.segments import Bucket, SegmentedAction

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_BESIDE, _AFTER = 1, 2  # places in the queue: gathers ahead of them come first


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Buckets gathered before runs of segments, or reduced after them, columnar."""

    run: Ints  # int64[buckets], which of the runs, ascending
    dense: Floats  # dense, experts: float64[buckets], parameters on one rank
    experts: Floats


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SegmentRuns:
    """Every segment each time a rank runs it, columnar; those of a rank follow each other in the
    order it runs them.
    """

    action: Ints  # int64[V], which action a run belongs to
    rank: Ints  # int64[V], pipeline rank
    row: Ints  # row, ready: int64[V], see `SegmentedAction`; numbers of the program's rows
    ready: Ints
    gathers: Buckets
    reduces: Buckets

    @classmethod
    def of(
        cls, variants: Sequence[SegmentedAction], chosen: Ints, placed: PipelineRows, orders: Orders
    ) -> SegmentRuns:
        """Lay out the segments of all actions. `chosen` (int64[N]): which of them each action is."""
        count = np.array([len(variant.segments) for variant in variants])
        action, source = _tiled(count, chosen)
        base = np.cumsum(count[chosen]) - count[chosen]
        start = placed.first[action]

        def rows(name: str) -> Ints:
            flat = [row for variant in variants for row in getattr(variant, name)]
            result: Ints = start + np.array(flat, dtype=np.int64)[source]
            return result

        def buckets(name: str) -> Buckets:
            travels = [
                [getattr(segment, name) for segment in variant.segments] for variant in variants
            ]
            return _buckets(travels, chosen, base)

        return cls(
            action=action,
            rank=orders.stage_rank[orders.stage[action]].astype(np.int64),
            row=rows("row"),
            ready=rows("ready"),
            gathers=buckets("gathers"),
            reduces=buckets("reduces"),
        )

    def end_before(self, run: Ints, by: int) -> Ints:
        """Row of the run `by` runs before on the same rank, -1 where there is none."""
        before = np.maximum(run - by, 0)
        exists = (run >= by) & (self.rank[before] == self.rank[run])
        return np.where(exists, self.row[before], -1)


def _tiled(count: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """For every element of every chosen list: which of `chosen`, and the element counted over all lists."""
    # repeat without a loop: within every list, positions count up from 0
    begin = np.cumsum(count) - count
    some = np.flatnonzero(count[chosen])
    each = count[chosen[some]]
    which = np.repeat(some, each)
    within = np.arange(len(which)) - np.repeat(np.cumsum(each) - each, each)
    return which, begin[chosen[which]] + within


def _buckets(travels: Sequence[Sequence[tuple[Bucket, ...]]], chosen: Ints, base: Ints) -> Buckets:
    """Buckets of every run, from those of the segments of every variant."""
    flat = [
        [(place, *bucket) for place, buckets in enumerate(segments) for bucket in buckets]
        for segments in travels
    ]
    table = np.array([row for rows in flat for row in rows], dtype=float).reshape(-1, 3)
    which, source = _tiled(np.array([len(rows) for rows in flat]), chosen)
    place, dense, experts = table[source].T
    return Buckets(base[which] + place.astype(np.int64), dense, experts)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Gathers and reductions, those of one rank in the order it issues them."""

    # run, rank, stage: int64[E], run of the segment it belongs to, with its rank and stage
    run: Ints
    rank: Ints
    stage: Ints
    place: Ints  # int64[E], run at which it is queued
    dense: Floats  # dense, experts: float64[E], parameters on one rank
    experts: Floats
    is_gather: Flags
    # int64[E], row that has to end first: of a gather the one that frees memory for it, of a
    # reduction the one that completes its gradients; -1 for none
    after: Ints
    # int64[E], likewise for fetching from the host what is gathered: one run ahead
    fetch_after: Ints
    runs: SegmentRuns  # what the exchanges belong to

    def __len__(self) -> int:
        return len(self.run)


def issue_exchanges(plan: Plan, runs: SegmentRuns, placed: PipelineRows) -> Exchanges:
    """Queue every exchange of a step."""
    gathers, reduces = runs.gathers, runs.reduces
    run = np.concatenate([gathers.run, reduces.run])
    is_gather = np.arange(len(run)) < len(gathers.run)
    queued, side = _gather_places(plan, runs)
    reduced, ready = _reduce_places(plan, runs, placed)
    place = np.concatenate([queued, reduced])
    # by rank, then by place; at one place a gather may come before or behind the reduction
    order = np.lexsort(
        (np.concatenate([side, np.full(len(reduces.run), _BESIDE)]), place, runs.rank[run])
    )
    again = plan.reference & plan.gathers_units & (plan.orders.kind == Action.F)
    # the reference model's units are gathered beside the model's own
    times = 1.0 + again[runs.action[gathers.run]]
    window = plan.units_in_flight if plan.gathers_units else len(runs.rank)
    nothing = np.full(len(reduces.run), -1)
    columns = {
        "run": run,
        "rank": runs.rank[run],
        "stage": plan.orders.stage[runs.action[run]].astype(np.int64),
        "place": place,
        "is_gather": is_gather,
        "dense": np.concatenate([times * gathers.dense, reduces.dense]),
        "experts": np.concatenate([times * gathers.experts, reduces.experts]),
        "after": np.concatenate([runs.end_before(gathers.run, window), ready]),
        "fetch_after": np.concatenate([runs.end_before(gathers.run, window + 1), nothing]),
    }
    return Exchanges(**{name: column[order] for name, column in columns.items()}, runs=runs)


def _reduce_places(plan: Plan, runs: SegmentRuns, placed: PipelineRows) -> tuple[Ints, Ints]:
    """For every reduction: at which run it is queued, and the row after which it may start.

    A pipeline over sharded parameters reduces unit by unit once a stage's last backward has ended. What may not run beside a
    backward and is reduced once a step waits for the last action of its rank.
    """
    run = runs.reduces.run
    if plan.keeps_gathered:
        return run, placed.last[runs.action[run]]
    overlaps = plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp)
    if overlaps or plan.reduces_every_microbatch:
        return run, runs.ready[run]
    final = placed.last[plan.orders.rank_ptr[1:] - 1]
    return np.full_like(run, len(runs.rank)), final[runs.rank[run]]


def _gather_places(plan: Plan, runs: SegmentRuns) -> tuple[Ints, Ints]:
    """For every gather: at which run it is queued, and whether before or behind that run's reduction."""
    run, data = runs.gathers.run, plan.layout.framework.data
    if not plan.gathers_units:  # from the start of the step
        return np.full_like(run, -1), np.zeros_like(run)
    late = (plan.orders.kind[runs.action[run]] != Action.F) & (not data.prefetch_backward)
    place = np.where(late, run - 1, run - (plan.units_in_flight - 1))
    return place, np.where(late, _AFTER, 0)
