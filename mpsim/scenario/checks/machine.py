"""Checks of machine and software: degrees fit the cluster, differing parts are there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.scenario.checks.common import multiples
from mpsim.scenario.sections import Variation, factors

if TYPE_CHECKING:
    from mpsim.scenario.written import Written


def check_world(scenario: Written) -> Iterator[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    each, product = p.replica_ranks, factors(p.dividing)
    world, per_node = cluster.accelerators, cluster.node.accelerators
    have = f"the cluster has {cluster.nodes} nodes x {per_node} = {world} accelerators"
    if p.dp is None and world % each:
        whole = multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        message = f"{product} = {each}, but {have}, not a multiple; set cluster.nodes to {nodes}"
        # the largest degree, the pipeline's among equals
        blamed = max(p.dividing, key=lambda axis: (p.dividing[axis], axis == "pp"))
        yield Problem(f"{message}, or change a degree", f"parallelism.{blamed}")
    if p.dp is None or (need := each * p.dp) == world:
        return
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    yield Problem(f"{product} x dp {p.dp} = {need}, but {have}; {mend}", "parallelism.dp")


def check_parts(scenario: Written) -> Iterator[Problem]:
    """Parts of a mixed cluster cover every pipeline rank or every replica, once."""
    choice = scenario.cluster
    if choice.stages is not None and choice.replicas is not None:
        message = "got stages and replicas; needed one, along which the cluster is mixed"
        yield Problem(message, "cluster.replicas")
        return
    needs = (("stages", "pp", scenario.parallelism.pp), ("replicas", "dp", scenario.dp))
    for key, axis, degree in needs:
        parts = getattr(choice, key)
        covered = sum(part.count for part in parts or ())
        if parts is not None and covered != degree:
            message = f"counts sum to {covered}, but {axis} is {degree}; change a count, or {axis}"
            yield Problem(message, f"cluster.{key}")


def check_replica_batches(scenario: Written) -> Iterator[Problem]:
    """An uneven batch has whole microbatches on every replica and is all of the global batch."""
    training, dp = scenario.training_step, scenario.dp
    batches, key = training.batch_per_replica, "training.batch_per_replica"
    if batches is None:
        return
    if len(batches) != dp:
        yield Problem(f"got {len(batches)} batches for dp {dp}; needed one a replica", key)
    if (total := sum(batches)) != training.global_batch:
        message = f"sums to {total}, but global_batch is {training.global_batch}; make them equal"
        yield Problem(message, key)
    micro = training.micro_batch
    for number, batch in enumerate(batches):
        if batch % micro:
            mend = max(1, batch // micro) * micro
            message = f"got {batch}, not a multiple of micro_batch {micro}; set it to {mend}"
            yield Problem(message, f"{key}.{number}")


def check_mixture(scenario: Written) -> Iterator[Problem]:
    """A mixed cluster asks for nothing that cannot be simulated on it."""
    if not scenario.is_mixed:
        return
    p = scenario.parallelism
    if p.offload != "none":
        message = f"got {p.offload} on mixed nodes, whose hosts may differ; set offload to none"
        yield Problem(message, "parallelism.offload")
    if scenario.has_uneven_replicas and p.ep > 1:
        message = (
            f"got {p.ep}, but replicas that differ cannot share experts: their layers would wait"
            " for each other; set ep to 1, or mix the cluster by stages"
        )
        yield Problem(message, "parallelism.ep")
    if scenario.has_uneven_replicas and scenario.simulation.network == "flow":
        message = (
            "got flow, but replicas differ, and what they share is not counted; set network to"
            " analytic"
        )
        yield Problem(message, "simulation.network")


def absent_parts(variation: Variation, nodes: int, accelerators: int) -> list[Problem]:
    """Nodes and ranks (accelerators) that a variation names and the cluster does not have."""
    named = [
        *((f"slow.{i}", part.node) for i, part in enumerate(variation.slow)),
        *((f"links.{i}", link.node) for i, link in enumerate(variation.links)),
        *((f"outages.{i}", outage.node) for i, outage in enumerate(variation.outages)),
    ]
    asked = [(f"{key}.node", "node", node, nodes) for key, node in named if node is not None]
    asked += [
        (f"slow.{i}.ranks", "rank", max(part.ranks), accelerators)
        for i, part in enumerate(variation.slow)
        if part.ranks
    ]
    return [
        Problem(
            f"got {kind} {index}, but the cluster has {count}; needed 0 to {count - 1}",
            f"variation.{key}",
        )
        for key, kind, index, count in asked
        if index >= count
    ]


def check_variation(scenario: Written) -> Iterator[Problem]:
    """A training step has what it varies."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return
    yield from absent_parts(variation, cluster.nodes, cluster.accelerators)
    if variation.experts and scenario.transformer.moe is None:
        message = (
            f"got {variation.experts:g}, but the model is dense and has no experts whose load could"
            " vary; leave it out"
        )
        yield Problem(message, "variation.experts")
    if scenario.has_uneven_replicas:
        message = (
            "got a variation where data-parallel replicas differ already; it is drawn for replicas"
            " that are alike: leave it out, or give all replicas the same nodes and batch"
        )
        yield Problem(message, "variation")


def check_outages(scenario: Written) -> Iterator[Problem]:
    """Refuse outages in training, which has checkpoints to go back to."""
    if scenario.variation is not None and scenario.variation.outages:
        message = "got outages, which services have; leave them out, and see 'mpsim goodput'"
        yield Problem(message, "variation.outages")
