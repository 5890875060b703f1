"""Checks of the axes inside a layer: tensor, context and expert parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.scenario.checks.near import divisors_near, multiples

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_context", "check_experts", "check_heads", "check_mlp", "check_sequence"]


def check_heads(scenario: Scenario) -> list[Problem]:
    """Attention heads divide among tensor-parallel ranks."""
    tp, model = scenario.parallelism.tp, scenario.transformer
    shared = model.kv_heads < tp and tp % model.kv_heads == 0
    problems = []
    if model.heads % tp:
        problems.append(f"{model.heads} heads do not divide by tp {tp}")
    elif model.kv_heads % tp and not shared:
        problems.append(f"{model.kv_heads} kv_heads neither divide by tp {tp} nor divide it")
    mend = divisors_near(model.heads, tp)
    return [Problem(f"{one}; set tp to {mend}", key="parallelism.tp") for one in problems]


def check_mlp(scenario: Scenario) -> list[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp == 0:
        return []
    message = f"ffn_hidden {ffn} does not divide by tp {tp}; set tp to {divisors_near(ffn, tp)}"
    return [Problem(message, key="parallelism.tp")]


def check_context(scenario: Scenario) -> list[Problem]:
    """Sequences divide into two chunks for each context-parallel rank (causal balance)."""
    cp, length = scenario.parallelism.cp, scenario.training.sequence_length
    if cp == 1 or length % (2 * cp) == 0:
        return []
    near = " or ".join(map(str, multiples(length, 2 * cp)))
    message = f"got {length}, not a multiple of 2 x cp = {2 * cp}; set it to {near}, or change cp"
    return [Problem(message, key="training.sequence_length")]


def check_sequence(scenario: Scenario) -> list[Problem]:
    """Sequences divide among tensor-parallel ranks where sequence parallelism asks for it."""
    p, length = scenario.parallelism, scenario.training.sequence_length
    if not p.sequence_parallel or length % (p.tp * p.cp) == 0:
        return []
    near = " or ".join(map(str, multiples(length, p.tp * p.cp)))
    message = (
        f"got {length}, not a multiple of tp {p.tp} x cp {p.cp} = {p.tp * p.cp} as "
        f"sequence_parallel needs; set it to {near}"
    )
    return [Problem(message, key="training.sequence_length")]


def check_experts(scenario: Scenario) -> list[Problem]:
    """Expert parallelism has experts to divide."""
    if scenario.parallelism.ep == 1 or scenario.model.moe is not None:
        return []
    message = f"got {scenario.parallelism.ep}, but the model is dense; set ep to 1"
    return [Problem(message, key="parallelism.ep")]
