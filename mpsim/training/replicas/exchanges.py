"""Exchanges as rows: gathers of parameters and reductions of gradients, what they wait for and what waits for them.

Shapes: E exchanges, R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel
from mpsim.framework import ParameterGather
from mpsim.parallel import GroupShape
from mpsim.program.program import PARTS, Kind, Span, Stream
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.training.costs import PlanCosts
from mpsim.training.messages import PipelineRows
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import Peers, collective_columns, dense_peers, expert_peers
from mpsim.training.replicas.habits import reduction_kind
from mpsim.training.replicas.hooks import Hooks
from mpsim.training.replicas.issue import Exchanges, Visits, issued
from mpsim.training.replicas.offload import Copies, add_copies
from mpsim.training.replicas.segments import Amount

__all__ = ["GATHERS", "add_collectives", "add_exchanges", "exchange_times"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LONG = 2.0**36  # B: long enough for any group
_EXPOSED_DP = PARTS.index("exposed_dp")
GATHERS: Mapping[ParameterGather, str] = MappingProxyType(
    {ParameterGather.ALL_GATHER: "all_gather", ParameterGather.BROADCAST: "broadcast"}
)
"""Collective of each way to hand out parameters, as `mpsim.training.replicas.groups.collective_columns` names it."""
_LABELS = {
    "all_gather": "gather parameters",
    "broadcast": "broadcast parameters",
    "all_reduce": "all-reduce gradients",
    "reduce_scatter": "reduce-scatter gradients",
    "rooted": "reduce gradients to their owners",
}


def add_exchanges(
    rows: Rows, plan: Plan, costs: PlanCosts, hooks: Hooks, placed: PipelineRows, start: Ints
) -> Ints:
    """Append the gathers and reductions of a step.

    Parameters
    ----------
    rows : Rows
    plan : Plan
    costs : PlanCosts
    hooks : Hooks
    placed : PipelineRows
        Rows of the actions.
    start : int64[R]
        Row of each rank that begins the step; sharded parameters are gathered after it, which exposes the first gather.

    Returns
    -------
    int64
        Rows after which the gradients of all ranks are reduced.
    """
    visits = Visits.of(hooks, placed, plan.orders)
    exchanges = issued(plan, hooks, visits, placed)
    if not len(exchanges):
        return np.zeros(0, dtype=np.int64)
    adder = _Adder(rows, plan, costs, visits, exchanges)
    return adder.add(start, placed)


class _Adder:
    """Appends the rows of all exchanges of a step."""

    def __init__(
        self, rows: Rows, plan: Plan, costs: PlanCosts, visits: Visits, exchanges: Exchanges
    ) -> None:
        self._rows = rows
        self._plan = plan
        self._costs = costs
        self._visits = visits
        self._all = exchanges

    def add(self, start: Ints, placed: PipelineRows) -> Ints:
        """Append them; the rows after which the gradients of all ranks are reduced."""
        these = self._all
        peers = (dense_peers(self._plan, self._costs), expert_peers(self._plan, self._costs))
        copies = add_copies(self._rows, self._plan, these, (peers[0].sharers, peers[1].sharers))
        cycles = self._cycles()
        finished = [copies.given]
        for one, amount in zip(peers, (these.dense, these.experts), strict=True):
            chosen = np.flatnonzero(amount > 0)
            gathers = chosen[these.is_gather[chosen]]
            ids = np.full(len(these), -1, dtype=np.int64)
            ids[chosen] = self._collectives(one, chosen, amount[chosen])
            self._start(ids, chosen, start, copies, cycles)
            self._rows.depend(self._visits.first[these.visit[gathers]], ids[gathers])
            reduces = chosen[~these.is_gather[chosen]]
            self._hold(ids, reduces, placed)
            done = self._between(one, reduces, ids[reduces], amount[reduces])
            copies.give(self._rows, reduces, done)
            finished.append(self._last(reduces, done))
        return np.concatenate(finished)

    def _collectives(self, peers: Peers, chosen: Ints, amount: Floats) -> Ints:
        """One row an exchange on the communicator of the sharers."""
        plan, these = self._plan, self._all
        gather = these.is_gather[chosen]
        gathered, reduced = _sent(plan, gather=True), _sent(plan, gather=False)
        kinds = np.where(gather, gathered[0], reduced[0])
        each = np.where(gather, gathered[1], reduced[1])
        return add_collectives(
            self._rows,
            self._costs,
            peers,
            kinds,
            amount * each,
            rank=these.rank[chosen],
            stage=these.stage[chosen],
            more=np.where(gather, plan.layout.framework.data.gather_rank_time * peers.sharers, 0.0),
        )

    def _start(self, ids: Ints, chosen: Ints, start: Ints, copies: Copies, cycles: Ints) -> None:
        """What exchanges wait for."""
        these = self._all
        for before in (these.after, copies.fetched, cycles):
            known = chosen[before[chosen] >= 0]
            self._rows.depend(ids[known], before[known])
        if self._plan.gathers_units:
            gathers = chosen[these.is_gather[chosen]]
            self._rows.depend(ids[gathers], start[these.rank[gathers]])

    def _cycles(self) -> Ints:
        """Rows in which reductions wait for the next look at what is ready, half a cycle on average; -1 for none [E]."""
        these, cycle = self._all, self._plan.layout.framework.data.fusion_cycle
        ids = np.full(len(these), -1, dtype=np.int64)
        reduces = np.flatnonzero(~these.is_gather)
        if cycle and len(reduces):
            ids[reduces] = self._rows.add(
                len(reduces),
                rank=these.rank[reduces],
                stream=Stream.HOST,
                kind=Kind.COLLECTIVE,
                part=_EXPOSED_DP,
                stage=these.stage[reduces],
                duration=ticks(cycle / 2),
                label="wait for fusion cycle",
            )
            self._rows.depend(ids[reduces], these.after[reduces])
        return ids

    def _hold(self, ids: Ints, reduces: Ints, placed: PipelineRows) -> None:
        """Let computing wait for reductions, as far as they may not run beside it."""
        plan, these = self._plan, self._all
        ready, ranks = these.after[reduces], these.rank[reduces]
        if not plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp):
            self._resume(ready + 1, ranks, ids[reduces], placed)
        elif under_way := plan.layout.framework.data.buckets_in_flight:
            later, earlier = reduces[under_way:], reduces[:-under_way]
            same = these.rank[later] == these.rank[earlier]
            later, earlier = later[same], earlier[same]
            visit = these.visit[later]
            copied = (self._visits.ready[visit] > self._visits.last[visit]) & (
                self._visits.ready[visit] > these.after[earlier]
            )
            waiting = np.where(copied, self._visits.ready[visit], these.after[later] + 1)
            self._resume(waiting, these.rank[later], ids[earlier], placed)

    def _resume(self, rows: Ints, rank: Ints, before: Ints, placed: PipelineRows) -> None:
        """Let compute rows wait, where they still belong to the pipeline's actions of their rank."""
        final = placed.last[self._plan.orders.rank_ptr[1:] - 1]
        inside = rows <= final[rank]
        self._rows.depend(rows[inside], before[inside])

    def _between(self, peers: Peers, reduces: Ints, ids: Ints, amount: Floats) -> Ints:
        """Sum what each holder of a share has; the rows after which gradients are final."""
        plan = self._plan
        if peers.copies == 1 or reduction_kind(plan) == "all_reduce" or not len(ids):
            return ids
        size = (
            plan.layout.framework.data.reduced_bytes
            or plan.layout.framework.optimizer.gradient_bytes
        )
        between = Peers(
            name=f"{peers.name} between copies",
            stream=Stream.REPLICA,
            sharers=peers.copies,
            copies=1,
            inside=peers.between,
            between=peers.between,
            everyone=peers.between,
        )
        done = add_collectives(
            self._rows,
            self._costs,
            between,
            np.full(len(ids), "all_reduce"),
            amount * size / peers.sharers,
            rank=self._all.rank[reduces],
            stage=self._all.stage[reduces],
        )
        self._rows.depend(done, ids)
        return done

    def _last(self, reduces: Ints, done: Ints) -> Ints:
        """The last of each rank: a communicator's queue ends with it."""
        rank = self._all.rank[reduces]
        return done[np.flatnonzero(np.append(rank[1:] != rank[:-1], True)[: len(rank)])]


def _sent(plan: Plan, *, gather: bool) -> tuple[str, int]:
    """Which collective an exchange is, and bytes of a parameter in it."""
    data, sizes = plan.layout.framework.data, plan.layout.framework.optimizer
    if not gather:
        return reduction_kind(plan), data.reduced_bytes or sizes.gradient_bytes
    kind = "all_gather" if plan.gathers_units else GATHERS[data.parameter_gather]
    return kind, data.gathered_bytes or sizes.parameter_bytes


def exchange_times(
    plan: Plan, costs: PlanCosts, amount: Amount, *, gather: bool, rank: int
) -> list[tuple[float, float]]:
    """Times of the collectives of one exchange [s], and the rate at which each sends when it is long [B/s].

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts
    amount : Amount
        Parameters on one rank that travel together.
    gather : bool
        Whether they are gathered; else their gradients are reduced.
    rank : int
        Pipeline rank.
    """
    kind, each = _sent(plan, gather=gather)
    model, times = costs.of(rank).collectives, []
    for peers, parameters in zip(
        (dense_peers(plan, costs), expert_peers(plan, costs)), amount, strict=True
    ):
        if not parameters:
            continue
        size = parameters * each
        where = peers.everyone if kind == "all_reduce" else peers.inside
        times.append(_time_and_rate(model, kind, size, where(rank), peers.owners))
        if not gather and kind != "all_reduce" and peers.copies > 1:
            share = size / peers.sharers
            times.append(_time_and_rate(model, "all_reduce", share, peers.between(rank), 0))
    return times


def _time_and_rate(
    model: CollectiveModel, kind: str, size: float, shape: GroupShape, owners: int
) -> tuple[float, float]:
    """Seconds of one collective, and the rate of its ranks where latency does not count [B/s]."""
    both = np.array([size, max(size, _LONG)])
    seconds, up, out = collective_columns(model, kind, both, [shape, shape], owners)
    return float(seconds[0]), float((up[1] + out[1]) / seconds[1]) if seconds[1] else 0.0


def add_collectives(
    rows: Rows,
    costs: PlanCosts,
    peers: Peers,
    kinds: NDArray[np.str_],
    size: Floats,
    *,
    rank: Ints,
    stage: Ints,
    more: Floats | float = 0.0,
) -> Ints:
    """Append collectives of peers, each on the communicator of its rank.

    Parameters
    ----------
    rows : Rows
    costs : PlanCosts
    peers : Peers
    kinds : array of str [E]
        See `mpsim.training.replicas.groups.collective_columns`.
    size : float64[E]
        Whole tensor [B].
    rank, stage : int64[E]
    more : float64[E]
        Time each takes beyond the collective itself [s].
    """
    seconds, up, out = np.zeros((3, len(size)))
    for kind in sorted(set(kinds.tolist())):
        mine = kinds == kind
        where = peers.everyone if kind == "all_reduce" else peers.inside
        alike = costs.alike[rank[mine]]
        shapes = {one: where(one) for one in set(alike.tolist())}
        for model in costs.models(alike.tolist()):
            same = np.array([costs.of(one).collectives is model for one in alike.tolist()])
            these = np.flatnonzero(mine)[same]
            where_they_are = [shapes[one] for one in alike[same].tolist()]
            columns = collective_columns(model, kind, size[these], where_they_are, peers.owners)
            seconds[these], up[these], out[these] = columns
    return rows.add(
        len(size),
        rank=rank,
        stream=peers.stream,
        kind=Kind.COLLECTIVE,
        part=_EXPOSED_DP,
        span=Span.DP | Span.CP,
        stage=stage,
        duration=ticks(seconds + more),
        up_bytes=up,
        out_bytes=out,
        label=np.array([_LABELS[kind] + peers.name for kind in kinds.tolist()]),
    )
