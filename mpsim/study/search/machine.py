"""Price and power of a cluster."""

from __future__ import annotations

from mpsim.hardware import Cluster

__all__ = ["nameplate_power", "price_per_hour"]


def price_per_hour(cluster: Cluster) -> float | None:
    """Price of all accelerators [USD/h]; None where the catalog has none."""
    each = cluster.accelerator.price_per_hour
    return None if each is None else each * cluster.accelerators


def nameplate_power(cluster: Cluster) -> float:
    """Most that the nodes take: their own figure, or else that of their accelerators alone [W]."""
    node = cluster.node
    return cluster.nodes * (node.power_w or node.accelerators * cluster.accelerator.tdp_w)
