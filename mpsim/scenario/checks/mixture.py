"""Checks of mixed clusters and of batches that replicas share unevenly."""

from __future__ import annotations

from mpsim.errors import Problem
from mpsim.scenario.described import Described

__all__ = ["check_mixture", "check_parts", "check_replica_batches"]


def check_parts(scenario: Described) -> list[Problem]:
    """Parts of a mixed cluster cover every pipeline rank or every replica, once."""
    choice = scenario.cluster
    if choice.stages is not None and choice.replicas is not None:
        message = "got stages and replicas; needed one: a cluster is mixed along the pipeline or across replicas"
        return [Problem(message, key="cluster.replicas")]
    needs = (("stages", "pp", scenario.parallelism.pp), ("replicas", "dp", scenario.dp))
    problems = []
    for key, axis, degree in needs:
        parts = getattr(choice, key)
        covered = sum(part.count for part in parts or ())
        if parts is not None and covered != degree:
            message = f"counts sum to {covered}, but {axis} is {degree}; change a count, or {axis}"
            problems.append(Problem(message, key=f"cluster.{key}"))
    return problems


def check_replica_batches(scenario: Described) -> list[Problem]:
    """An uneven batch has whole microbatches on every replica and is all of the global batch."""
    training, dp = scenario.training_step, scenario.dp
    batches, key = training.batch_per_replica, "training.batch_per_replica"
    if batches is None:
        return []
    problems = []
    if len(batches) != dp:
        message = f"got {len(batches)} batches for dp {dp}; needed one a replica"
        problems.append(Problem(message, key=key))
    if sum(batches) != training.global_batch:
        message = (
            f"sums to {sum(batches)}, but global_batch is {training.global_batch}; make them equal"
        )
        problems.append(Problem(message, key=key))
    micro = training.micro_batch
    problems += [
        Problem(
            f"got {batch}, not a multiple of micro_batch {micro}; set it to {max(1, batch // micro) * micro}",
            key=f"{key}.{number}",
        )
        for number, batch in enumerate(batches)
        if batch % micro
    ]
    return problems


def check_mixture(scenario: Described) -> list[Problem]:
    """A mixed cluster asks for nothing that cannot be simulated on it."""
    if not scenario.is_mixed:
        return []
    p, simulation = scenario.parallelism, scenario.simulation
    faults = []
    if p.offload != "none":
        message = f"got {p.offload} on mixed nodes, whose hosts may differ; set offload to none"
        faults.append(Problem(message, key="parallelism.offload"))
    if not scenario.has_uneven_replicas:
        return faults
    if p.ep > 1:
        message = (
            f"got {p.ep}, but replicas that differ cannot share experts: their layers would wait for each other; "
            "set ep to 1, or mix the cluster by stages"
        )
        faults.append(Problem(message, key="parallelism.ep"))
    if simulation.network == "flow":
        message = "got flow, but replicas differ, and what they share is not counted; set network to analytic"
        faults.append(Problem(message, key="simulation.network"))
    return faults
