"""Checks of data parallelism: what its ranks share, and what the host keeps for them."""

from __future__ import annotations

from typing import Final

from mpsim.errors import Problem
from mpsim.scenario.described import Described
from mpsim.scenario.sections import REPLICATING, factors

__all__ = ["check_offload", "check_shard", "check_steps_in_backward", "check_zero"]

_SHARED: Final = ("nothing", "the optimizer's state", "gradients", "parameters")


def check_zero(scenario: Described) -> list[Problem]:
    """The framework shards as much as is asked of it, with as many pipeline stages."""
    zero, pp = scenario.parallelism.zero, scenario.parallelism.pp
    software = scenario.software
    limit, piped = software.data.zero_limit, software.data.pipeline_zero_limit
    key = "parallelism.zero"
    if zero > limit:
        message = (
            f"got {zero}, but {software.name} does not shard {_SHARED[zero]}; set zero to at most {limit}, or take a "
            "framework that does (see 'mpsim show frameworks')"
        )
        return [Problem(message, key=key)]
    if pp > 1 and zero > piped:
        message = (
            f"got {zero} with pp {pp}, but {software.name} does not shard {_SHARED[zero]} in a pipeline, where every "
            f"microbatch would move them; set zero to at most {piped}, or pp to 1"
        )
        return [Problem(message, key=key)]
    return []


def check_shard(scenario: Described) -> list[Problem]:
    """Groups of sharers divide the replicas, and have something to share."""
    p = scenario.parallelism
    if p.shard is None or scenario.dp < 1:
        return []
    shard, replicas, key = p.shard, scenario.replicas, "parallelism.shard"
    if p.zero == 0:
        message = (
            f"got {p.shard}, but zero 0 shares nothing; set zero to 1, 2 or 3, or leave shard out"
        )
        return [Problem(message, key=key)]
    if replicas % p.shard:
        divisors = [n for n in range(1, replicas + 1) if replicas % n == 0]
        product = factors({axis: scenario.degrees[axis] for axis in REPLICATING})
        near = sorted(sorted(divisors, key=lambda n: abs(n - shard))[:2])
        message = (
            f"got {p.shard}, which does not divide {product} = {replicas}; set it to "
            f"{' or '.join(map(str, near))}"
        )
        return [Problem(message, key=key)]
    return []


def check_offload(scenario: Described) -> list[Problem]:
    """The host keeps what is sharded, where it can."""
    p = scenario.parallelism
    if p.offload == "none":
        if p.offload_to == "host":
            return []
        message = (
            f"got {p.offload_to}, but nothing is offloaded; set offload to optimizer or parameters"
        )
        return [Problem(message, key="parallelism.offload_to")]
    needed = 3 if p.offload == "parameters" else 1
    problems = []
    if p.zero < needed:
        message = (
            f"got {p.offload} with zero {p.zero}; the host keeps a rank's share, so {p.offload} "
            f"needs zero {needed}{' or more' if needed == 1 else ''}; set zero to {needed}, or offload to "
            f"{'none' if p.zero == 0 else 'optimizer'}"
        )
        problems.append(Problem(message, key="parallelism.offload"))
    if p.offload_to == "nvme" and p.zero < 3:
        message = f"got nvme with zero {p.zero}; states on drives need zero 3; set zero to 3, or offload_to to host"
        problems.append(Problem(message, key="parallelism.offload_to"))
    return problems


def check_steps_in_backward(scenario: Described) -> list[Problem]:
    """An optimizer that steps inside the backward frees gradients that nothing adds to afterwards."""
    if not scenario.software.memory.steps_in_backward:
        return []
    if scenario.microbatches <= 1 and scenario.parallelism.pp == 1:
        return []
    message = (
        f"got true with {scenario.microbatches} microbatches and pp {scenario.parallelism.pp}; gradients of several microbatches are added up before the optimizer: "
        "set training.micro_batch so that there is one microbatch a step on one stage, or steps_in_backward to false"
    )
    return [Problem(message, key="framework.steps_in_backward")]
