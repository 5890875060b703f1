"""Laws of the operator list, for any shape."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.workload import (
    Expansion,
    Lowering,
    OperatorKind,
    Phase,
    Split,
    Transformer,
    expand_layer,
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
    )


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


def expand(model: Transformer, lowering: Lowering, b: int, s: int) -> Expansion:
    """Expand b sequences of s tokens."""
    return expand_layer(model, lowering, sequences=b, sequence_length=s)


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
@given(transformers(), lowerings, st.integers(1, 4), lengths)
def test_backward_flops_are_twice_forward(
    model: Transformer, lowering: Lowering, b: int, s: int
) -> None:
    """Every product has two gradients; fused attention recomputes one product of its two more."""
    layer = expand(model, lowering, b, s)
    scores_again = 2 * b * model.heads * s * s * model.head_dim if lowering.fused_attention else 0
    assert layer.backward_flops == 2 * layer.forward_flops + scores_again


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
@given(transformers(), lowerings, st.integers(1, 4), lengths)
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
        else:
            assert (one.m, one.n, one.k, one.sharded_dim) == (0, 0, 0, "")
        assert (one.accumulate_bytes > 0) == (one.phase is Phase.WEIGHT_GRADIENT)
        assert one.saved_split in (Split.TENSOR, Split.SEQUENCE, Split.NONE)
    assert {one.phase for one in layer.forward} == {Phase.FORWARD}
    assert not any(one.saved or one.saved_for_weight for one in layer.backward)
    assert not any(one.recomputed_selectively for one in layer.backward)


@settings(max_examples=50)
@given(transformers(), lowerings, st.integers(1, 4), lengths)
def test_every_gemm_has_both_gradients_in_order(
    model: Transformer, lowering: Lowering, b: int, s: int
) -> None:
    """An input gradient of a projection is directly followed by its weight gradient."""
    layer = expand(model, lowering, b, s)
    projections = [one.name for one in layer.forward if one.split in (Split.COLUMN, Split.ROW)]
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
@given(transformers(), lowerings, st.sampled_from([1, 2, 4, 8]))
def test_context_parallel_ranks_share_the_flops(
    model: Transformer, lowering: Lowering, context: int
) -> None:
    """The ranks of a context-parallel group together do the work of one."""
    whole = expand_layer(model, lowering, sequences=2, sequence_length=64)
    part = expand_layer(model, lowering, sequences=2, sequence_length=64, context=context)
    assert part.forward_flops * context == whole.forward_flops
    assert part.backward_flops * context == whole.backward_flops
    assert part.saved_bytes() * context == whole.saved_bytes()


@settings(max_examples=50)
@given(transformers(), st.sampled_from([1, 2, 4]))
def test_matrix_weights_match_the_gemms(model: Transformer, b: int) -> None:
    """Weight gradients write exactly the matrices that the parameter count has."""
    layer = expand(dataclasses.replace(model, bias=False), Lowering(), b, 16)
    written = sum(one.m * one.n for one in layer.backward if one.phase is Phase.WEIGHT_GRADIENT)
    counted = dataclasses.replace(model, bias=False).parameters().layer.sharded
    assert written == counted
