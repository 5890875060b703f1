"""The model of a scenario as settings of Megatron."""

from __future__ import annotations

from mpsim.errors import FormatError
from mpsim.formats.out_megatron_settings import Settings
from mpsim.formats.words import table

__all__ = ["put_model"]


def put_model(s: Settings) -> None:
    """Put the model into the settings.

    Raises
    ------
    FormatError
        If it has an encoder.
    """
    model = s.scenario.transformer
    if model.encoder_layers:
        raise FormatError(
            f"model {model.name}: has an encoder and a decoder; Megatron's GPT settings describe one stack of layers"
        )
    if model.mtp_layers and s.put("mtp-num-layers", model.mtp_layers, "model.mtp_layers"):
        s.put("num-layers", model.layers - model.mtp_layers, "model.layers")
    else:
        s.put("num-layers", model.layers, "model.layers")
    for to in ("model.hidden", "model.heads"):
        s.put_value(to)
    _put_latent(s) if model.mla is not None else _put_heads(s)
    s.put("ffn-hidden-size", model.ffn_hidden, "model.ffn_hidden")
    _put_vocabulary(s)
    _put_parts(s)
    _put_positions(s)
    _put_mask(s)
    if model.moe is not None:
        _put_experts(s)


def _put_latent(s: Settings) -> None:
    s.put("multi-latent-attention", True)
    for field in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        s.put_value(f"model.mla.{field}")
    latent = s.scenario.transformer.mla
    if s.is_dataclass or (latent is not None and latent.q_lora_rank):
        s.put_value("model.mla.q_lora_rank")
    own = ["model.mla.q_lora_rank", "model.kv_heads", "model.head_dim"]
    s.out.hold(own, "--multi-latent-attention")
    s.out.lose("model.qk_norm", "latent attention has norms of its own")


def _put_parts(s: Settings) -> None:
    """MLP, norms, biases, dropout and the ends."""
    model = s.scenario.transformer
    untied = not model.tied_embeddings
    _put_switch(s, "swiglu", model.gated_mlp, "model.gated_mlp")
    _put_switch(s, "untie-embeddings-and-output-weights", untied, "model.tied_embeddings")
    if model.norm == "rmsnorm" or s.has("normalization"):
        s.put_value("model.norm")
    else:
        s.out.hold("model.norm", "without --normalization")
    _put_switch(s, "disable-bias-linear", not model.bias, "model.bias")
    if model.qkv_bias and not model.bias:
        s.put("add-qkv-bias", True, "model.qkv_bias")
    for name in ("hidden-dropout", "attention-dropout"):
        s.put(name, model.dropout, "model.dropout")
    if model.qk_norm and model.mla is None:
        s.put("qk-layernorm", True, "model.qk_norm")


def _put_mask(s: Settings) -> None:
    model = s.scenario.transformer
    if model.attention == "sliding":
        width = [model.window, 0] if s.is_dataclass else f"{model.window},0"
        s.put("window-size", width, "model.window", "model.attention")
        if model.full_every:
            s.put("window-attn-skip-freq", model.full_every, "model.full_every")
    elif model.attention == "full":
        s.out.lose("model.attention", "Megatron's GPT layers are causal")


def _put_switch(s: Settings, name: str, on: bool, holds: str) -> None:
    """A switch is written where it is on; where it is off its absence says so."""
    if on:
        s.put(name, True, holds)
    else:
        s.out.hold(holds, f"without --{name}")


def _put_heads(s: Settings) -> None:
    model = s.scenario.transformer
    if model.kv_heads != model.heads:
        if s.put("num-query-groups", model.kv_heads, "model.kv_heads") and not s.is_dataclass:
            s.put("group-query-attention", True, "model.kv_heads")
    elif s.is_dataclass:
        s.put("num-query-groups", model.kv_heads, "model.kv_heads")
    else:
        s.out.hold("model.kv_heads", "without --group-query-attention")
    if model.heads * model.head_dim != model.hidden:
        s.put("kv-channels", model.head_dim, "model.head_dim")
    else:
        s.out.hold("model.head_dim", "--num-attention-heads")


def _put_vocabulary(s: Settings) -> None:
    rows = s.scenario.transformer.vocab
    known = table("mpsim.formats.data", "megatron")["tokenizers"]
    if s.has("vocab-size"):
        if not s.is_dataclass:
            s.given["tokenizer-type"] = "NullTokenizer"
        s.put("vocab-size", rows, "model.vocab")
        return
    named = next((name for name, size in known.items() if size == rows), None)
    if named is not None:
        s.put("tokenizer-type", named, "model.vocab")
        return
    s.given["tokenizer-type"] = "GPT2BPETokenizer"
    s.out.lose("model.vocab", "the size of the table is the tokenizer's in this version")


def _put_positions(s: Settings) -> None:
    model = s.scenario.transformer
    length = s.scenario.training_step.sequence_length
    rows = max(model.max_positions, length) if model.positions == "learned" else length
    s.given["max-position-embeddings"] = rows
    if model.positions == "learned":
        s.out.hold("model.positions", "--position-embedding-type")
        if rows == model.max_positions:
            s.out.hold("model.max_positions", "--max-position-embeddings")
        else:
            s.out.force("model.max_positions", "learned positions need a row for every token")
    elif model.positions == "relative":
        s.put("relative-attention-num-buckets", model.max_positions, "model.max_positions")
    if s.has("position-embedding-type"):
        if not s.put_value("model.positions", name="position-embedding-type"):
            s.given["position-embedding-type"] = "none"
    elif model.positions == "rotary" and s.has("use-rotary-position-embeddings"):
        s.put("use-rotary-position-embeddings", True, "model.positions")
    elif model.positions != "learned":
        s.out.lose("model.positions", "positions are learned in this version")
        s.out.force("model.max_positions", "positions are learned in this version")


def _put_experts(s: Settings) -> None:
    model = s.scenario.transformer
    experts = model.moe
    assert experts is not None
    for to in ("model.moe.experts", "model.moe.top_k", "model.moe.ffn_hidden"):
        s.put_value(to)
    shared = experts.shared_experts * (experts.shared_ffn_hidden or experts.ffn_hidden)
    if shared:
        s.put(
            "moe-shared-expert-intermediate-size",
            shared,
            "model.moe.shared_experts",
            "model.moe.shared_ffn_hidden",
        )
        if experts.shared_experts > 1:
            s.out.notes.append(
                f"{experts.shared_experts} shared experts are one, as wide as all of them"
            )
    dense, layers = experts.dense_layers, model.layers - model.mtp_layers
    where = [
        int(layer >= dense and (layer - dense + 1) % experts.every == 0) for layer in range(layers)
    ]
    if not all(where):
        text: object = where
        if not s.is_dataclass:
            plain = f"([0]*{dense}+[1]*{layers - dense})"
            text = (
                plain if experts.every == 1 else "(" + "+".join(f"[{has}]" for has in where) + ")"
            )
        if experts.every == 1 and dense:
            s.put("moe-layer-freq", text, "model.moe.dense_layers", "model.moe.every")
        elif not dense and layers % experts.every == 0:
            value = (
                experts.every
            )  # experts in the first of each n layers there, in the last here: as many
            s.put("moe-layer-freq", value, "model.moe.every", "model.moe.dense_layers")
        else:
            s.out.lose(
                ["model.moe.every", "model.moe.dense_layers"],
                "experts in every n-th layer after dense ones",
            )
    else:
        s.out.hold(["model.moe.every", "model.moe.dense_layers"], "--num-experts")
    if experts.capacity_factor:
        s.put("moe-expert-capacity-factor", experts.capacity_factor, "model.moe.capacity_factor")
    s.out.lose(
        ["model.moe.imbalance", "model.moe.spread"],
        "how evenly tokens reach experts is the data's, no setting's",
    )
    if s.has("moe-grouped-gemm"):
        s.given["moe-grouped-gemm"] = True
    s.out.hold("model.moe.gated_mlp", "--swiglu") if experts.gated_mlp in (
        None,
        model.gated_mlp,
    ) else None
