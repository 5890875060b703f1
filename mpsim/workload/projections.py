"""Attention between its norm and its residual addition: projections, positions and the core."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.attention import Core, attention_core
from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.experts import LatentAttention
from mpsim.workload.kernels import streaming
from mpsim.workload.kinds import LayerKind
from mpsim.workload.operators import Split
from mpsim.workload.parts import Part

__all__ = ["QKV_WEIGHTS", "cross_attention", "kept_of_qkv", "own_attention", "positions"]

QKV_WEIGHTS = 3  # queries, keys, values


def own_attention(part: Part, kind: LayerKind) -> Iterator[Step]:
    """Expand the attention of a layer to its own sequence."""
    model = part.model
    if model.mla is not None:
        yield from _latent(part, model.mla)
    else:
        yield part.column("qkv", model.qkv_features, kept_of_qkv(part), weights=QKV_WEIGHTS)
        yield from positions(part)
    yield from attention_core(Core.of(model, kind), part.lowering, part.tokens)
    yield part.row("proj", model.context_features)


def cross_attention(part: Part, kind: LayerKind, memory: Tokens) -> Iterator[Step]:
    """Expand the attention of a decoder's layer to the output of the encoder.

    That output is kept once for all layers, by the norm after the encoder.
    """
    model = part.model
    to_encoder = dataclasses.replace(part.tokens, keys=memory.keys)
    key_value = 2 * model.kv_features
    yield part.column("cross_q", model.query_features, model.query_features)
    yield dataclasses.replace(part, tokens=memory).column("cross_kv", key_value, key_value)
    yield from attention_core(Core.of(model, kind, cross=True), part.lowering, to_encoder)
    yield part.row("cross_proj", model.query_features)


def kept_of_qkv(part: Part) -> int:
    """Features of the projection kept as they are: all, or the values where the rest is changed and a tensor of its own."""
    model = part.model
    changed = model.positions == "rotary" or model.qk_norm
    whole = part.lowering.merged_qkv or not changed
    return model.qkv_features if whole else model.kv_features


def positions(part: Part) -> Iterator[Step]:
    """Expand what is done to queries and keys between projection and core."""
    model = part.model
    features = model.query_features + model.kv_features
    if model.qk_norm:
        rotated = model.positions == "rotary"
        merged = part.lowering.merged_qkv  # then the projection has kept what is normed
        yield part.norm(
            "qk_norm", features, split=Split.TENSOR, feeds=not rotated, keeps=not merged
        )
    if model.positions == "rotary":
        yield _rotary(part, features)


def _rotary(part: Part, features: int) -> Step:
    return streaming(
        "rotary",
        "rotary",
        Split.TENSOR,
        elements=part.tokens.count * features,
        lowering=part.lowering,
        saved=part.size(features),
    )


def _latent(part: Part, mla: LatentAttention) -> Iterator[Step]:
    """Queries and keys are assembled from a part without position and a rotated one: whole tensors, kept."""
    model = part.model
    if mla.q_lora_rank:
        yield part.replicated("q_down", mla.q_lora_rank)
    yield part.replicated("kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim)
    if mla.q_lora_rank:
        yield part.norm("q_norm", mla.q_lora_rank)
    yield part.column("q_up", model.query_features, 0, features_in=mla.q_lora_rank)
    yield part.norm("kv_norm", mla.kv_lora_rank)
    key_value = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    kept = key_value if part.lowering.merged_qkv else model.context_features
    yield part.column("kv_up", key_value, kept, features_in=mla.kv_lora_rank)
    yield _rotary(part, 2 * model.query_features)
