"""Exchanges as rows: gathers of parameters and reductions of gradients, what they wait for and what
waits for them; and offload, model states that the host keeps, with the optimizer that runs there.

An accelerator's copies in both directions are one queue (`Stream.COPY`); the host's own work is
another (`Stream.HOST`), in which the accelerators of a node have equal shares of its memory and
drives.

Shapes: E exchanges, R ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.hardware import Host, host_of
from mpsim.program.program import TICK, Span, Stream
from mpsim.program.rows import Prices, Rows
from mpsim.program.template import ticks
from mpsim.schedule import Orders
from mpsim.training.pipeline import PipelineRows
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.replicas.groups import (
    STREAMS,
    ReplicaGroup,
    collective_link,
    collective_of,
    collective_prices,
)
from mpsim.training.replicas.issue import Exchanges, Exchanging
from mpsim.training.replicas.segments import Bucket
from mpsim.training.vocabulary import PARTS, Kind, Link

COPIES = "copies"
"""Name of the prices of copying each bucket."""


@structs.dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies that go with exchanges."""

    # int64[E], row that brings the share of what is gathered from the host, -1 for none
    fetched: Ints
    taken: Ints  # int64[E], row that takes the share of what was reduced to the host, -1 for none
    given: Ints  # rows after which the host has all gradients

    def give(self, rows: Rows, reduces: Ints, done: Ints) -> None:
        """Let the host take what reductions `reduces` have finished."""
        known = self.taken[reduces] >= 0
        rows.depend(self.taken[reduces][known], done[known])


def add_copies(rows: Rows, offload: str, exchanges: Exchanges) -> Copies:
    """Append the copies of a step up to the optimizer, those of a bucket at one price."""
    ids = np.full(len(exchanges), -1, dtype=np.int64)
    if offload == "none":
        return Copies(ids, ids, ids[:0])
    chosen = np.flatnonzero(~exchanges.is_gather | (offload == "parameters"))
    ahead = exchanges.place[chosen] - exchanges.is_gather[chosen]
    chosen = chosen[np.lexsort((exchanges.is_gather[chosen] == 0, ahead, exchanges.rank[chosen]))]
    gather = exchanges.is_gather[chosen]
    ids[chosen] = rows.add(
        len(chosen),
        rank=exchanges.rank[chosen],
        stream=Stream.COPY,
        kind=Kind.COLLECTIVE,
        part=PARTS.index("exposed_dp"),
        label=np.where(gather, "fetch parameters", "take gradients to host"),
        price=COPIES,
        place=exchanges.bucket[chosen],
    )
    after = exchanges.fetch_after[chosen]
    rows.depend(ids[chosen][after >= 0], after[after >= 0])
    takes = chosen[~gather]
    rank = exchanges.rank[takes]
    final = np.flatnonzero(np.append(rank[1:] != rank[:-1], True)[: len(rank)])
    return Copies(
        fetched=np.where(exchanges.is_gather, ids, -1),
        taken=np.where(exchanges.is_gather, -1, ids),
        given=ids[takes[final]],
    )


def copy_prices(plan: Plan, share: Floats, gathers: int) -> Prices:
    """Prices of copying buckets, `gathers` first. `share` (float64[B]): parameters a rank keeps."""
    # casts before a gather, and after a reduction, are the device's
    sizes, gather = plan.layout.framework.optimizer, np.arange(len(share)) < gathers
    taken = plan.offload_fraction * sizes.gradient_bytes
    moved = share * np.where(gather, sizes.parameter_bytes, taken)
    fetch, take = _rates(plan)
    return Prices(ticks(moved / np.where(gather, fetch, take)))


def host_optimizer(plan: Plan, share: Floats) -> list[tuple[Link, Prices]]:
    """Work of the optimizer on the host, and the copy of what it updated back to the device, as
    links of every rank in the order they run. `share` (float64[R]): parameters whose state each
    rank keeps.

    Notes
    -----
    The host moves ``host_optimizer_traffic`` bytes a parameter through its memory, which the ranks
    of a node share, and each no faster than its ``host_threads`` cores do. States on drives are
    read before and written after, one after the other (DeepSpeed's default).
    """
    host = host_of(plan.layout.cluster)
    near = min(plan.layout.cluster.node.accelerators, plan.layout.mesh.world)
    sizes = plan.layout.framework.optimizer
    moved = sizes.host_optimizer_traffic * share
    cores = sizes.host_threads * host.core or math.inf
    steps = [("optimizer step on host", moved, min(host.memory_bandwidth, near * cores))]
    if plan.offload_to == "nvme":
        states = sizes.optimizer_bytes * share
        steps.insert(0, ("read states", states, host.nvme_read))
        steps.append(("write states", states, host.nvme_write))
    links = [
        (
            Link(label, Kind.OPTIMIZER, "optimizer", Stream.HOST),
            Prices(ticks(moved * near / bandwidth)),
        )
        for label, moved, bandwidth in steps
    ]
    if plan.offload != "parameters":
        back = Prices(ticks(sizes.parameter_bytes * share / host.link_bandwidth))
        links.append((Link("return parameters", Kind.COLLECTIVE, "exposed_dp", Stream.COPY), back))
    return links


def _rates(plan: Plan) -> tuple[float, float]:
    """At what rates an accelerator fetches parameters and gives gradients away [B/s].

    Gradients stay in the host's memory; only parameters and optimizer states move to drives.
    """
    host: Host = host_of(plan.layout.cluster)
    if plan.offload_to == "nvme":
        share = host.nvme_read / plan.layout.cluster.node.accelerators
        return min(host.link_bandwidth, share), host.link_bandwidth
    return host.link_bandwidth, host.link_bandwidth


_EXPOSED_DP = PARTS.index("exposed_dp")
_CYCLE, _EXCHANGES, _BETWEEN = "fusion cycle", "exchanges", "sums between copies"


class Travels(NamedTuple):
    """Exchanges at one price: number of the bucket, and pipeline rank."""

    bucket: Ints
    rank: Ints

    @classmethod
    def of(cls, bucket: Ints, rank: Ints) -> tuple[Travels, Ints]:
        """The distinct ones among exchanges, and which of them each is."""
        width = int(rank.max(initial=0)) + 1
        count = np.bincount(bucket * width + rank)
        distinct = np.flatnonzero(count)
        place = np.cumsum(count > 0) - 1
        return cls(*np.divmod(distinct, width)), place[bucket * width + rank]


class Exchanged(NamedTuple):
    """Exchanges that were appended."""

    reduced: Ints  # rows after which the gradients of all ranks are reduced
    travels: Mapping[str, Travels]  # what they cost, by the names of prices


def add_exchanges(
    rows: Rows,
    how: Exchanging,
    orders: Orders,
    exchanges: Exchanges,
    some: Flags,
    placed: PipelineRows,
    start: Ints,
) -> Exchanged:
    """Append the gathers and reductions of a step. `some` (bool[B, 2]): whether buckets have dense
    parameters, and parameters of experts. `start` (int64[R]): row of each rank that begins the
    step; sharded parameters are gathered after it, which exposes the first gather.
    """
    if not len(exchanges):
        return Exchanged(np.zeros(0, dtype=np.int64), {})
    return _Adder(rows, how, orders, exchanges, placed).add(start, some)


def exchange_prices(
    plan: Plan,
    costs: PlanCosts,
    groups: Sequence[ReplicaGroup],
    travels: Mapping[str, Travels],
    gathered: Sequence[Bucket],
    reduced: Sequence[Bucket],
) -> dict[str, Prices]:
    """Prices of the exchanges of a step. `gathered` and `reduced`: buckets by their numbers."""
    parameters = np.array([*gathered, *reduced]).reshape(-1, 2)
    dense, experts = parameters.T
    share = dense / groups[0].sharers + experts / groups[1].sharers
    data = plan.layout.framework.data
    prices = {_CYCLE: Prices(np.full(1, np.rint(data.fusion_cycle / 2 / TICK)))}
    if plan.offload != "none":
        prices[COPIES] = copy_prices(plan, share, len(gathered))
    gathers, reduces = collective_of(plan, gather=True), collective_of(plan, gather=False)
    for group, amount in zip(groups, (dense, experts), strict=True):
        if inside := travels.get(_EXCHANGES + group.name):
            gather = inside.bucket < len(gathered)
            prices[_EXCHANGES + group.name] = collective_prices(
                costs,
                group,
                np.where(gather, gathers[0], reduces[0]),
                amount[inside.bucket] * np.where(gather, gathers[1], reduces[1]),
                inside.rank,
                np.where(gather | plan.gathers_units, data.gather_rank_time * group.sharers, 0.0),
            )
        if between := travels.get(_BETWEEN + group.name):
            size = amount[between.bucket] * reduces[1] / group.sharers
            kinds = np.full(len(size), "all_reduce")
            prices[_BETWEEN + group.name] = collective_prices(
                costs, group, kinds, size, between.rank, between=True
            )
    return prices


class _Adder:
    """Appends the rows of all exchanges of a step."""

    def __init__(
        self,
        rows: Rows,
        how: Exchanging,
        orders: Orders,
        exchanges: Exchanges,
        placed: PipelineRows,
    ) -> None:
        self._rows = rows
        self._how = how
        self._runs = exchanges.runs
        self._all = exchanges
        self._final = placed.last[orders.rank_ptr[1:] - 1]  # of each rank
        self._travels: dict[str, Travels] = {}

    def add(self, start: Ints, some: Flags) -> Exchanged:
        """Append them."""
        exchanges = self._all
        copies = add_copies(self._rows, self._how.offload, exchanges)
        cycles = self._cycles()
        finished = [copies.given]
        for column, (name, stream) in enumerate(STREAMS.items()):
            chosen = np.flatnonzero(some[exchanges.bucket, column])
            gathers = chosen[exchanges.is_gather[chosen]]
            ids = np.full(len(exchanges), -1, dtype=np.int64)
            kinds = np.where(exchanges.is_gather[chosen], self._how.gathers, self._how.reduces)
            ids[chosen] = self._collectives(_EXCHANGES + name, kinds, chosen, name, stream)
            self._start(ids, chosen, start, copies, cycles)
            self._rows.depend(self._runs.row[exchanges.run[gathers]], ids[gathers])
            reduces = chosen[~exchanges.is_gather[chosen]]
            self._hold(ids, reduces)
            done = ids[reduces]
            if self._how.between[column] and len(done):
                done = self._between(done, reduces, name)
            copies.give(self._rows, reduces, done)
            finished.append(self._last(reduces, done))
        return Exchanged(np.concatenate(finished), self._travels)

    def _collectives(
        self, price: str, kinds: NDArray[np.str_], chosen: Ints, name: str, stream: Stream
    ) -> Ints:
        """One row an exchange, on a communicator of its rank."""
        rank = self._all.rank[chosen]
        self._travels[price], place = Travels.of(self._all.bucket[chosen], rank)
        links = [collective_link(kind, name, stream) for kind in kinds.tolist()]
        return self._rows.add(
            len(chosen),
            rank=rank,
            stream=stream,
            kind=Kind.COLLECTIVE,
            part=_EXPOSED_DP,
            span=Span.DP | Span.CP,
            stage=self._all.stage[chosen],
            collective=np.array([link.collective for link in links], dtype=np.int8),
            label=np.array([link.label for link in links]),
            price=price,
            place=place,
        )

    def _start(self, ids: Ints, chosen: Ints, start: Ints, copies: Copies, cycles: Ints) -> None:
        """Let exchanges wait for what has to end before them."""
        exchanges = self._all
        for before in (exchanges.after, copies.fetched, cycles):
            known = chosen[before[chosen] >= 0]
            self._rows.depend(ids[known], before[known])
        if self._how.gathers_units:
            gathers = chosen[exchanges.is_gather[chosen]]
            self._rows.depend(ids[gathers], start[exchanges.rank[gathers]])

    def _cycles(self) -> Ints:
        """Rows in which reductions wait half a cycle for the next look; -1 for none [E]."""
        exchanges = self._all
        ids = np.full(len(exchanges), -1, dtype=np.int64)
        reduces = np.flatnonzero(~exchanges.is_gather)
        if self._how.data.fusion_cycle and len(reduces):
            ids[reduces] = self._rows.add(
                len(reduces),
                rank=exchanges.rank[reduces],
                stream=Stream.HOST,
                kind=Kind.COLLECTIVE,
                part=_EXPOSED_DP,
                stage=exchanges.stage[reduces],
                label="wait for fusion cycle",
                price=_CYCLE,
                place=np.zeros_like(reduces),
            )
            self._rows.depend(ids[reduces], exchanges.after[reduces])
        return ids

    def _hold(self, ids: Ints, reduces: Ints) -> None:
        """Let computing wait for reductions, as far as they may not run beside it."""
        exchanges, runs = self._all, self._runs
        ready, ranks = exchanges.after[reduces], exchanges.rank[reduces]
        if not self._how.overlaps_gradients:
            self._resume(ready + 1, ranks, ids[reduces])
        elif under_way := self._how.data.buckets_in_flight:
            later, earlier = reduces[under_way:], reduces[:-under_way]
            same = exchanges.rank[later] == exchanges.rank[earlier]
            later, earlier = later[same], earlier[same]
            run = exchanges.run[later]
            # gradients copied first wait for the reduction before; else for what computes next
            copied = (runs.ready[run] > runs.row[run]) & (
                runs.ready[run] > exchanges.after[earlier]
            )
            waiting = np.where(copied, runs.ready[run], exchanges.after[later] + 1)
            self._resume(waiting, exchanges.rank[later], ids[earlier])

    def _resume(self, rows: Ints, rank: Ints, before: Ints) -> None:
        """Let compute rows wait, where they still are the pipeline's actions of their rank."""
        inside = rows <= self._final[rank]
        self._rows.depend(rows[inside], before[inside])

    def _between(self, ids: Ints, reduces: Ints, name: str) -> Ints:
        """Sum what each holder of a share has; the rows after which gradients are final.

        Where reductions, or these sums, may not run beside a backward they stand behind the last
        one.
        """
        kinds = np.full(len(ids), "all_reduce")
        of = f"{name} between copies"
        done = self._collectives(_BETWEEN + name, kinds, reduces, of, Stream.REPLICA)
        self._rows.depend(done, ids)
        if self._how.defers_sums:
            self._rows.depend(done, self._final[self._all.rank[reduces]])
        return done

    def _last(self, reduces: Ints, done: Ints) -> Ints:
        """The last of each rank: a communicator's queue ends with it."""
        rank = self._all.rank[reduces]
        return done[np.flatnonzero(np.append(rank[1:] != rank[:-1], True)[: len(rank)])]
