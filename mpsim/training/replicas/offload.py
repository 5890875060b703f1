"""Offload: model states that the host keeps, the copies between it and the device, and the
optimizer that runs there.

An accelerator's copies in both directions are one queue (`Stream.COPY`); the host's own work is
another (`Stream.HOST`), in which the accelerators of a node have equal shares of its memory and
drives.

Shapes: E exchanges, R ranks.
"""

from __future__ import annotations

import math

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.hardware import Host, host_of
from mpsim.program.program import Stream
from mpsim.program.rows import Prices, Rows
from mpsim.program.template import ticks
from mpsim.training.plan import Plan
from mpsim.training.replicas.issue import Exchanges
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
