"""Hugging Face config.json: the model of a scenario as the first class that holds it, every key written out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.exporters.outgoing import Exported, Outgoing
from mpsim.formats import keys
from mpsim.formats.words import table
from mpsim.scenario import Scenario
from mpsim.workload import Transformer

__all__ = ["export_huggingface"]

_TABLE: Final = ("mpsim.formats.data", "huggingface")
_FLAGS: Final = ("qk_norm", "post_norm", "parallel_block", "embedding_norm")
_SIZES: Final = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions")
_DTYPES: Final = {"fp32": "float32", "tf32": "float32", "fp16": "float16"}


def export_huggingface(scenario: Scenario) -> Exported:
    """Write the model of a scenario as config.json.

    Raises
    ------
    FormatError
        If no class of transformers that is known here has such layers; it says what is odd about them.
    """
    out = Outgoing(scenario)
    model = scenario.transformer
    data = table(*_TABLE)
    fits = {
        kind: list(_obstacles(data["types"][kind], words, model))
        for kind, words in data["written"].items()
    }
    kind = next((kind for kind, obstacles in fits.items() if not obstacles), None)
    if kind is None:
        nearest = min(fits, key=lambda name: len(fits[name]))
        raise FormatError(
            f"model {model.name}: no class of transformers known here holds it; the nearest, {nearest}, differs in {', '.join(fits[nearest])}"
        )
    entry, words = data["types"][kind], data["written"][kind]
    config = _config(kind, entry, words, out)
    config["dtype"] = _DTYPES.get(scenario.training_step.precision, "bfloat16")
    for section in ("parallelism", "schedule", "training"):
        out.lose_section(section, "config.json holds a model and nothing of a run")
    out.lose_cluster("config.json holds a model and nothing of a run")
    out.lose_framework("config.json holds a model and nothing of a run")
    return out.close(
        "hf", tool=f"Hugging Face transformers, {kind}", text=json.dumps(config, indent=2) + "\n"
    )


def _obstacles(
    entry: Mapping[str, Any], words: Mapping[str, Any], model: Transformer
) -> Iterator[str]:
    """Traits of the model that a class has not."""
    fixed = entry["model"]
    for field, value in fixed.items():
        if getattr(model, field) != value:
            yield f"{field} {getattr(model, field)}"
    for field in _FLAGS:
        free = (field == "qk_norm" and "qk_norm" in entry) or (
            field == "parallel_block" and "parallel" in entry
        )
        if field not in fixed and not free and getattr(model, field):
            yield field
    for part in ("mla", "moe"):
        if (part in entry) != (getattr(model, part) is not None):
            yield {"mla": "latent attention", "moe": "experts"}[part]
    if ("encoder" in entry) != bool(model.encoder_layers):
        yield "encoder"
    if model.attention == "full" or (model.attention == "sliding" and "window" not in entry):
        yield f"attention {model.attention}"
    if (
        model.full_every
        and "window" in entry
        and entry["window"].get("every", model.full_every) != model.full_every
        and "pattern" not in entry["window"]
    ):
        yield f"full_every {model.full_every}"
    yield from _odd_widths(entry, words, model)
    yield from _odd_biases(entry, model)
    yield from _odd_experts(entry, words, model)


def _odd_widths(
    entry: Mapping[str, Any], words: Mapping[str, Any], model: Transformer
) -> Iterator[str]:
    latent = model.mla is not None
    if words.get("kv_heads", "") is None and model.kv_heads != model.heads:
        yield f"kv_heads {model.kv_heads}"
    if (
        words.get("head_dim", "") is None
        and not latent
        and model.heads * model.head_dim != model.hidden
    ):
        yield f"head_dim {model.head_dim}"
    if words.get("ffn", "") is None and model.ffn_hidden != 4 * model.hidden:
        yield f"ffn_hidden {model.ffn_hidden}"
    if model.dropout and "dropouts" not in words and "encoder" not in entry:
        return  # lost, and no reason to take another class


def _odd_biases(entry: Mapping[str, Any], model: Transformer) -> Iterator[str]:
    rules = entry.get("biases") or dict.fromkeys(("inputs", "output", "mlp", "norms"), False)
    wanted = {"inputs": model.bias or model.qkv_bias, "output": model.bias, "mlp": model.bias}
    if "encoder" in entry:
        wanted = dict.fromkeys(wanted, False)
    said: dict[str, bool] = {}
    for part, has in wanted.items():
        rule = rules[part]
        if isinstance(rule, bool):
            if rule != has:
                yield f"{'a' if has else 'no'} bias of {part}"
        else:
            (word,) = rule
            if said.setdefault(word, has) != has:  # one key decides two of them
                yield f"{'a' if has else 'no'} bias of {part} alone"


def _odd_experts(
    entry: Mapping[str, Any], words: Mapping[str, Any], model: Transformer
) -> Iterator[str]:
    experts = model.moe
    if experts is None or "moe" not in entry:
        return
    if words.get("width", "") is None and experts.ffn_hidden != model.ffn_hidden:
        yield f"experts of width {experts.ffn_hidden}"
    if experts.dense_layers and "dense_first" not in words:
        yield f"{experts.dense_layers} dense layers"
    if experts.every != 1 and "every" not in words:
        yield f"experts in every {experts.every}th layer"
    if experts.gated_mlp not in (None, model.gated_mlp):
        yield "experts of another MLP"
    shared = experts.shared_experts
    if (
        shared
        and not {"shared", "shared_width"} & words.keys()
        and entry["moe"].get("shared") != shared
    ):
        yield f"{shared} shared experts"
    own = experts.shared_ffn_hidden not in (0, experts.ffn_hidden)
    if shared and own and "shared_width" not in words:
        yield f"shared experts of width {experts.shared_ffn_hidden}"
    if not shared and entry["moe"].get("shared") and "shared" not in words:
        yield "a layer without shared experts"


def _config(
    kind: str, entry: Mapping[str, Any], words: Mapping[str, Any], out: Outgoing
) -> dict[str, Any]:
    """Every key of the class."""
    model = out.scenario.transformer
    named = {key.to: key.name for key in keys("huggingface")}
    usual = {role: named[to] for role, to in _ROLES.items()}
    config: dict[str, Any] = {"architectures": [words["class"]], "model_type": kind}
    if "act" in words:
        config["activation_function" if kind in ("gpt2", "gptj", "opt") else "hidden_act"] = words[
            "act"
        ]
    layers = model.layers - model.mtp_layers
    values = {
        "hidden": model.hidden, "layers": layers, "heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim,
        "ffn": model.ffn_hidden, "vocab": model.vocab, "positions": out.scenario.training_step.sequence_length,
    }  # fmt: skip
    if model.positions == "learned":
        values["positions"] = model.max_positions or values["positions"]
    for role in _SIZES:
        word = words.get(role, usual[role])
        if word is not None and not (role == "head_dim" and model.mla is not None):
            config[word] = values[role]
        if role != "positions":
            out.hold(_ROLES[role], word or usual[role])
    config["tie_word_embeddings"] = model.tied_embeddings
    out.hold("model.tied_embeddings", "tie_word_embeddings")
    out.hold(
        [
            f"model.{field}"
            for field in (*entry["model"], *_FLAGS, "gated_mlp", "norm", "positions")
        ],
        "model_type",
    )
    if model.positions != "learned" or model.max_positions == values["positions"]:
        out.hold("model.max_positions", words.get("positions", usual["positions"]) or "model_type")
    if model.positions == "learned" and not model.max_positions:
        out.force("model.max_positions", "the class has a table of learned positions")
    if model.mtp_layers:
        config["num_nextn_predict_layers"] = model.mtp_layers
        out.force("model.layers", "the class counts no layers of multi-token prediction")
        out.force("model.mtp_layers", "the class does not build multi-token prediction")
    for word in words.get("dropouts", ()):
        config[word] = model.dropout
        out.hold("model.dropout", word)
    if "parallel" in entry:
        (word,) = entry["parallel"]
        config[word] = model.parallel_block
    if "qk_norm" in entry:
        (word,) = entry["qk_norm"]
        config[word] = model.qk_norm
    _put_biases(config, entry, out)
    _put_window(config, entry, out)
    _put_experts(config, entry, words, out)
    _put_rest(config, kind, entry, out)
    return config


_ROLES: Final = {
    "hidden": "model.hidden", "layers": "model.layers", "heads": "model.heads", "kv_heads": "model.kv_heads", "head_dim": "model.head_dim",
    "ffn": "model.ffn_hidden", "vocab": "model.vocab", "positions": "model.max_positions",
    "experts": "model.moe.experts", "top_k": "model.moe.top_k", "width": "model.moe.ffn_hidden", "shared": "model.moe.shared_experts",
    "shared_width": "model.moe.shared_ffn_hidden", "dense_first": "model.moe.dense_layers", "every": "model.moe.every",
}  # fmt: skip
"""Value of the scenario that each quantity of a class is."""


def _put_biases(config: dict[str, Any], entry: Mapping[str, Any], out: Outgoing) -> None:
    model = out.scenario.transformer
    wanted = {"inputs": model.bias or model.qkv_bias, "output": model.bias, "mlp": model.bias}
    for part, has in wanted.items():
        rule = (entry.get("biases") or {}).get(part, False)
        if not isinstance(rule, bool):
            (word,) = rule
            config[word] = config.get(word, False) or has
    out.hold(["model.bias", "model.qkv_bias"], "model_type")


def _put_window(config: dict[str, Any], entry: Mapping[str, Any], out: Outgoing) -> None:
    model, rule = out.scenario.transformer, entry.get("window")
    out.hold(
        ["model.attention", "model.window", "model.full_every"],
        rule["key"] if rule else "model_type",
    )
    if rule is None:
        return
    slides = model.attention == "sliding"
    config[rule["key"]] = model.window if slides else None
    if "switch" in rule:
        config[rule["switch"]] = slides
    if "from_layer" in rule:
        config[rule["from_layer"]] = 0 if slides else model.layers
    if slides and (model.full_every or rule.get("every")):
        config["layer_types"] = [
            "full_attention"
            if model.full_every and (layer + 1) % model.full_every == 0
            else "sliding_attention"
            for layer in range(model.layers - model.mtp_layers)
        ]


def _put_experts(
    config: dict[str, Any], entry: Mapping[str, Any], words: Mapping[str, Any], out: Outgoing
) -> None:
    model = out.scenario.transformer
    experts = model.moe
    if experts is None:
        return
    named = {key.to: key.name for key in keys("huggingface")}
    values = {
        "experts": experts.experts, "top_k": experts.top_k, "width": experts.ffn_hidden, "shared": experts.shared_experts,
        "shared_width": experts.shared_experts * (experts.shared_ffn_hidden or experts.ffn_hidden),
        "dense_first": experts.dense_layers, "every": experts.every,
    }  # fmt: skip
    for role, value in values.items():
        needed = role in ("experts", "top_k", "width")
        word = words.get(role, named[_ROLES[role]] if needed else None)
        if word is not None:
            config[word] = value
        out.hold(_ROLES[role], word or "model_type")
    if "width_key" in entry["moe"]:
        config[entry["ffn_key"]], config[entry["moe"]["width_key"]] = (
            model.ffn_hidden,
            experts.ffn_hidden,
        )
        config.pop("moe_intermediate_size", None)
    out.hold("model.moe.gated_mlp", "model_type")
    if experts.shared_experts > 1 and "shared_width" in words:
        out.force("model.moe.shared_experts", "one shared expert as wide as all of them")
        out.force("model.moe.shared_ffn_hidden", "one shared expert as wide as all of them")
    out.lose(
        ["model.moe.imbalance", "model.moe.spread", "model.moe.capacity_factor"],
        "of the run, not of the model",
    )


def _put_rest(config: dict[str, Any], kind: str, entry: Mapping[str, Any], out: Outgoing) -> None:
    """Latent attention, an encoder, and what single classes ask for."""
    model = out.scenario.transformer
    if model.mla is not None:
        for role in entry["mla"]:
            config[role] = getattr(model.mla, role) or None
            out.hold(f"model.mla.{role}", role)
        out.hold(["model.kv_heads", "model.head_dim"], "kv_lora_rank")
    if model.encoder_layers:
        rule = entry["encoder"]
        config[rule["layers"]] = model.encoder_layers
        config[rule["decoder_layers"]] = model.layers - model.encoder_layers
        config[rule["buckets"]] = model.max_positions
        config[rule["gated"]] = "gated-gelu" if model.gated_mlp else "relu"
        config["is_encoder_decoder"] = True
        out.hold(["model.encoder_layers", "model.layers"], rule["layers"])
        out.hold("model.max_positions", rule["buckets"])
        out.force("model.decoder_length", "the decoder's length is the run's")
        if model.bias:
            out.force("model.bias", "the class has no biases")
    if kind == "falcon":
        config["multi_query"] = model.kv_heads == 1
        config["new_decoder_architecture"] = model.kv_heads not in (1, model.heads)
        config["alibi"] = model.positions == "alibi"
    if kind == "opt":
        config["word_embed_proj_dim"] = model.hidden
        if model.positions == "learned" and config["max_position_embeddings"] > 2:
            config["max_position_embeddings"] -= entry["position_offset"]
