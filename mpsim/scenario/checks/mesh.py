"""Checks of the degrees against the cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsim.errors import Problem
from mpsim.scenario.checks.near import multiples
from mpsim.scenario.described import Described
from mpsim.scenario.sections import factors

__all__ = ["check_world"]


def check_world(scenario: Described) -> list[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    world = cluster.accelerators
    each, product = p.replica_ranks, factors(p.dividing)
    have = f"the cluster has {cluster.nodes} nodes x {cluster.node.accelerators} = {world} accelerators"
    per_node = cluster.node.accelerators
    if p.dp is None:
        if world % each == 0:
            return []
        whole = multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        message = f"{product} = {each}, but {have}, not a multiple; set cluster.nodes to {nodes}"
        return [Problem(f"{message}, or change a degree", key=_blamed(p.dividing))]
    need = each * p.dp
    if need == world:
        return []
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    return [Problem(f"{product} x dp {p.dp} = {need}, but {have}; {mend}", key="parallelism.dp")]


def _blamed(degrees: Mapping[str, int]) -> str:
    """Key of the largest degree; of the pipeline's among equals."""
    largest = max(degrees, key=lambda axis: (degrees[axis], axis == "pp"))
    return f"parallelism.{largest}"
