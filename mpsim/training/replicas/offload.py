"""Offload: model states that the host keeps, the copies between it and the device, and the optimizer that runs there.

An accelerator's copies in both directions are one queue (`Stream.COPY`); the host's own work is another (`Stream.HOST`), in which the
accelerators of a node have equal shares of its memory and drives.

Shapes: E exchanges, R ranks.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.hardware import Host, host_of
from mpsim.program.program import Stream
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.training.plan import Plan
from mpsim.training.replicas.issue import Exchanges
from mpsim.training.vocabulary import PARTS, Kind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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


def add_copies(rows: Rows, plan: Plan, exchanges: Exchanges, sharers: tuple[int, int]) -> Copies:
    """Append the copies of a step up to the optimizer. `sharers`: ranks that divide one copy of the
    dense parameters, and of the experts.
    """
    ids = np.full(len(exchanges), -1, dtype=np.int64)
    wanted = np.full(len(exchanges), plan.offload != "none")
    wanted &= ~exchanges.is_gather | (plan.offload == "parameters")
    chosen = np.flatnonzero(wanted)
    ahead = exchanges.place[chosen] - exchanges.is_gather[chosen]
    chosen = chosen[np.lexsort((exchanges.is_gather[chosen] == 0, ahead, exchanges.rank[chosen]))]
    gather = exchanges.is_gather[chosen]
    share = exchanges.dense[chosen] / sharers[0] + exchanges.experts[chosen] / sharers[1]
    # casts before a gather, and after a reduction, are the device's
    sizes = plan.layout.framework.optimizer
    taken = plan.offload_fraction * sizes.gradient_bytes
    moved = share * np.where(gather, sizes.parameter_bytes, taken)
    fetch, take = _rates(plan)
    ids[chosen] = _copy(
        rows,
        np.where(gather, "fetch parameters", "take gradients to host"),
        moved / np.where(gather, fetch, take),
        rank=exchanges.rank[chosen],
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


def add_host_optimizer(rows: Rows, plan: Plan, share: Floats) -> tuple[Ints, Ints]:
    """Append the optimizer step of every rank on its host, and the copy of what it updated back to
    the device. `share` (float64[R]): parameters whose state each rank keeps.

    Returns
    -------
    first, last : int64[R]
        Rows that wait for the gradients, and rows after which parameters are where the step began with them.

    Notes
    -----
    The host moves ``host_optimizer_traffic`` bytes a parameter through its memory, which the ranks of a node share, and each no faster than its
    ``host_threads`` cores do. States on drives are read before and written after, one after the other (DeepSpeed's default).
    """
    host, rank = host_of(plan.layout.cluster), np.arange(plan.layout.mesh.pp)
    near = min(plan.layout.cluster.node.accelerators, plan.layout.mesh.world)
    sizes = plan.layout.framework.optimizer
    moved = sizes.host_optimizer_traffic * share
    cores = sizes.host_threads * host.core or math.inf
    steps = [("optimizer step on host", moved, min(host.memory_bandwidth, near * cores))]
    if plan.offload_to == "nvme":
        states = sizes.optimizer_bytes * share
        steps.insert(0, ("read states", states, host.nvme_read))
        steps.append(("write states", states, host.nvme_write))
    ids = [
        rows.add(
            len(rank),
            rank=rank,
            stream=Stream.HOST,
            kind=Kind.OPTIMIZER,
            part=PARTS.index("optimizer"),
            duration=ticks(moved * near / bandwidth),
            label=label,
        )
        for label, moved, bandwidth in steps
    ]
    if plan.offload == "parameters":
        return ids[0], ids[-1]
    back = sizes.parameter_bytes * share / host.link_bandwidth
    returned = _copy(rows, np.full(len(rank), "return parameters"), back, rank=rank)
    rows.depend(returned, ids[-1])
    return ids[0], returned


def _rates(plan: Plan) -> tuple[float, float]:
    """At what rates an accelerator fetches parameters and gives gradients away [B/s].

    Gradients stay in the host's memory; only parameters and optimizer states move to drives.
    """
    host: Host = host_of(plan.layout.cluster)
    if plan.offload_to == "nvme":
        share = host.nvme_read / plan.layout.cluster.node.accelerators
        return min(host.link_bandwidth, share), host.link_bandwidth
    return host.link_bandwidth, host.link_bandwidth


def _copy(rows: Rows, label: NDArray[np.str_], seconds: Floats, *, rank: ArrayLike) -> Ints:
    return rows.add(
        len(seconds),
        rank=rank,
        stream=Stream.COPY,
        kind=Kind.COLLECTIVE,
        part=PARTS.index("exposed_dp"),
        duration=ticks(seconds),
        label=label,
    )
