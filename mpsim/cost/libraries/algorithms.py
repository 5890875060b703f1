"""Algorithms of collectives as alpha-beta-gamma formulas over two kinds of links.

With n ranks, m in each of d domains, alpha per message, beta per byte, gamma per byte summed, S as
in `mpsim.cost.collectives`. Ranks are numbered by domain, so short distances of a doubling stay
inside. Times are linear in S with coefficients of 0 or more. On one kind of link they are the
textbook forms: recursive doubling ``log2(n) (alpha + S (beta + gamma))``, Rabenseifner ``2 log2(n)
alpha + (n-1)/n S (2 beta + gamma)``, ring ``2 (n-1) alpha`` and its bytes, pairwise ``(n-1) (alpha
+ S beta / n)``, Bruck ``log2(n) (alpha + S beta / 2)``, binomial ``log2(n) (alpha + S beta)``.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collectives in MPICH, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, Ledger
from mpsim.cost.network import group_bandwidth, nodes_spanned, pair_bandwidth, slowed_nic_bandwidth
from mpsim.hardware.cluster import Cluster
from mpsim.parallel.crossing import GroupShape

Algorithm: TypeAlias = "Callable[[Floats, Wires], Floats]"

_RADIX = 4  # children of a knomial tree's node, plus one


def _rounds(s: Floats, w: Wires, gamma: float = 0.0) -> Floats:
    """S in every round of a doubling pattern."""
    near, far = w.rounds
    inside = near * (w.near.alpha + s * (w.near.beta + gamma))
    return inside + far * (w.far.alpha + s * (w.far.beta + gamma))


def _shrinking(s: Floats, w: Wires, *, far_first: bool, gamma: float = 0.0) -> Floats:
    """A doubling pattern whose data halve from round to round: the first rounds carry the most."""
    near, far = w.rounds
    part_far = 0.5**far
    part_near = 0.5**near
    sent_far = 1 - part_far if far_first else part_near * (1 - part_far)
    sent_near = part_far * (1 - part_near) if far_first else 1 - part_near
    inside = near * w.near.alpha + s * sent_near * (w.near.beta + gamma)
    return inside + far * w.far.alpha + s * sent_far * (w.far.beta + gamma)


def _fold(s: Floats, w: Wires, gamma: float, *, back: bool) -> Floats:
    """Ranks beyond a power of two hand their data to a neighbour before, and fetch it after."""
    if w.ranks & (w.ranks - 1) == 0:
        return np.zeros_like(s)
    hop = w.nearest
    there = hop.alpha + s * (hop.beta + gamma)
    return there + (hop.alpha + s * hop.beta if back else 0.0)


def _ring(block: Floats, steps: int, w: Wires, gamma: float = 0.0) -> Floats:
    """Steps of a ring: the slowest hop sets the pace, and sums hide behind it in part."""
    step = w.near.alpha + block * w.near.beta
    if w.domains > 1:
        out = w.far.alpha + block * w.alone
        step = np.maximum(step, out) if w.per_domain > 1 else out
    result: Floats = steps * (step + block * gamma * (1 - w.hidden))
    return result


def _exchanges(block: Floats, w: Wires, gamma: float = 0.0) -> Floats:
    """One exchange with every other rank, one after the other."""
    inside, outside = w.per_domain - 1, w.ranks - w.per_domain
    near = inside * (w.near.alpha + block * (w.near.beta + gamma))
    return near + outside * (w.far.alpha + block * (w.far.beta + gamma))


def _posted(block: Floats, w: Wires, *, root: bool = False, gamma: float = 0.0) -> Floats:
    """Messages with every other rank, all posted at once: both kinds of links work together."""
    inside, outside = w.per_domain - 1, w.ranks - w.per_domain
    latency = w.far.alpha if outside else w.near.alpha
    beta = w.alone if root else w.far.beta
    moved = np.maximum(inside * block * w.near.beta, outside * block * beta)
    summed = (w.ranks - 1) * block * gamma
    result: Floats = latency + (w.ranks - 2) * w.post + np.maximum(moved, summed)
    return result


def _tree(s: Floats, w: Wires, gamma: float = 0.0, *, fan: int = 1, radix: int = 2) -> Floats:
    """Levels of a tree whose nodes serve `fan` children at once; alone between domains."""
    depth = math.ceil(math.log(w.ranks, radix) - 1e-9)
    near = min(depth, math.ceil(math.log(w.per_domain, radix) - 1e-9))
    far = max(depth - near, 1 if w.domains > 1 else 0)
    inside = near * (w.near.alpha + fan * s * (w.near.beta + gamma))
    return inside + far * (w.far.alpha + fan * s * (w.alone + gamma))


def _chain(s: Floats, w: Wires, gamma: float = 0.0) -> Floats:
    """Hand to hand through all ranks, not cut into segments."""
    near = (w.ranks - w.domains) * (w.near.alpha + s * (w.near.beta + gamma))
    return near + (w.domains - 1) * (w.far.alpha + s * (w.alone + gamma))


def _scatter(s: Floats, w: Wires) -> Floats:
    """Halves down a binomial tree: a root's (n-1)/n of S."""
    near, far = w.rounds
    outside = 1 - 1 / w.domains
    sent = outside * w.alone + (1 - outside) * (1 - 1 / w.per_domain) * w.near.beta
    return near * w.near.alpha + far * w.far.alpha + s * sent


def _gather_doubling(s: Floats, w: Wires) -> Floats:
    """All-gather whose blocks double: the far rounds come last and carry the most."""
    return _shrinking(s, w, far_first=True)


def _gather_ring(s: Floats, w: Wires) -> Floats:
    return _ring(s / w.ranks, w.ranks - 1, w)


def _rabenseifner(s: Floats, w: Wires) -> Floats:
    halving = _shrinking(s, w, far_first=False, gamma=w.gamma)
    return halving + _shrinking(s, w, far_first=False) + _fold(s, w, w.gamma, back=True)


def _halving(s: Floats, w: Wires) -> Floats:
    return _shrinking(s, w, far_first=True, gamma=w.gamma) + _fold(s, w, w.gamma, back=False)


def _ring_all_reduce(s: Floats, w: Wires) -> Floats:
    block = s / w.ranks
    return _ring(block, w.ranks - 1, w, w.gamma) + _ring(block, w.ranks - 1, w)


def _split_binary(s: Floats, w: Wires) -> Floats:
    last: Hop = w.nearest
    return _tree(s / 2, w, fan=2) + last.alpha + s / 2 * last.beta


def _all_reduce(s: Floats, w: Wires) -> Floats:
    return _rounds(s, w, w.gamma) + _fold(s, w, w.gamma, back=True)


def _linear_barrier(s: Floats, w: Wires) -> Floats:
    return 2 * _posted(np.zeros_like(s), w)


ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "recursive_doubling": _all_reduce,
        "ring": _ring_all_reduce,
        "segmented_ring": _ring_all_reduce,
        "rabenseifner": _rabenseifner,
        "nonoverlapping": lambda s, w: _tree(s, w, w.gamma) + _tree(s, w),
    },
    "all_gather": {
        "recursive_doubling": _gather_doubling,
        "bruck": _gather_doubling,
        "ring": _gather_ring,
        "neighbor_exchange": lambda s, w: _ring(2 * s / w.ranks, math.ceil(w.ranks / 2), w),
        "two_proc": lambda s, w: _rounds(s / 2, w),
        "linear": lambda s, w: _posted(s / w.ranks, w),
    },
    "reduce_scatter": {
        "recursive_halving": _halving,
        "butterfly": _halving,
        "ring": lambda s, w: _ring(s / w.ranks, w.ranks - 1, w, w.gamma),
        "pairwise": lambda s, w: _exchanges(s / w.ranks, w, w.gamma),
        "nonoverlapping": lambda s, w: _tree(s, w, w.gamma) + _posted(s / w.ranks, w, root=True),
        "all_reduce_slice": lambda s, w: _ring_all_reduce(s, w) + s / w.ranks * w.gamma,
    },
    "all_to_all": {
        "linear": lambda s, w: _posted(s / w.ranks, w),
        "linear_sync": lambda s, w: _posted(s / w.ranks, w),
        "pairwise": lambda s, w: _exchanges(s / w.ranks, w),
        "modified_bruck": lambda s, w: _rounds(s / 2, w),
        "two_proc": lambda s, w: _rounds(s / 2, w),
    },
    "broadcast": {
        "binomial": _tree,
        "knomial": lambda s, w: _tree(s, w, fan=_RADIX - 1, radix=_RADIX),
        "binary_tree": lambda s, w: _tree(s, w, fan=2),
        "split_binary_tree": _split_binary,
        "linear": lambda s, w: _posted(s, w, root=True),
        "chain": _chain,
        "scatter_allgather": lambda s, w: _scatter(s, w) + _gather_doubling(s, w),
        "scatter_allgather_ring": lambda s, w: _scatter(s, w) + _gather_ring(s, w),
    },
    "reduce": {
        "binomial": lambda s, w: _tree(s, w, w.gamma),
        "binary_tree": lambda s, w: _tree(s, w, w.gamma, fan=2),
        "linear": lambda s, w: _posted(s, w, root=True, gamma=w.gamma),
        "chain": lambda s, w: _chain(s, w, w.gamma),
        "rabenseifner": lambda s, w: _halving(s, w) + _scatter(s, w),
        "ring": lambda s, w: (
            _ring(s / w.ranks, w.ranks - 1, w, w.gamma) + _posted(s / w.ranks, w, root=True)
        ),
    },
    "barrier": {
        "dissemination": lambda s, w: _rounds(np.zeros_like(s), w),
        "recursive_doubling": lambda s, w: _rounds(np.zeros_like(s), w),
        "bruck": lambda s, w: _rounds(np.zeros_like(s), w),
        "tree": lambda s, w: 2 * _rounds(np.zeros_like(s), w),
        "linear": _linear_barrier,
    },
}
"""Seconds of ``(S, wires)``, by collective and algorithm."""


@structs.dataclass(frozen=True, slots=True)
class Hop:
    """One message: ``alpha + beta S``."""

    alpha: float  # [s]
    beta: float  # while every rank of the group sends [s/B]


@structs.dataclass(frozen=True, slots=True)
class Wires:
    """The links of a group."""

    ranks: int  # ranks, per_domain, domains: n, m, d; ranks are numbered domain by domain
    per_domain: int
    domains: int
    # near, far: inside a domain, and between domains; equal in a group that stays inside
    near: Hop
    far: Hop
    alone: float  # of the only rank of its domain that sends out, as in a ring [s/B]
    gamma: float  # summing [s/B]
    hidden: float  # share of the sums of a ring that pass while data arrive
    post: float  # starting one more message while others are under way [s]

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds inside and between domains of a pattern whose distance doubles."""
        near = math.ceil(math.log2(self.per_domain))
        total = math.ceil(math.log2(self.ranks))
        return near, max(total - near, 1 if self.domains > 1 else 0)

    @property
    def nearest(self) -> Hop:
        """To the neighbouring rank."""
        return self.near if self.per_domain > 1 else self.far


def wires_of(
    cluster: Cluster, group: GroupShape, constants: ConstantGroup, ledger: Ledger
) -> Wires:
    """The links of `group` as the library with these constants uses them."""
    use = {leaf: ledger.use(constants, leaf) for leaf in constants}
    link, nic = cluster.node.scale_up, cluster.node.nic
    members = max(2, group.per_domain)
    rate = min(use["near_bandwidth"], group_bandwidth(cluster, members) * link.efficiency)
    pair_rate = min(use["near_bandwidth"], pair_bandwidth(cluster) * link.efficiency)
    near = Hop(use["near_latency"] + link.hop_latency, 1 / rate)
    far, alone = near, 1 / pair_rate
    if group.crosses:
        span = nodes_spanned(cluster, group.domains)
        raw = slowed_nic_bandwidth(cluster, group.ring_slowdown, span)
        share = raw * min(nic.efficiency, use["far_fraction"])
        port = nic.bandwidth * min(nic.efficiency, use["far_fraction"])
        flow = use["flow_bandwidth"]
        far = Hop(use["far_latency"] + cluster.network_latency(span), 1 / min(share, flow))
        alone = 1 / min(share * group.per_domain, max(port, share), flow)
    gamma = 1 / use["sum_bandwidth"]
    return Wires(
        group.ranks,
        group.per_domain,
        group.domains,
        near,
        far,
        alone,
        gamma,
        use["sum_hidden"],
        use["post"],
    )
