"""Links of a rank of a group as a library that talks through the host uses them."""

from __future__ import annotations

import dataclasses
import math

from mpsim.cost.constants import ConstantGroup, Ledger
from mpsim.cost.network import (
    group_bandwidth,
    nodes_spanned,
    pair_bandwidth,
    slowed_nic_bandwidth,
)
from mpsim.hardware.cluster import Cluster
from mpsim.parallel.crossing import GroupShape

__all__ = ["Hop", "Wires", "wires_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Hop:
    """One message: ``alpha + beta S``.

    Parameters
    ----------
    alpha : float
        [s].
    beta : float
        While every rank of the group sends [s/B].
    """

    alpha: float
    beta: float


@dataclasses.dataclass(frozen=True, slots=True)
class Wires:
    """The links of a group.

    Parameters
    ----------
    ranks, per_domain, domains : int
        n, m, d; ranks are numbered domain by domain.
    near, far : Hop
        Inside a domain, and between domains; `far` equals `near` in a group that stays inside.
    alone : float
        Of the only rank of its domain that sends out, as in a ring [s/B].
    gamma : float
        Summing [s/B].
    hidden : float
        Share of the sums of a ring that pass while data arrive.
    post : float
        Starting one more message while others are under way [s].
    """

    ranks: int
    per_domain: int
    domains: int
    near: Hop
    far: Hop
    alone: float
    gamma: float
    hidden: float
    post: float

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
        far = Hop(
            use["far_latency"] + cluster.network_latency(span),
            1 / min(share, flow),
        )
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
