"""Checks of fine-tuning: what adapters, frozen parts and narrow weights can stand beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem, ScenarioError
from mpsim.framework import stepped_by
from mpsim.scenario.checks.common import mistake

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

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


def check_offload_fraction(scenario: Written) -> Iterator[Problem]:
    """A share of the optimizer's state is offloaded only where it, and it alone, is."""
    p = scenario.parallelism
    if p.offload_fraction < 1 and (p.offload != "optimizer" or p.offload_to != "host"):
        yield mistake("offload_fraction", scenario)


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
