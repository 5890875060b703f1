"""Checks of data parallelism: what its ranks share, and what the host keeps for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem
from mpsim.scenario.checks.near import nearest_two
from mpsim.scenario.sections import REPLICATING, factors

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_SHARED: Final = ("nothing", "the optimizer's state", "gradients", "parameters")


def check_zero(scenario: Written) -> Iterator[Problem]:
    """The framework shards as much as is asked of it, with as many pipeline stages."""
    zero, pp = scenario.parallelism.zero, scenario.parallelism.pp
    software = scenario.software
    limit, piped = software.data.zero_limit, software.data.pipeline_zero_limit
    if zero > limit:
        message = (
            f"got {zero}, but {software.name} does not shard {_SHARED[zero]}; set zero to at most {limit}, or take a "
            "framework that does (see 'mpsim show frameworks')"
        )
        yield Problem(message, "parallelism.zero")
    elif pp > 1 and zero > piped:
        message = (
            f"got {zero} with pp {pp}, but {software.name} does not shard {_SHARED[zero]} in a pipeline, where every "
            f"microbatch would move them; set zero to at most {piped}, or pp to 1"
        )
        yield Problem(message, "parallelism.zero")


def check_shard(scenario: Written) -> Iterator[Problem]:
    """Groups of sharers divide the replicas, and have something to share."""
    shard, replicas = scenario.parallelism.shard, scenario.replicas
    if shard is None or scenario.dp < 1:
        return
    if scenario.parallelism.zero == 0:
        message = (
            f"got {shard}, but zero 0 shares nothing; set zero to 1, 2 or 3, or leave shard out"
        )
        yield Problem(message, "parallelism.shard")
    elif replicas % shard:
        product = factors({axis: scenario.degrees[axis] for axis in REPLICATING})
        near = nearest_two((n for n in range(1, replicas + 1) if replicas % n == 0), shard)
        message = f"got {shard}, which does not divide {product} = {replicas}; set it to {near}"
        yield Problem(message, "parallelism.shard")


def check_offload(scenario: Written) -> Iterator[Problem]:
    """The host keeps what is sharded, where it can."""
    p = scenario.parallelism
    if p.offload == "none":
        if p.offload_to != "host":
            message = f"got {p.offload_to}, but nothing is offloaded; set offload to optimizer or parameters"
            yield Problem(message, "parallelism.offload_to")
        return
    needed = 3 if p.offload == "parameters" else 1
    if p.zero < needed:
        message = (
            f"got {p.offload} with zero {p.zero}; the host keeps a rank's share, so {p.offload} "
            f"needs zero {needed}{' or more' if needed == 1 else ''}; set zero to {needed}, or offload to "
            f"{'none' if p.zero == 0 else 'optimizer'}"
        )
        yield Problem(message, "parallelism.offload")
    if p.offload_to == "nvme" and p.zero < 3:
        message = f"got nvme with zero {p.zero}; states on drives need zero 3; set zero to 3, or offload_to to host"
        yield Problem(message, "parallelism.offload_to")


def check_steps_in_backward(scenario: Written) -> Iterator[Problem]:
    """An optimizer that steps inside the backward frees gradients that nothing adds to afterwards."""
    if not scenario.software.memory.steps_in_backward:
        return
    microbatches, pp = scenario.microbatches, scenario.parallelism.pp
    if microbatches > 1 or pp > 1:
        message = (
            f"got true with {microbatches} microbatches and pp {pp}; gradients of several microbatches are added up before the optimizer: "
            "set training.micro_batch so that there is one microbatch a step on one stage, or steps_in_backward to false"
        )
        yield Problem(message, "framework.steps_in_backward")
