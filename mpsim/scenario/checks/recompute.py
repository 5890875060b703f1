"""Checks of recomputation: what goes with which granularity, and whether the model has the modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.framework import ExpertOverlap, SelectiveRecompute
from mpsim.scenario.balance import stage_layers

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

__all__ = ["legal_modules"]

_SHARDED_PARAMETERS = 3
_OF_GRANULARITY = {
    "recompute_method": "full",
    "recompute_layers": "full",
    "recompute_modules": "selective",
}


def check_recompute(scenario: Written) -> Iterator[Problem]:
    """Keys of one granularity stand beside that one only; per-op meets the layers it was written for."""
    training = scenario.training_step
    for name, wanted in _OF_GRANULARITY.items():
        if getattr(training, name) is not None and training.recompute != wanted:
            message = f"got a value, but recompute is {training.recompute} and only {wanted} has it; leave it out, or set recompute to {wanted}"
            yield Problem(message, f"training.{name}")
    reasons = list(_against_per_op(scenario)) if training.recompute == "per-op" else []
    if reasons:
        preset = scenario.framework.preset
        is_own = scenario.software.kernels.recompute_selective is SelectiveRecompute.PER_OP
        meant = f"per-op (which {preset} calls selective)" if is_own else "per-op"
        instead = "recompute_modules with selective" if is_own else "selective"
        message = (
            f"got {meant}, which counts the seven products of a Llama layer, but {' and '.join(reasons)}; "
            f"take {instead}, full or none"
        )
        yield Problem(message, "training.recompute")


def _against_per_op(scenario: Written) -> Iterator[str]:
    model = scenario.transformer
    if model.moe is not None:
        yield "the model has experts"
    if model.mla is not None:
        yield "its attention is latent"
    if model.parallel_block:
        yield "its layers are parallel blocks, whose products are one"
    if model.encoder_layers:
        yield "it has an encoder and a decoder"
    if not scenario.software.lowering.fused_attention:
        yield "attention is not fused, so that it has no one output to keep"


def check_recompute_layers(scenario: Written) -> Iterator[Problem]:
    """The number of layers is one that a stage has."""
    training = scenario.training_step
    if training.recompute != "full":
        return
    key, most = "training.recompute_layers", _largest_stage(scenario)
    block, layers = training.recompute_method == "block", training.recompute_layers
    least = 0 if block else 1
    if layers is None and block:
        message = f"missing; with recompute_method block needed how many layers of every stage run again, 0 to {most}"
        yield Problem(message, key)
    elif layers is None:
        return
    elif not least <= layers <= most:
        mend = max(least, min(layers, most))
        message = f"got {layers}; needed {least} to {most}: the largest (virtual) stage has {most} layers; set it to {mend}"
        yield Problem(message, key)
    elif layers > 1 and not block and scenario.parallelism.zero == _SHARDED_PARAMETERS:
        message = (
            f"got chunks of {layers} with zero 3: layers of a chunk run again long before their gradients, and would be gathered for each, "
            "which is not simulated; set recompute_layers to 1, or zero to 2 or less"
        )
        yield Problem(message, key)


def _largest_stage(scenario: Written) -> int:
    given = stage_layers(scenario)
    stages = scenario.parallelism.pp * scenario.virtual_stages
    return max(given) if given else -(-scenario.transformer.layers // stages)


def check_recompute_modules(scenario: Written) -> Iterator[Problem]:
    """Modules that run again exist, and nothing else runs where they would."""
    modules = scenario.training_step.recompute_modules or ()
    if scenario.training_step.recompute != "selective":
        return
    missing, hidden = dict(_missing(scenario)), _hidden(scenario)
    overlap = scenario.software.experts.expert_overlap
    faults = [f"{module}: {missing[module]}" for module in modules if module in missing]
    faults += [
        f"{module}: expert_overlap {overlap.value} runs it beside an exchange"
        for module in modules
        if module in hidden and module not in missing
    ]
    if faults:
        legal = ", ".join(legal_modules(scenario))
        message = f"got {'; '.join(faults)}; this model can run again {legal}"
        yield Problem(message, "training.recompute_modules")


def legal_modules(scenario: Written) -> tuple[str, ...]:
    """Modules that selective recomputation can run again in this model on this stack."""
    out = {*dict(_missing(scenario)), *_hidden(scenario)}
    return tuple(module for module in _MODULES if module not in out)


def _hidden(scenario: Written) -> tuple[str, ...]:
    """Modules that run beside an exchange of experts."""
    overlap = scenario.software.experts.expert_overlap
    beside = {ExpertOverlap.MICROBATCH: ("moe",), ExpertOverlap.SHARED_EXPERT: ("shared_experts",)}
    return beside.get(overlap, ())


_MODULES = ("core_attn", "layernorm", "mlp", "moe_act", "moe", "shared_experts", "mla_up_proj")


def _missing(scenario: Written) -> Iterator[tuple[str, str]]:
    """Modules that the model does not have, and why."""
    model = scenario.transformer
    moe, mla = model.moe, model.mla
    if moe is None:
        yield "moe", "the model has no experts"
        yield "moe_act", "the model has no experts"
    if moe is None or not moe.shared_features:
        yield "shared_experts", "the model has no shared experts"
    if mla is None:
        yield "mla_up_proj", "the model's attention is not latent"
    if moe is None and mla is None:
        yield "layernorm", "all norms are one kernel with the projection behind them"
    if model.parallel_block:
        yield "mlp", "it is one product with attention's projections"
    elif moe is not None and all("moe" in kind for kind in model.layer_kinds):
        yield "mlp", "every layer has experts instead"
