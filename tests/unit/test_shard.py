"""Sharding: shapes of one rank, and which collectives go with them."""

from __future__ import annotations

import pytest

from mpsim.framework import ContextExchange, TensorOverlap
from mpsim.parallel import (
    Communication,
    Compute,
    Item,
    Recompute,
    Sharding,
    Waits,
    block_backward,
    block_forward,
    shard,
)
from mpsim.workload import Lowering, Phase, expand_embedding, expand_head, expand_layer, model

GPT = model("gpt-7.5b")
LAYER = expand_layer(GPT, Lowering(fused_attention=False), sequences=1, sequence_length=2048)


def _sharding(**changes: object) -> Sharding:
    return Sharding(**{"tp": 4, "tokens": 2048, "hidden": GPT.hidden, **changes})  # type: ignore[arg-type]


def _tokens(items: list[Item]) -> list[str]:
    return [one.name if isinstance(one, Communication) else one.operator.name for one in items]


def _collectives(items: list[Item]) -> list[str]:
    return [one.kind for one in items if isinstance(one, Communication)]


def test_column_divides_outputs_and_row_divides_inputs() -> None:
    """fc1 is (tokens, ffn / t, hidden), fc2 (tokens, hidden, ffn / t)."""
    by_name = {one.name: shard(one, _sharding()) for one in LAYER.forward}
    assert (by_name["fc1"].m, by_name["fc1"].n, by_name["fc1"].k) == (2048, 4096, 4096)
    assert (by_name["fc2"].m, by_name["fc2"].n, by_name["fc2"].k) == (2048, 4096, 4096)
    assert by_name["scores"].batch == 32 // 4


def test_a_sharded_gemm_still_reads_its_whole_input() -> None:
    """2 bytes x (T h + h ffn / t + T ffn / t), not a quarter of the whole."""
    fc1 = shard(next(one for one in LAYER.forward if one.name == "fc1"), _sharding())
    assert fc1.bytes == 2 * (2048 * 4096 + 4096 * 4096 + 2048 * 4096)
    wgrad = shard(
        next(
            one
            for one in LAYER.backward
            if one.name == "fc1" and one.phase is Phase.WEIGHT_GRADIENT
        ),
        _sharding(),
    )
    assert wgrad.bytes == 2 * (4096 * 2048 + 2048 * 4096) + 8 * 4096 * 4096


def test_without_sequence_parallelism_two_all_reduces_each_way() -> None:
    """Megatron's f and g: after the row GEMMs forward, after the column GEMMs' input gradients backward."""
    assert _collectives(block_forward(LAYER, _sharding())) == ["all_reduce"] * 2
    assert _collectives(block_backward(LAYER, _sharding())) == ["all_reduce"] * 2


def test_with_sequence_parallelism_gathers_and_scatters() -> None:
    """Forward 2 all-gathers and 2 reduce-scatters; backward 4 and 2 (frameworks-nvidia 1.3)."""
    sharding = _sharding(sequence_parallel=True)
    forward = _collectives(block_forward(LAYER, sharding))
    backward = _collectives(block_backward(LAYER, sharding))
    assert sorted(forward) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert sorted(backward) == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def test_hidden_input_gradients_wait_differently_but_move_the_same_bytes() -> None:
    """Overlap changes who waits, never what is sent."""
    for parallel in (False, True):
        plain, hidden = (
            [
                one
                for one in block_backward(
                    LAYER, _sharding(sequence_parallel=parallel, tensor_overlap=hide)
                )
                if isinstance(one, Communication)
            ]
            for hide in (TensorOverlap.NONE, TensorOverlap.WEIGHT_GRADIENT)
        )
        assert sorted((one.kind, one.size) for one in plain) == sorted(
            (one.kind, one.size) for one in hidden
        )
        assert {one.waits for one in plain} == {Waits.ALL}
        assert Waits.INPUT_GRADIENT in {one.waits for one in hidden}


def test_one_rank_alone_communicates_nothing() -> None:
    """tp 1, cp 1: kernels only."""
    for items in (block_forward(LAYER, _sharding(tp=1)), block_backward(LAYER, _sharding(tp=1))):
        assert not _collectives(items)


def test_full_recomputation_repeats_the_forward_with_its_collectives() -> None:
    """The forward's items, marked, then the plain backward."""
    forward, plain = block_forward(LAYER, _sharding()), block_backward(LAYER, _sharding())
    full = block_backward(LAYER, _sharding(), recompute=Recompute("full"))
    assert _tokens(full) == _tokens(forward) + _tokens(plain)
    assert all(one.recompute for one in full[: len(forward)])


def test_selective_recomputation_repeats_only_the_attention_core() -> None:
    """Scores, softmax, dropout and context run again just before their gradients, without communication."""
    items = block_backward(LAYER, _sharding(), recompute=Recompute("selective"))
    again = [one for one in items if one.recompute]
    assert [one.operator.name for one in again if isinstance(one, Compute)] == [
        "scores",
        "softmax",
        "attention_dropout",
        "context",
    ]
    assert _collectives(items) == ["all_reduce"] * 2
    names = _tokens(items)
    assert names.index("context_dp") == names.index("context") + 1


def test_gathering_keys_and_values_reduces_their_gradients() -> None:
    """Forward gathers, backward gathers again and reduces: 2 tensors x tokens of the whole sequence x kv features / t x 2 bytes."""
    for fused in (False, True):
        layer = expand_layer(
            GPT, Lowering(fused_attention=fused), sequences=1, sequence_length=2048, context=2
        )
        sharding = _sharding(cp=2, tokens=1024, context_exchange=ContextExchange.ALL_GATHER)
        sides = (block_forward(layer, sharding), block_backward(layer, sharding))
        for items, kinds in zip(
            sides, (["all_gather"], ["all_gather", "reduce_scatter"]), strict=True
        ):
            sent = [x for x in items if isinstance(x, Communication) and x.axis == "cp"]
            assert [one.kind for one in sent] == kinds
            assert {one.size for one in sent} == {2 * 2048 * 4096 / 4 * 2}


def test_split_backward_halves_make_up_the_whole() -> None:
    """Input gradient and weight gradient apart hold the same kernels as together."""
    whole = block_backward(LAYER, _sharding())
    halves = [
        one
        for phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
        for one in block_backward(LAYER, _sharding(), phases=frozenset({phase}))
    ]
    assert sorted(_tokens(whole)) == sorted(_tokens(halves))


def test_the_embedding_is_reduced_and_the_loss_synchronises() -> None:
    """Vocabulary-parallel: one all-reduce of tokens x hidden; three of one float32 a token in the loss."""
    shape = {"sequences": 1, "sequence_length": 2048}
    (embedding,) = [
        one
        for one in block_forward(expand_embedding(GPT, Lowering(), **shape), _sharding())
        if isinstance(one, Communication)
    ]
    assert embedding.size == 2048 * 4096 * 2
    head = expand_head(GPT, Lowering(), **shape)
    loss = [one.size for one in block_forward(head, _sharding()) if isinstance(one, Communication)]
    assert loss == [2048 * 4.0] * 3


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_flops_divide_exactly(tp: int) -> None:
    """t ranks together do what one would."""
    for one in (*LAYER.forward, *LAYER.backward):
        assert (
            shard(one, _sharding(tp=tp)).flops * tp == pytest.approx(one.flops)
            or one.split == "none"
        )


def test_products_cut_in_chunks_send_beside_each_other() -> None:
    """tp 4: four chunks of 512 tokens and three ring steps for each of the four products with a collective of its own."""
    sharding = _sharding(sequence_parallel=True, tensor_overlap=TensorOverlap.DECOMPOSED)
    items = block_forward(LAYER, sharding)
    chunks = [
        one.operator for one in items if isinstance(one, Compute) and one.operator.name == "fc1"
    ]
    assert [one.m for one in chunks] == [512] * 4
    whole = next(one for one in LAYER.forward if one.name == "fc1")
    assert sum(one.flops for one in chunks) == whole.flops / 4
    sent = [one for one in items if isinstance(one, Communication)]
    assert [one.kind for one in sent] == ["send"] * 12
    assert {one.size for one in sent} == {512 * 4096 * 2}
    needs = [one.needs for one in items if isinstance(one, Compute) and one.operator.name == "fc1"]
    assert needs == [frozenset(), {"fc1 gather 1"}, {"fc1 gather 2"}, {"fc1 gather 3"}]


def test_cut_products_leave_the_rest_of_the_backward_in_bulk() -> None:
    """Row products' gradients are cut; column ones gather beside the input gradient and reduce beside the weight gradient."""
    bulk, cut = (
        block_backward(LAYER, _sharding(sequence_parallel=True, tensor_overlap=overlap))
        for overlap in (TensorOverlap.WEIGHT_GRADIENT, TensorOverlap.DECOMPOSED)
    )
    assert sorted(set(_collectives(cut))) == ["all_gather", "reduce_scatter", "send"]
    assert _collectives(cut).count("send") == 2 * 3
    assert _collectives(cut).count("all_gather") == _collectives(bulk).count("all_gather") - 2


def test_without_sequence_parallelism_nothing_is_cut() -> None:
    """All-reduces run as they would in bulk."""
    bulk, cut = (
        block_forward(LAYER, _sharding(tensor_overlap=overlap))
        for overlap in (TensorOverlap.WEIGHT_GRADIENT, TensorOverlap.DECOMPOSED)
    )
    assert bulk == cut


def test_norm_weights_are_kept_equal_where_a_stack_does_so() -> None:
    """BLOOM: weight and bias of two norms, 4 x 4096 elements; of the layer only, and not for one rank."""
    extra = [
        one
        for one in block_forward(LAYER, _sharding(norm_reductions=4))
        if isinstance(one, Communication) and one.name == "norm weight all-reduce"
    ]
    assert [one.size for one in extra] == [4096 * 2.0] * 4
    head = expand_head(GPT, Lowering(), sequences=1, sequence_length=2048)
    for items in (
        block_forward(head, _sharding(norm_reductions=4)),
        block_forward(LAYER, _sharding(tp=1, norm_reductions=4)),
    ):
        assert not [one for one in items if isinstance(one, Communication) and "norm" in one.name]
