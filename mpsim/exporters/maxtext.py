"""MaxText's YAML: the model, the axes of the mesh, batches and what runs again."""

from __future__ import annotations

from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.exporters.outgoing import Exported, Outgoing, header
from mpsim.exporters.written import yaml_text
from mpsim.formats import key_to, keys
from mpsim.formats.words import table
from mpsim.framework import framework
from mpsim.scenario import Scenario

__all__ = ["export_maxtext"]

_TABLE: Final = ("mpsim.formats.data", "maxtext")
_TRAITS: Final = {"norm": "rmsnorm", "positions": "rotary", "bias": False, "qk_norm": False, "post_norm": False}  # fmt: skip


def export_maxtext(scenario: Scenario) -> Exported:
    """Write the configuration of a scenario.

    Raises
    ------
    FormatError
        If no decoder block has its layers, or it serves.
    """
    out = Outgoing(scenario)
    data: dict[str, Any] = {"run_name": "mpsim"}
    _put_model(out, data)
    _put_mesh(out, data)
    _put_training(out, data)
    _put_framework(out, data)
    out.lose_cluster(
        f"no key names accelerators, links and NICs: import it with --cluster {scenario.hardware.name}"
    )
    text = "".join(f"# {line}\n" for line in header(scenario, "MaxText"))
    return out.close("maxtext", tool="MaxText", text=text + yaml_text(data))


def _put_model(out: Outgoing, data: dict[str, Any]) -> None:
    model = out.scenario.transformer
    blocks = table(*_TABLE)["blocks"]
    traits = {name: {**_TRAITS, **block} for name, block in blocks.items()}
    wanted = {field: getattr(model, field) for field in _TRAITS}
    fits = [name for name, block in traits.items() if block == wanted]
    if model.mla is not None:
        fits = [name for name in fits if name == "deepseek"]
    elif model.moe is not None:
        fits = [name for name in ("mixtral", "deepseek", "qwen3_moe") if name in fits]
    if not fits or model.encoder_layers:
        raise FormatError(
            f"model {model.name}: no decoder block of MaxText known here has {', '.join(f'{key} {value}' for key, value in wanted.items())}"
        )
    first = "deepseek" if model.moe is not None and "deepseek" in fits and (model.moe.shared_experts or model.moe.dense_layers) else fits[0]  # fmt: skip
    data["decoder_block"] = first
    out.hold([f"model.{field}" for field in _TRAITS], "decoder_block")
    out.hold(["model.qkv_bias"], "decoder_block") if model.qkv_bias == model.bias else None
    for to in ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab"):
        _write(out, data, f"model.{to}")
    activations = ["silu", "linear"] if model.gated_mlp else ["gelu"]
    data["mlp_activations"] = activations
    out.hold("model.gated_mlp", "mlp_activations")
    _write(out, data, "model.tied_embeddings")
    _write(out, data, "model.dropout")
    if model.positions == "learned" and model.max_positions:
        data["trainable_position_size"] = model.max_positions
        out.hold("model.max_positions", "trainable_position_size")
    if model.attention == "sliding":
        data["attention_type"] = "local_sliding"
        _write(out, data, "model.window")
        out.hold("model.attention", "attention_type")
    out.lose("model.full_every", "which layers see all keys is the decoder block's")
    if model.moe is not None:
        for to in ("experts", "top_k", "ffn_hidden", "shared_experts", "dense_layers"):
            _write(out, data, f"model.moe.{to}")
        own = model.moe.shared_ffn_hidden in (0, model.moe.ffn_hidden)
        out.hold("model.moe.shared_ffn_hidden", "base_moe_mlp_dim") if own else None
        out.hold("model.moe.gated_mlp", "mlp_activations")
    if model.mla is not None:
        data["attention_type"] = "mla"
        for key in keys("maxtext"):
            if key.to.startswith("model.mla."):
                _write(out, data, key.to)


def _write(out: Outgoing, data: dict[str, Any], to: str) -> None:
    key = key_to("maxtext", to)
    value = out.values.get(to)
    word = key.word(value) if key.values else value
    if word is None:
        out.lose(to, f"{key.name} has no word for it")
        return
    data[key.name] = word
    out.hold(to, key.name)


def _put_mesh(out: Outgoing, data: dict[str, Any]) -> None:
    """Axes of the mesh: inside a slice or node what fits, data parallelism across."""
    scenario, p = out.scenario, out.scenario.parallelism
    group = (p.shard or scenario.dp * p.cp) if p.zero else p.cp
    fsdp = max(1, group // p.cp // p.ep)
    degrees = {
        "tensor": p.tp, "pipeline": p.pp, "context": p.cp, "expert": p.ep,
        "fsdp": fsdp, "data": scenario.dp * p.cp // group if p.zero else scenario.dp // p.ep,
    }  # fmt: skip
    for axis, degree in degrees.items():
        data[f"ici_{axis}_parallelism"] = degree
    for axis, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"), ("dp", "data")):  # fmt: skip
        out.hold(f"parallelism.{axis}", f"ici_{word}_parallelism")
    if p.shard is not None:
        out.hold("parallelism.shard", "ici_fsdp_parallelism")
    read = 3 if fsdp > 1 else 0
    if read == p.zero:
        out.hold("parallelism.zero", "ici_fsdp_parallelism")
    else:
        out.force("parallelism.zero", "MaxText shares parameters, or nothing")
    if p.offload == "optimizer" and p.offload_to == "host":
        data["optimizer_memory_host_offload"] = True
        out.hold("parallelism.offload", "optimizer_memory_host_offload")
    chunks = scenario.virtual_stages
    if p.pp == 1 and scenario.schedule.name == "1f1b":
        out.hold(["schedule.name", "schedule.virtual_stages"], "one stage")
    elif scenario.schedule.name in ("1f1b", "interleaved-1f1b"):
        data["num_pipeline_repeats"] = chunks
        out.hold(["schedule.name", "schedule.virtual_stages"], "num_pipeline_repeats")
    else:
        out.lose_section("schedule", "MaxText runs its own circular pipeline")


def _put_training(out: Outgoing, data: dict[str, Any]) -> None:
    scenario, training = out.scenario, out.scenario.training_step
    world, steps = scenario.hardware.accelerators, scenario.microbatches
    data["max_target_length"] = training.sequence_length
    out.hold("training.sequence_length", "max_target_length")
    if scenario.parallelism.pp > 1:
        data["per_device_batch_size"] = training.global_batch / world
        data["num_pipeline_microbatches"] = steps
    else:
        data["per_device_batch_size"] = training.global_batch / world / steps
        data["gradient_accumulation_steps"] = steps
    out.hold(["training.global_batch", "training.micro_batch"], "per_device_batch_size")
    precision = training.precision
    if precision == "fp8":
        data["dtype"], data["quantization"] = "bfloat16", "fp8"
        out.hold("training.precision", "quantization")
    else:
        word = key_to("maxtext", "training.precision").word(precision)
        data["dtype"] = word or "bfloat16"
        out.hold("training.precision", "dtype") if word else out.lose("training.precision", "MaxText has no such format")  # fmt: skip
    word = key_to("maxtext", "training.recompute").word(training.recompute)
    data["remat_policy"] = word or "full"
    if word is None:
        out.force("training.recompute", "its policies name tensors to keep; full is written")
    else:
        out.hold("training.recompute", "remat_policy")


def _put_framework(out: Outgoing, data: dict[str, Any]) -> None:
    chosen = out.scenario.framework
    wanted = framework(chosen.preset, chosen.overrides)
    kind = "tpu" if out.scenario.hardware.accelerator.vendor == "Google" else "gpu"
    data["hardware"] = kind
    preset = key_to("maxtext", "framework.preset").values[kind]
    usual = framework(preset, {})
    changes: dict[str, object] = {}
    fused = wanted.lowering.fused_attention
    if fused != usual.lowering.fused_attention:
        data["attention"] = "flash" if fused else "dot_product"
        changes["fused_attention"] = fused
    data["gradient_clipping_threshold"] = 1.0 if wanted.optimizer.gradient_norm else 0.0
    changes["gradient_norm"] = wanted.optimizer.gradient_norm
    out.behave(preset, changes, tool="hardware")
