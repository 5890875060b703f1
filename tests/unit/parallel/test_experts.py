"""Expert parallelism: which experts and tokens a rank has, and how tokens travel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

import mpsim
from mpsim.framework import ExpertDispatch, ExpertOverlap, ExpertRegrouping
from mpsim.parallel import (
    Communication,
    Compute,
    Item,
    Repeat,
    Sharding,
    Synchronization,
    Waits,
    block_backward,
    block_forward,
    fused_blocks,
    shard,
)
from mpsim.workload import (
    Casting,
    Experts,
    Lowering,
    OperatorKind,
    Phase,
    expand_layer,
    model,
    with_casts,
)
from tests import plans

MODEL = dataclasses.replace(
    model("llama2-7b"),
    moe=Experts(experts=16, top_k=2, ffn_hidden=2048, shared_experts=1),
)
TOKENS = 4096
LAYER = expand_layer(MODEL, Lowering(), kind="moe", sequences=1, sequence_length=TOKENS)
HIDDEN = MODEL.hidden


def _sharding(routing: dict[str, Any] | None = None, **changes: Any) -> Sharding:
    shape = {"ep": 4, "tokens": TOKENS, "hidden": HIDDEN, **changes}
    shape.setdefault("sequence_parallel", shape.get("tp", 1) > 1)
    own = plans.routing(top_k=2, **(routing or {}))
    return Sharding(**shape, routing=own)


def _names(items: list[Item]) -> list[str]:
    return [
        one.operator.name if isinstance(one, Compute) else one.name
        for one in items
        if not isinstance(one, Synchronization)
    ]


def _fc1(sharding: Sharding) -> tuple[int, int, int, int]:
    whole = next(one for one in LAYER.forward if one.name == "experts_fc1")
    mine = shard(whole, sharding)
    return mine.batch, mine.m, mine.n, mine.k


def test_a_rank_has_its_experts_and_the_tokens_of_its_group() -> None:
    """16 experts on 4 ranks; each gets 4096 x 2 / 16 tokens from each of them."""
    assert _fc1(_sharding()) == (4, 4 * 512, 2 * 2048, HIDDEN)


def test_expert_tensor_parallelism_divides_features_and_gathers_tokens() -> None:
    """tp 2 with etp 2: half the features, tokens of both ranks; etp 1: all features, half the tokens of a group."""
    assert _fc1(_sharding(tp=2, etp=2)) == (4, 4 * 512, 2048, HIDDEN)
    assert _fc1(_sharding(tp=2, etp=1)) == (4, 2 * 512, 2 * 2048, HIDDEN)


@pytest.mark.parametrize(
    ("tp", "etp", "ep"), [(1, 1, 1), (1, 1, 8), (2, 2, 4), (4, 1, 8), (2, 4, 2)]
)
def test_work_of_experts_is_divided_by_tensor_parallelism_alone(tp: int, etp: int, ep: int) -> None:
    """Whatever ep and etp are, a rank's products have 1/tp of the FLOPs, in every phase."""
    sharding = _sharding(tp=tp, etp=etp, ep=ep)
    products = [
        one for one in (*LAYER.forward, *LAYER.backward) if one.kind is OperatorKind.GROUPED_GEMM
    ]
    assert {one.phase for one in products} == set(Phase)
    for whole in products:
        mine = shard(whole, sharding)
        assert mine.flops == whole.flops / tp
        assert 2 * mine.batch * mine.m * mine.n * mine.k == pytest.approx(mine.flops)


def test_the_busiest_rank_has_more_rows_but_the_mean_of_flops() -> None:
    """Rows are what its kernel waits for; FLOPs are counted once over all ranks."""
    busy = shard(
        next(one for one in LAYER.forward if one.name == "experts_fc1"), _sharding({"load": 1.25})
    )
    even = shard(next(one for one in LAYER.forward if one.name == "experts_fc1"), _sharding())
    assert (busy.m, busy.flops) == (even.m * 1.25, even.flops)


def test_a_fused_grouped_mlp_leaves_products_and_the_first_cast() -> None:
    """Between the two products nothing moves: no activation traffic, no cast of what the second reads forward or the first backward."""
    casting = Casting(element_bytes=1, passes=1, copies=1)
    fused = expand_layer(
        MODEL,
        Lowering(fused_grouped_mlp=True),
        kind="moe",
        sequences=1,
        sequence_length=TOKENS,
    )
    cast = with_casts(fused, casting, wide_bytes=2, fused_experts=True)
    routed = [one for one in (*cast.forward, *cast.backward) if one.name.startswith("experts_")]
    assert all(not one.bytes for one in routed if one.name == "experts_activation")
    casts = [one.name for one in (*cast.forward, *cast.backward) if "quantise experts" in one.name]
    assert casts == ["quantise experts_fc1 input", "quantise experts_fc2 gradient"]


def test_biases_of_experts_are_kernels_of_their_own_unless_fused() -> None:
    """14 and 22 passes of 2 B over what the second product writes, 17 and 34 over what it reads (a clamped gate); 6, 8, 13 and 25 with routing weights in 16 bits; none of both in a fused MLP; a plain gate and a second bias where they are compiled."""
    biased = dataclasses.replace(MODEL, bias=True)
    rows = 2 * TOKENS

    def moved(lowering: Lowering, name: str) -> list[float]:
        layer = expand_layer(biased, lowering, kind="moe", sequences=1, sequence_length=TOKENS)
        return [one.bytes for one in (*layer.forward, *layer.backward) if one.name == name]

    wide, inner = 2 * rows * HIDDEN, 2 * rows * 2048
    assert moved(Lowering(), "experts_fc2_bias") == [14 * wide, 22 * wide]
    assert moved(Lowering(), "experts_activation") == [17 * inner, 34 * inner]
    narrow = Lowering(wide_routing=False)
    assert moved(narrow, "experts_fc2_bias") == [6 * wide, 8 * wide]
    assert moved(narrow, "experts_activation") == [13 * inner, 25 * inner]
    compiled = Lowering(compiled_experts=True)
    assert moved(compiled, "experts_fc1_bias") == [4 * 2 * inner, 2 * inner]
    assert moved(compiled, "experts_activation") == [3 * inner, 5 * inner]
    assert moved(Lowering(fused_grouped_mlp=True), "experts_fc2_bias") == []
    assert moved(Lowering(fused_grouped_mlp=True), "experts_activation") == [0.0, 0.0]


def test_tokens_travel_around_the_experts_both_ways() -> None:
    """permute, there, experts, back, unpermute; backward the same in reverse."""
    names = _names(block_forward(LAYER, _sharding()))
    there, back = names.index("dispatch all-to-all"), names.index("combine all-to-all")
    assert names[there - 1] == "permute"
    assert names[back + 1] == "unpermute"
    assert names[there + 1] == "rows_by_expert"
    assert names[back - 1] == "rows_by_rank"
    assert all(name.startswith("experts_") for name in names[there + 2 : back - 1])
    behind = _names(block_backward(LAYER, _sharding()))
    first = behind.index("combine gradient all-to-all")
    second = behind.index("dispatch gradient all-to-all")
    assert (behind[first - 1], behind[second + 1]) == ("unpermute", "permute")
    assert (behind[first + 1], behind[second - 1]) == ("rows_by_expert", "rows_by_rank")
    assert all(name.startswith("experts_") for name in behind[first + 2 : second - 1])


def test_rows_are_regrouped_only_where_they_arrive_mixed() -> None:
    """Read and written once: 2 x tokens x top_k x hidden x 2 B; not with one expert a rank or one rank."""
    items = block_forward(LAYER, _sharding())
    copies = [one for one in items if isinstance(one, Compute) and "rows_by" in one.operator.name]
    assert [one.operator.bytes for one in copies] == [2 * TOKENS * 2 * HIDDEN * 2] * 2
    for other in (_sharding(ep=16), _sharding(ep=1)):
        assert not any("rows_by" in name for name in _names(block_forward(LAYER, other)))


def test_a_fused_dispatch_brings_a_token_once_and_copies_it_for_each_expert() -> None:
    """16 experts, top 2, ep 4: a token comes to 4 (1 - C(12,2)/C(16,2)) = 1.8 ranks and makes 2 rows, 3.8 x tokens x hidden x 2 B in all."""
    items = block_forward(LAYER, _sharding({"expert_dispatch": ExpertDispatch.FUSED}))
    copies = [one for one in items if isinstance(one, Compute) and "rows_by" in one.operator.name]
    moved = (4 * (1 - 66 / 120) + 2) * TOKENS * HIDDEN * 2
    assert [one.operator.bytes for one in copies] == pytest.approx([moved] * 2)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 4), (2, 4)])
def test_gathered_tokens_are_sorted_and_added_up_by_torch_kernels_on_each_rank(
    tp: int, ep: int
) -> None:
    """Megatron's all-gather: 14 passes over the rows of own experts forward, 17 backward; 3 and 1 over tokens of the group; nothing before tokens travel."""
    whole = _sharding({"expert_dispatch": ExpertDispatch.ALL_GATHER}, tp=tp, etp=tp, ep=ep)
    tokens, wide = TOKENS * ep, 2 * HIDDEN
    for items, rows, sums in (
        (block_forward(LAYER, whole), 14, 3),
        (block_backward(LAYER, whole), 17, 1),
    ):
        kernels = [item.operator for item in items if isinstance(item, Compute)]
        moved = sum(one.bytes for one in kernels if one.name.startswith("rows_by"))
        assert moved == pytest.approx((rows * 2 * tokens / ep + sums * tokens) * wide)
        assert not any("permute" in one.name for one in kernels)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_kernel_that_sums_rows_looks_through_the_map_of_all_experts_of_its_rank(ep: int) -> None:
    """HybridEP's reads 4 B of each for every 16 B of a token that goes back; the one that spreads tokens over rows does not."""
    fused = {
        "expert_dispatch": ExpertDispatch.FUSED,
        "expert_regrouping": ExpertRegrouping.BESIDE,
    }
    there, back = (
        item
        for item in block_forward(LAYER, _sharding(fused, ep=ep))
        if isinstance(item, Communication)
    )
    assert there.copies
    assert back.copies
    read = back.copies.bytes - there.copies.bytes
    assert read == pytest.approx(back.size / 16 * 4 * 16 / ep)


def test_a_forward_that_stops_before_the_second_product_sends_nothing_back() -> None:
    """Of a layer that runs again until the last value that a gradient reads tokens travel there, and their outputs nowhere."""
    until = next(i for i, one in enumerate(LAYER.forward) if one.name == "experts_fc2")
    part = Repeat(LAYER.forward[:until], frozenset(one.place for one in LAYER.forward))
    names = _names(block_backward(LAYER, _sharding(), again=[part]))
    assert names.count("dispatch all-to-all") == 1
    assert "combine all-to-all" not in names
    assert names.count("rows_by_expert") == 2
    assert names.count("rows_by_rank") == 1


def test_narrow_products_of_experts_read_padded_rows() -> None:
    """Rows are copied before the products and after them, read and written; not in 16 bits, not where the dispatch pads, not in weight gradients alone."""
    narrow = with_casts(LAYER, Casting(element_bytes=1, passes=1, copies=1), wide_bytes=2)
    pads = _sharding({"pads": True})

    def copied(items: Iterable[Item]) -> list[float]:
        return [
            one.operator.bytes
            for one in items
            if isinstance(one, Compute) and "padding" in one.operator.name
        ]

    assert copied(block_forward(narrow, pads)) == [2 * TOKENS * 2 * HIDDEN * 2] * 2
    assert len(copied(block_backward(narrow, pads))) == 2
    assert not copied(block_forward(LAYER, pads))
    assert not copied(block_forward(narrow, _sharding()))
    fused = _sharding({"pads": True, "expert_dispatch": ExpertDispatch.FUSED})
    assert not copied(block_forward(narrow, fused))
    late = frozenset({Phase.WEIGHT_GRADIENT})
    assert not copied(block_backward(narrow, pads, phases=late))


def test_the_busiest_rank_sends_more_rows_than_the_mean() -> None:
    """4,096 tokens with two experts each make 8,192 rows of 4,096 values of 2 B; a rank with a quarter more to do sends a quarter more."""
    sizes = [
        [
            item.size
            for item in block_forward(LAYER, _sharding({"load": load}))
            if isinstance(item, Communication) and item.axis == "ep"
        ]
        for load in (1.0, 1.25)
    ]
    assert sizes[0] == [TOKENS * 2 * HIDDEN * 2.0] * 2
    assert sizes[1] == [1.25 * size for size in sizes[0]]


def test_rows_that_ranks_gathered_together_are_regrouped_by_each() -> None:
    """tp 2 with etp 2: a rank's 2,048 tokens make 2 x 2,048 rows, the gather over etp brings those of both, each read and written in 2 B."""
    items = block_forward(LAYER, _sharding(tp=2, etp=2))
    moved = [
        item.operator.bytes
        for item in items
        if isinstance(item, Compute) and "rows_by" in item.operator.name
    ]
    assert moved == [2 * (2 * 2 * TOKENS // 2) * HIDDEN * 2] * 2


def test_the_gather_over_etp_follows_the_exchange_of_its_tokens() -> None:
    """Different communicators, so it names what it needs; on the way back the sum goes first."""
    items = block_forward(LAYER, _sharding(tp=2, etp=2))
    sent = [one for one in items if isinstance(one, Communication) and one.axis in ("ep", "etp")]
    assert [(one.axis, one.kind) for one in sent] == [
        ("ep", "all_to_all"),
        ("etp", "all_gather"),
        ("etp", "reduce_scatter"),
        ("ep", "all_to_all"),
    ]
    assert sent[1].needs == {sent[0].tag}
    assert sent[3].needs == {sent[2].tag}
    assert sent[1].size == sent[0].size * 2


def test_one_rank_with_all_experts_sends_nothing() -> None:
    """ep 1, etp 1: no exchange, no wait of the host."""
    items = block_forward(LAYER, _sharding({"expert_synchronizations": 1}, ep=1))
    assert not [one for one in items if isinstance(one, Communication | Synchronization)]


def test_the_host_waits_for_token_counts_before_it_sends() -> None:
    """Once a forward, also when it is run again; not in the backward."""
    sharding = _sharding({"expert_synchronizations": 1})
    items = block_forward(LAYER, sharding)
    place = next(i for i, one in enumerate(items) if isinstance(one, Synchronization))
    following = items[place + 1]
    assert isinstance(following, Communication)
    assert following.name == "dispatch all-to-all"
    assert not [one for one in block_backward(LAYER, sharding) if isinstance(one, Synchronization)]


def test_experts_without_a_grouped_product_run_one_by_one() -> None:
    """Four local experts: four products in place of one, with the same work."""
    sharding = _sharding({"grouped_gemm": False})
    singles = [
        one.operator
        for one in block_forward(LAYER, sharding)
        if isinstance(one, Compute) and one.operator.name == "experts_fc1"
    ]
    grouped = shard(next(one for one in LAYER.forward if one.name == "experts_fc1"), sharding)
    assert len(singles) == 4
    assert {(one.kind, one.batch, one.m) for one in singles} == {(OperatorKind.GEMM, 1, grouped.m)}
    assert sum(one.flops for one in singles) == grouped.flops
    assert sum(one.bytes for one in singles) == grouped.bytes


def test_a_fused_dispatch_does_the_permuting() -> None:
    """No permute, no unpermute kernels."""
    names = _names(block_forward(LAYER, _sharding({"expert_dispatch": ExpertDispatch.FUSED})))
    assert "permute" not in names
    assert "unpermute" not in names


def test_shared_experts_run_while_tokens_travel() -> None:
    """First product beside dispatch, second beside combine; routed experts and unpermute wait for their tokens."""
    items = block_forward(LAYER, _sharding({"expert_overlap": ExpertOverlap.SHARED_EXPERT}))
    names = _names(items)
    order = [
        "dispatch all-to-all",
        "shared_fc1",
        "experts_fc1",
        "combine all-to-all",
        "shared_fc2",
        "unpermute",
    ]
    assert sorted(order, key=names.index) == order
    needs = {one.operator.name: one.needs for one in items if isinstance(one, Compute)}
    assert needs["shared_fc1"] == needs["shared_fc2"] == frozenset()
    assert needs["experts_fc1"] == {"dispatch all-to-all"}
    assert needs["unpermute"] == {"combine all-to-all"}
    plain = _names(block_forward(LAYER, _sharding()))
    assert sorted(plain) == sorted(names)


def test_overlap_leaves_out_nothing_of_the_backward() -> None:
    """The same kernels and exchanges in another order, whole or in halves."""
    for phases in (
        {Phase.INPUT_GRADIENT},
        {Phase.WEIGHT_GRADIENT},
        {Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT},
    ):
        plain, beside = (
            _names(
                block_backward(
                    LAYER,
                    _sharding({"expert_overlap": overlap}, tp=2, etp=2),
                    phases=frozenset(phases),
                )
            )
            for overlap in (ExpertOverlap.NONE, ExpertOverlap.SHARED_EXPERT)
        )
        assert sorted(plain) == sorted(beside)


def test_a_fused_block_sends_in_turn_and_computes_in_turn() -> None:
    """Combine of the backward, dispatch of the forward, dispatch of the backward, combine of the forward (Megatron-Core 0.15)."""
    sharding = _sharding()
    forward, backward = block_forward(LAYER, sharding), block_backward(LAYER, sharding)
    both = fused_blocks(forward, backward)
    assert sorted(_names(both)) == sorted(_names([*forward, *backward]))
    sent = [one for one in both if isinstance(one, Communication)]
    assert [one.name for one in sent] == [
        "combine gradient all-to-all",
        "dispatch all-to-all",
        "dispatch gradient all-to-all",
        "combine all-to-all",
    ]
    assert {one.waits for one in sent} == {Waits.TAGGED}


def test_a_fused_dispatch_enters_every_domain_once() -> None:
    """16 experts, top 2, ep 4 in two domains: a token reaches 2 (1 - C(8,2)/C(16,2)) domains and 4 (1 - C(12,2)/C(16,2)) ranks."""
    sharding = _sharding({"expert_dispatch": ExpertDispatch.FUSED, "domains": 2})
    sent = [one for one in block_forward(LAYER, sharding) if isinstance(one, Communication)]
    whole = TOKENS * HIDDEN * 2
    assert [one.size / whole for one in sent] == pytest.approx([4 * (1 - 66 / 120)] * 2)
    assert [one.across / whole for one in sent] == pytest.approx([2 * (1 - 28 / 120)] * 2)
    plain = block_forward(LAYER, _sharding({"domains": 2}))
    assert not any(one.across for one in plain if isinstance(one, Communication))


def test_a_host_that_waits_for_token_counts_shows_what_the_router_launches() -> None:
    """Dropless experts on two ranks: each forward of each layer idles 10 launches of 1 ms; with a capacity nothing waits."""

    def host(count: int, **habits: object) -> float:
        scenario = {
            "schema": 1,
            "model": {
                "hidden": 1024,
                "layers": 2,
                "heads": 16,
                "vocab": 32000,
                "moe": {"experts": 4, "ffn_hidden": 512, "top_k": 2},
            },
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "parallelism": {"dp": 8, "ep": 2},
            "training": {"global_batch": 8, "sequence_length": 512},
            "framework": {
                "preset": "megatron-core",
                "expert_launches": count,
                "launch_cost": "1 ms",
                "layer_launches_forward": 0,
                "layer_launches_backward": 0,
                **habits,
            },
        }
        return mpsim.simulate(mpsim.Scenario.from_mapping(scenario)).breakdown["host"]

    waits = host(10) - host(0)
    assert waits >= 2 * 10e-3
    assert host(10, expert_synchronizations=0) <= host(10)


def test_experts_in_a_row_are_at_few_ranks() -> None:
    """8 of 256 in a row, 4 a rank: a token travels to 2 ranks of 64 and to 1 node of 8; any 8 are at 7.7 ranks and 5.3 nodes."""
    routing = {"experts": 256, "top_k": 8, "domains": 8}

    def sent(**more: object) -> tuple[float, float]:
        own = {**routing, "expert_dispatch": ExpertDispatch.FUSED, **more}
        items = block_forward(
            LAYER,
            Sharding(
                ep=64,
                tokens=TOKENS,
                hidden=HIDDEN,
                sequence_parallel=False,
                routing=plans.routing(**own),
            ),
        )
        there = next(i for i in items if isinstance(i, Communication) and i.axis == "ep")
        token = TOKENS * HIDDEN * 2
        return there.size / token, there.across / token

    assert sent(consecutive_experts=True) == (2.0, 1.0)
    assert sent() == pytest.approx((7.68, 5.3), rel=0.01)
