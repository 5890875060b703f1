"""Attention after its norm: projections, positions, and the core, fused or kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpsim import structs
from mpsim.workload.builders import STATISTIC_BYTES, make_attention, make_gemm, moving, streaming
from mpsim.workload.expansion import Lowering, Step, Tokens
from mpsim.workload.operators import Module, Operator, Phase, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import LayerKind, Transformer
from mpsim.workload.variants import LatentAttention

QKV_WEIGHTS = 3  # queries, keys, values

_OWN = Module.ATTENTION
_CROSS = Module.CROSS_ATTENTION
# scores q k^T and the gradients of q and k; context p v and those of p and v
_SCORES = {"scores": "qkd", "scores_dq": "qdk", "scores_dk": "kdq"}
_CONTEXT = {"context": "qdk", "context_dp": "qkd", "context_dv": "kdq"}


def own_attention(part: Part, kind: LayerKind) -> Iterator[Step]:
    """Expand the attention of a layer to its own sequence."""
    model = part.model
    if model.mla is not None:
        yield from _latent(part, model.mla)
    else:
        saved = kept_of_qkv(part)
        yield part.column((_OWN, Role.QKV), "qkv", model.qkv_features, saved, weights=QKV_WEIGHTS)
        yield from positions(part)
        if repeats_keys(part):
            yield _repeat(part)
    core = Core.of(model, kind)
    if repeats_keys(part):
        core = structs.replace(core, kv_heads=model.heads)
    yield from attention_core(core, part.lowering, part.attending)
    if model.attention_gate:
        features, name = model.context_features, "attention_gate"
        elements, kept = part.tokens.count * features, part.size(features)
        role = Role.ATTENTION_GATE
        yield part.stream("gate_times_up", _OWN, elements, name, role=role, saved=kept)
    yield part.row((_OWN, Role.PROJECTION), "proj", model.context_features)


def cross_attention(part: Part, kind: LayerKind, memory: Tokens) -> Iterator[Step]:
    """Expand the attention of a decoder's layer to the output of the encoder.

    That output is kept once for all layers, by the norm after the encoder.
    """
    model = part.model
    to_encoder = structs.replace(part.tokens, keys=memory.keys)
    key_value = 2 * model.kv_features
    yield part.column((_CROSS, Role.QUERY), "cross_q", model.query_features, model.query_features)
    encoded = structs.replace(part, tokens=memory)
    yield encoded.column((_CROSS, Role.KEY_VALUE), "cross_kv", key_value, key_value)
    yield from attention_core(Core.of(model, kind, cross=True), part.lowering, to_encoder)
    yield part.row((_CROSS, Role.PROJECTION), "cross_proj", model.query_features)


def repeats_keys(part: Part) -> bool:
    """Whether keys and values become as many heads as queries before they enter the core."""
    model = part.model
    return part.lowering.repeated_keys and model.mla is None and model.kv_heads < model.heads


def _repeat(part: Part) -> Step:
    """Copy keys and values to all heads, which the core keeps; backward gradients are summed."""
    model = part.model
    few, all_heads = part.size(2 * model.kv_features), part.size(2 * model.query_features)
    return moving(
        Role.REPEAT,
        Split.TENSOR,
        (few + all_heads, few + all_heads),
        module=_OWN,
        name="repeat keys and values",
        saved=all_heads,
        saved_split=Split.TENSOR,
    )


def kept_of_qkv(part: Part) -> int:
    """Features of the projection kept: all, or the values where the rest is a new tensor."""
    model = part.model
    if repeats_keys(part) and not part.lowering.merged_qkv:
        return 0 if _turns(part) else model.query_features
    whole = part.lowering.merged_qkv or not _turns(part)
    gate = model.query_features * model.attention_gate
    return model.qkv_features if whole else model.kv_features + gate


def _turns(part: Part) -> bool:
    """Whether queries and keys change into tensors of their own before the core."""
    return part.model.positions == "rotary" or part.model.qk_norm


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
        kept = model.query_features if repeats_keys(part) else features  # keys live on as copies
        yield _rotary(part, features, kept)


def _rotary(part: Part, features: int, kept: int) -> Step:
    passes = "rotary" if part.lowering.fused_rotary else "wide_rotary"
    return part.stream(passes, _OWN, part.tokens.count * features, saved=part.size(kept))


def _latent(part: Part, mla: LatentAttention) -> Iterator[Step]:
    """Queries and keys are a part without position and a rotated one: whole tensors, kept."""
    model = part.model
    if mla.q_lora_rank:
        yield part.replicated((_OWN, Role.QUERY_DOWN), "q_down", mla.q_lora_rank)
    down = mla.kv_lora_rank + mla.qk_rope_head_dim
    yield part.replicated((_OWN, Role.KEY_VALUE_DOWN), "kv_down", down)
    if mla.q_lora_rank:
        yield part.norm(_OWN, "q_norm", mla.q_lora_rank, role=Role.QUERY_NORM)
    yield part.column(
        (_OWN, Role.QUERY_UP), "q_up", model.query_features, 0, features_in=mla.q_lora_rank
    )
    yield part.norm(_OWN, "kv_norm", mla.kv_lora_rank, role=Role.KEY_VALUE_NORM)
    key_value = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    saved = key_value if part.lowering.merged_qkv else model.context_features
    up = _OWN, Role.KEY_VALUE_UP
    yield part.column(up, "kv_up", key_value, saved, features_in=mla.kv_lora_rank)
    if not part.lowering.fused_rotary:  # of the rotated part alone, before parts are joined
        yield _rotary(part, model.heads * mla.qk_rope_head_dim, kept=0)
    joined = 2 * model.query_features
    yield part.stream("rotary", _OWN, part.tokens.count * joined, saved=part.size(joined))


# --- the core -------------------------------------------------------------------------------------


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Shape of the attention of one layer."""

    module: Module  # ATTENTION, or CROSS_ATTENTION where a decoder attends to the encoder
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int  # 0 for none [tokens]
    dropout: bool

    @classmethod
    def of(cls, model: Transformer, kind: LayerKind, *, cross: bool = False) -> Core:
        """The core of a layer's own attention, or of that to the encoder."""
        mla = model.mla
        return cls(
            module=Module.CROSS_ATTENTION if cross else Module.ATTENTION,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=mla.qk_head_dim if mla else model.head_dim,
            head_dim_v=mla.v_head_dim if mla else model.head_dim,
            causal=kind.causal and not cross,
            window=0 if cross else kind.window,
            dropout=model.dropout > 0,
        )

    @property
    def prefix(self) -> str:
        """Prefix of its operators' names."""
        return "cross_" if self.module is Module.CROSS_ATTENTION else ""


def attention_core(core: Core, lowering: Lowering, tokens: Tokens) -> list[Step]:
    """Expand the core of a layer's attention: this rank's queries, the whole sequence's keys.

    Returns list of Step: queries, keys and values are saved by what comes before; the output by the
    projection after it.

    References
    ----------
    Korthikanti et al. (2022), section 4.1: 5 a s^2 b saved bytes of the unfused core. Hugging Face,
    transformers 5.23, models/llama/modeling_llama.py eager_attention_forward, and Megatron-LM,
    fused_softmax.py forward_torch_softmax: in kernels of torch the softmax is float32, and its cast
    multiplies the values.
    """
    if lowering.fused_attention:
        return [_fused(core, lowering, tokens)]
    return list(_unfused(core, lowering, tokens))


def _fused(core: Core, lowering: Lowering, tokens: Tokens) -> Step:
    forward, backward = (
        make_attention(
            phase,
            sequences=tokens.sequences,
            queries=tokens.queries,
            keys=tokens.keys,
            heads=core.heads,
            kv_heads=core.kv_heads,
            head_dim=core.head_dim,
            head_dim_v=core.head_dim_v,
            causal=core.causal,
            window=core.window,
            element_bytes=lowering.activation_bytes,
            module=core.module,
            name=f"{core.prefix}attention",
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
    )
    return Step(forward, (backward,))


def _unfused(core: Core, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    scores = tokens.sequences * core.heads * tokens.queries * tokens.keys
    probabilities = float(lowering.activation_bytes * scores)

    def kernel(passes: str, role: Role, saved: float = 0.0, name: str = "") -> Step:
        return streaming(
            passes,
            Split.TENSOR,
            elements=scores,
            lowering=lowering,
            role=role,
            module=core.module,
            name=core.prefix + (name or passes),
            saved=saved,
        )

    yield _products(core, lowering, tokens, Role.SCORES, _SCORES)
    softmax = probabilities
    if not lowering.fused_softmax:
        yield kernel("scale", Role.SCALE)
        yield kernel("mask", Role.MASK)
        if lowering.activation_bytes < STATISTIC_BYTES:
            # float32, and its cast where no dropout comes between that and the values
            softmax = STATISTIC_BYTES * scores + (0.0 if core.dropout else probabilities)
    yield kernel("softmax", Role.SOFTMAX, softmax)
    if core.dropout:  # what is left of the probabilities multiplies the values
        yield kernel("dropout", Role.ATTENTION_DROPOUT, probabilities, "attention_dropout")
    yield _products(core, lowering, tokens, Role.CONTEXT, _CONTEXT)


def _products(
    core: Core, lowering: Lowering, tokens: Tokens, role: Role, products: Mapping[str, str]
) -> Step:
    """Batched products, one a head and sequence: the forward one, then both gradients'. `products`:
    what the m, n and k of each are (see `Operator`), by its name.
    """
    features = core.head_dim if role is Role.SCORES else core.head_dim_v
    sizes = {"q": tokens.queries, "k": tokens.keys, "d": features}

    def product(name: str, attends: str, phase: Phase) -> Operator:
        m, n, k = (sizes[letter] for letter in attends)
        return make_gemm(
            role,
            phase,
            m=m,
            n=n,
            k=k,
            batch=tokens.sequences * core.heads,
            element_bytes=lowering.activation_bytes,
            module=core.module,
            name=core.prefix + name,
            split=Split.TENSOR,
            sharded_dim="batch",
            attends=attends,
        )

    phases = (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.INPUT_GRADIENT)
    forward, *backward = map(product, products, products.values(), phases)
    return Step(forward, tuple(backward))
