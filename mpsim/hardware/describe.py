"""A cluster in five lines, every figure with its unit."""

from __future__ import annotations

from mpsim.hardware.cluster import Cluster
from mpsim.hardware.fabric import FabricKind
from mpsim.units import Dimension, format_quantity

__all__ = ["describe_cluster"]


def describe_cluster(cluster: Cluster) -> str:
    """Say what `cluster` is: its size, accelerator, scale-up domain, NICs and fabric.

    Parameters
    ----------
    cluster : Cluster

    Returns
    -------
    str
        Five lines.
    """
    node = cluster.node
    nodes = _count(cluster.nodes, "node")
    return "\n".join(
        [
            f"{cluster.name}: {nodes} of {node.accelerators} = {_count(cluster.accelerators, 'accelerator')}",
            f"  accelerator  {cluster.accelerator}",
            f"  scale-up     {node.scale_up}, {_count(cluster.domains, 'domain')} of {cluster.domain_size}",
            f"  NICs         {_nics(cluster)}",
            f"  fabric       {_fabric(cluster)}",
        ]
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _nics(cluster: Cluster) -> str:
    node = cluster.node
    if node.nics == 0:
        return "none: the scale-up link is the only network"
    share = format_quantity(node.nic_bandwidth_per_accelerator, Dimension.BANDWIDTH)
    return f"{node.nics} a node, {node.nic}; {share} per accelerator"


def _fabric(cluster: Cluster) -> str:
    fabric = cluster.fabric
    text = f"{fabric.kind}, {fabric.oversubscription:g}:1 oversubscribed"
    if fabric.kind is FabricKind.TORUS:
        return f"{text}, {'x'.join(map(str, fabric.lengths(cluster.nodes)))} nodes"
    tiers = ", ".join(f"{tier.switches} {tier.name}" for tier in cluster.tiers if tier.switches)
    return f"{text}, switches: {tiers or 'none'}"
