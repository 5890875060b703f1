"""The order in which each rank issues gathers and reductions.

Shapes: V visits (see `mpsim.training.replicas.hooks`), E exchanges (a gather or a reduction each), R ranks.

The communicator of a group of sharers is one queue. The gather for a visit is issued when the visit ``units_in_flight - 1`` before it
begins, a reduction when the visit it belongs to has ended. In a backward pass that is gather (n - 1), reduce (n),
gather (n - 2), reduce (n - 1), ...: the order of torch's FSDP.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.schedule import Action, Orders
from mpsim.training.messages import PipelineRows
from mpsim.training.plan import Plan
from mpsim.training.replicas.hooks import Hooks

__all__ = ["Exchanges", "Visits", "issued"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_BESIDE, _AFTER = 1, 2  # places in the queue: gathers ahead of them come first


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """Rank and rows of every visit [V]."""

    rank: Ints
    first: Ints
    last: Ints
    ready: Ints

    @classmethod
    def of(cls, hooks: Hooks, placed: PipelineRows, orders: Orders) -> Visits:
        """Where the visits went."""
        start = placed.first[hooks.action]
        rank = orders.stage_rank[orders.stage[hooks.action]].astype(np.int64)
        return cls(rank, start + hooks.first, start + hooks.last, start + hooks.ready)

    def end_before(self, visit: Ints, by: int) -> Ints:
        """Last row of the visit `by` visits before on the same rank, -1 where there is none."""
        before = np.maximum(visit - by, 0)
        found = (visit >= by) & (self.rank[before] == self.rank[visit])
        return np.where(found, self.last[before], -1)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Gathers and reductions, those of one rank in the order it issues them.

    Parameters
    ----------
    visit, rank, stage : int64[E]
    place : int64[E]
        Visit at which it is queued.
    dense, experts : float64[E]
        Parameters on one rank.
    is_gather : bool[E]
    after : int64[E]
        Row that has to end first: of a gather the one that frees memory for it, of a reduction the one that completes
        its gradients; -1 for none.
    fetch_after : int64[E]
        Likewise for fetching from the host what is gathered: one visit ahead.
    """

    visit: Ints
    rank: Ints
    stage: Ints
    place: Ints
    dense: Floats
    experts: Floats
    is_gather: Flags
    after: Ints
    fetch_after: Ints

    def __len__(self) -> int:
        return len(self.visit)


def issued(plan: Plan, hooks: Hooks, visits: Visits, placed: PipelineRows) -> Exchanges:
    """Every exchange of a step.

    Parameters
    ----------
    plan : Plan
    hooks : Hooks
    visits : Visits
    placed : PipelineRows

    Returns
    -------
    Exchanges
    """
    gathers, reduces = hooks.gathers, hooks.reduces
    visit = np.concatenate([gathers.visit, reduces.visit])
    is_gather = np.arange(len(visit)) < len(gathers.visit)
    queued, side = _places(plan, hooks)
    reduced, ready = _completed(plan, hooks, visits, placed)
    place = np.concatenate([queued, reduced])
    order = np.lexsort(
        (
            np.concatenate([side, np.full(len(reduces.visit), _BESIDE)]),
            place,
            visits.rank[visit],
        )
    )
    window = plan.units_in_flight if plan.gathers_units else len(visits.rank)
    nothing = np.full(len(reduces.visit), -1)
    columns = {
        "visit": visit,
        "rank": visits.rank[visit],
        "stage": plan.orders.stage[hooks.action[visit]].astype(np.int64),
        "place": place,
        "is_gather": is_gather,
        "dense": np.concatenate([gathers.dense, reduces.dense]),
        "experts": np.concatenate([gathers.experts, reduces.experts]),
        "after": np.concatenate([visits.end_before(gathers.visit, window), ready]),
        "fetch_after": np.concatenate([visits.end_before(gathers.visit, window + 1), nothing]),
    }
    return Exchanges(**{name: column[order] for name, column in columns.items()})


def _completed(plan: Plan, hooks: Hooks, visits: Visits, placed: PipelineRows) -> tuple[Ints, Ints]:
    """For every reduction: at which visit it is queued, and the row after which it may start.

    A pipeline over sharded parameters reduces unit by unit once a stage's last backward has ended. What may not run beside a
    backward and is reduced once a step waits for the last action of its rank.
    """
    visit = hooks.reduces.visit
    if plan.keeps_gathered:
        return visit, placed.last[hooks.action[visit]]
    if (
        plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp)
        or plan.reduces_every_microbatch
    ):
        return visit, visits.ready[visit]
    final = placed.last[plan.orders.rank_ptr[1:] - 1]
    return np.full_like(visit, len(visits.rank)), final[visits.rank[visit]]


def _places(plan: Plan, hooks: Hooks) -> tuple[Ints, Ints]:
    """For every gather: at which visit it is queued, and whether before or behind that visit's reduction."""
    visit, data = hooks.gathers.visit, plan.layout.framework.data
    if not plan.gathers_units:  # from the start of the step
        return np.full_like(visit, -1), np.zeros_like(visit)
    late = (plan.orders.kind[hooks.action[visit]] != Action.F) & (not data.prefetch_backward)
    place = np.where(late, visit - 1, visit - (plan.units_in_flight - 1))
    return place, np.where(late, _AFTER, 0)
