"""Which links every row uses: what a fluid network needs to know of a Program.

Each rank class has ports of its own: towards its scale-up domain, its share of the node's NICs, and its share of the up-links of
every oversubscribed tier, out and in. All ranks of a class do the same at the same time, and all accelerators of a node may send at once, so a
share is what one of them can count on; what meets on it is what one rank does at a time: a message of the pipeline and a
reduction of gradients on the same NIC.

Shapes: N rows, R rank classes, L links, U uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster
from mpsim.program.program import TICK, Kind, Program

__all__ = ["Links", "links_of"]

_DIRECTIONS = ("out", "in")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Links and what rows take of them.

    Parameters
    ----------
    names : tuple of str
        Such as ``pp 3 NIC out``.
    capacity : float64[L]
        Of each link [B/tick].
    row, link : int64[U]
        Uses, ordered by row.
    use : float64[U]
        What the row takes of the link per unit of its rate.
    cap : float64[N]
        Rate of a row that nobody disturbs [B/tick]; 0 for rows that use no link.
    work : float64[N]
        The part of the row's duration in which it moves at that rate [ticks]; latency goes before it and uses nothing.
    """

    names: tuple[str, ...]
    capacity: NDArray[np.float64]
    row: NDArray[np.int64]
    link: NDArray[np.int64]
    use: NDArray[np.float64]
    cap: NDArray[np.float64]
    work: NDArray[np.float64]

    def uses(self) -> list[dict[int, float]]:
        """Links of every row with what it takes of each."""
        result: list[dict[int, float]] = [{} for _ in self.cap]
        for row, link, use in zip(
            self.row.tolist(), self.link.tolist(), self.use.tolist(), strict=True
        ):
            result[row][link] = use
        return result


def links_of(program: Program, cluster: Cluster) -> Links:
    """Find the links of every message and collective.

    Parameters
    ----------
    program : Program
        Expanded, if what happens inside templates is to meet the rest (see `mpsim.program.expand`).
    cluster : Cluster

    Returns
    -------
    Links

    Notes
    -----
    A row's bytes leave through the ports of its home class and arrive at those of its peer, or of its own class for a
    collective, in which each member sends and receives. At their usable rate its busiest link needs ``max(bytes / rate)``:
    that is `work`, at most the row's duration, and the rest of the duration is latency. The unit of rate is the byte over
    NICs where there is one, else over scale-up links, so that NICs share evenly by bytes.
    """
    kinds = list(_kinds(cluster))
    capacity = np.tile(np.repeat([rate for _, rate, _ in kinds], len(_DIRECTIONS)), program.ranks)
    communicates = (program.template < 0) & ((program.up_bytes > 0) | (program.out_bytes > 0))
    rows = np.flatnonzero(communicates)
    sizes = np.stack(
        [program.out_bytes[rows] if far else program.up_bytes[rows] for _, _, far in kinds]
    )
    rates = np.array([rate for _, rate, _ in kinds])[:, None]
    needed = (sizes / rates).max(axis=0)
    work = np.minimum(np.rint(needed), program.duration[rows])
    unit = np.where(program.out_bytes[rows] > 0, program.out_bytes[rows], program.up_bytes[rows])
    cap, ticks = np.zeros(len(program)), np.zeros(len(program))
    moving = work > 0
    ticks[rows] = work
    cap[rows[moving]] = unit[moving] / work[moving]
    # what a measured rate above the link's own would take beyond it counts as a full link
    use = np.minimum(sizes, rates * work) / unit
    kind, which = np.nonzero((sizes > 0) & moving)
    each = len(kinds) * len(_DIRECTIONS)
    first = kind * len(_DIRECTIONS)
    sender, receiver = (
        ends[rows[which]].astype(np.int64) * each for ends in (program.rank, _receiver(program))
    )
    row = np.repeat(rows[which], len(_DIRECTIONS))
    link = np.stack([sender + first, receiver + first + 1], axis=1).ravel()
    order = np.lexsort((link, row))
    return Links(
        names=tuple(
            f"{rank} {name} {direction}"
            for rank in program.rank_name
            for name, _, _ in kinds
            for direction in _DIRECTIONS
        ),
        capacity=capacity.astype(np.float64),
        row=row[order],
        link=link[order],
        use=np.repeat(use[kind, which], len(_DIRECTIONS))[order],
        cap=cap,
        work=ticks,
    )


def _kinds(cluster: Cluster) -> Iterator[tuple[str, float, bool]]:
    """Links of one rank: name, usable rate in one direction [B/tick], whether bytes that leave the domain take it."""
    node = cluster.node
    yield "scale-up", node.scale_up.bandwidth * node.scale_up.efficiency * TICK, False
    if not node.nics:
        return
    share = node.nic.efficiency * TICK / node.accelerators
    yield "NIC", node.nic_bandwidth * share, True
    for tier in cluster.tiers:
        if tier.oversubscription > 1 and tier.up_bandwidth > 0:
            yield f"{tier.name} up-link", node.nic_bandwidth / tier.oversubscription * share, True


def _receiver(program: Program) -> NDArray[np.int64]:
    """Rank class at whose ports each row's bytes arrive."""
    sends = program.kind == Kind.SEND
    return np.where(sends, program.peer, program.rank).astype(np.int64)
