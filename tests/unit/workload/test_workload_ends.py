"""The operators of embedding and head, and model FLOPs."""

import dataclasses

import pytest

from mpsim.errors import WorkloadError
from mpsim.workload import (
    Lowering,
    OperatorKind,
    Phase,
    Split,
    Transformer,
    expand_embedding,
    expand_head,
    model,
    model_flops,
)

# 2 sequences of 16 tokens, hidden 8, vocabulary 11
GPT = Transformer(
    name="tiny", layers=3, hidden=8, heads=4, kv_heads=4, head_dim=2, ffn_hidden=32, vocab=11
)
TOKENS = 2 * 16


def test_embedding_gathers_forward_and_scatters_into_the_gradient_backward() -> None:
    """Without positions or dropout it is one kernel each way."""
    bare = dataclasses.replace(GPT, positions="none")
    part = expand_embedding(bare, Lowering(), sequences=2, sequence_length=16)
    (gather,), (scatter,) = part.forward, part.backward
    assert gather.kind is OperatorKind.EMBEDDING
    assert gather.split is Split.NONE
    assert gather.bytes == 4 * TOKENS * 8 + 8 * TOKENS  # rows in and out, int64 labels in
    assert scatter.phase is Phase.WEIGHT_GRADIENT
    # gradient and labels in, float32 rows in and out
    assert scatter.bytes == (2 + 8) * TOKENS * 8 + 8 * TOKENS
    assert part.saved_bytes(tp=8, sequence_parallel=True) == part.input_bytes == 8 * TOKENS


def test_embedding_adds_positions_norm_and_dropout_in_order() -> None:
    """What the model has becomes a kernel, and backward is reversed."""
    full = dataclasses.replace(GPT, embedding_norm=True, dropout=0.1, max_positions=16)
    part = expand_embedding(full, Lowering(), sequences=2, sequence_length=16)
    names = ["embedding", "positions", "embedding_norm", "embedding_dropout"]
    assert [one.name for one in part.forward] == names
    assert [one.name for one in part.backward] == names[::-1]
    dropout = part.forward[-1]
    assert (dropout.split, dropout.saved) == (Split.SEQUENCE, TOKENS * 8)
    # activations in and out for 32 tokens, 16 rows of the table in
    assert part.forward[1].bytes == 2 * (2 * TOKENS * 8 + 16 * 8)


def test_a_one_hot_lookup_is_a_product_each_way() -> None:
    """2 T V h FLOPs forward and for the table's gradient; one-hot rows of T V elements are written for both, and have no gradient."""
    lowering = Lowering(embedding_product=True)
    ends = expand_embedding(GPT, lowering, sequences=2, sequence_length=1024)
    product = 2.0 * 2048 * GPT.vocab * GPT.hidden
    assert [one.flops for one in (*ends.forward, *ends.backward) if one.flops] == [product] * 2
    rows = [one.bytes for one in (*ends.forward, *ends.backward) if one.name == "one_hot"]
    assert rows == [2048 * (8.0 + 2.0 * GPT.vocab)] * 2


def test_head_is_norm_logits_and_loss() -> None:
    """Logits are a column GEMM over the padded vocabulary, the loss moves its bytes half each way."""
    part = expand_head(
        GPT,
        Lowering(loss_bytes_per_logit=30),
        sequences=2,
        sequence_length=16,
        padded_vocab=16,
    )
    assert [one.name for one in part.forward] == ["final_norm", "logits", "loss"]
    assert [(one.name, one.phase) for one in part.backward] == [
        ("loss", Phase.INPUT_GRADIENT),
        ("logits", Phase.INPUT_GRADIENT),
        ("logits", Phase.WEIGHT_GRADIENT),
        ("final_norm", Phase.INPUT_GRADIENT),
    ]
    _, logits, loss = part.forward
    assert (logits.split, logits.m, logits.n, logits.k) == (Split.COLUMN, TOKENS, 16, 8)
    assert loss.bytes == part.backward[0].bytes == 15 * TOKENS * 16
    assert (loss.split, loss.saved) == (Split.TENSOR, 6 * TOKENS * 16)


def test_head_defaults_to_the_vocabulary_and_refuses_less() -> None:
    """Padding never drops tokens."""
    part = expand_head(GPT, Lowering(), sequences=1, sequence_length=4)
    assert part.forward[1].n == 11
    with pytest.raises(WorkloadError, match="padded_vocab is 10 but tiny has 11"):
        expand_head(GPT, Lowering(), sequences=1, sequence_length=4, padded_vocab=10)


def test_context_parallelism_divides_both_ends() -> None:
    """A rank embeds and scores only its own tokens."""
    for expand in (expand_embedding, expand_head):
        whole = expand(GPT, Lowering(), sequences=2, sequence_length=16)
        part = expand(GPT, Lowering(), sequences=2, sequence_length=16, context=4)
        assert part.forward_flops == whole.forward_flops / 4
        assert part.saved_bytes() == whole.saved_bytes() / 4


def test_model_flops_are_those_of_sc21_without_the_recomputed_forward() -> None:
    """Narayanan et al. (SC'21), section 3: 96 B s l h^2 (1 + s/6h + V/16lh), full recomputation."""
    gpt = model("gpt3-175b")
    batch, s, h, layers, vocab = 1536, 2048, 12288, 96, 51200
    with_recompute = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    forward_of_layers = 24 * batch * s * layers * h**2 * (1 + s / (6 * h))
    counted = model_flops(gpt, batch, s, padded_vocab=vocab)
    assert counted == pytest.approx(with_recompute - forward_of_layers, rel=1e-12)
    assert model_flops(gpt, batch, s) < counted
