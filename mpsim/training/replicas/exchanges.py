"""Exchanges as rows: gathers of parameters and reductions of gradients, what they wait for and what waits for them.

Shapes: E exchanges, R ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.program.program import Stream
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.training.costs import PlanCosts
from mpsim.training.messages import PipelineRows
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import (
    ReplicaGroup,
    add_collectives,
    collective_of,
    dense_group,
    expert_group,
    reduction_kind,
)
from mpsim.training.replicas.issue import Exchanges
from mpsim.training.replicas.offload import Copies, add_copies
from mpsim.training.vocabulary import PARTS, Kind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_EXPOSED_DP = PARTS.index("exposed_dp")


def add_exchanges(
    rows: Rows,
    plan: Plan,
    costs: PlanCosts,
    exchanges: Exchanges,
    placed: PipelineRows,
    start: Ints,
) -> Ints:
    """Append the gathers and reductions of a step. `start` (int64[R]): row of each rank that begins
    the step; sharded parameters are gathered after it, which exposes the first gather.

    Returns
    -------
    int64
        Rows after which the gradients of all ranks are reduced.
    """
    if not len(exchanges):
        return np.zeros(0, dtype=np.int64)
    return _Adder(rows, plan, costs, exchanges).add(start, placed)


class _Adder:
    """Appends the rows of all exchanges of a step."""

    def __init__(self, rows: Rows, plan: Plan, costs: PlanCosts, exchanges: Exchanges) -> None:
        self._rows = rows
        self._plan = plan
        self._costs = costs
        self._runs = exchanges.runs
        self._all = exchanges

    def add(self, start: Ints, placed: PipelineRows) -> Ints:
        """Append them; the rows after which the gradients of all ranks are reduced."""
        exchanges = self._all
        groups = (dense_group(self._plan, self._costs), expert_group(self._plan, self._costs))
        sharers = (groups[0].sharers, groups[1].sharers)
        copies = add_copies(self._rows, self._plan, exchanges, sharers)
        cycles = self._cycles()
        finished = [copies.given]
        for group, parameters in zip(groups, (exchanges.dense, exchanges.experts), strict=True):
            chosen = np.flatnonzero(parameters > 0)
            gathers = chosen[exchanges.is_gather[chosen]]
            ids = np.full(len(exchanges), -1, dtype=np.int64)
            ids[chosen] = self._collectives(group, chosen, parameters[chosen])
            self._start(ids, chosen, start, copies, cycles)
            self._rows.depend(self._runs.row[exchanges.run[gathers]], ids[gathers])
            reduces = chosen[~exchanges.is_gather[chosen]]
            self._hold(ids, reduces, placed)
            done = self._between(group, reduces, ids[reduces], parameters[reduces], placed)
            copies.give(self._rows, reduces, done)
            finished.append(self._last(reduces, done))
        return np.concatenate(finished)

    def _collectives(self, group: ReplicaGroup, chosen: Ints, parameters: Floats) -> Ints:
        """One row an exchange on the communicator of the sharers."""
        plan, exchanges = self._plan, self._all
        gather = exchanges.is_gather[chosen]
        gathered, reduced = collective_of(plan, gather=True), collective_of(plan, gather=False)
        each_rank = plan.layout.framework.data.gather_rank_time
        return add_collectives(
            self._rows,
            self._costs,
            group,
            np.where(gather, gathered[0], reduced[0]),
            parameters * np.where(gather, gathered[1], reduced[1]),
            rank=exchanges.rank[chosen],
            stage=exchanges.stage[chosen],
            beyond=np.where(gather, each_rank * group.sharers, 0.0),
        )

    def _start(self, ids: Ints, chosen: Ints, start: Ints, copies: Copies, cycles: Ints) -> None:
        """Let exchanges wait for what has to end before them."""
        exchanges = self._all
        for before in (exchanges.after, copies.fetched, cycles):
            known = chosen[before[chosen] >= 0]
            self._rows.depend(ids[known], before[known])
        if self._plan.gathers_units:
            gathers = chosen[exchanges.is_gather[chosen]]
            self._rows.depend(ids[gathers], start[exchanges.rank[gathers]])

    def _cycles(self) -> Ints:
        """Rows in which reductions wait for the next look at what is ready, half a cycle on average; -1 for none [E]."""
        exchanges, cycle = self._all, self._plan.layout.framework.data.fusion_cycle
        ids = np.full(len(exchanges), -1, dtype=np.int64)
        reduces = np.flatnonzero(~exchanges.is_gather)
        if cycle and len(reduces):
            ids[reduces] = self._rows.add(
                len(reduces),
                rank=exchanges.rank[reduces],
                stream=Stream.HOST,
                kind=Kind.COLLECTIVE,
                part=_EXPOSED_DP,
                stage=exchanges.stage[reduces],
                duration=ticks(cycle / 2),
                label="wait for fusion cycle",
            )
            self._rows.depend(ids[reduces], exchanges.after[reduces])
        return ids

    def _hold(self, ids: Ints, reduces: Ints, placed: PipelineRows) -> None:
        """Let computing wait for reductions, as far as they may not run beside it."""
        framework, exchanges, runs = self._plan.layout.framework, self._all, self._runs
        ready, ranks = exchanges.after[reduces], exchanges.rank[reduces]
        if not framework.overlaps_gradients(self._plan.layout.mesh.pp):
            self._resume(ready + 1, ranks, ids[reduces], placed)
        elif under_way := framework.data.buckets_in_flight:
            later, earlier = reduces[under_way:], reduces[:-under_way]
            same = exchanges.rank[later] == exchanges.rank[earlier]
            later, earlier = later[same], earlier[same]
            run = exchanges.run[later]
            # where gradients are copied first, the copy waits for the reduction before; else whatever computes next
            copied = (runs.ready[run] > runs.row[run]) & (
                runs.ready[run] > exchanges.after[earlier]
            )
            waiting = np.where(copied, runs.ready[run], exchanges.after[later] + 1)
            self._resume(waiting, exchanges.rank[later], ids[earlier], placed)

    def _resume(self, rows: Ints, rank: Ints, before: Ints, placed: PipelineRows) -> None:
        """Let compute rows wait, where they still belong to the pipeline's actions of their rank."""
        final = placed.last[self._plan.orders.rank_ptr[1:] - 1]
        inside = rows <= final[rank]
        self._rows.depend(rows[inside], before[inside])

    def _between(
        self,
        group: ReplicaGroup,
        reduces: Ints,
        ids: Ints,
        parameters: Floats,
        placed: PipelineRows,
    ) -> Ints:
        """Sum what each holder of a share has; the rows after which gradients are final.

        Where reductions, or these sums, may not run beside a backward they stand behind the last one.
        """
        plan = self._plan
        if group.copies == 1 or reduction_kind(plan) == "all_reduce" or not len(ids):
            return ids
        _, element = collective_of(plan, gather=False)
        holders = ReplicaGroup(
            name=f"{group.name} between copies",
            stream=Stream.REPLICA,
            sharers=group.copies,
            copies=1,
            inside=group.between,
            between=group.between,
            everyone=group.between,
        )
        done = add_collectives(
            self._rows,
            self._costs,
            holders,
            np.full(len(ids), "all_reduce"),
            parameters * element / group.sharers,
            rank=self._all.rank[reduces],
            stage=self._all.stage[reduces],
        )
        self._rows.depend(done, ids)
        if plan.layout.framework.defers_sums(plan.layout.mesh.pp):
            final = placed.last[plan.orders.rank_ptr[1:] - 1]
            self._rows.depend(done, final[self._all.rank[reduces]])
        return done

    def _last(self, reduces: Ints, done: Ints) -> Ints:
        """The last of each rank: a communicator's queue ends with it."""
        rank = self._all.rank[reduces]
        return done[np.flatnonzero(np.append(rank[1:] != rank[:-1], True)[: len(rank)])]
