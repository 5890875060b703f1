"""Checks of what divides a layer (tensor, context, expert parallelism; of two stacks), and of what
ranks keep: recomputed activations, states that replicas share and hosts hold; what adapters, frozen
parts and narrow weights of fine-tuning can stand beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem, ScenarioError
from mpsim.framework import (
    ContextExchange,
    ExpertOverlap,
    SelectiveRecompute,
    TensorOverlap,
    stepped_by,
)
from mpsim.scenario.balance import stage_layers
from mpsim.scenario.checks.common import divisors_near, mistake, multiples_near, nearest_two
from mpsim.scenario.sections import OF_STAGE, REPLICATING, factors
from mpsim.scenario.settled import settled_by
from mpsim.schedule import schedule, schedules

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_STACKED = {
    "pp": "the encoder's output would travel through every stage of the decoder",
    "cp": "keys of the encoder and of the decoder would be exchanged apart",
}


def check_stacks(scenario: Written) -> Iterator[Problem]:
    """No axis that would carry an encoder's output to its decoder divides them."""
    for axis, reason in _STACKED.items() if scenario.transformer.encoder_layers else ():
        if (degree := getattr(scenario.parallelism, axis)) > 1:
            yield mistake("stacked", scenario, axis=axis, degree=degree, reason=reason)


def check_heads(scenario: Written) -> Iterator[Problem]:
    """Attention heads divide among tensor-parallel ranks."""
    tp, model = scenario.parallelism.tp, scenario.transformer
    shared = model.kv_heads < tp and tp % model.kv_heads == 0
    near = divisors_near(model.heads, tp)
    if model.heads % tp:
        yield mistake("heads", scenario, near=near)
    elif model.kv_heads % tp and not shared:
        yield mistake("kv_heads", scenario, near=near)


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
    if heads % scenario.parallelism.tp:
        yield mistake("part_heads", scenario, heads=heads, of=of, mend=mend)
    if scenario.parallelism.cp > 1:
        yield mistake("part_sequences", scenario, whole=whole)


def check_mlp(scenario: Written) -> Iterator[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp:
        yield mistake("mlp", scenario, near=divisors_near(ffn, tp))


def check_context(scenario: Written) -> Iterator[Problem]:
    """Sequences divide among context-parallel ranks, in two chunks each if balanced."""
    cp, length = scenario.parallelism.cp, scenario.training_step.sequence_length
    whole = scenario.software.tensor.context_exchange is ContextExchange.ULYSSES
    each = 1 if whole or not scenario.transformer.causal else 2
    if cp > 1 and length % (chunks := each * cp):
        times, near = "cp" if each == 1 else f"{each} x cp", multiples_near(length, chunks)
        yield mistake("context", scenario, times=times, chunks=chunks, near=near)


def check_sequence(scenario: Written) -> Iterator[Problem]:
    """Sequences divide among tensor-parallel ranks where sequence parallelism asks for it."""
    p, length = scenario.parallelism, scenario.training_step.sequence_length
    if p.sequence_parallel and length % (ranks := p.tp * p.cp):
        yield mistake("sequence", scenario, ranks=ranks, near=multiples_near(length, ranks))


def check_tensor_overlap(scenario: Written) -> Iterator[Problem]:
    """Products cut in chunks have chunks of tokens to start from."""
    p, overlap = scenario.parallelism, scenario.software.tensor.tensor_overlap
    cut = overlap in (TensorOverlap.DECOMPOSED, TensorOverlap.MICRO_PIPELINE)
    if p.tp > 1 and cut and not p.sequence_parallel:
        yield mistake("tensor_overlap", scenario, overlap=overlap.value)


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

    if not fits(ranks := p.tp * p.cp):
        legal = [cp for cp in range(1, heads // p.tp + 1) if fits(p.tp * cp)]
        yield mistake("ulysses", scenario, ranks=ranks, near=nearest_two(legal, p.cp))


def _ring_problems(scenario: Written) -> Iterator[Problem]:
    software, model = scenario.software, scenario.transformer
    exchange = software.tensor.context_exchange.value
    if not software.lowering.fused_attention:
        yield mistake("ring_scores", scenario, exchange=exchange)
    elif 0 < model.window < scenario.training_step.sequence_length:
        yield mistake("ring_window", scenario, exchange=exchange)


def check_positions(scenario: Written) -> Iterator[Problem]:
    """A sequence is no longer than the table of learned positions."""
    model, length = scenario.transformer, scenario.training_step.sequence_length
    if model.positions == "learned" and 0 < model.max_positions < length:
        yield mistake("positions", scenario)


def check_experts(scenario: Written) -> Iterator[Problem]:
    """Expert parallelism has experts to divide, and divides them."""
    p, moe = scenario.parallelism, scenario.transformer.moe
    if moe is None:
        if p.ep > 1:
            yield mistake("dense_ep", scenario)
        if p.etp not in (None, p.tp):
            yield mistake("dense_etp", scenario)
        return
    if moe.experts % p.ep:
        ranks = math.prod(_degrees(scenario).values())  # 0 where the world does not divide
        near = divisors_near(math.gcd(moe.experts, ranks or moe.experts), p.ep)
        yield mistake("experts", scenario, near=near)
    etp = p.etp or p.tp
    if moe.ffn_hidden % etp:
        near, blamed = divisors_near(moe.ffn_hidden, etp), "etp" if p.etp else "tp"
        yield mistake("expert_width", scenario, blamed=f"parallelism.{blamed}", etp=etp, near=near)


def check_expert_ranks(scenario: Written) -> Iterator[Problem]:
    """The ranks of a pipeline stage form whole groups that hold every expert once."""
    p, moe, degrees = scenario.parallelism, scenario.transformer.moe, _degrees(scenario)
    ranks, etp = math.prod(degrees.values()), p.etp or p.tp
    if moe is None or ranks < 1 or ranks % (etp * p.ep) == 0:
        return
    have = f"{factors(degrees)} = {ranks} ranks of a stage"
    if ranks % etp:
        near = divisors_near(ranks, etp)
        yield mistake("expert_tensors", scenario, etp=etp, have=have, near=near)
        return
    figures = {"etp": etp, "group": etp * p.ep, "have": have}
    near = divisors_near(math.gcd(moe.experts, ranks // etp), p.ep)
    mend = ", or etp to 1" if etp > 1 and ranks % p.ep == 0 else ""
    yield mistake("expert_ranks", scenario, **figures, near=near, mend=mend)


def check_expert_tokens(scenario: Written) -> Iterator[Problem]:
    """Tensor-parallel ranks route different tokens."""
    p = scenario.parallelism
    if scenario.transformer.moe is not None and p.tp > 1 and not p.sequence_parallel:
        yield mistake("expert_tokens", scenario)


def check_expert_overlap(scenario: Written) -> Iterator[Problem]:
    """Dispatch and combine that overlap another microbatch have one to run beside."""
    overlap, name = scenario.software.experts.expert_overlap, scenario.schedule.name
    if scenario.transformer.moe is None or overlap is not ExpertOverlap.MICROBATCH:
        return
    pp, faults = scenario.parallelism.pp, []
    if name is None or not schedule(name).fuses_on(pp):
        where = f"schedule {name or 'from a file'} on pp {pp}"
        faults.append(f"in {where} every one waits for the other")
    if scenario.training_step.recompute == "full":
        faults.append("with full recomputation the backward has a forward of its own")
    if faults:
        yield mistake(
            "expert_overlap",
            scenario,
            overlap=overlap.value,
            faults=" and ".join(faults),
            fusing=" or ".join(known.name for known in schedules() if known.fuses),
            alone=" or ".join(known.name for known in schedules() if known.fuses_alone),
        )


def _degrees(scenario: Written) -> dict[str, int]:
    """Degrees of the axes whose ranks make a pipeline stage."""
    return {axis: scenario.degrees[axis] for axis in OF_STAGE}


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
        taken = "training.recompute_modules" in settled_by(scenario.source.data)
        name = "modules_taken" if taken else "modules"
        yield mistake(name, scenario, faults="; ".join(faults), legal=legal)


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
    """The host keeps what is sharded, where it can; a share only of the optimizer's state."""
    p = scenario.parallelism
    if p.offload_fraction < 1 and (p.offload != "optimizer" or p.offload_to != "host"):
        yield mistake("offload_fraction", scenario)
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


_NF4_FAMILIES_WITHOUT = ("tpu",)


def check_method(scenario: Written) -> Iterator[Problem]:
    """Keys of adapters stand beside their methods, frozen parts beside one that trains."""
    training = scenario.training_step
    method, adapter, frozen = training.method, training.adapter, training.frozen
    if method == "full" and adapter is not None:
        yield mistake("idle_adapter", scenario)
    if method != "full" and frozen:
        yield mistake("idle_frozen", scenario, frozen=", ".join(frozen))
    if adapter is not None and method == "qlora" and adapter.base == "bf16":
        yield mistake("wide_qlora", scenario)
    ends = {"embedding", "head"} & set(frozen)
    if len(ends) == 1 and scenario.transformer.tied_embeddings:
        yield mistake("tied_frozen", scenario, end=min(ends))
    if "vision" in frozen and scenario.transformer.vision is None:
        yield mistake("frozen_tower", scenario)
    if set(frozen) >= {"embedding", "attention", "mlp", "head"}:
        yield mistake("all_frozen", scenario)


def check_optimizer(scenario: Written) -> Iterator[Problem]:
    """The optimizer is in the catalog, and its steps are simulated where it runs."""
    training, offload = scenario.training_step, scenario.parallelism.offload
    if training.optimizer is None:
        return
    try:
        steps = stepped_by(training.optimizer, scenario.software.optimizer)
    except ScenarioError as error:
        yield from error.problems
        return
    if steps.orthogonal_iterations and training.tuning.rank:
        yield mistake("narrow_optimizer", scenario)
    if offload != "none" and (steps.orthogonal_iterations or steps.repeated_share):
        yield mistake("host_optimizer", scenario)


def check_lengths(scenario: Written) -> Iterator[Problem]:
    """Samples of some lengths are packed or padded where kernels and stacks do so."""
    training = scenario.training_step
    if training.lengths is None:
        if training.packing:
            yield mistake("idle_packing", scenario)
        return
    if scenario.transformer.encoder_layers:
        yield mistake("stacked_lengths", scenario)
    if scenario.parallelism.cp > 1:
        yield mistake("divided_lengths", scenario)
    if training.packing and not scenario.software.lowering.fused_attention:
        yield mistake("packed_scores", scenario)


def check_reference(scenario: Written) -> Iterator[Problem]:
    """A reference model has the same stages, whose messages it would send as well."""
    if scenario.training_step.reference and scenario.parallelism.pp > 1:
        yield mistake("reference", scenario)


def check_adapters(scenario: Written) -> Iterator[Problem]:
    """Adapters are narrower than their products, which the model has, and simulated so."""
    training, model = scenario.training_step, scenario.transformer
    if training.method == "full":
        return
    tuning, tp = training.tuning, scenario.parallelism.tp
    sides = {
        **dict.fromkeys(("qkv", "query", "output"), model.query_features),
        **dict.fromkeys(("key", "value"), model.kv_features),
        **dict.fromkeys(("up", "down"), model.ffn_hidden),
        "head": model.vocab,
    }
    most = min(model.hidden, *(sides[word] for word in tuning.modules))
    if tuning.rank > most:
        yield mistake("rank", scenario, rank=tuning.rank, most=most)
    if model.moe is not None and {"up", "down"} & set(tuning.modules):
        yield mistake("expert_adapters", scenario)
    if model.parallel_block:
        yield mistake("parallel_adapters", scenario)
    if tuning.base.startswith("nf4") and model.hidden * model.query_features // tp % 64:
        yield mistake("nf4_blocks", scenario)
    if training.recompute == "per-op" or set(training.recompute_modules or ()) - {"core_attn"}:
        yield mistake("adapters_again", scenario)


def check_narrow_base(scenario: Written) -> Iterator[Problem]:
    """Every chip runs the kernels that widen narrow weights; products are in a wide format."""
    base, precision = scenario.training_step.tuning.base, scenario.training_step.precision
    if base == "fp8" and precision != "fp8":
        yield mistake("fp8_base", scenario)
    if base in ("bf16", "fp8"):
        return
    chips = (cluster.accelerator.kind for cluster in scenario.clusters)
    if without := [chip for chip in chips if chip.startswith(_NF4_FAMILIES_WITHOUT)]:
        yield mistake("base_kernels", scenario, base=base, chip=without[0])
    if scenario.transformer.moe is not None:
        yield mistake("narrow_experts", scenario, base=base)
    if precision not in ("bf16", "fp16"):
        yield mistake("narrow_products", scenario, base=base)
    if scenario.parallelism.offload != "none":
        yield mistake("narrow_offload", scenario, base=base)
