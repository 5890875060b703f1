"""The operators of one layer, by name, order and size."""

import dataclasses

import pytest

from mpsim.errors import WorkloadError
from mpsim.workload import (
    Expansion,
    Lowering,
    Module,
    Operator,
    OperatorKind,
    Phase,
    Split,
    Transformer,
    expand_layer,
    make_attention,
    model,
)

# 2 sequences of 16 tokens, hidden 8, 4 heads of 2, ffn 32
GPT = Transformer(
    name="tiny", layers=1, hidden=8, heads=4, kv_heads=4, head_dim=2, ffn_hidden=32, vocab=11
)
TOKENS = 2 * 16
SCORES = 2 * 4 * 16 * 16


def expand(
    transformer: Transformer = GPT, lowering: Lowering | None = None, context: int = 1
) -> Expansion:
    """Expand two sequences of 16 tokens."""
    return expand_layer(
        transformer, lowering or Lowering(), sequences=2, sequence_length=16, context=context
    )


def change(**fields: object) -> Transformer:
    """Return the tiny model with other fields."""
    return dataclasses.replace(GPT, **fields)  # type: ignore[arg-type]


def by_name(operators: tuple[Operator, ...]) -> dict[tuple[str, Phase], Operator]:
    """Index operators; names are unique within a phase."""
    index = {(one.name, one.phase): one for one in operators}
    assert len(index) == len(operators)
    return index


def names(operators: tuple[Operator, ...]) -> list[str]:
    """List names in order."""
    return [one.name for one in operators]


def test_gpt_layer_runs_in_the_order_of_megatron() -> None:
    """A fused GPT layer is ten kernels forward, in the order in which Megatron launches them."""
    forward = expand().forward
    assert [(one.name, one.split) for one in forward] == [
        ("norm1", Split.SEQUENCE),
        ("qkv", Split.COLUMN),
        ("attention", Split.TENSOR),
        ("proj", Split.ROW),
        ("bias_dropout_add1", Split.SEQUENCE),
        ("norm2", Split.SEQUENCE),
        ("fc1", Split.COLUMN),
        ("activation", Split.TENSOR),
        ("fc2", Split.ROW),
        ("bias_dropout_add2", Split.SEQUENCE),
    ]


def test_backward_is_reversed_with_each_weight_gradient_after_its_input_gradient() -> None:
    """Every GEMM appears twice in a row, input gradient first."""
    backward = [(one.name, one.phase) for one in expand().backward]
    gradient, weight = Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT
    assert backward == [
        ("bias_dropout_add2", gradient),
        ("fc2", gradient),
        ("fc2", weight),
        ("activation", gradient),
        ("fc1", gradient),
        ("fc1", weight),
        ("norm2", gradient),
        ("bias_dropout_add1", gradient),
        ("proj", gradient),
        ("proj", weight),
        ("attention", gradient),
        ("qkv", gradient),
        ("qkv", weight),
        ("norm1", gradient),
    ]


def test_palm_layer_has_one_norm_and_two_fused_gemms() -> None:
    """The parallel block fuses qkv with fc1 and proj with fc2."""
    palm = model("palm-540b")
    layer = expand_layer(palm, Lowering(), sequences=1, sequence_length=2048)
    assert names(layer.forward) == [
        "norm1",
        "qkv_fc1",
        "activation",
        "rotary",
        "attention",
        "proj_fc2",
        "bias_dropout_add1",
    ]
    index = by_name(layer.forward)
    # 48 query heads, one key and one value head of 256; gate and up of 73728
    assert index["qkv_fc1", Phase.FORWARD].n == 50 * 256 + 2 * 73728
    assert index["proj_fc2", Phase.FORWARD].k == 48 * 256 + 73728


def test_an_operator_without_a_role_cannot_be_built() -> None:
    """What an operator is for is a field that has no default; its name says nothing to anybody."""
    with pytest.raises(TypeError, match="role"):
        Operator(name="qkv", kind=OperatorKind.GEMM, phase=Phase.FORWARD)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama3-70b", "palm-540b", "mixtral-8x7b", "deepseek-v3", "t5-11b"]
)
@pytest.mark.parametrize("fused", [True, False])
def test_every_kernel_of_a_layer_has_a_place_of_its_own(name: str, fused: bool) -> None:
    """No two forward kernels of a layer share module and role, and every gradient has the place of one of them."""
    lowering = Lowering(
        fused_attention=fused,
        fused_softmax=fused,
        fused_bias_activation=fused,
        fused_bias_dropout_add=fused,
    )
    published = model(name)
    for kind in set(published.layer_kinds):
        layer = expand_layer(published, lowering, sequences=1, sequence_length=512, kind=kind)
        places = [operator.place for operator in layer.forward]
        assert len(set(places)) == len(places)
        assert {operator.place for operator in layer.backward} <= set(places)
        assert all(operator.module is not Module.NONE for operator in layer.forward)


@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (64, 512), (1, 512)])
def test_attention_takes_any_queries_and_keys(queries: int, keys: int) -> None:
    """A whole prompt, a chunk of it, and one token: 4 FLOPs a pair and feature; keys and values are read whole, queries once."""
    kernel = make_attention(
        Phase.FORWARD,
        sequences=3,
        queries=queries,
        keys=keys,
        heads=8,
        kv_heads=2,
        head_dim=64,
        statistics=False,
    )
    assert kernel.flops == 4.0 * 3 * 8 * queries * keys * 64
    assert kernel.bytes == 2.0 * 3 * 64 * 2 * (8 * queries + 2 * keys)


def test_unfused_attention_is_two_products_forward_and_four_backward() -> None:
    """Materialised scores: each product is answered by two, softmax and dropout lie between."""
    layer = expand(change(dropout=0.1), Lowering(fused_attention=False))
    core = [one for one in layer.forward if one.in_attention_core]
    assert names(tuple(core)) == ["scores", "softmax", "attention_dropout", "context"]
    backward = names(layer.backward)
    start = backward.index("context_dp")
    assert backward[start : start + 6] == [
        "context_dp",
        "context_dv",
        "attention_dropout",
        "softmax",
        "scores_dq",
        "scores_dk",
    ]
    products = [one for one in (*layer.forward, *layer.backward) if one.sharded_dim == "batch"]
    assert len(products) == 6
    assert {(one.batch, one.flops) for one in products} == {(8, 2.0 * 8 * 16 * 16 * 2)}


def test_score_kernels_move_four_and_five_bytes_forward_six_and_five_backward() -> None:
    """Softmax 4 and 6 bytes a score, dropout with its mask 5 and 5."""
    layer = expand(change(dropout=0.1), Lowering(fused_attention=False))
    forward, backward = by_name(layer.forward), by_name(layer.backward)
    gradient = Phase.INPUT_GRADIENT
    assert forward["softmax", Phase.FORWARD].bytes == 4 * SCORES
    assert backward["softmax", gradient].bytes == 6 * SCORES
    assert forward["attention_dropout", Phase.FORWARD].bytes == 5 * SCORES
    assert backward["attention_dropout", gradient].bytes == 5 * SCORES


def test_unfused_softmax_is_three_kernels() -> None:
    """Scale and mask become kernels of their own and save nothing; the softmax is float32, 4 B a score, whose cast multiplies the values."""
    fused = expand(GPT, Lowering(fused_attention=False))
    three = expand(GPT, Lowering(fused_attention=False, fused_softmax=False))
    start = names(three.forward).index("scores")
    assert names(three.forward)[start + 1 : start + 4] == ["scale", "mask", "softmax"]
    assert three.saved_bytes() == fused.saved_bytes() + 4 * SCORES
    dropped = change(dropout=0.1)
    kept = [
        expand(dropped, Lowering(fused_attention=False, fused_softmax=each))
        for each in (True, False)
    ]
    assert kept[1].saved_bytes() == kept[0].saved_bytes() + 2 * SCORES


def test_no_dropout_means_no_mask_and_no_dropout_kernel() -> None:
    """Dropout 0 leaves the residual addition with 6 bytes and nothing saved."""
    layer = expand(GPT, Lowering(fused_attention=False))
    assert "attention_dropout" not in names(layer.forward)
    add = by_name(layer.forward)["bias_dropout_add1", Phase.FORWARD]
    assert (add.bytes, add.saved) == (6 * TOKENS * 8, 0)
    dropped = expand(change(dropout=0.1)).forward
    with_mask = by_name(dropped)["bias_dropout_add1", Phase.FORWARD]
    assert (with_mask.bytes, with_mask.saved) == (7 * TOKENS * 8, TOKENS * 8)


@pytest.mark.parametrize(
    ("fields", "kernels"),
    [
        ({"dropout": 0.1}, ["bias1", "dropout1", "residual_add1"]),
        ({"dropout": 0.1, "bias": False}, ["dropout1", "residual_add1"]),
        ({"bias": False}, ["residual_add1"]),
    ],
    ids=str,
)
def test_unfused_bias_dropout_add_is_one_kernel_each(
    fields: dict[str, object], kernels: list[str]
) -> None:
    """Only what the model has becomes a kernel."""
    layer = expand(change(**fields), Lowering(fused_bias_dropout_add=False))
    start = names(layer.forward).index("proj")
    end = names(layer.forward).index("norm2")
    assert names(layer.forward)[start + 1 : end] == kernels


@pytest.mark.parametrize("gated", [False, True])
def test_unfused_kernels_never_move_fewer_bytes(gated: bool) -> None:
    """Fusing saves traffic, in the forward pass and in the backward pass."""
    transformer = change(gated_mlp=gated, dropout=0.1)
    fused = expand(transformer)
    apart = expand(transformer, Lowering(fused_bias_activation=False, fused_bias_dropout_add=False))
    assert sum(one.bytes for one in apart.forward) > sum(one.bytes for one in fused.forward)
    assert sum(one.bytes for one in apart.backward) > sum(one.bytes for one in fused.backward)
    assert apart.forward_flops == fused.forward_flops


def test_gated_mlp_is_one_gemm_of_twice_the_width() -> None:
    """SwiGLU reads gate and up from one product and moves 6 bytes forward and 10 backward."""
    layer = expand(change(gated_mlp=True))
    forward, backward = by_name(layer.forward), by_name(layer.backward)
    assert forward["fc1", Phase.FORWARD].n == 64
    assert forward["fc1", Phase.FORWARD].saved == 2 * TOKENS * 64
    assert forward["fc2", Phase.FORWARD].k == 32
    assert forward["activation", Phase.FORWARD].bytes == 6 * TOKENS * 32
    assert backward["activation", Phase.INPUT_GRADIENT].bytes == 10 * TOKENS * 32


def test_eager_swiglu_also_saves_the_gate() -> None:
    """Two kernels save gate, up, silu(gate) and the product: 8 bytes per ffn element."""
    layer = expand(change(gated_mlp=True), Lowering(fused_bias_activation=False))
    mlp = [one for one in layer.forward if one.name in ("fc1", "gate", "gate_times_up", "fc2")]
    assert len(mlp) == 4
    assert sum(one.saved + one.saved_for_weight for one in mlp) == 8 * TOKENS * 32


def test_grouped_queries_shrink_keys_and_values_only() -> None:
    """With 1 of 4 key/value heads the projection has half the outputs, attention the same FLOPs."""
    grouped, whole = expand(change(kv_heads=1)), expand()
    forward, full = by_name(grouped.forward), by_name(whole.forward)
    assert forward["qkv", Phase.FORWARD].n == 12
    assert forward["qkv", Phase.FORWARD].saved == 2 * TOKENS * 12
    attention = forward["attention", Phase.FORWARD]
    assert attention.flops == full["attention", Phase.FORWARD].flops
    assert full["attention", Phase.FORWARD].bytes - attention.bytes == 2 * TOKENS * 2 * 3 * 2


def test_rotary_reads_and_writes_queries_and_keys() -> None:
    """Rotary moves 4 bytes per element and takes over saving what it rotated."""
    layer = expand(change(positions="rotary", kv_heads=1))
    forward = by_name(layer.forward)
    assert names(layer.forward)[1:4] == ["qkv", "rotary", "attention"]
    assert forward["rotary", Phase.FORWARD].bytes == 4 * TOKENS * (8 + 2)
    assert forward["rotary", Phase.FORWARD].saved == 2 * TOKENS * (8 + 2)
    assert forward["qkv", Phase.FORWARD].saved == 2 * TOKENS * 2


def test_fused_attention_counts_the_full_square_and_two_and_a_half_backward() -> None:
    """4 b a s^2 d forward, causal or not; the scores come again backward."""
    layer = expand()
    attention = by_name(layer.forward)["attention", Phase.FORWARD]
    backward = by_name(layer.backward)["attention", Phase.INPUT_GRADIENT]
    assert attention.kind is OperatorKind.ATTENTION
    assert attention.flops == 4 * 2 * 4 * 16 * 16 * 2
    assert backward.flops == 2.5 * attention.flops
    assert attention.saved == 4 * 2 * 4 * 16  # float32 log-sum-exp per head and query
    # forward q, k, v, output; backward q, k, v, output, its gradient, dq, dk, dv; and the statistics
    assert attention.bytes == 4 * 2 * TOKENS * 8 + 4 * TOKENS * 4
    assert backward.bytes == 8 * 2 * TOKENS * 8 + 4 * TOKENS * 4
    assert expand(change(attention="full")).forward_flops == layer.forward_flops


def test_sliding_window_reaches_the_kernel() -> None:
    """The kernel knows its window; FLOPs stay those of the full square."""
    sliding = expand(change(attention="sliding", window=4))
    attention = by_name(sliding.forward)["attention", Phase.FORWARD]
    assert (attention.window, attention.causal) == (4, True)
    assert sliding.forward_flops == expand().forward_flops


def test_context_parallel_rank_has_its_queries_and_all_keys() -> None:
    """Four ranks divide tokens and attention evenly; keys stay whole, saved ones do not."""
    whole, part = expand(), expand(context=4)
    attention = by_name(part.forward)["attention", Phase.FORWARD]
    assert (attention.queries, attention.keys) == (4, 16)
    assert part.forward_flops == whole.forward_flops / 4
    assert part.backward_flops == whole.backward_flops / 4
    assert part.saved_bytes() == whole.saved_bytes() / 4
    assert part.input_bytes == whole.input_bytes / 4 == 2 * TOKENS * 8 / 4


def test_sequence_that_does_not_divide_is_refused() -> None:
    """Sixteen tokens cannot be divided among three ranks."""
    with pytest.raises(WorkloadError, match=r"sequence_length 16 does not divide .* 3"):
        expand(context=3)
    with pytest.raises(WorkloadError, match="sequences is 0"):
        expand_layer(GPT, Lowering(), sequences=0, sequence_length=16)


def test_weight_gradient_reads_and_writes_the_gradient_buffer() -> None:
    """With float32 gradients a weight gradient moves 8 bytes per output element."""
    for size in (4, 2):
        backward = by_name(expand(GPT, Lowering(weight_grad_bytes=size)).backward)
        fc1 = backward["fc1", Phase.WEIGHT_GRADIENT]
        assert (fc1.m, fc1.n, fc1.k) == (32, 8, TOKENS)
        assert fc1.bytes == 2 * (TOKENS * 32 + TOKENS * 8) + 2 * size * 32 * 8
        assert fc1.accumulate_bytes == size


def test_wider_activations_scale_traffic_but_not_masks() -> None:
    """A 4-byte residual addition moves 12 bytes and still one byte of mask."""
    layer = expand(change(dropout=0.1), Lowering(activation_bytes=4))
    forward = by_name(layer.forward)
    assert forward["bias_dropout_add1", Phase.FORWARD].bytes == 13 * TOKENS * 8
    assert forward["norm1", Phase.FORWARD].bytes == 8 * TOKENS * 8


def test_tensor_parallelism_divides_the_sharded_features() -> None:
    """The divided dimension is output features of a column GEMM, input features of a row GEMM."""
    layer = expand()
    index = by_name((*layer.forward, *layer.backward))
    features = {"fc1": 32, "fc2": 32, "qkv": 24, "proj": 8}
    for (name, _), one in index.items():
        if name in features:
            assert getattr(one, one.sharded_dim) == features[name]
    assert index["proj", Phase.WEIGHT_GRADIENT].sharded_dim == "n"  # hidden is 8 too
    assert index["proj", Phase.INPUT_GRADIENT].sharded_dim == "n"


def test_saved_bytes_are_apart_by_what_frees_them() -> None:
    """GEMM inputs outlive the input gradient, everything else does not."""
    forward = by_name(expand(change(dropout=0.1), Lowering(fused_attention=False)).forward)
    element = TOKENS * 8
    until_weight = {
        name: one.saved_for_weight / element
        for (name, _), one in forward.items()
        if one.saved_for_weight
    }
    assert until_weight == {"norm1": 2, "proj": 2, "norm2": 2, "fc2": 8}
