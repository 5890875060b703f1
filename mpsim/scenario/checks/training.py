"""Checks of batches and precision."""

from __future__ import annotations

from mpsim.errors import HardwareError, Problem
from mpsim.scenario.checks.near import multiples
from mpsim.scenario.described import Described

__all__ = ["check_batch", "check_precision"]


def check_batch(scenario: Described) -> list[Problem]:
    """The global batch is a whole number of microbatches on every replica."""
    batch, dp = scenario.training_step.global_batch, scenario.dp
    micro, p = scenario.training_step.micro_batch, scenario.parallelism
    if dp < 1 or batch % (dp * micro) == 0 or scenario.training_step.batch_per_replica is not None:
        return []
    if p.dp is None and scenario.world_size % p.replica_ranks:
        return []  # how many replicas there are is not known yet
    near = " or ".join(map(str, multiples(batch, dp * micro)))
    message = f"got {batch}, not a multiple of dp {dp} x micro_batch {micro} = {dp * micro}; set it to {near}"
    return [Problem(message, key="training.global_batch")]


def check_precision(scenario: Described) -> list[Problem]:
    """Every accelerator computes in the precision of the training."""
    try:
        for cluster in scenario.clusters:
            cluster.accelerator.peak(scenario.training_step.precision)
    except HardwareError as error:
        return [Problem(str(error), key="training.precision")]
    return []
