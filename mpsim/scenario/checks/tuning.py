"""Checks of fine-tuning: what adapters, frozen parts and narrow weights can stand beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem, ScenarioError
from mpsim.framework import stepped_by

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_NF4_FAMILIES_WITHOUT = ("tpu",)


def check_method(scenario: Written) -> Iterator[Problem]:
    """Keys of adapters stand beside their methods, frozen parts beside one that trains."""
    training = scenario.training_step
    method, adapter = training.method, training.adapter
    if method == "full" and adapter is not None:
        message = (
            "got a value, but method is full, which has no adapters; set method to lora, or leave"
            " it out"
        )
        yield Problem(message, "training.adapter")
    if method != "full" and training.frozen:
        message = (
            f"got {', '.join(training.frozen)}, but with {method} only adapters train; leave it out"
        )
        yield Problem(message, "training.frozen")
    if adapter is not None and method == "qlora" and adapter.base == "bf16":
        message = (
            "got bf16 with qlora, whose frozen weights are narrow; take nf4 or int8, or method:"
            " lora"
        )
        yield Problem(message, "training.adapter.base")
    ends = {"embedding", "head"} & set(training.frozen)
    if len(ends) == 1 and scenario.transformer.tied_embeddings:
        message = (
            f"got {min(ends)} alone, but embedding and head are one tied tensor; freeze both or"
            " neither"
        )
        yield Problem(message, "training.frozen")
    if "vision" in training.frozen and scenario.transformer.vision is None:
        yield Problem("got vision of a model without a tower; leave it out", "training.frozen")
    if set(training.frozen) >= {"embedding", "attention", "mlp", "head"}:
        message = "got all parts, so that only norms would train; leave one out"
        yield Problem(message, "training.frozen")


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
        message = (
            f"got {training.optimizer} with adapters, whose narrow matrices it is not simulated on;"
            " take adamw"
        )
        yield Problem(message, "training.optimizer")
    if offload != "none" and (steps.orthogonal_iterations or steps.repeated_share):
        message = (
            f"got {training.optimizer} with states on the host, whose products are not simulated"
            " there; set parallelism.offload to none"
        )
        yield Problem(message, "training.optimizer")


def check_lengths(scenario: Written) -> Iterator[Problem]:
    """Samples of some lengths are packed or padded where kernels and stacks do so."""
    training, model = scenario.training_step, scenario.transformer
    if training.lengths is None:
        if training.packing:
            message = "got true without lengths of what is packed; give training.lengths"
            yield Problem(message, "training.packing")
        return
    if model.encoder_layers:
        message = (
            f"got lengths for {model.name}, whose encoder and decoder have two; set"
            " training.sequence_length to the length computed"
        )
        yield Problem(message, "training.lengths")
    if scenario.parallelism.cp > 1:
        message = (
            f"got lengths with cp {scenario.parallelism.cp}, among whose ranks samples are not"
            " divided here; set parallelism.cp to 1"
        )
        yield Problem(message, "training.lengths")
    if training.packing and not scenario.software.lowering.fused_attention:
        message = (
            "got true with scores that are materialised, for all of a sequence; set"
            " framework.fused_attention to true"
        )
        yield Problem(message, "training.packing")


def check_reference(scenario: Written) -> Iterator[Problem]:
    """A reference model has the same stages, whose messages it would send as well."""
    if scenario.training_step.reference and scenario.parallelism.pp > 1:
        message = (
            f"got true with pp {scenario.parallelism.pp}, between whose stages the reference"
            " model's messages are not simulated; set parallelism.pp to 1"
        )
        yield Problem(message, "training.reference")


def check_offload_fraction(scenario: Written) -> Iterator[Problem]:
    """A share of the optimizer's state is offloaded only where it, and it alone, is."""
    p = scenario.parallelism
    if p.offload_fraction < 1 and (p.offload != "optimizer" or p.offload_to != "host"):
        message = (
            f"got {p.offload_fraction:g} with offload {p.offload} to {p.offload_to}; needed"
            " offload: optimizer to host, or leave it out"
        )
        yield Problem(message, "parallelism.offload_fraction")


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
        message = (
            f"got {tuning.rank}; needed 1 to {most}, the narrowest side of the products beside"
            " adapters; set it to 8 to 64"
        )
        yield Problem(message, "training.adapter.rank")
    if model.moe is not None and {"up", "down"} & set(tuning.modules):
        message = (
            "got up or down of a mixture of experts, whose adapters are not simulated; set modules"
            " to [qkv, output]"
        )
        yield Problem(message, "training.adapter.modules")
    if model.parallel_block:
        message = (
            "got a parallel block, whose products are joined; adapters stand beside products of"
            " their own: take method: full"
        )
        yield Problem(message, "training.method")
    if tuning.base.startswith("nf4") and model.hidden * model.query_features // tp % 64:
        message = (
            f"got nf4 with tp {tp}, whose shards are no whole blocks of 64 weights; set"
            " parallelism.tp lower"
        )
        yield Problem(message, "training.adapter.base")
    if training.recompute == "per-op" or set(training.recompute_modules or ()) - {"core_attn"}:
        message = "got modules that may hold adapters; needed full, none, or selective of core_attn"
        yield Problem(message, "training.recompute")


def check_narrow_base(scenario: Written) -> Iterator[Problem]:
    """Every chip runs the kernels that widen narrow weights; products are in a wide format."""
    training = scenario.training_step
    base = training.tuning.base
    if base == "bf16":
        return
    if base == "fp8":
        if training.precision != "fp8":
            message = (
                f"got fp8 with products in {training.precision}, which read wider weights; set"
                " training.precision to fp8"
            )
            yield Problem(message, "training.adapter.base")
        return
    without = [
        cluster.accelerator.name
        for cluster in scenario.clusters
        if cluster.accelerator.name.startswith(_NF4_FAMILIES_WITHOUT)
    ]
    if without:
        message = (
            f"got {base} on {without[0]}, for which bitsandbytes and torchao have no kernels; set"
            " method to lora"
        )
        yield Problem(message, "training.adapter.base")
    if scenario.transformer.moe is not None:
        message = (
            f"got {base} weights of a mixture of experts, which is not simulated; set base to bf16,"
            " with method: lora"
        )
        yield Problem(message, "training.adapter.base")
    if training.precision not in ("bf16", "fp16"):
        message = (
            f"got {training.precision} with {base} weights, which are widened to 16 bits; set"
            " precision to bf16"
        )
        yield Problem(message, "training.precision")
    if scenario.parallelism.offload != "none":
        message = (
            f"got {scenario.parallelism.offload} beside {base} weights, which is not simulated; set"
            " it to none"
        )
        yield Problem(message, "parallelism.offload")
