"""Saved activations against Korthikanti et al., Reducing Activation Recomputation (2022)."""

import dataclasses

import pytest

from mpsim.workload import Lowering, Transformer, expand_layer, model

UNFUSED = Lowering(fused_attention=False)
S, B = 2048, 1

# Table 3 of the paper: the 22B model
GPT_22B = Transformer(
    name="gpt-22b",
    layers=48,
    hidden=6144,
    heads=64,
    kv_heads=64,
    head_dim=96,
    ffn_hidden=24576,
    vocab=51200,
    dropout=0.1,
    max_positions=2048,
)


def per_sbh(gpt: Transformer, lowering: Lowering = UNFUSED, **mode: int) -> float:
    """Saved bytes of a layer in units of s b h."""
    layer = expand_layer(gpt, lowering, sequences=B, sequence_length=S)
    return layer.saved_bytes(**mode) / (S * B * gpt.hidden)  # type: ignore[arg-type]


def test_layer_without_parallelism_saves_equation_1() -> None:
    """22B: 34 + 5 x 64 x 2048 / 6144 = 140.67 bytes per s b h."""
    assert per_sbh(GPT_22B) == pytest.approx(34 + 5 * 64 * 2048 / 6144)


def test_tensor_parallel_layer_saves_equation_2() -> None:
    """Norms, their outputs and the dropout masks (10 s b h) are not divided by t = 8."""
    assert per_sbh(GPT_22B, tp=8) == pytest.approx(10 + 24 / 8 + 5 * 64 * 2048 / 6144 / 8)


def test_sequence_parallel_layer_saves_equation_4() -> None:
    """With sequence parallelism everything is divided."""
    whole = per_sbh(GPT_22B)
    assert per_sbh(GPT_22B, tp=8, sequence_parallel=True) == pytest.approx(whole / 8)


@pytest.mark.parametrize(
    ("name", "square", "saving"), [("gpt3-175b", 80, 0.70), ("megatron-turing-530b", 64, 0.65)]
)
def test_selective_recomputation_drops_the_square_term(
    name: str, square: int, saving: float
) -> None:
    """Section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG, so 70 % and 65 % of the memory."""
    gpt = model(name)
    everything, kept = per_sbh(gpt), per_sbh(gpt, selective=True)
    assert kept == pytest.approx(34)
    assert everything - kept == pytest.approx(square)
    assert 1 - kept / everything == pytest.approx(saving, abs=0.005)


def test_attention_block_saves_eleven_and_mlp_nineteen() -> None:
    """Section 4.1: attention 11 s b h + 5 a s^2 b, MLP 19 s b h, two norms 4 s b h."""
    layer = expand_layer(GPT_22B, UNFUSED, sequences=B, sequence_length=S)
    saved = {one.name: one.saved + one.saved_for_weight for one in layer.forward}
    sbh = S * B * GPT_22B.hidden
    # a norm reports its input (the norm's own 2 s b h) and its output (the GEMM's 2 s b h)
    attention = saved["norm1"] - 2 * sbh + saved["qkv"] + saved["proj"] + saved["bias_dropout_add1"]
    mlp = saved["norm2"] - 2 * sbh + saved["fc1"] + saved["fc2"] + saved["bias_dropout_add2"]
    core = saved["softmax"] + saved["attention_dropout"]
    assert attention == 11 * sbh
    assert core == 5 * 64 * S**2 * B
    assert mlp == 19 * sbh


def test_without_dropout_a_layer_saves_what_autograd_keeps() -> None:
    """Storages counted on torch 2 (CPU, bf16, a s / h = 8): 48 explicit and 32 fused bytes per s b h."""
    # 34 less two masks is 32; of the square 2 a s / h = 16 is left, or float32 statistics if fused
    gpt = dataclasses.replace(
        GPT_22B, dropout=0.0, hidden=1024, heads=4, kv_heads=4, head_dim=256, ffn_hidden=4096
    )
    assert 4 * S / 1024 == 8
    assert per_sbh(gpt) == pytest.approx(48)
    assert per_sbh(gpt, Lowering()) == pytest.approx(32 + 4 * 4 / 1024)
