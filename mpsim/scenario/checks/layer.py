"""Checks of tensor and context parallelism, and of models with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.framework import ContextExchange, TensorOverlap
from mpsim.scenario.checks.near import divisors_near, multiples_near, nearest_two

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_STACKED = {
    "pp": "the encoder's output would travel through every stage of the decoder",
    "cp": "keys of the encoder and of the decoder would be exchanged apart",
}


def check_stacks(scenario: Written) -> Iterator[Problem]:
    """An encoder and a decoder are not divided by axes that would have to carry one to the other."""
    model = scenario.transformer
    for axis, reason in _STACKED.items() if model.encoder_layers else ():
        if (degree := getattr(scenario.parallelism, axis)) > 1:
            message = (
                f"got {degree}, but {model.name} has an encoder and a decoder: {reason}, which is not simulated; "
                f"set {axis} to 1 and take tp, dp or zero instead"
            )
            yield Problem(message, f"parallelism.{axis}")


def check_heads(scenario: Written) -> Iterator[Problem]:
    """Attention heads divide among tensor-parallel ranks."""
    tp, model = scenario.parallelism.tp, scenario.transformer
    shared = model.kv_heads < tp and tp % model.kv_heads == 0
    mend = f"set tp to {divisors_near(model.heads, tp)}"
    if model.heads % tp:
        yield Problem(f"{model.heads} heads do not divide by tp {tp}; {mend}", "parallelism.tp")
    elif model.kv_heads % tp and not shared:
        message = f"{model.kv_heads} kv_heads neither divide by tp {tp} nor divide it; {mend}"
        yield Problem(message, "parallelism.tp")


def check_mlp(scenario: Written) -> Iterator[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp:
        message = f"ffn_hidden {ffn} does not divide by tp {tp}; set tp to {divisors_near(ffn, tp)}"
        yield Problem(message, "parallelism.tp")


def check_context(scenario: Written) -> Iterator[Problem]:
    """Sequences divide among context-parallel ranks, into two chunks each where a causal mask has to be balanced."""
    cp, length = scenario.parallelism.cp, scenario.training_step.sequence_length
    whole = scenario.software.tensor.context_exchange is ContextExchange.ULYSSES
    chunks = 1 if whole or not scenario.transformer.causal else 2
    if cp == 1 or length % (chunks * cp) == 0:
        return
    times, near = "cp" if chunks == 1 else f"{chunks} x cp", multiples_near(length, chunks * cp)
    message = (
        f"got {length}, not a multiple of {times} = {chunks * cp}; set it to {near}, or change cp"
    )
    yield Problem(message, "training.sequence_length")


def check_sequence(scenario: Written) -> Iterator[Problem]:
    """Sequences divide among tensor-parallel ranks where sequence parallelism asks for it."""
    p, length = scenario.parallelism, scenario.training_step.sequence_length
    if p.sequence_parallel and length % (p.tp * p.cp):
        message = (
            f"got {length}, not a multiple of tp {p.tp} x cp {p.cp} = {p.tp * p.cp} as "
            f"sequence_parallel needs; set it to {multiples_near(length, p.tp * p.cp)}"
        )
        yield Problem(message, "training.sequence_length")


def check_tensor_overlap(scenario: Written) -> Iterator[Problem]:
    """Products cut in chunks have chunks of tokens to start from."""
    p, overlap = scenario.parallelism, scenario.software.tensor.tensor_overlap
    cut = overlap in (TensorOverlap.DECOMPOSED, TensorOverlap.MICRO_PIPELINE)
    if p.tp > 1 and cut and not p.sequence_parallel:
        message = (
            f"got {overlap.value}, but tp {p.tp} without sequence_parallel has all-reduces, which are not cut; "
            f"set parallelism.sequence_parallel to true, or tensor_overlap to {TensorOverlap.WEIGHT_GRADIENT.value}"
        )
        yield Problem(message, "framework.tensor_overlap")


def check_context_exchange(scenario: Written) -> Iterator[Problem]:
    """Keys and values can be exchanged the way the framework does."""
    exchange = scenario.software.tensor.context_exchange
    if scenario.parallelism.cp == 1 or exchange is ContextExchange.ALL_GATHER:
        return
    ulysses = exchange is ContextExchange.ULYSSES
    yield from _ulysses_problems(scenario) if ulysses else _ring_problems(scenario)


def _ulysses_problems(scenario: Written) -> Iterator[Problem]:
    p, model = scenario.parallelism, scenario.transformer
    heads, kv_heads = model.heads, model.kv_heads

    def fits(ranks: int) -> bool:
        return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)

    if fits(p.tp * p.cp):
        return
    legal = [cp for cp in range(1, heads // p.tp + 1) if fits(p.tp * cp)]
    message = (
        f"got {p.cp}, but ulysses divides {heads} heads ({kv_heads} for keys) among tp {p.tp} x cp {p.cp} = "
        f"{p.tp * p.cp} ranks; set cp to {nearest_two(legal, p.cp)}, or framework.context_exchange to ring"
    )
    yield Problem(message, "parallelism.cp")


def _ring_problems(scenario: Written) -> Iterator[Problem]:
    software, model = scenario.software, scenario.transformer
    exchange = software.tensor.context_exchange.value
    if not software.lowering.fused_attention:
        message = (
            f"got {exchange}, but it needs fused attention, whose kernel returns the softmax statistics of each block; "
            "set context_exchange to all-gather, or fused_attention to true"
        )
        yield Problem(message, "framework.context_exchange")
    elif 0 < model.window < scenario.training_step.sequence_length:
        message = (
            f"got {exchange}, but {model.name} attends to a window of {model.window} tokens, which no ring skips to; "
            "set context_exchange to all-gather or ulysses"
        )
        yield Problem(message, "framework.context_exchange")
