"""Checks across sections: one function for each mistake, run together by `check`.

Each takes a scenario whose sections are well-formed and gives the problems it finds, keyed so that
`Scenario.locate` can say on which line they were written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from mpsim.errors import MpsimError, Problem
from mpsim.scenario.checks import data, experts, layer, machine, recompute, serving, step, variants
from mpsim.scenario.checks.machine import absent_parts
from mpsim.scenario.checks.variants import wrong_values

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

__all__ = ["CHECKS", "absent_parts", "check", "wrong_values"]

Check: TypeAlias = "Callable[[Written], list[Problem]]"


def _listing(find: Callable[[Written], Iterator[Problem]]) -> Check:
    @functools.wraps(find)
    def check(scenario: Written) -> list[Problem]:
        return list(find(scenario))

    return check


def _table(*finders: Callable[[Written], Iterator[Problem]]) -> tuple[Check, ...]:
    return tuple(map(_listing, finders))


_PARTS: Final = _table(machine.check_model, machine.check_cluster)
_VARIANTS: Final = _table(variants.check_sweep, variants.check_overrides)
CHECKS: Final[tuple[Check, ...]] = (
    *_PARTS,
    *_table(
        machine.check_framework,
        machine.check_world,
        machine.check_parts,
        step.check_batch,
        machine.check_replica_batches,
        step.check_precision,
        machine.check_mixture,
        step.check_virtual_stages,
        step.check_schedule_file,
        step.check_stages,
        layer.check_stacks,
        layer.check_heads,
        layer.check_mlp,
        layer.check_context,
        layer.check_context_exchange,
        layer.check_sequence,
        layer.check_tensor_overlap,
        experts.check_experts,
        experts.check_expert_ranks,
        experts.check_expert_tokens,
        experts.check_expert_overlap,
        recompute.check_recompute,
        recompute.check_recompute_layers,
        recompute.check_recompute_modules,
        data.check_zero,
        data.check_shard,
        data.check_offload,
        data.check_steps_in_backward,
        step.check_network,
        step.check_size,
        machine.check_variation,
        machine.check_outages,
    ),
    *_VARIANTS,
)
SERVING_CHECKS: Final[tuple[Check, ...]] = (
    *_table(serving.check_job),
    *_PARTS,
    *_table(
        serving.check_training_keys,
        serving.check_pools,
        serving.check_instances,
        serving.check_service_heads,
        serving.check_service_experts,
        serving.check_service_precision,
        serving.check_service_variation,
    ),
    *_VARIANTS,
)
"""Those of a scenario that serves."""


def check(scenario: Written) -> list[Problem]:
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
