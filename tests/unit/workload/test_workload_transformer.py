"""Transformer and Lowering: validation, padding, parameter counts."""

import dataclasses

import pytest

from mpsim.errors import WorkloadError
from mpsim.workload import Lowering, Transformer

SMALL = Transformer(
    name="small",
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=2,
    ffn_hidden=16,
    vocab=10,
    max_positions=3,
)


def test_every_mistake_is_reported_together() -> None:
    """Four mistakes of four kinds appear in one error."""
    with pytest.raises(WorkloadError) as caught:
        dataclasses.replace(SMALL, layers=0, norm="rmsnrom", dropout=1.5, kv_heads=3)
    message = str(caught.value)
    assert "layers is 0" in message
    assert "did you mean 'rmsnorm'?" in message
    assert "dropout is 1.5" in message
    assert "heads (4) is not a multiple of kv_heads (3)" in message
    assert len(message.splitlines()) == 4


@pytest.mark.parametrize(
    "mistake",
    [
        {"hidden": -1},
        {"hidden": 8.5},
        {"heads": True},
        {"vocab": "50k"},
        {"window": -1},
        {"window": 5},
        {"attention": "sliding"},
        {"attention": "sparse"},
        {"positions": "sinusoidal"},
        {"dropout": -0.1},
        {"dropout": float("nan")},
        {"dropout": "0.1"},
    ],
    ids=str,
)
def test_impossible_fields_are_refused(mistake: dict[str, object]) -> None:
    """Wrong types, ranges, names and contradictions are each a WorkloadError."""
    with pytest.raises(WorkloadError, match=f"model 'small'.*{next(iter(mistake))}"):
        dataclasses.replace(SMALL, **mistake)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["activation_bytes", "weight_grad_bytes", "loss_bytes_per_logit"])
def test_lowering_without_bytes_is_refused(field: str) -> None:
    """An element of zero bytes would make memory-bound kernels free."""
    with pytest.raises(WorkloadError, match=field):
        Lowering(**{field: 0})  # type: ignore[arg-type]


def test_small_model_has_the_parameters_counted_by_hand() -> None:
    """Each part of a tiny GQA model with biases equals the sum of its matrices and vectors."""
    count = SMALL.parameters()
    # qkv: 8 x (4 + 2 + 2) x 2 + 16 = 144; fc1: 8 x 16 + 16 = 144; proj: 8 x 8 = 64; fc2: 16 x 8 = 128
    assert count.layer.sharded == 144 + 144 + 64 + 128
    # two norms of weight and bias: 4 x 8; proj and fc2 biases: 2 x 8
    assert count.layer.replicated == 32 + 16
    assert (count.embedding.sharded, count.embedding.replicated) == (80, 24)
    assert count.final_norm.total == 16
    assert count.output_head.total == 0
    assert count.total == 80 + 24 + 2 * (480 + 48) + 16


def test_parallel_block_has_one_norm_and_one_row_bias() -> None:
    """PaLM's layer lacks the second norm and the bias of the second row GEMM."""
    serial = SMALL.parameters().layer
    parallel = dataclasses.replace(SMALL, parallel_block=True).parameters().layer
    assert serial.sharded == parallel.sharded
    assert serial.replicated - parallel.replicated == 2 * 8 + 8


def test_untied_head_and_embedding_norm_add_their_parameters() -> None:
    """An untied head is one more token table, an embedding norm two vectors."""
    other = dataclasses.replace(SMALL, tied_embeddings=False, embedding_norm=True).parameters()
    assert other.total - SMALL.parameters().total == 80 + 16
    assert other.output_head.sharded == 80
    assert other.embedding.replicated == 24 + 16


def test_qkv_bias_alone_adds_one_bias() -> None:
    """Qwen's bias is as wide as the projection and is sharded with it."""
    bare = dataclasses.replace(SMALL, bias=False)
    with_bias = dataclasses.replace(bare, qkv_bias=True)
    assert with_bias.parameters().layer.sharded - bare.parameters().layer.sharded == 16


def test_tensor_parallel_rank_holds_its_share_and_all_replicas() -> None:
    """Sharded parameters divide by tp, replicated ones do not."""
    assert SMALL.parameters().layer.per_rank(2) == 480 / 2 + 48


def test_vocabulary_is_padded_to_a_multiple() -> None:
    """Megatron pads 50257 to 50304 on one rank and to 51200 on eight."""
    gpt = dataclasses.replace(SMALL, vocab=50257)
    assert gpt.padded_vocab(128) == 50304
    assert gpt.padded_vocab(128 * 8) == 51200
    assert gpt.padded_vocab(1) == 50257
    assert gpt.parameters(padded_vocab=51200).embedding.sharded == 51200 * 8
    with pytest.raises(WorkloadError, match="multiple of 0"):
        gpt.padded_vocab(0)
