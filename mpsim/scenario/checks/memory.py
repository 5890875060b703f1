"""Checks of what ranks keep: recomputed activations, states that replicas share and hosts hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem
from mpsim.framework import ExpertOverlap, SelectiveRecompute
from mpsim.scenario.balance import stage_layers
from mpsim.scenario.checks.common import nearest_two
from mpsim.scenario.sections import REPLICATING, factors

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_SHARDED_PARAMETERS = 3
_OF_GRANULARITY = {
    "recompute_method": "full",
    "recompute_layers": "full",
    "recompute_modules": "selective",
    "recompute_keeps": "per-op",
}


def check_recompute(scenario: Written) -> Iterator[Problem]:
    """Keys of a granularity stand beside it only; per-op meets the layers it is for."""
    training = scenario.training_step
    for name, wanted in _OF_GRANULARITY.items():
        if getattr(training, name) is not None and training.recompute != wanted:
            message = (
                f"got a value, but recompute is {training.recompute} and only {wanted} has it;"
                f" leave it out, or set recompute to {wanted}"
            )
            yield Problem(message, f"training.{name}")
    reasons = list(_against_per_op(scenario)) if training.recompute == "per-op" else []
    if reasons:
        preset = scenario.framework.preset
        is_own = scenario.software.kernels.recompute_selective is SelectiveRecompute.PER_OP
        meant = f"per-op (which {preset} calls selective)" if is_own else "per-op"
        instead = "recompute_modules with selective" if is_own else "selective"
        message = (
            f"got {meant}, which counts the seven products of a Llama layer, but"
            f" {' and '.join(reasons)}; take {instead}, full or none"
        )
        yield Problem(message, "training.recompute")


def check_offload_activations(scenario: Written) -> Iterator[Problem]:
    """Layers that offload keep something of their own that can wait on the host."""
    training = scenario.training_step
    offload, layers = training.offload_activations, training.offload_layers
    if layers is not None and offload is None:
        message = (
            f"got {layers}, but no activation is offloaded; set offload_activations to all, or"
            " leave it out"
        )
        yield Problem(message, "training.offload_layers")
    elif layers is not None and layers > _largest_stage(scenario):
        most = _largest_stage(scenario)
        message = (
            f"got {layers}; needed 1 to {most}, the layers of the largest (virtual) stage; set it"
            f" to {most}"
        )
        yield Problem(message, "training.offload_layers")
    if offload == "products" and training.recompute == "full":
        message = (
            "got products, but full recomputation keeps inputs of layers alone; set it to inputs"
        )
        yield Problem(message, "training.offload_activations")
    if offload and training.recompute_method != "block" and (training.recompute_layers or 1) > 1:
        message = (
            f"got {offload} with chunks of {training.recompute_layers} layers, whose one input"
            " would be fetched long before its use, which is not simulated; set recompute_layers"
            " to 1"
        )
        yield Problem(message, "training.offload_activations")


def _against_per_op(scenario: Written) -> Iterator[str]:
    model = scenario.transformer
    if model.moe is not None:
        yield "the model has experts"
    if model.mla is not None:
        yield "its attention is latent"
    if model.parallel_block:
        yield "its layers are parallel blocks, whose products are one"
    if model.layer_pattern:
        yield "its layers differ in what they have"
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
        message = (
            "missing; with recompute_method block needed how many layers of every stage run again,"
            f" 0 to {most}"
        )
        yield Problem(message, key)
    elif layers is None:
        return
    elif not least <= layers <= most:
        mend = max(least, min(layers, most))
        message = (
            f"got {layers}; needed {least} to {most}: the largest (virtual) stage has {most}"
            f" layers; set it to {mend}"
        )
        yield Problem(message, key)
    elif layers > 1 and not block and scenario.parallelism.zero == _SHARDED_PARAMETERS:
        message = (
            f"got chunks of {layers} with zero 3: layers of a chunk run again long before their"
            " gradients, and would be gathered for each, which is not simulated; set"
            " recompute_layers to 1, or zero to 2 or less"
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


_SHARED: Final = ("nothing", "the optimizer's state", "gradients", "parameters")


def check_zero(scenario: Written) -> Iterator[Problem]:
    """The framework shards as much as is asked of it, with as many pipeline stages."""
    zero, pp = scenario.parallelism.zero, scenario.parallelism.pp
    data, name = scenario.software.data, scenario.software.name
    if zero > data.zero_limit:
        message = (
            f"got {zero}, but {name} does not shard {_SHARED[zero]}; set zero to at most"
            f" {data.zero_limit}, or take a framework that does (see 'mpsim show frameworks')"
        )
        yield Problem(message, "parallelism.zero")
    elif pp > 1 and zero > data.pipeline_zero_limit:
        message = (
            f"got {zero} with pp {pp}, but {name} does not shard {_SHARED[zero]} in a pipeline,"
            " where every microbatch would move them (framework.pipeline_zero_limit); set zero to"
            f" at most {data.pipeline_zero_limit}, or pp to 1"
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
            message = (
                f"got {p.offload_to}, but nothing is offloaded; set offload to optimizer or"
                " parameters"
            )
            yield Problem(message, "parallelism.offload_to")
        return
    needed = 3 if p.offload == "parameters" else 1
    if p.zero < needed:
        message = (
            f"got {p.offload} with zero {p.zero}; the host keeps a rank's share, so {p.offload}"
            f" needs zero {needed}{' or more' if needed == 1 else ''}; set zero to {needed}, or"
            f" offload to {'none' if p.zero == 0 else 'optimizer'}"
        )
        yield Problem(message, "parallelism.offload")
    if p.offload_to == "nvme" and p.zero < 3:
        message = (
            f"got nvme with zero {p.zero}; states on drives need zero 3; set zero to 3, or"
            " offload_to to host"
        )
        yield Problem(message, "parallelism.offload_to")


def check_steps_in_backward(scenario: Written) -> Iterator[Problem]:
    """An optimizer in the backward frees gradients that nothing adds to afterwards."""
    if not scenario.software.memory.steps_in_backward:
        return
    microbatches, pp = scenario.microbatches, scenario.parallelism.pp
    if microbatches > 1 or pp > 1:
        message = (
            f"got true with {microbatches} microbatches and pp {pp}; gradients of several"
            " microbatches are added up before the optimizer: set training.micro_batch so that"
            " there is one microbatch a step on one stage, or steps_in_backward to false"
        )
        yield Problem(message, "framework.steps_in_backward")
