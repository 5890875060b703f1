"""Checks of machine and software: degrees fit the cluster, differing parts are there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.scenario.checks.common import mistake, multiples
from mpsim.scenario.sections import Variation, factors
from mpsim.shipped import read_shipped

if TYPE_CHECKING:
    from mpsim.scenario.written import Written


def check_world(scenario: Written) -> Iterator[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    each, product = p.replica_ranks, factors(p.dividing)
    world, per_node = cluster.accelerators, cluster.node.accelerators
    have = f"the cluster has {cluster.nodes} nodes x {per_node} = {world} accelerators"
    figures = {"product": product, "have": have}
    if p.dp is None and world % each:
        whole = multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        # the largest degree, the pipeline's among equals
        blamed = max(p.dividing, key=lambda axis: (p.dividing[axis], axis == "pp"))
        yield mistake("world", scenario, blamed=blamed, each=each, nodes=nodes, **figures)
    if p.dp is None or (need := each * p.dp) == world:
        return
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    yield mistake("replicas", scenario, need=need, mend=mend, **figures)


def check_parts(scenario: Written) -> Iterator[Problem]:
    """Parts of a mixed cluster cover every pipeline rank or every replica, once."""
    choice = scenario.cluster
    if choice.stages is not None and choice.replicas is not None:
        yield mistake("mixed_twice", scenario)
        return
    needs = (("stages", "pp", scenario.parallelism.pp), ("replicas", "dp", scenario.dp))
    for key, axis, degree in needs:
        parts = getattr(choice, key)
        covered = sum(part.count for part in parts or ())
        if parts is not None and covered != degree:
            yield mistake("parts", scenario, part=key, covered=covered, axis=axis, degree=degree)


def check_attention(scenario: Written) -> Iterator[Problem]:
    """Times of a narrow attention kernel are known on every accelerator, or were measured there."""
    stack, table = scenario.software, read_shipped("mpsim.framework.data", "attention.yaml")
    known = (
        table["timed"].get(stack.kernels.attention_kernel) if stack.lowering.fused_attention else ()
    )
    for chip in dict.fromkeys(cluster.accelerator for cluster in scenario.clusters if known):
        if chip.family not in known and not chip.calibration:
            yield mistake("attention_kernel", scenario, chip=chip, known=", ".join(known))


def check_replica_batches(scenario: Written) -> Iterator[Problem]:
    """An uneven batch has whole microbatches on every replica and is all of the global batch."""
    training = scenario.training_step
    batches, micro = training.batch_per_replica, training.micro_batch
    if batches is None:
        return
    if len(batches) != scenario.dp:
        yield mistake("batches", scenario, count=len(batches))
    if (total := sum(batches)) != training.global_batch:
        yield mistake("batch_sum", scenario, total=total)
    for number, batch in enumerate(batches):
        if batch % micro:
            mend = max(1, batch // micro) * micro
            yield mistake("replica_batch", scenario, number=number, batch=batch, mend=mend)


def check_mixture(scenario: Written) -> Iterator[Problem]:
    """A mixed cluster asks for nothing that cannot be simulated on it."""
    if not scenario.is_mixed:
        return
    if scenario.parallelism.offload != "none":
        yield mistake("mixed_offload", scenario)
    if scenario.has_uneven_replicas and scenario.parallelism.ep > 1:
        yield mistake("mixed_experts", scenario)
    if scenario.has_uneven_replicas and scenario.simulation.network == "flow":
        yield mistake("mixed_flow", scenario)


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
        yield mistake("varied_experts", scenario)
    if scenario.has_uneven_replicas:
        yield mistake("varied_replicas", scenario)


def check_outages(scenario: Written) -> Iterator[Problem]:
    """Refuse outages in training, which has checkpoints to go back to."""
    if scenario.variation is not None and scenario.variation.outages:
        yield mistake("outages", scenario)
