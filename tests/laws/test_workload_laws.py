"""Laws of the operator list, for any shape."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.workload import (
    Expansion,
    Experts,
    LatentAttention,
    Lowering,
    OperatorKind,
    Phase,
    Split,
    Transformer,
    expand_layer,
    model,
    model_flops,
    model_names,
)

UNFUSED = Lowering(fused_attention=False)

heads_and_width = st.tuples(st.integers(1, 16), st.sampled_from([8, 64, 96, 128]))
lengths = st.sampled_from([16, 128, 1024, 2048])
lowerings = st.builds(
    Lowering,
    fused_attention=st.booleans(),
    fused_softmax=st.booleans(),
    fused_bias_activation=st.booleans(),
    fused_bias_dropout_add=st.booleans(),
    activation_bytes=st.sampled_from([2, 4]),
    weight_grad_bytes=st.sampled_from([2, 4]),
    merged_qkv=st.booleans(),
    weighted_activation=st.booleans(),
    eager_routing=st.booleans(),
)


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    """Draw any dense transformer."""
    kv_heads = draw(st.integers(1, 4))
    return Transformer(
        name="drawn",
        layers=1,
        hidden=draw(st.integers(1, 300)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 64)),
        ffn_hidden=draw(st.integers(1, 900)),
        vocab=1000,
        gated_mlp=draw(st.booleans()),
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        positions=draw(st.sampled_from(["learned", "rotary", "alibi", "none"])),
        parallel_block=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


@st.composite
def mixtures(draw: st.DrawFn) -> Transformer:
    """Draw a serial layer with experts, shared ones or none."""
    plain = draw(transformers())
    experts = draw(st.sampled_from([1, 4, 16]))
    moe = Experts(
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        ffn_hidden=draw(st.integers(1, 200)),
        shared_experts=draw(st.integers(0, 2)),
    )
    return dataclasses.replace(plain, parallel_block=False, moe=moe, post_norm=draw(st.booleans()))


@st.composite
def latents(draw: st.DrawFn) -> Transformer:
    """Draw a layer with latent attention, queries compressed or not."""
    heads = draw(st.integers(1, 8))
    mla = LatentAttention(
        q_lora_rank=draw(st.sampled_from([0, 24])),
        kv_lora_rank=draw(st.integers(1, 64)),
        qk_nope_head_dim=draw(st.integers(1, 64)),
        qk_rope_head_dim=draw(st.integers(0, 32)),
        v_head_dim=draw(st.integers(1, 64)),
    )
    plain = dataclasses.replace(
        draw(transformers()), qk_norm=False, parallel_block=False, positions="rotary"
    )
    return dataclasses.replace(plain, heads=heads, kv_heads=heads, mla=mla)


def encoder_decoder(target: int) -> Transformer:
    """Build a small T5 whose decoder has so many tokens."""
    return dataclasses.replace(
        model("t5-large"), layers=2, encoder_layers=1, decoder_length=target, dropout=0.0
    )


anything = st.one_of(transformers(), mixtures(), latents())


def gpt(shape: tuple[int, int]) -> Transformer:
    """Build a GPT layer of given heads and head width, with dropout and biases."""
    heads, width = shape
    hidden = heads * width
    return Transformer(
        name="gpt",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        ffn_hidden=4 * hidden,
        vocab=1000,
        dropout=0.1,
    )


def expand(
    model: Transformer, lowering: Lowering, b: int, s: int, kind: str | None = None
) -> Expansion:
    """Expand b sequences of s tokens in the first layer, or in one of a kind."""
    name = kind or model.layer_kinds[0]
    return expand_layer(model, lowering, sequences=b, sequence_length=s, kind=name)


@settings(max_examples=50)
@given(heads_and_width, st.integers(1, 8), lengths, st.booleans())
def test_gpt_forward_flops_have_their_closed_form(
    shape: tuple[int, int], b: int, s: int, fused: bool
) -> None:
    """A GPT layer is 24 b s h^2 (1 + s / 6h) FLOP forward, fused attention or not."""
    model = gpt(shape)
    h = model.hidden
    layer = expand(model, Lowering(fused_attention=fused), b, s)
    # exact in integers: 24 b s h^2 + 4 b s^2 h
    assert layer.forward_flops == 24 * b * s * h**2 + 4 * b * s**2 * h


@settings(max_examples=50)
@given(anything, lowerings, st.integers(1, 4), lengths)
def test_backward_flops_are_twice_forward(
    model: Transformer, lowering: Lowering, b: int, s: int
) -> None:
    """Every product has two gradients; fused attention recomputes one product of its two more."""
    layer = expand(model, lowering, b, s)
    width = model.mla.qk_head_dim if model.mla else model.head_dim
    scores_again = 2 * b * model.heads * s * s * width if lowering.fused_attention else 0
    assert layer.backward_flops == pytest.approx(2 * layer.forward_flops + scores_again, rel=1e-12)


@settings(max_examples=50)
@given(heads_and_width, st.integers(1, 8), lengths, st.sampled_from([1, 2, 3, 8]))
def test_saved_bytes_are_those_of_korthikanti(
    shape: tuple[int, int], b: int, s: int, t: int
) -> None:
    """Equations 1, 2, 4 and 6 of Korthikanti et al. (2022) hold for any shape."""
    model = gpt(shape)
    a, h = model.heads, model.hidden
    layer = expand(model, UNFUSED, b, s)
    sbh, square = s * b * h, 5 * a * s / h
    assert layer.saved_bytes() == pytest.approx(sbh * (34 + square))
    assert layer.saved_bytes(tp=t) == pytest.approx(sbh * (10 + 24 / t + square / t))
    assert layer.saved_bytes(tp=t, sequence_parallel=True) == pytest.approx(sbh / t * (34 + square))
    assert layer.saved_bytes(tp=t, selective=True) == pytest.approx(sbh * (10 + 24 / t))
    assert layer.input_bytes == 2 * sbh


@settings(max_examples=50)
@given(anything, lowerings, st.integers(1, 4), lengths)
def test_operators_are_consistent_with_their_shape(
    model: Transformer, lowering: Lowering, b: int, s: int
) -> None:
    """FLOPs follow the shape of a GEMM, other kinds have no shape, backward saves nothing."""
    layer = expand(model, lowering, b, s)
    for one in (*layer.forward, *layer.backward):
        assert one.bytes > 0
        if one.kind is OperatorKind.GEMM:
            assert one.flops == 2 * one.batch * one.m * one.n * one.k
            assert one.sharded_dim in ("m", "n", "k", "batch")
        elif one.kind is OperatorKind.GROUPED_GEMM:
            assert one.split is Split.EXPERT
            assert one.sharded_dim in ("m", "n", "k")
        else:
            assert (one.m, one.n, one.k, one.sharded_dim) == (0, 0, 0, "")
        assert (one.accumulate_bytes > 0) == (one.phase is Phase.WEIGHT_GRADIENT)
        assert one.saved_split in (Split.TENSOR, Split.SEQUENCE, Split.EXPERT, Split.NONE)
    assert {one.phase for one in layer.forward} == {Phase.FORWARD}
    assert not any(one.saved or one.saved_for_weight for one in layer.backward)


@settings(max_examples=50)
@given(anything, lowerings, st.integers(1, 4), lengths)
def test_every_gemm_has_both_gradients_in_order(
    model: Transformer, lowering: Lowering, b: int, s: int
) -> None:
    """An input gradient of a projection is directly followed by its weight gradient."""
    layer = expand(model, lowering, b, s)
    projections = [
        one.name
        for one in layer.forward
        if one.kind is OperatorKind.GROUPED_GEMM
        or (one.kind is OperatorKind.GEMM and one.split is not Split.TENSOR)
    ]
    answered = [
        first.name
        for first, second in zip(layer.backward, layer.backward[1:], strict=False)
        if second.phase is Phase.WEIGHT_GRADIENT
        and (first.name, first.phase) == (second.name, Phase.INPUT_GRADIENT)
    ]
    assert answered == projections[::-1]


@settings(max_examples=50)
@given(
    transformers(),
    lowerings,
    st.integers(1, 4),
    lengths,
    st.sampled_from(["hidden", "ffn_hidden", "head_dim", "heads", "sequences", "length"]),
)
def test_a_bigger_model_never_costs_less(
    model: Transformer, lowering: Lowering, b: int, s: int, grown: str
) -> None:
    """Doubling any one size never lowers FLOPs, bytes moved, bytes saved or parameters."""
    bigger = model
    if grown not in ("sequences", "length"):
        bigger = dataclasses.replace(model, **{grown: 2 * getattr(model, grown)})
    small = expand(model, lowering, b, s)
    large = expand(
        bigger,
        lowering,
        b * (2 if grown == "sequences" else 1),
        s * (2 if grown == "length" else 1),
    )
    for before, after in zip(
        small.forward + small.backward, large.forward + large.backward, strict=True
    ):
        assert after.name == before.name
        assert after.flops >= before.flops
        assert after.bytes >= before.bytes
        assert after.saved >= before.saved
        assert after.saved_for_weight >= before.saved_for_weight
    assert bigger.parameters().total >= model.parameters().total
    assert sum(one.bytes for one in large.forward) > sum(one.bytes for one in small.forward)


@settings(max_examples=50)
@given(anything, lowerings, st.sampled_from([1, 2, 4, 8]))
def test_context_parallel_ranks_share_the_flops(
    model: Transformer, lowering: Lowering, context: int
) -> None:
    """The ranks of a context-parallel group together do the work of one."""
    kind = model.layer_kinds[0]
    whole, part = (
        expand_layer(model, lowering, kind=kind, sequences=2, sequence_length=64, context=ranks)
        for ranks in (1, context)
    )
    assert part.forward_flops * context == pytest.approx(whole.forward_flops, rel=1e-12)
    assert part.backward_flops * context == pytest.approx(whole.backward_flops, rel=1e-12)
    assert part.saved_bytes() * context == pytest.approx(whole.saved_bytes(), rel=1e-12)


@settings(max_examples=50)
@given(anything, st.sampled_from([1, 2, 4]))
def test_matrix_weights_match_the_gemms(model: Transformer, b: int) -> None:
    """Weight gradients write exactly the matrices that the parameter count has; the rest are norms."""
    bare = dataclasses.replace(model, bias=False)
    layer = expand(bare, Lowering(), b, 16)
    written = sum(
        one.batch * one.m * one.n for one in layer.backward if one.phase is Phase.WEIGHT_GRADIENT
    )
    norms = bare.hidden * (1 if bare.parallel_block else 2) * (2 if bare.post_norm else 1)
    norms += 2 * bare.head_dim if bare.qk_norm else 0
    norms += bare.mla.q_lora_rank + bare.mla.kv_lora_rank if bare.mla else 0
    assert written == bare.parameters().layer.total - norms


@settings(max_examples=50)
@given(mixtures(), st.integers(1, 4), st.sampled_from([16, 128, 1024]), st.booleans())
def test_experts_cost_what_a_dense_mlp_of_the_active_width_does(
    mixed: Transformer, b: int, s: int, weighted: bool
) -> None:
    """A layer of experts is a dense layer of width top_k x ffn + shared, and a router."""
    moe = mixed.moe
    assert moe is not None
    width = moe.top_k * moe.ffn_hidden + moe.shared_features
    dense = dataclasses.replace(mixed, moe=None, ffn_hidden=width)
    lowering = Lowering(weighted_activation=weighted)
    ours, theirs = expand(mixed, lowering, b, s), expand(dense, lowering, b, s)
    router = 2 * b * s * mixed.hidden * moe.experts
    assert ours.forward_flops == pytest.approx(theirs.forward_flops + router, rel=1e-12)
    # kept beyond the dense layer: rows as sent and as they return, float32 scores, chosen places and weights
    rows = b * s * moe.top_k * mixed.hidden * 2 * (1 if weighted else 2)
    routing = b * s * (4 * moe.experts + 12 * moe.top_k)
    assert ours.saved_bytes() == pytest.approx(theirs.saved_bytes() + rows + routing, rel=1e-12)


@settings(max_examples=50)
@given(latents(), st.integers(1, 4), st.sampled_from([16, 128, 1024]))
def test_latent_attention_has_its_closed_form(latent: Transformer, b: int, s: int) -> None:
    """Projections of DeepSeek-V2's equations 9 to 19, and scores and context of their own widths."""
    mla, h, t = latent.mla, latent.hidden, b * s
    assert mla is not None
    q_in = mla.q_lora_rank or h
    weights = h * mla.q_lora_rank + q_in * latent.heads * mla.qk_head_dim
    weights += h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    weights += mla.kv_lora_rank * latent.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    weights += latent.heads * mla.v_head_dim * h
    mlp = h * (latent.fc1_features + latent.ffn_hidden)
    core = 2 * b * latent.heads * s * s * (mla.qk_head_dim + mla.v_head_dim)
    layer = expand(latent, Lowering(), b, s)
    assert layer.forward_flops == 2 * t * (weights + mlp) + core


@settings(max_examples=30)
@given(st.sampled_from([1, 16, 128]), st.sampled_from([16, 64]), lowerings)
def test_a_decoder_is_a_causal_layer_and_attention_to_the_encoder(
    target: int, source: int, lowering: Lowering
) -> None:
    """Its own part costs what a decoder-only layer of as many tokens does; keys and values of the encoder come on top."""
    t5 = encoder_decoder(target)
    h, inner, heads = t5.hidden, t5.query_features, t5.heads
    alone = dataclasses.replace(t5, layers=1, encoder_layers=0, decoder_length=0)
    decoder = expand(t5, lowering, 2, source, "decoder")
    plain = expand(alone, lowering, 2, target)
    cross = 2 * 2 * (target * 2 * h * inner + source * 2 * h * inner)  # q and output; k and v
    core = 2 * 2 * heads * target * source * 2 * t5.head_dim
    assert decoder.forward_flops == plain.forward_flops + cross + core


@pytest.mark.parametrize(
    "name", ["mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "glam-1.2t"]
)
def test_model_flops_of_a_mixture_are_six_for_each_active_weight_and_token(name: str) -> None:
    """At one token a sequence, where attention is nothing, 6 x active parameters (less norms and biases)."""
    flops = model_flops(model(name), 1000, 1)
    assert flops == pytest.approx(6 * 1000 * model(name).active_parameters(), rel=2e-3)


@pytest.mark.parametrize("name", [name for name in model_names() if model(name).moe is not None])
def test_capacity_changes_what_runs_but_not_the_model_flops(name: str) -> None:
    """Padding is work of the hardware, not of the model."""
    one = model(name)
    assert one.moe is not None
    padded = dataclasses.replace(one, moe=dataclasses.replace(one.moe, capacity_factor=2.0))
    dropless = dataclasses.replace(one, moe=dataclasses.replace(one.moe, capacity_factor=0.0))
    assert model_flops(padded, 2, 128) == model_flops(dropless, 2, 128)
    kind = next(kind.name for kind in one.kinds if kind.experts)
    twice, once = (expand(each, Lowering(), 2, 128, kind) for each in (padded, dropless))
    assert twice.forward_flops > once.forward_flops


def test_alternating_windows_differ_in_what_a_query_sees_and_in_nothing_else() -> None:
    """Gemma's local and global layers: the same operators, one with a window."""
    local, whole = (
        expand(model("gemma2-9b"), Lowering(), 1, 8192, kind)
        for kind in ("dense-sliding", "dense-full")
    )
    differences = {
        (one.name, one.window, other.window)
        for one, other in zip(local.forward, whole.forward, strict=True)
        if one != other
    }
    assert differences == {("attention", 4096, 0)}
    assert local.forward_flops == whole.forward_flops  # counted in full, as the convention asks
