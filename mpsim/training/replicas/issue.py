"""The order in which each rank issues gathers and reductions, and the rows they hang on.

The communicator of a group of sharers is one queue. The gather for a segment is issued when the
segment ``units_in_flight - 1`` before it begins, a reduction when the segment it belongs to has
ended. In a backward pass that is gather (n - 1), reduce (n), gather (n - 2), reduce (n - 1), ...:
the order of torch's FSDP.

Shapes: N actions, V runs of segments (each time a rank runs one), E exchanges (a gather or a
reduction each).

Nothing here knows how much travels: buckets are numbered, gathers of all variants of an action
first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Ints
from mpsim.framework import DataBehaviour
from mpsim.schedule import Action, Orders
from mpsim.training.pipeline import PipelineRows
from mpsim.training.replicas.segments import CutRows

_BESIDE, _AFTER = 1, 2  # places in the queue: gathers ahead of them come first


@structs.dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Buckets gathered before runs of segments, or reduced after them, columnar."""

    run: Ints  # int64[buckets], which of the runs, ascending
    bucket: Ints  # int64[buckets], its number


@structs.dataclass(frozen=True, slots=True, eq=False)
class SegmentRuns:
    """Every segment each time a rank runs it, columnar, by rank and in its order."""

    action: Ints  # int64[V], which action a run belongs to
    rank: Ints  # int64[V], pipeline rank
    row: Ints  # row, ready: int64[V], see `SegmentedAction`; numbers of the program's rows
    ready: Ints
    gathers: Buckets
    reduces: Buckets

    @classmethod
    def of(
        cls, cuts: Sequence[CutRows], chosen: Ints, placed: PipelineRows, orders: Orders
    ) -> SegmentRuns:
        """Lay out the segments of all actions. `chosen` (int64[N]): of `cuts`, for each."""
        count = np.array([len(cut.row) for cut in cuts])
        action, source = _tiled(count, chosen)
        base = np.cumsum(count[chosen]) - count[chosen]
        start = placed.first[action]

        def rows(name: str) -> Ints:
            flat = [row for cut in cuts for row in getattr(cut, name)]
            result: Ints = start + np.array(flat, dtype=np.int64)[source]
            return result

        gathers = _buckets([cut.gathers for cut in cuts], chosen, base)
        reduces = _buckets([cut.reduces for cut in cuts], chosen, base)
        before = sum(map(sum, (cut.gathers for cut in cuts)))
        return cls(
            action=action,
            rank=orders.stage_rank[orders.stage[action]].astype(np.int64),
            row=rows("row"),
            ready=rows("ready"),
            gathers=gathers,
            reduces=Buckets(reduces.run, before + reduces.bucket),
        )

    def end_before(self, run: Ints, by: int) -> Ints:
        """Row of the run `by` runs before on the same rank, -1 where there is none."""
        before = np.maximum(run - by, 0)
        exists = (run >= by) & (self.rank[before] == self.rank[run])
        return np.where(exists, self.row[before], -1)


def _tiled(count: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """For every element of the chosen lists: which of `chosen`, and its count over all lists."""
    # repeat without a loop: within every list, positions count up from 0
    begin = np.cumsum(count) - count
    some = np.flatnonzero(count[chosen])
    each = count[chosen[some]]
    which = np.repeat(some, each)
    within = np.arange(len(which)) - np.repeat(np.cumsum(each) - each, each)
    return which, begin[chosen[which]] + within


def _buckets(counts: Sequence[tuple[int, ...]], chosen: Ints, base: Ints) -> Buckets:
    """Buckets of every run, from how many each segment of every variant has."""
    place = [np.repeat(np.arange(len(count)), count) for count in counts]
    which, bucket = _tiled(np.array([*map(len, place)]), chosen)
    return Buckets(base[which] + np.concatenate(place)[bucket], bucket)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Exchanging:
    """How a plan exchanges parameters and gradients: all that decides their order and waits."""

    data: DataBehaviour
    # kinds of collectives that gather and reduce, by `mpsim.training.replicas.groups`
    gathers: str
    reduces: str
    between: tuple[bool, bool]  # whether dense parameters and experts are summed between copies too
    gathers_units: bool
    units_in_flight: int
    keeps_gathered: bool
    reduces_every_microbatch: bool
    overlaps_gradients: bool
    defers_sums: bool
    offload: str


@structs.dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Gathers and reductions, those of one rank in the order it issues them."""

    # run, rank, stage: int64[E], run of the segment it belongs to, with its rank and stage
    run: Ints
    rank: Ints
    stage: Ints
    place: Ints  # int64[E], run at which it is queued
    bucket: Ints  # int64[E], number of what travels
    is_gather: Flags
    # int64[E], row that has to end first: of a gather the one that frees memory for it, of a
    # reduction the one that completes its gradients; -1 for none
    after: Ints
    # int64[E], likewise for fetching from the host what is gathered: one run ahead
    fetch_after: Ints
    runs: SegmentRuns  # what the exchanges belong to

    def __len__(self) -> int:
        return len(self.run)


def issue_exchanges(
    how: Exchanging, orders: Orders, runs: SegmentRuns, placed: PipelineRows
) -> Exchanges:
    """Queue every exchange of a step."""
    gathers, reduces = runs.gathers, runs.reduces
    run = np.concatenate([gathers.run, reduces.run])
    is_gather = np.arange(len(run)) < len(gathers.run)
    queued, side = _gather_places(how, orders, runs)
    reduced, ready = _reduce_places(how, orders, runs, placed)
    place = np.concatenate([queued, reduced])
    # by rank, then by place; at one place a gather may come before or behind the reduction
    order = np.lexsort(
        (np.concatenate([side, np.full(len(reduces.run), _BESIDE)]), place, runs.rank[run])
    )
    window = how.units_in_flight if how.gathers_units else len(runs.rank)
    nothing = np.full(len(reduces.run), -1)
    columns = {
        "run": run,
        "rank": runs.rank[run],
        "stage": orders.stage[runs.action[run]].astype(np.int64),
        "place": place,
        "is_gather": is_gather,
        "bucket": np.concatenate([gathers.bucket, reduces.bucket]),
        "after": np.concatenate([runs.end_before(gathers.run, window), ready]),
        "fetch_after": np.concatenate([runs.end_before(gathers.run, window + 1), nothing]),
    }
    return Exchanges(**{name: column[order] for name, column in columns.items()}, runs=runs)


def _reduce_places(
    how: Exchanging, orders: Orders, runs: SegmentRuns, placed: PipelineRows
) -> tuple[Ints, Ints]:
    """For every reduction: at which run it is queued, and the row after which it may start.

    A pipeline over sharded parameters reduces unit by unit once a stage's last backward has ended.
    What may not run beside a backward and is reduced once a step waits for the last action of its
    rank.
    """
    run = runs.reduces.run
    if how.keeps_gathered:
        return run, placed.last[runs.action[run]]
    if how.overlaps_gradients or how.reduces_every_microbatch:
        return run, runs.ready[run]
    final = placed.last[orders.rank_ptr[1:] - 1]
    return np.full_like(run, len(runs.rank)), final[runs.rank[run]]


def _gather_places(how: Exchanging, orders: Orders, runs: SegmentRuns) -> tuple[Ints, Ints]:
    """For every gather: at which run it is queued, before or behind that run's reduction."""
    run = runs.gathers.run
    if not how.gathers_units:  # from the start of the step
        return np.full_like(run, -1), np.zeros_like(run)
    late = (orders.kind[runs.action[run]] != Action.F) & (not how.data.prefetch_backward)
    place = np.where(late, run - 1, run - (how.units_in_flight - 1))
    return place, np.where(late, _AFTER, 0)
