"""Sharding: shapes of one rank, and which collectives go with them."""

from __future__ import annotations

import pytest

from mpsim.framework import ContextExchange, NarrowChunks, TensorOverlap
from mpsim.parallel import (
    Communication,
    Compute,
    Item,
    Sharding,
    Waits,
    block_backward,
    block_forward,
    shard,
)
from mpsim.training.recompute import Recompute, repeats
from mpsim.workload import (
    Casting,
    Expansion,
    Lowering,
    Phase,
    expand_embedding,
    expand_head,
    expand_layer,
    model,
    with_casts,
)
from tests import plans

GPT = model("gpt-7.5b")
LAYER = expand_layer(GPT, Lowering(fused_attention=False), sequences=1, sequence_length=2048)


def _sharding(**changes: object) -> Sharding:
    return plans.sharding(**{"tp": 4, "tokens": 2048, "hidden": GPT.hidden, **changes})


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
        assert Waits.NOT_WEIGHTS in {one.waits for one in hidden}


def test_one_rank_alone_communicates_nothing() -> None:
    """tp 1, cp 1: kernels only."""
    for items in (block_forward(LAYER, _sharding(tp=1)), block_backward(LAYER, _sharding(tp=1))):
        assert not _collectives(items)


def test_full_recomputation_repeats_the_forward_with_its_collectives() -> None:
    """The forward's items, marked, then the plain backward."""
    forward, plain = block_forward(LAYER, _sharding()), block_backward(LAYER, _sharding())
    full = block_backward(LAYER, _sharding(), again=repeats(LAYER, _sharding(), Recompute("full")))
    assert _tokens(full) == _tokens(forward) + _tokens(plain)
    assert all(one.repeated for one in full[: len(forward)])


def test_selective_recomputation_repeats_only_the_attention_core() -> None:
    """Scores, softmax, dropout and context run again just before their gradients, without communication."""
    items = block_backward(
        LAYER, _sharding(), again=repeats(LAYER, _sharding(), Recompute("selective"))
    )
    again = [one for one in items if one.repeated]
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


def _narrow() -> Expansion:
    casting = Casting(element_bytes=1.0, passes=1, copies=2)
    return with_casts(LAYER, casting, wide_bytes=2, gathered=True)


def test_a_micro_pipeline_cuts_gathers_and_reductions_next_to_one_product() -> None:
    """Forward all four collectives become ring steps; backward the two gathers do, while the sums of column gradients reduce and block."""
    sharding = _sharding(
        sequence_parallel=True, tensor_overlap=TensorOverlap.MICRO_PIPELINE, keeps_gathered=True
    )
    assert _collectives(block_forward(LAYER, sharding)) == ["send"] * 12
    backward = block_backward(LAYER, sharding)
    assert sorted(_collectives(backward)) == ["reduce_scatter"] * 2 + ["send"] * 6
    waits = {one.waits for one in backward if isinstance(one, Communication) and one.kind != "send"}
    assert waits == {Waits.ALL}


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (NarrowChunks.ALL, ["send"] * 12),
        (NarrowChunks.GATHERS, ["reduce_scatter"] * 2 + ["send"] * 6),
        (NarrowChunks.SCATTERS, ["all_gather"] * 2 + ["send"] * 6),
    ],
)
def test_narrow_products_may_leave_half_of_a_micro_pipeline_uncut(
    chunks: NarrowChunks, expected: list[str]
) -> None:
    """What the compiler's pass does not match around a scaled product blocks; products in 16 bits are all cut."""
    sharding = _sharding(
        sequence_parallel=True, tensor_overlap=TensorOverlap.MICRO_PIPELINE, narrow_chunks=chunks
    )
    assert sorted(_collectives(block_forward(_narrow(), sharding))) == expected
    assert _collectives(block_forward(LAYER, sharding)) == ["send"] * 12


def test_narrow_gathers_carry_half_and_reductions_all() -> None:
    """fp8: a gather of 2048 tokens x 4096 has 1 B an element where it is cast before, a reduction 2 B."""
    for gathers, size in ((True, 1.0), (False, 2.0)):
        items = block_forward(_narrow(), _sharding(sequence_parallel=True, narrow_gathers=gathers))
        sizes = {one.kind: one.size for one in items if isinstance(one, Communication)}
        assert sizes == {"all_gather": size * 2048 * 4096, "reduce_scatter": 2.0 * 2048 * 4096}


def test_a_kept_input_is_not_gathered_again() -> None:
    """Two column layers: two gathers of gradients, and two more of inputs where those were not kept."""
    counts = [
        _collectives(block_backward(LAYER, _sharding(sequence_parallel=True, keeps_gathered=kept)))
        for kept in (False, True)
    ]
    assert [one.count("all_gather") for one in counts] == [4, 2]


def test_collectives_along_the_second_dimension_copy_the_whole_tensor() -> None:
    """Each of four is read and written once more, 2 x 2 B of 2048 tokens x 4096; all-reduces are not."""
    plain, copied = (
        block_forward(LAYER, _sharding(sequence_parallel=True, copies_parts=copies))
        for copies in (False, True)
    )
    more = [one for one in copied if one not in plain]
    assert [one.operator.bytes for one in more if isinstance(one, Compute)] == [
        4.0 * 2048 * 4096
    ] * 4
    assert block_forward(LAYER, _sharding(copies_parts=True)) == block_forward(LAYER, _sharding())


def test_separate_projections_add_up_their_input_gradients() -> None:
    """wq, wk and wv: three gradients of 2048 tokens x 4096 in, their sum out; each product reads the tokens anew."""
    lowering = Lowering(separate_projections=True)
    layer = expand_layer(GPT, lowering, sequences=1, sequence_length=2048)
    sums = [
        one.operator
        for one in block_backward(layer, _sharding())
        if isinstance(one, Compute) and one.operator.name.endswith("gradient sum")
    ]
    assert [one.bytes for one in sums] == [4 * 2.0 * 2048 * 4096]
    product = next(one for one in layer.forward if one.name == "qkv")
    assert product.repeated_bytes == 2 * 2.0 * 2048 * 4096


def test_separate_projections_reduce_each_unless_tokens_are_gathered_once() -> None:
    """q, k and v, and fc1: four all-reduces where one product of each had two, and two reduce-scatters with sequence parallelism."""
    lowering = Lowering(separate_projections=True)
    layer = expand_layer(GPT, lowering, sequences=1, sequence_length=2048)
    alone, divided = (
        _collectives(block_backward(layer, _sharding(sequence_parallel=s))) for s in (False, True)
    )
    assert alone == ["all_reduce"] * 4
    assert divided.count("reduce_scatter") == 2


def test_a_whole_loss_gathers_logits_and_divides_nothing() -> None:
    """Without a vocabulary-parallel loss 2 B of 2048 tokens' logits travel once, and every rank's loss moves what one rank alone would."""
    head = expand_head(GPT, Lowering(), sequences=1, sequence_length=2048)
    logits = 2.0 * 2048 * GPT.vocab
    whole, divided, alone = (
        block_forward(head, _sharding(loss_reductions=each, tp=tp))
        for each, tp in ((0, 4), (3, 4), (0, 1))
    )
    sent = [one.size for one in whole if isinstance(one, Communication)]
    assert sent == [logits]
    losses = [
        one.operator.bytes
        for items in (whole, divided, alone)
        for one in items
        if isinstance(one, Compute) and one.operator.name == "loss"
    ]
    assert losses[0] == losses[2] == 4 * losses[1]


def test_scales_of_whole_tensors_are_reduced_before_every_product() -> None:
    """fp8, separate wq, wk, wv: 1 + 3 scales before the projection, 3 + 3 before its input gradients, 4 B each; none in 16 bits."""
    lowering = Lowering(fused_attention=False, separate_projections=True)
    layer = expand_layer(GPT, lowering, sequences=1, sequence_length=2048)
    cast = with_casts(layer, Casting(element_bytes=1.0, passes=1, copies=2), wide_bytes=2)
    sharding = _sharding(sequence_parallel=True, scale_reductions=True)
    for items, count in ((block_forward(cast, sharding), 4), (block_backward(cast, sharding), 6)):
        scales = [one for one in items if isinstance(one, Communication) and "scale" in one.name]
        assert {one.size for one in scales} == {4.0}
        assert sum(one.name.startswith("qkv") for one in scales) == count
    assert block_forward(layer, sharding) == block_forward(layer, _sharding(sequence_parallel=True))
