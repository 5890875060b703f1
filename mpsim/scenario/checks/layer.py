"""Checks of tensor and context parallelism."""

from __future__ import annotations

from mpsim.errors import Problem
from mpsim.framework import ContextExchange, TensorOverlap
from mpsim.scenario.checks.near import divisors_near, multiples, nearest_two
from mpsim.scenario.described import Described

__all__ = [
    "check_context",
    "check_context_exchange",
    "check_heads",
    "check_mlp",
    "check_sequence",
    "check_tensor_overlap",
]


def check_heads(scenario: Described) -> list[Problem]:
    """Attention heads divide among tensor-parallel ranks."""
    tp, model = scenario.parallelism.tp, scenario.transformer
    shared = model.kv_heads < tp and tp % model.kv_heads == 0
    problems = []
    if model.heads % tp:
        problems.append(f"{model.heads} heads do not divide by tp {tp}")
    elif model.kv_heads % tp and not shared:
        problems.append(f"{model.kv_heads} kv_heads neither divide by tp {tp} nor divide it")
    mend = divisors_near(model.heads, tp)
    return [Problem(f"{message}; set tp to {mend}", key="parallelism.tp") for message in problems]


def check_mlp(scenario: Described) -> list[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp == 0:
        return []
    message = f"ffn_hidden {ffn} does not divide by tp {tp}; set tp to {divisors_near(ffn, tp)}"
    return [Problem(message, key="parallelism.tp")]


def check_context(scenario: Described) -> list[Problem]:
    """Sequences divide among context-parallel ranks, into two chunks each where a causal mask has to be balanced."""
    cp, length = scenario.parallelism.cp, scenario.training_step.sequence_length
    whole = scenario.software.tensor.context_exchange is ContextExchange.ULYSSES
    chunks = 1 if whole or not scenario.transformer.causal else 2
    if cp == 1 or length % (chunks * cp) == 0:
        return []
    near = " or ".join(map(str, multiples(length, chunks * cp)))
    times = "cp" if chunks == 1 else f"{chunks} x cp"
    message = (
        f"got {length}, not a multiple of {times} = {chunks * cp}; set it to {near}, or change cp"
    )
    return [Problem(message, key="training.sequence_length")]


def check_sequence(scenario: Described) -> list[Problem]:
    """Sequences divide among tensor-parallel ranks where sequence parallelism asks for it."""
    p, length = scenario.parallelism, scenario.training_step.sequence_length
    if not p.sequence_parallel or length % (p.tp * p.cp) == 0:
        return []
    near = " or ".join(map(str, multiples(length, p.tp * p.cp)))
    message = (
        f"got {length}, not a multiple of tp {p.tp} x cp {p.cp} = {p.tp * p.cp} as "
        f"sequence_parallel needs; set it to {near}"
    )
    return [Problem(message, key="training.sequence_length")]


def check_tensor_overlap(scenario: Described) -> list[Problem]:
    """Products cut in chunks have chunks of tokens to start from."""
    p, overlap = scenario.parallelism, scenario.software.tensor.tensor_overlap
    cut = overlap in (TensorOverlap.DECOMPOSED, TensorOverlap.MICRO_PIPELINE)
    if p.tp == 1 or p.sequence_parallel or not cut:
        return []
    message = (
        f"got {overlap.value}, but tp {p.tp} without sequence_parallel has all-reduces, which are not cut; "
        f"set parallelism.sequence_parallel to true, or tensor_overlap to {TensorOverlap.WEIGHT_GRADIENT.value}"
    )
    return [Problem(message, key="framework.tensor_overlap")]


def check_context_exchange(scenario: Described) -> list[Problem]:
    """Keys and values can be exchanged the way the framework does."""
    exchange = scenario.software.tensor.context_exchange
    if scenario.parallelism.cp == 1 or exchange is ContextExchange.ALL_GATHER:
        return []
    wrong = _ulysses_problems(scenario) if exchange is ContextExchange.ULYSSES else []
    if exchange is not ContextExchange.ULYSSES:
        wrong += _ring_problems(scenario)
    return wrong


def _ulysses_problems(scenario: Described) -> list[Problem]:
    p, model = scenario.parallelism, scenario.transformer
    ranks = p.tp * p.cp
    if model.heads % ranks == 0 and (model.kv_heads % ranks == 0 or ranks % model.kv_heads == 0):
        return []
    legal = [
        cp
        for cp in range(1, model.heads // p.tp + 1)
        if model.heads % (p.tp * cp) == 0
        and (model.kv_heads % (p.tp * cp) == 0 or p.tp * cp % model.kv_heads == 0)
    ]
    message = (
        f"got {p.cp}, but ulysses divides {model.heads} heads ({model.kv_heads} for keys) among tp {p.tp} x cp {p.cp} = "
        f"{ranks} ranks; set cp to {nearest_two(legal, p.cp)}, or framework.context_exchange to ring"
    )
    return [Problem(message, key="parallelism.cp")]


def _ring_problems(scenario: Described) -> list[Problem]:
    software, model = scenario.software, scenario.transformer
    exchange = software.tensor.context_exchange.value
    key = "framework.context_exchange"
    if not software.lowering.fused_attention:
        message = (
            f"got {exchange}, but it needs fused attention, whose kernel returns the softmax statistics of each block; "
            "set context_exchange to all-gather, or fused_attention to true"
        )
        return [Problem(message, key=key)]
    if 0 < model.window < scenario.training_step.sequence_length:
        message = (
            f"got {exchange}, but {model.name} attends to a window of {model.window} tokens, which no ring skips to; "
            "set context_exchange to all-gather or ulysses"
        )
        return [Problem(message, key=key)]
    return []
