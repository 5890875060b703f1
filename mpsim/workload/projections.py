"""Attention between its norm and its residual addition: projections, positions and the core."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.attention import Core, attention_core
from mpsim.workload.builders import streaming
from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.experts import LatentAttention
from mpsim.workload.kinds import LayerKind
from mpsim.workload.operators import Module, Role, Split
from mpsim.workload.parts import Part

__all__ = ["QKV_WEIGHTS", "cross_attention", "kept_of_qkv", "own_attention", "positions"]

QKV_WEIGHTS = 3  # queries, keys, values

_OWN = Module.ATTENTION
_CROSS = Module.CROSS_ATTENTION


def own_attention(part: Part, kind: LayerKind) -> Iterator[Step]:
    """Expand the attention of a layer to its own sequence."""
    model = part.model
    if model.mla is not None:
        yield from _latent(part, model.mla)
    else:
        kept = kept_of_qkv(part)
        qkv = _OWN, Role.QKV
        yield part.column(qkv, "qkv", model.qkv_features, kept, weights=QKV_WEIGHTS)
        yield from positions(part)
    yield from attention_core(Core.of(model, kind), part.lowering, part.tokens)
    yield part.row((_OWN, Role.PROJECTION), "proj", model.context_features)


def cross_attention(part: Part, kind: LayerKind, memory: Tokens) -> Iterator[Step]:
    """Expand the attention of a decoder's layer to the output of the encoder.

    That output is kept once for all layers, by the norm after the encoder.
    """
    model = part.model
    to_encoder = dataclasses.replace(part.tokens, keys=memory.keys)
    key_value = 2 * model.kv_features
    yield part.column((_CROSS, Role.QUERY), "cross_q", model.query_features, model.query_features)
    encoded = dataclasses.replace(part, tokens=memory)
    yield encoded.column((_CROSS, Role.KEY_VALUE), "cross_kv", key_value, key_value)
    yield from attention_core(Core.of(model, kind, cross=True), part.lowering, to_encoder)
    yield part.row((_CROSS, Role.PROJECTION), "cross_proj", model.query_features)


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
            _OWN,
            "qk_norm",
            features,
            role=Role.QK_NORM,
            split=Split.TENSOR,
            feeds=not rotated,
            keeps=not merged,
        )
    if model.positions == "rotary":
        yield _rotary(part, features)


def _rotary(part: Part, features: int) -> Step:
    return streaming(
        "rotary",
        Split.TENSOR,
        elements=part.tokens.count * features,
        lowering=part.lowering,
        module=_OWN,
        saved=part.size(features),
    )


def _latent(part: Part, mla: LatentAttention) -> Iterator[Step]:
    """Queries and keys are assembled from a part without position and a rotated one: whole tensors, kept."""
    model = part.model
    if mla.q_lora_rank:
        yield part.replicated((_OWN, Role.QUERY_DOWN), "q_down", mla.q_lora_rank)
    yield part.replicated(
        (_OWN, Role.KEY_VALUE_DOWN), "kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim
    )
    if mla.q_lora_rank:
        yield part.norm(_OWN, "q_norm", mla.q_lora_rank, role=Role.QUERY_NORM)
    yield part.column(
        (_OWN, Role.QUERY_UP), "q_up", model.query_features, 0, features_in=mla.q_lora_rank
    )
    yield part.norm(_OWN, "kv_norm", mla.kv_lora_rank, role=Role.KEY_VALUE_NORM)
    key_value = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    kept = key_value if part.lowering.merged_qkv else model.context_features
    up = _OWN, Role.KEY_VALUE_UP
    yield part.column(up, "kv_up", key_value, kept, features_in=mla.kv_lora_rank)
    yield _rotary(part, 2 * model.query_features)
