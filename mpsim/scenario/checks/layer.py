"""Checks of what divides a layer: tensor, context, expert parallelism; of two stacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.framework import ContextExchange, ExpertOverlap, TensorOverlap
from mpsim.scenario.checks.common import divisors_near, multiples_near, nearest_two
from mpsim.scenario.sections import OF_STAGE, factors
from mpsim.schedule import schedule, schedules

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_STACKED = {
    "pp": "the encoder's output would travel through every stage of the decoder",
    "cp": "keys of the encoder and of the decoder would be exchanged apart",
}


def check_stacks(scenario: Written) -> Iterator[Problem]:
    """No axis that would carry an encoder's output to its decoder divides them."""
    model = scenario.transformer
    for axis, reason in _STACKED.items() if model.encoder_layers else ():
        if (degree := getattr(scenario.parallelism, axis)) > 1:
            message = (
                f"got {degree}, but {model.name} has an encoder and a decoder: {reason}, which is"
                f" not simulated; set {axis} to 1 and take tp, dp or zero instead"
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


def check_state(scenario: Written) -> Iterator[Problem]:
    """Tensor parallelism divides heads of a state, which a rank passes along a sequence."""
    state, tp = scenario.transformer.state, scenario.parallelism.tp
    if state is not None:
        near = nearest_two((n for n in range(1, tp + 1) if state.heads % n == 0), tp)
        whole = "layers that carry a state, which passing from rank to rank is not simulated for"
        yield from _whole_sequences(scenario, state.heads, "state", near, whole)


def check_vision(scenario: Written) -> Iterator[Problem]:
    """A vision tower is divided as the first stage is, whose ranks each see whole images."""
    if (tower := scenario.transformer.vision) is not None:
        mend = "a divisor, or give the tower other heads"
        whole = "a vision tower, whose images are not divided among context-parallel ranks here"
        yield from _whole_sequences(scenario, tower.heads, "vision tower", mend, whole)


def _whole_sequences(
    scenario: Written, heads: int, of: str, mend: str, whole: str
) -> Iterator[Problem]:
    """Tensor parallelism divides the heads of a part; context parallelism no sequences of it."""
    p = scenario.parallelism
    if heads % p.tp:
        message = (
            f"got {p.tp}, which does not divide the {heads} heads of the {of}; set it to {mend}"
        )
        yield Problem(message, "parallelism.tp")
    if p.cp > 1:
        yield Problem(f"got {p.cp} with {whole}; set it to 1", "parallelism.cp")


def check_mlp(scenario: Written) -> Iterator[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp:
        message = f"ffn_hidden {ffn} does not divide by tp {tp}; set tp to {divisors_near(ffn, tp)}"
        yield Problem(message, "parallelism.tp")


def check_context(scenario: Written) -> Iterator[Problem]:
    """Sequences divide among context-parallel ranks, in two chunks each if balanced."""
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
            f"got {overlap.value}, but tp {p.tp} without sequence_parallel has all-reduces, which"
            " are not cut; set parallelism.sequence_parallel to true, or tensor_overlap to"
            f" {TensorOverlap.WEIGHT_GRADIENT.value}"
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
        f"got {p.cp}, but ulysses divides {heads} heads ({kv_heads} for keys) among tp {p.tp} x cp"
        f" {p.cp} = {p.tp * p.cp} ranks; set cp to {nearest_two(legal, p.cp)}, or"
        " framework.context_exchange to ring"
    )
    yield Problem(message, "parallelism.cp")


def _ring_problems(scenario: Written) -> Iterator[Problem]:
    software, model = scenario.software, scenario.transformer
    exchange = software.tensor.context_exchange.value
    if not software.lowering.fused_attention:
        message = (
            f"got {exchange}, but it needs fused attention, whose kernel returns the softmax"
            " statistics of each block; set context_exchange to all-gather, or fused_attention to"
            " true"
        )
        yield Problem(message, "framework.context_exchange")
    elif 0 < model.window < scenario.training_step.sequence_length:
        message = (
            f"got {exchange}, but {model.name} attends to a window of {model.window} tokens, which"
            " no ring skips to; set context_exchange to all-gather or ulysses"
        )
        yield Problem(message, "framework.context_exchange")


def check_positions(scenario: Written) -> Iterator[Problem]:
    """A sequence is no longer than the table of learned positions."""
    model, length = scenario.transformer, scenario.training_step.sequence_length
    if model.positions == "learned" and 0 < model.max_positions < length:
        message = (
            f"got {length}, but {model.name} has learned positions for {model.max_positions}"
            f" tokens; set model.max_positions to {length}, or take a shorter sequence"
        )
        yield Problem(message, "training.sequence_length")


def check_experts(scenario: Written) -> Iterator[Problem]:
    """Expert parallelism has experts to divide, and divides them."""
    p, moe = scenario.parallelism, scenario.transformer.moe
    if moe is None:
        if p.ep > 1:
            yield Problem(f"got {p.ep}, but the model is dense; set ep to 1", "parallelism.ep")
        if p.etp not in (None, p.tp):
            message = f"got {p.etp}, but the model is dense; set etp to nothing"
            yield Problem(message, "parallelism.etp")
        return
    if moe.experts % p.ep:
        ranks = math.prod(_degrees(scenario).values())  # 0 where the world does not divide
        near = divisors_near(math.gcd(moe.experts, ranks or moe.experts), p.ep)
        message = f"{moe.experts} experts do not divide by ep {p.ep}; set ep to {near}"
        yield Problem(message, "parallelism.ep")
    etp = p.etp or p.tp
    if moe.ffn_hidden % etp:
        near = divisors_near(moe.ffn_hidden, etp)
        message = f"moe.ffn_hidden {moe.ffn_hidden} does not divide by etp {etp}; set etp to {near}"
        yield Problem(message, "parallelism.etp" if p.etp else "parallelism.tp")


def check_expert_ranks(scenario: Written) -> Iterator[Problem]:
    """The ranks of a pipeline stage form whole groups that hold every expert once."""
    p, moe, degrees = scenario.parallelism, scenario.transformer.moe, _degrees(scenario)
    ranks, etp = math.prod(degrees.values()), p.etp or p.tp
    if moe is None or ranks < 1 or ranks % (etp * p.ep) == 0:
        return
    have = f"{factors(degrees)} = {ranks} ranks of a stage"
    if ranks % etp:
        near = divisors_near(ranks, etp)
        message = f"got {etp}, but {have} do not divide by it; set etp to {near}"
        yield Problem(message, "parallelism.etp")
        return
    near = divisors_near(math.gcd(moe.experts, ranks // etp), p.ep)
    message = f"etp {etp} x ep {p.ep} = {etp * p.ep} does not divide {have}; set ep to {near}"
    mend = ", or etp to 1" if etp > 1 and ranks % p.ep == 0 else ""
    yield Problem(message + mend, "parallelism.ep")


def check_expert_tokens(scenario: Written) -> Iterator[Problem]:
    """Tensor-parallel ranks route different tokens."""
    p = scenario.parallelism
    if scenario.transformer.moe is not None and p.tp > 1 and not p.sequence_parallel:
        message = (
            f"got false, but with tp {p.tp} a mixture of experts needs it: each rank routes its own"
            f" 1/{p.tp} of the tokens, and without it all would route the same ones; set"
            " sequence_parallel to true, or tp to 1"
        )
        yield Problem(message, "parallelism.sequence_parallel")


def check_expert_overlap(scenario: Written) -> Iterator[Problem]:
    """Dispatch and combine that overlap another microbatch have one to run beside."""
    software, name = scenario.software, scenario.schedule.name
    beside = software.experts.expert_overlap is ExpertOverlap.MICROBATCH
    if scenario.transformer.moe is None or not beside:
        return
    pp, faults = scenario.parallelism.pp, []
    if name is None or not schedule(name).fuses_on(pp):
        where = f"schedule {name or 'from a file'} on pp {pp}"
        faults.append(f"in {where} every one waits for the other")
    if scenario.training_step.recompute == "full":
        faults.append("with full recomputation the backward has a forward of its own")
    if not faults:
        return
    fusing = " or ".join(known.name for known in schedules() if known.fuses)
    alone = " or ".join(known.name for known in schedules() if known.fuses_alone)
    message = (
        f"got {ExpertOverlap.MICROBATCH.value}, which runs a forward beside a backward, but"
        f" {' and '.join(faults)}; take schedule {fusing} (or {alone} on pp 1) without full"
        " recomputation, or set expert_overlap to none"
    )
    yield Problem(message, "framework.expert_overlap")


def _degrees(scenario: Written) -> dict[str, int]:
    """Degrees of the axes whose ranks make a pipeline stage."""
    return {axis: scenario.degrees[axis] for axis in OF_STAGE}
