"""The attention core: scores, softmax and context, as one fused kernel or one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.kernels import STATISTIC_BYTES, batched_product, streaming
from mpsim.workload.kinds import LayerKind
from mpsim.workload.operators import Operator, OperatorKind, Phase, Split
from mpsim.workload.transformer import Lowering, Transformer

__all__ = ["Core", "attention_core"]

# Forward is two products, scores over the width of a key and context over that of a value; the fused
# backward runs five: the scores again, and the gradients of values, probabilities, queries and keys.
_BACKWARD_KEY_PRODUCTS = 3
_BACKWARD_VALUE_PRODUCTS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Shape of the attention of one layer.

    Parameters
    ----------
    prefix : str
        Before the names of its operators: ``cross_`` where a decoder attends to the encoder.
    heads, kv_heads, head_dim, head_dim_v : int
    causal : bool
    window : int
        0 for none [tokens].
    dropout : bool
    """

    prefix: str
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int
    dropout: bool

    @classmethod
    def of(cls, model: Transformer, kind: LayerKind, *, cross: bool = False) -> Core:
        """The core of a layer's own attention, or of that to the encoder."""
        mla = model.mla
        return cls(
            prefix="cross_" if cross else "",
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=mla.qk_head_dim if mla else model.head_dim,
            head_dim_v=mla.v_head_dim if mla else model.head_dim,
            causal=kind.causal and not cross,
            window=0 if cross else kind.window,
            dropout=model.dropout > 0,
        )


def attention_core(core: Core, lowering: Lowering, tokens: Tokens) -> list[Step]:
    """Expand the core of the attention of one layer.

    Parameters
    ----------
    core : Core
    lowering : Lowering
        Fused or not.
    tokens : Tokens
        Queries of this rank, keys of the whole sequence.

    Returns
    -------
    list of Step
        All flagged as recomputed selectively. Queries, keys and values, which recomputation needs,
        are saved by what comes before; the output by the projection after it.

    References
    ----------
    Dao, FlashAttention-2 (2023), section 4.1: backward has 2.5 times the FLOPs of forward.
    Korthikanti et al. (2022), section 4.1: 5 a s^2 b saved bytes of the unfused core.
    """
    steps = (
        [_fused(core, lowering, tokens)]
        if lowering.fused_attention
        else list(_unfused(core, lowering, tokens))
    )
    return [
        Step(dataclasses.replace(one.forward, recomputed_selectively=True), one.backward)
        for one in steps
    ]


def _fused(core: Core, lowering: Lowering, tokens: Tokens) -> Step:
    pairs = tokens.sequences * core.heads * tokens.queries * tokens.keys
    size = lowering.activation_bytes
    query, output = (
        size * tokens.count * core.heads * width for width in (core.head_dim, core.head_dim_v)
    )
    both = core.head_dim + core.head_dim_v
    key_value = size * tokens.sequences * tokens.keys * core.kv_heads * both
    logsumexp = float(STATISTIC_BYTES * tokens.count * core.heads)
    forward = Operator(
        name=f"{core.prefix}attention",
        kind=OperatorKind.ATTENTION,
        phase=Phase.FORWARD,
        split=Split.TENSOR,
        heads=core.heads,
        kv_heads=core.kv_heads,
        head_dim=core.head_dim,
        head_dim_v=core.head_dim_v,
        queries=tokens.queries,
        keys=tokens.keys,
        sequences=tokens.sequences,
        causal=core.causal,
        window=core.window,
        flops=float(2 * pairs * both),
        bytes=query + output + key_value + logsumexp,  # q, k, v in; output and statistics out
        saved=logsumexp,
        saved_split=Split.TENSOR,
    )
    products = _BACKWARD_KEY_PRODUCTS * core.head_dim + _BACKWARD_VALUE_PRODUCTS * core.head_dim_v
    backward = dataclasses.replace(
        forward,
        phase=Phase.INPUT_GRADIENT,
        flops=float(2 * pairs * products),
        # q, output and its gradient in, dq out; k, v in, dk, dv out
        bytes=2 * query + 2 * output + 2 * key_value + logsumexp,
        saved=0.0,
        saved_split=Split.NONE,
    )
    return Step(forward, (backward,))


def _unfused(core: Core, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    yield _products(core, lowering, tokens, "scores")
    scores = tokens.sequences * core.heads * tokens.queries * tokens.keys
    probabilities = float(lowering.activation_bytes * scores)
    before = () if lowering.fused_softmax else ("scale", "mask")
    for name in before:
        yield streaming(core.prefix + name, name, Split.TENSOR, elements=scores, lowering=lowering)
    yield streaming(
        f"{core.prefix}softmax",
        "softmax",
        Split.TENSOR,
        elements=scores,
        lowering=lowering,
        kind=OperatorKind.SOFTMAX,
        saved=probabilities,
    )
    if core.dropout:
        yield streaming(
            f"{core.prefix}attention_dropout",
            "dropout",
            Split.TENSOR,
            elements=scores,
            lowering=lowering,
            saved=probabilities,  # what is left of them multiplies the values
        )
    yield _products(core, lowering, tokens, "context")


def _products(core: Core, lowering: Lowering, tokens: Tokens, name: str) -> Step:
    """Build scores = q k^T or context = p v, and the two products of its gradients."""
    batch = tokens.sequences * core.heads
    queries, keys = tokens.queries, tokens.keys
    width = core.head_dim if name == "scores" else core.head_dim_v
    square = (batch, queries, keys, width)
    to_queries, to_keys = (batch, queries, width, keys), (batch, keys, width, queries)
    shape, gradients = {
        "scores": (square, {"scores_dq": to_queries, "scores_dk": to_keys}),
        "context": (to_queries, {"context_dp": square, "context_dv": to_keys}),
    }[name]
    backward = tuple(
        batched_product(core.prefix + gradient, Phase.INPUT_GRADIENT, form, lowering)
        for gradient, form in gradients.items()
    )
    return Step(batched_product(core.prefix + name, Phase.FORWARD, shape, lowering), backward)
