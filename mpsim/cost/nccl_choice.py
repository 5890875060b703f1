"""A cluster and a group shape as NCCL's tuner sees them, and what it would pick there."""

from __future__ import annotations

from mpsim.cost.nccl import ARCHITECTURES, NcclGroup, candidates, choose, runtime_channels
from mpsim.cost.network import nic_bandwidth, nodes_spanned
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.parallel.group import GroupShape

__all__ = ["chosen", "latency_growth", "nccl_group"]

_STANDS_FOR = {"ada": "ampere"}  # PCIe boards, where only the host's caps differ
_UNTUNED = ("all_to_all", "send_recv")


def nccl_group(cluster: Cluster, group: GroupShape) -> NcclGroup | None:
    """The group for NCCL's tuner; None where the chips are not NVIDIA's."""
    link, family = cluster.node.scale_up, cluster.accelerator.family
    architecture = _STANDS_FOR.get(family, family)
    if architecture not in ARCHITECTURES:
        return None
    wired = link.shape is not LinkShape.HOST
    span = nodes_spanned(cluster, group.domains)
    return NcclGroup(
        architecture,
        group.ranks,
        group.domains,
        link.links if wired else 0,
        nic_bandwidth=nic_bandwidth(cluster, span) if group.crosses else 0.0,
        pcie_bandwidth=0.0 if wired else link.bandwidth * link.efficiency,
        switches_sum=link.in_network_reduction,
    )


def chosen(cluster: Cluster, kind: str, size: float, group: GroupShape) -> tuple[str, str]:
    """Algorithm and protocol, or the shape of the links where the library is not NCCL."""
    if group.ranks <= 1:
        return "none", "none"
    nccl = nccl_group(cluster, group)
    if nccl is None:
        return f"{cluster.node.scale_up.shape.value} rings", "none"
    if kind in _UNTUNED:
        small = size <= nccl.table("rules").value("send_ll") * runtime_channels(nccl)
        return "P2P", "LL" if small else "Simple"
    tuned, moved = ("all_reduce", 0.0) if kind == "barrier" else (kind, size)
    best = choose(tuned, moved, nccl)
    return best.algorithm, best.protocol


def latency_growth(
    cluster: Cluster, kind: str, members: int, measured: int, *, simple: bool
) -> float | None:
    """How many times longer NCCL expects the fixed time of a collective in a domain to be than in the largest group measured.

    Parameters
    ----------
    kind : str
        A collective that NCCL tunes.
    members, measured : int
        Ranks of the group, and of the largest one that was measured.
    simple : bool
        Whether only the Simple protocol counts.

    Returns
    -------
    float or None
        1 or more; None where NCCL has no say.
    """
    if kind in _UNTUNED:
        return None
    least = []
    for ranks in (measured, members):
        nccl = nccl_group(cluster, GroupShape(ranks, ranks, 1))
        if nccl is None:
            return None
        choices = candidates(kind, nccl)
        least.append(min(c.latency for c in choices if c.protocol == "Simple" or not simple))
    return max(1.0, least[1] / least[0])
