"""Checks across sections: one function for each mistake, usable alone, run together by `check`.

Each takes a scenario whose sections are well-formed and returns the problems it finds, keyed so that
`Scenario.locate` can say on which line they were written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpsim.errors import MpsimError, Problem
from mpsim.scenario.checks.data import (
    check_offload,
    check_shard,
    check_steps_in_backward,
    check_zero,
)
from mpsim.scenario.checks.experts import (
    check_expert_overlap,
    check_expert_ranks,
    check_expert_tokens,
    check_experts,
)
from mpsim.scenario.checks.layer import (
    check_context,
    check_context_exchange,
    check_heads,
    check_mlp,
    check_sequence,
    check_tensor_overlap,
)
from mpsim.scenario.checks.mesh import check_world
from mpsim.scenario.checks.mixture import check_mixture, check_parts, check_replica_batches
from mpsim.scenario.checks.presets import check_cluster, check_framework, check_model
from mpsim.scenario.checks.recompute import (
    check_recompute,
    check_recompute_layers,
    check_recompute_modules,
)
from mpsim.scenario.checks.schedule import (
    check_schedule_file,
    check_size,
    check_stages,
    check_virtual_stages,
)
from mpsim.scenario.checks.serving import (
    check_instances,
    check_job,
    check_pools,
    check_service_experts,
    check_service_heads,
    check_service_precision,
    check_service_variation,
    check_training_keys,
)
from mpsim.scenario.checks.simulation import check_network
from mpsim.scenario.checks.stacks import check_stacks
from mpsim.scenario.checks.training import check_batch, check_precision
from mpsim.scenario.checks.variants import check_overrides, check_sweep, wrong_values
from mpsim.scenario.checks.variation import absent_parts, check_outages, check_variation
from mpsim.scenario.described import Described

__all__ = [
    "CHECKS",
    "absent_parts",
    "check",
    "check_batch",
    "check_cluster",
    "check_context",
    "check_context_exchange",
    "check_expert_overlap",
    "check_expert_ranks",
    "check_expert_tokens",
    "check_experts",
    "check_framework",
    "check_heads",
    "check_mixture",
    "check_mlp",
    "check_model",
    "check_network",
    "check_offload",
    "check_outages",
    "check_overrides",
    "check_parts",
    "check_precision",
    "check_recompute",
    "check_recompute_layers",
    "check_recompute_modules",
    "check_replica_batches",
    "check_schedule_file",
    "check_sequence",
    "check_shard",
    "check_size",
    "check_stacks",
    "check_stages",
    "check_steps_in_backward",
    "check_sweep",
    "check_tensor_overlap",
    "check_variation",
    "check_virtual_stages",
    "check_world",
    "check_zero",
    "wrong_values",
]

CHECKS: Final[tuple[Callable[[Described], list[Problem]], ...]] = (
    check_model,
    check_cluster,
    check_framework,
    check_world,
    check_parts,
    check_batch,
    check_replica_batches,
    check_precision,
    check_mixture,
    check_virtual_stages,
    check_schedule_file,
    check_stages,
    check_stacks,
    check_heads,
    check_mlp,
    check_context,
    check_context_exchange,
    check_sequence,
    check_tensor_overlap,
    check_experts,
    check_expert_ranks,
    check_expert_tokens,
    check_expert_overlap,
    check_recompute,
    check_recompute_layers,
    check_recompute_modules,
    check_zero,
    check_shard,
    check_offload,
    check_steps_in_backward,
    check_network,
    check_size,
    check_variation,
    check_outages,
    check_sweep,
    check_overrides,
)


SERVING_CHECKS: Final[tuple[Callable[[Described], list[Problem]], ...]] = (
    check_job,
    check_model,
    check_cluster,
    check_training_keys,
    check_pools,
    check_instances,
    check_service_heads,
    check_service_experts,
    check_service_precision,
    check_service_variation,
    check_sweep,
    check_overrides,
)
"""Those of a scenario that serves."""


def check(scenario: Described) -> list[Problem]:
    """Run every check.

    Returns
    -------
    list of Problem
        All that were found, with their places; empty for a scenario that can be simulated as far as
        it can be said without planning it.
    """
    problems: list[Problem] = []
    for rule in SERVING_CHECKS if scenario.serving is not None else CHECKS:
        try:
            problems += rule(scenario)
        except MpsimError:  # a preset that check_model, check_cluster or check_framework reports
            continue
    return scenario.locate(problems)
