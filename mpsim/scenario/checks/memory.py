"""Checks of what ranks keep: recomputed activations, states that replicas share and hosts hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem
from mpsim.framework import ExpertOverlap, SelectiveRecompute
from mpsim.scenario.balance import stage_layers
from mpsim.scenario.checks.common import mistake, nearest_two
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
            yield mistake("granularity", scenario, name=name, wanted=wanted)
    reasons = " and ".join(_against_per_op(scenario)) if training.recompute == "per-op" else ""
    if reasons:
        is_own = scenario.software.kernels.recompute_selective is SelectiveRecompute.PER_OP
        preset = scenario.framework.preset
        meant = f"per-op (which {preset} calls selective)" if is_own else "per-op"
        instead = "recompute_modules with selective" if is_own else "selective"
        yield mistake("per_op", scenario, meant=meant, reasons=reasons, instead=instead)


def check_offload_activations(scenario: Written) -> Iterator[Problem]:
    """Layers that offload keep something of their own that can wait on the host."""
    training = scenario.training_step
    offload, layers = training.offload_activations, training.offload_layers
    if layers is not None and offload is None:
        yield mistake("idle_offload_layers", scenario)
    elif layers is not None and layers > (most := _largest_stage(scenario)):
        yield mistake("offload_layers", scenario, most=most)
    if offload == "products" and training.recompute == "full":
        yield mistake("offload_products", scenario)
    if offload and training.recompute_method != "block" and (training.recompute_layers or 1) > 1:
        yield mistake("offload_chunks", scenario)


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
    most, layers = _largest_stage(scenario), training.recompute_layers
    block = training.recompute_method == "block"
    least = 0 if block else 1
    if layers is None:
        if block:
            yield mistake("block_layers", scenario, most=most)
    elif not least <= layers <= most:
        mend = max(least, min(layers, most))
        yield mistake("recompute_layers", scenario, least=least, most=most, mend=mend)
    elif layers > 1 and not block and scenario.parallelism.zero == _SHARDED_PARAMETERS:
        yield mistake("gathered_chunks", scenario)


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
        yield mistake("modules", scenario, faults="; ".join(faults), legal=legal)


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
    zero, data = scenario.parallelism.zero, scenario.software.data
    pipelined = scenario.parallelism.pp > 1 and scenario.software.pipeline.has_pipeline
    if zero > data.zero_limit:
        yield mistake("zero", scenario, shared=_SHARED[zero])
    elif pipelined and zero > data.pipeline_zero_limit:
        yield mistake("pipeline_zero", scenario, shared=_SHARED[zero])


def check_shard(scenario: Written) -> Iterator[Problem]:
    """Groups of sharers divide the replicas, and have something to share."""
    shard, replicas = scenario.parallelism.shard, scenario.replicas
    if shard is None or scenario.dp < 1:
        return
    if scenario.parallelism.zero == 0:
        yield mistake("idle_shard", scenario)
    elif replicas % shard:
        product = factors({axis: scenario.degrees[axis] for axis in REPLICATING})
        near = nearest_two((n for n in range(1, replicas + 1) if replicas % n == 0), shard)
        yield mistake("shard", scenario, product=product, near=near)


def check_offload(scenario: Written) -> Iterator[Problem]:
    """The host keeps what is sharded, where it can."""
    p = scenario.parallelism
    if p.offload == "none":
        if p.offload_to != "host":
            yield mistake("idle_offload_to", scenario)
        return
    zero, needed = (3, "3") if p.offload == "parameters" else (1, "1 or more")
    if p.zero < zero:
        instead = "none" if p.zero == 0 else "optimizer"
        yield mistake("offload", scenario, zero=zero, needed=needed, instead=instead)
    if p.offload_to == "nvme" and p.zero < 3:
        yield mistake("nvme", scenario)


def check_steps_in_backward(scenario: Written) -> Iterator[Problem]:
    """An optimizer in the backward frees gradients that nothing adds to afterwards."""
    if not scenario.software.memory.steps_in_backward:
        return
    if scenario.microbatches > 1 or scenario.parallelism.pp > 1:
        yield mistake("steps_in_backward", scenario)
