"""The attention core: scores, softmax and context, as one fused kernel or one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.kernels import STATISTIC_BYTES, batched_product, streaming
from mpsim.workload.operators import Operator, OperatorKind, Phase, Split
from mpsim.workload.transformer import Lowering, Transformer

__all__ = ["attention_core"]

# Forward is two products (scores, context); the fused backward runs five: the scores again, and the
# gradients of values, probabilities, queries and keys.
_FORWARD_PRODUCTS = 2
_BACKWARD_PRODUCTS = 5


def attention_core(model: Transformer, lowering: Lowering, tokens: Tokens) -> list[Step]:
    """Expand the core of the attention of one layer.

    Parameters
    ----------
    model : Transformer
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
        [_fused(model, lowering, tokens)]
        if lowering.fused_attention
        else list(_unfused(model, lowering, tokens))
    )
    return [
        Step(dataclasses.replace(one.forward, recomputed_selectively=True), one.backward)
        for one in steps
    ]


def _fused(model: Transformer, lowering: Lowering, tokens: Tokens) -> Step:
    pairs = tokens.sequences * model.heads * tokens.queries * tokens.keys
    forward_flops = float(2 * _FORWARD_PRODUCTS * pairs * model.head_dim)
    query = lowering.activation_bytes * tokens.count * model.query_features
    key_value = 2 * lowering.activation_bytes * tokens.sequences * tokens.keys * model.kv_features
    logsumexp = float(STATISTIC_BYTES * tokens.count * model.heads)
    forward = Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        phase=Phase.FORWARD,
        split=Split.TENSOR,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        head_dim_v=model.head_dim,
        queries=tokens.queries,
        keys=tokens.keys,
        sequences=tokens.sequences,
        causal=model.causal,
        window=model.window,
        flops=forward_flops,
        bytes=2 * query + key_value + logsumexp,  # q, k, v in; output and statistics out
        saved=logsumexp,
        saved_split=Split.TENSOR,
    )
    backward = dataclasses.replace(
        forward,
        phase=Phase.INPUT_GRADIENT,
        flops=forward_flops * _BACKWARD_PRODUCTS / _FORWARD_PRODUCTS,
        # q, output and its gradient in, dq out; k, v in, dk, dv out
        bytes=4 * query + 2 * key_value + logsumexp,
        saved=0.0,
        saved_split=Split.NONE,
    )
    return Step(forward, (backward,))


def _unfused(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    yield _products(model, lowering, tokens, "scores")
    scores = tokens.sequences * model.heads * tokens.queries * tokens.keys
    probabilities = float(lowering.activation_bytes * scores)
    before = () if lowering.fused_softmax else ("scale", "mask")
    for name in before:
        yield streaming(name, name, Split.TENSOR, elements=scores, lowering=lowering)
    yield streaming(
        "softmax",
        "softmax",
        Split.TENSOR,
        elements=scores,
        lowering=lowering,
        kind=OperatorKind.SOFTMAX,
        saved=probabilities,
    )
    if model.dropout:
        yield streaming(
            "attention_dropout",
            "dropout",
            Split.TENSOR,
            elements=scores,
            lowering=lowering,
            saved=probabilities,  # what is left of them multiplies the values
        )
    yield _products(model, lowering, tokens, "context")


def _products(model: Transformer, lowering: Lowering, tokens: Tokens, name: str) -> Step:
    """Build scores = q k^T or context = p v, and the two products of its gradients."""
    batch = tokens.sequences * model.heads
    queries, keys, width = tokens.queries, tokens.keys, model.head_dim
    square = (batch, queries, keys, width)
    to_queries, to_keys = (batch, queries, width, keys), (batch, keys, width, queries)
    shape, gradients = {
        "scores": (square, {"scores_dq": to_queries, "scores_dk": to_keys}),
        "context": (to_queries, {"context_dp": square, "context_dv": to_keys}),
    }[name]
    backward = tuple(
        batched_product(gradient, Phase.INPUT_GRADIENT, form, lowering)
        for gradient, form in gradients.items()
    )
    return Step(batched_product(name, Phase.FORWARD, shape, lowering), backward)
