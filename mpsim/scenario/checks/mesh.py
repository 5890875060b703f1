"""Checks of the degrees against the cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.scenario.checks.near import multiples

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_world"]


def check_world(scenario: Scenario) -> list[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    world = cluster.accelerators
    each = p.tp * p.pp * p.cp
    have = f"the cluster has {cluster.nodes} nodes x {cluster.node.accelerators} = {world} accelerators"
    factors = f"tp {p.tp} x pp {p.pp} x cp {p.cp}"
    per_node = cluster.node.accelerators
    if p.dp is None:
        if world % each == 0:
            return []
        whole = multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        message = f"{factors} = {each}, but {have}, not a multiple; set cluster.nodes to {nodes}"
        return [Problem(f"{message}, or change a degree", key=_blamed(p.tp, p.pp, p.cp))]
    need = each * p.dp
    if need == world:
        return []
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    return [Problem(f"{factors} x dp {p.dp} = {need}, but {have}; {mend}", key="parallelism.dp")]


def _blamed(tp: int, pp: int, cp: int) -> str:
    degrees: Mapping[str, int] = {"pp": pp, "tp": tp, "cp": cp}
    return f"parallelism.{max(degrees, key=lambda axis: degrees[axis])}"
