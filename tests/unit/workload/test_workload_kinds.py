"""Which layers of a model are of which kind, and what each kind runs."""

import dataclasses
from collections import Counter

import pytest

from mpsim.errors import WorkloadError
from mpsim.workload import (
    Experts,
    LatentAttention,
    Lowering,
    OperatorKind,
    Phase,
    Split,
    Transformer,
    expand_embedding,
    expand_head,
    expand_layer,
    model,
)

# 4 experts of 6 features, 2 a token, and a shared one
MIXTURE = Transformer(
    name="mixture",
    layers=5,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=2,
    ffn_hidden=32,
    vocab=11,
    gated_mlp=True,
    norm="rmsnorm",
    bias=False,
    positions="rotary",
    moe=Experts(experts=4, top_k=2, ffn_hidden=6, shared_experts=1, dense_layers=1, every=2),
)
LATENT = LatentAttention(
    q_lora_rank=5, kv_lora_rank=3, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=6
)
TOKENS = 2 * 16


def forward(transformer: Transformer, kind: str, **lowering: bool) -> dict[str, object]:
    """Forward operators of a layer by name, in order; 2 sequences of 16 tokens."""
    layer = expand_layer(
        transformer, Lowering(**lowering), kind=kind, sequences=2, sequence_length=16
    )
    assert len({one.name for one in layer.forward}) == len(layer.forward)
    return {one.name: one for one in layer.forward}


def test_experts_stand_in_the_last_of_every_n_layers_after_the_leading_dense_ones() -> None:
    """One dense layer, then dense and experts in turn."""
    assert MIXTURE.layer_kinds == ("dense", "dense", "moe", "dense", "moe")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mixtral-8x7b", {"moe": 32}),
        ("deepseek-v3", {"dense": 3, "moe": 58}),
        ("glam-1.2t", {"dense": 32, "moe": 32}),
        ("llama4-maverick", {"dense-sliding": 24, "moe-sliding": 12, "moe-full": 12}),
        ("gpt-oss-120b", {"moe-sliding": 18, "moe-full": 18}),
        ("gemma3-27b", {"dense-sliding": 52, "dense-full": 10}),
        ("t5-11b", {"encoder": 24, "decoder": 24}),
        ("switch-c", {"encoder-moe": 15, "decoder-moe": 15}),
        ("mistral-7b", {"dense": 32}),
    ],
)
def test_models_have_the_kinds_of_layer_that_were_published(
    name: str, kinds: dict[str, int]
) -> None:
    """Counted over the whole model."""
    assert Counter(model(name).layer_kinds) == kinds


def test_the_first_layer_of_a_pattern_slides_and_the_last_sees_everything() -> None:
    """Gemma 3: five local layers, then a global one."""
    gemma = model("gemma3-27b")
    assert [kind.window for kind in gemma.kinds[:7]] == [1024] * 5 + [0, 1024]


def test_a_layer_of_experts_runs_in_this_order() -> None:
    """The names that parallelism knows the parts of a mixture by."""
    names = [*forward(MIXTURE, "moe")]
    assert names[names.index("norm2") :] == [
        "norm2",
        "router",
        "topk",
        "permute",
        "experts_fc1",
        "experts_activation",
        "experts_fc2",
        "unpermute",
        "shared_fc1",
        "shared_activation",
        "shared_fc2",
        "shared_add",
        "bias_dropout_add2",
    ]


def test_experts_are_counted_whole_on_the_mean_of_their_rows() -> None:
    """32 tokens x 2 of 4 experts are 16 rows each; fc1 is gated, so 12 features."""
    layer = expand_layer(MIXTURE, Lowering(), kind="moe", sequences=2, sequence_length=16)
    shapes = {
        (one.name, one.phase): (one.batch, one.m, one.n, one.k, one.sharded_dim)
        for one in (*layer.forward, *layer.backward)
        if one.kind is OperatorKind.GROUPED_GEMM
    }
    assert shapes == {
        ("experts_fc1", Phase.FORWARD): (4, 16, 12, 8, "n"),
        ("experts_fc2", Phase.FORWARD): (4, 16, 8, 6, "k"),
        ("experts_fc1", Phase.INPUT_GRADIENT): (4, 16, 8, 12, "k"),
        ("experts_fc2", Phase.INPUT_GRADIENT): (4, 16, 6, 8, "n"),
        ("experts_fc1", Phase.WEIGHT_GRADIENT): (4, 12, 8, 16, "m"),
        ("experts_fc2", Phase.WEIGHT_GRADIENT): (4, 8, 6, 16, "n"),
    }


def test_bytes_of_experts_count_every_weight_once() -> None:
    """Rows in and out, and 4 weights of 8 x 12, two bytes each."""
    fc1 = forward(MIXTURE, "moe")["experts_fc1"]
    assert fc1.bytes == 2 * (64 * 8 + 64 * 12 + 4 * 8 * 12)
    assert fc1.flops == 2 * 64 * 8 * 12


def test_routing_is_divided_as_the_sequence_and_what_it_sends_as_the_experts() -> None:
    """Permuted rows (64 x 8), gate and up (64 x 12), the activation (64 x 6) and outputs (64 x 8), two bytes each."""
    layer = forward(MIXTURE, "moe")
    names = ("router", "topk", "permute", "unpermute")
    assert {layer[name].split for name in names} == {Split.SEQUENCE}
    kept = {
        name: one.saved + one.saved_for_weight
        for name, one in layer.items()
        if one.saved_split is Split.EXPERT and one.saved + one.saved_for_weight
    }
    assert kept == {
        "permute": 2 * 64 * 8,
        "experts_fc1": 2 * 64 * 12,
        "experts_fc2": 2 * 64 * 6,
        "unpermute": 2 * 64 * 8,
    }


def test_weights_in_the_activation_spare_the_output_of_the_experts() -> None:
    """Then nothing asks for it in backward."""
    assert forward(MIXTURE, "moe", weighted_activation=True)["unpermute"].saved == 0


def test_capacity_makes_every_expert_compute_its_places() -> None:
    """Half as many rows again."""
    moe = dataclasses.replace(MIXTURE.moe, capacity_factor=1.5)
    padded = dataclasses.replace(MIXTURE, moe=moe)
    assert forward(padded, "moe")["experts_fc1"].m == 24


def test_few_tokens_leave_experts_one_row_but_cost_what_they_are() -> None:
    """A token of one expert of 64: products of one row, FLOPs of one token."""
    moe = Experts(experts=64, ffn_hidden=6)
    layer = expand_layer(
        dataclasses.replace(MIXTURE, moe=moe),
        Lowering(),
        kind="moe",
        sequences=1,
        sequence_length=1,
    )
    fc2 = next(one for one in layer.forward if one.name == "experts_fc2")
    assert (fc2.m, fc2.flops) == (1, 2 * 8 * 6)


def test_latent_attention_runs_in_the_order_of_deepseek() -> None:
    """Down, norm and up for queries, the same for keys and values, then positions and the core."""
    latent = dataclasses.replace(MIXTURE, kv_heads=4, mla=LATENT)
    layer = forward(latent, "dense")
    assert [*layer][:10] == [
        "norm1",
        "q_down",
        "kv_down",
        "q_norm",
        "q_up",
        "kv_norm",
        "kv_up",
        "rotary",
        "attention",
        "proj",
    ]
    core = layer["attention"]
    assert (core.head_dim, core.head_dim_v, core.kv_heads) == (6, 6, 4)
    assert layer["kv_up"].n == 4 * (4 + 6)
    assert layer["kv_down"].n == 3 + 2
    assert layer["proj"].k == 4 * 6


def test_torch_kernels_around_experts_move_their_rows_in_float32() -> None:
    """torchtitan's: 19 passes of 2 B over rows forward and 28 backward beside one gather and one sum; rows in float32 are kept."""
    layer = expand_layer(
        MIXTURE, Lowering(eager_routing=True), kind="moe", sequences=2, sequence_length=16
    )
    moved = [each for each in (*layer.forward, *layer.backward) if each.name == "eager_routing"]
    rows = 2 * TOKENS * MIXTURE.hidden
    assert [each.bytes for each in moved] == [19 * 2 * rows, 28 * 2 * rows]
    assert moved[0].saved == 4 * rows
    assert "eager_routing" not in forward(MIXTURE, "moe")


def test_without_a_kernel_for_it_the_rotated_part_alone_is_turned_in_float32() -> None:
    """DeepSeek-V3's own model: complex numbers of 2 of 6 features a head, then parts are joined."""
    latent = dataclasses.replace(MIXTURE, kv_heads=4, mla=LATENT)
    fused = forward(latent, "dense")
    eager = forward(latent, "dense", fused_rotary=False)
    assert eager["rotary"] == fused["rotary"]
    assert eager["wide_rotary"].bytes == 20 * TOKENS * (4 * 2)
    assert eager["wide_rotary"].saved == 0


def test_queries_without_a_rank_are_projected_at_once() -> None:
    """DeepSeek-V2-Lite."""
    mla = dataclasses.replace(LATENT, q_lora_rank=0)
    layer = forward(dataclasses.replace(MIXTURE, kv_heads=4, mla=mla), "dense")
    assert "q_down" not in layer
    assert layer["q_up"].k == MIXTURE.hidden


def test_narrow_projections_of_latent_attention_are_whole_on_every_rank() -> None:
    """Their weights are replicated; with sequence parallelism each rank does its own tokens."""
    latent = dataclasses.replace(MIXTURE, kv_heads=4, mla=LATENT)
    layer = expand_layer(latent, Lowering(), kind="dense", sequences=2, sequence_length=16)
    narrow = [
        (one.phase, one.split, getattr(one, one.sharded_dim))
        for one in (*layer.forward, *layer.backward)
        if one.name == "kv_down"
    ]
    assert narrow == [(phase, Split.SEQUENCE, TOKENS) for phase in Phase]


def test_a_decoder_attends_to_itself_and_to_the_encoder() -> None:
    """10 tokens in the decoder, 16 in the encoder: one core of 10 x 10, causal, one of 10 x 16."""
    t5 = dataclasses.replace(model("t5-large"), decoder_length=10, dropout=0.0)
    layer = forward(t5, "decoder", fused_bias_dropout_add=False)
    assert [*layer] == [
        "norm1",
        "qkv",
        "attention",
        "proj",
        "residual_add1",
        "norm_cross",
        "cross_q",
        "cross_kv",
        "cross_attention",
        "cross_proj",
        "residual_add_cross",
        "norm2",
        "fc1",
        "activation",
        "fc2",
        "residual_add2",
    ]
    cores = [layer[name] for name in ("attention", "cross_attention")]
    assert [(one.queries, one.keys, one.causal) for one in cores] == [
        (10, 10, True),
        (10, 16, False),
    ]
    assert layer["cross_kv"].m == 2 * 16
    encoder = forward(t5, "encoder")
    assert not encoder["attention"].causal
    assert encoder["fc1"].m == 2 * 16


def test_the_ends_of_an_encoder_decoder_look_up_both_and_predict_the_decoders_tokens() -> None:
    """The norm after the encoder, which keeps its output for all decoders, runs once a microbatch too."""
    t5 = dataclasses.replace(model("t5-large"), decoder_length=10)
    start = expand_embedding(t5, Lowering(), sequences=2, sequence_length=16)
    names = [one.name for one in start.forward]
    assert names == [
        "embedding",
        "embedding_dropout",
        "decoder_embedding",
        "decoder_embedding_dropout",
        "encoder_norm",
    ]
    head = expand_head(t5, Lowering(), sequences=2, sequence_length=16)
    assert next(one.m for one in head.forward if one.name == "logits") == 20


def test_norms_of_heads_and_after_blocks_are_operators_of_their_own() -> None:
    """Gemma 3 has both."""
    layer = forward(model("gemma3-27b"), "dense-full")
    assert {"qk_norm", "post_norm1", "post_norm2"} <= layer.keys()
    assert layer["qk_norm"].split is Split.TENSOR


def test_a_kind_that_a_model_lacks_is_refused_with_those_it_has() -> None:
    """Named, with the nearest."""
    with pytest.raises(WorkloadError, match="mixtral-8x7b has no 'dense' layer"):
        expand_layer(model("mixtral-8x7b"), Lowering(), sequences=1, sequence_length=16)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"moe": Experts(experts=2, top_k=3, ffn_hidden=4)}, "top_k is 3 of 2 experts"),
        ({"moe": Experts(experts=2, ffn_hidden=0)}, "moe.ffn_hidden is 0"),
        ({"moe": Experts(experts=2, ffn_hidden=4, imbalance=0.5)}, "imbalance is 0.5"),
        ({"moe": Experts(experts=2, ffn_hidden=4, capacity_factor=-1)}, "capacity_factor is -1"),
        ({"mla": dataclasses.replace(LATENT, kv_lora_rank=0)}, "mla.kv_lora_rank is 0"),
        ({"mla": LATENT}, "set kv_heads to heads"),
        ({"parallel_block": True}, "a parallel block has a plain MLP"),
        ({"full_every": 2}, "set it to 'sliding'"),
        ({"encoder_layers": 5, "decoder_length": 4}, "leave some to the decoder"),
        ({"encoder_layers": 2}, "encoder_layers and decoder_length come together"),
        (
            {"encoder_layers": 2, "decoder_length": 4, "attention": "sliding", "window": 3},
            "an encoder and a decoder have plain serial layers",
        ),
    ],
)
def test_variants_that_contradict_each_other_are_refused(
    fields: dict[str, object], told: str
) -> None:
    """Each with what to change."""
    with pytest.raises(WorkloadError, match=told):
        dataclasses.replace(MIXTURE, **fields)  # type: ignore[arg-type]


def test_parameters_of_experts_are_divided_apart() -> None:
    """By expert parallelism and the tensor parallelism of experts; the rest by tensor parallelism."""
    count = MIXTURE.parameters().layers["moe"]
    assert count.experts == 4 * 3 * 8 * 6
    assert count.per_rank(2, ep=4, etp=1) == count.sharded / 2 + count.replicated + 3 * 8 * 6
    assert count.experts_per_rank(ep=2, etp=2) == 3 * 8 * 6
    router, norms = 8 * 4, 2 * 8
    assert count.replicated == router + norms


def test_one_layer_stands_for_all_only_where_they_are_alike() -> None:
    """Asking a mixed model for 'the' layer is a mistake."""
    with pytest.raises(WorkloadError, match="2 kinds"):
        _ = MIXTURE.parameters().layer
