"""Checks of what differs from rank to rank: it is there, and the job has what is varied of it."""

from __future__ import annotations

from mpsim.errors import Problem
from mpsim.scenario.described import Described
from mpsim.scenario.variation import Variation

__all__ = ["absent_parts", "check_outages", "check_variation"]


def absent_parts(variation: Variation, nodes: int, accelerators: int) -> list[Problem]:
    """Nodes and ranks that a variation names and the cluster does not have.

    Parameters
    ----------
    variation : Variation
    nodes, accelerators : int
        Of the cluster; every accelerator is a rank.
    """
    named = [
        *((f"slow.{i}", part.node) for i, part in enumerate(variation.slow)),
        *((f"links.{i}", link.node) for i, link in enumerate(variation.links)),
        *((f"outages.{i}", outage.node) for i, outage in enumerate(variation.outages)),
    ]
    problems = [
        Problem(
            f"got node {node}, but the cluster has {nodes}; needed 0 to {nodes - 1}",
            key=f"variation.{key}.node",
        )
        for key, node in named
        if node is not None and node >= nodes
    ]
    problems += [
        Problem(
            f"got rank {max(part.ranks)}, but the cluster has {accelerators}; needed 0 to {accelerators - 1}",
            key=f"variation.slow.{i}.ranks",
        )
        for i, part in enumerate(variation.slow)
        if part.ranks and max(part.ranks) >= accelerators
    ]
    return problems


def check_variation(scenario: Described) -> list[Problem]:
    """A training step has what it varies."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return []
    problems = absent_parts(variation, cluster.nodes, cluster.accelerators)
    if variation.experts and scenario.transformer.moe is None:
        message = f"got {variation.experts:g}, but the model is dense and has no experts whose load could vary; leave it out"
        problems.append(Problem(message, key="variation.experts"))
    if scenario.has_uneven_replicas:
        message = "got a variation where data-parallel replicas differ already; it is drawn for replicas that are alike: leave it out, or give all replicas the same nodes and batch"
        problems.append(Problem(message, key="variation"))
    return problems


def check_outages(scenario: Described) -> list[Problem]:
    """Refuse outages in training, which has checkpoints to go back to."""
    variation = scenario.variation
    if variation is None or not variation.outages:
        return []
    return [
        Problem(
            "got outages, which services have; leave them out, and see 'mpsim goodput' for failures in training",
            key="variation.outages",
        )
    ]
