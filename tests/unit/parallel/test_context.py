"""Context parallelism: what a rank computes at each step, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from mpsim.errors import ScenarioError
from mpsim.framework import ContextExchange
from mpsim.parallel import (
    Communication,
    Compute,
    Item,
    Sharding,
    Waits,
    block_backward,
    block_forward,
)
from mpsim.training.recompute import Recompute, repeats
from mpsim.workload import Expansion, Lowering, Operator, expand_layer, model
from tests import plans

GPT = model("gpt-7.5b")  # 32 heads of 128
TOKENS, RANKS = 8192, 4


def _layer(*, fused: bool = True, name: str = "gpt-7.5b") -> Expansion:
    lowering = Lowering(fused_attention=fused)
    return expand_layer(model(name), lowering, sequences=1, sequence_length=TOKENS, context=RANKS)


def _sharding(exchange: ContextExchange, **changes: Any) -> Sharding:
    shape = {"tp": 2, "cp": RANKS, "tokens": TOKENS // RANKS, "hidden": GPT.hidden}
    return plans.sharding(**{**shape, "context_exchange": exchange, **changes})


def _attention(items: list[Item]) -> list[Compute]:
    return [one for one in items if isinstance(one, Compute) and one.operator.heads]


def _exchanges(items: list[Item]) -> list[Communication]:
    return [one for one in items if isinstance(one, Communication) and one.axis.startswith("cp")]


def _pairs(one: Operator) -> float:
    """Visible query-key pairs of one head."""
    return one.queries * one.keys * (0.5 if one.causal else 1.0)


def test_a_ring_cuts_attention_in_steps_of_equal_work() -> None:
    """Own block masked, the others half visible: 4 x 2048 x 1024 pairs, as many as the masked whole 2048 x 8192 / 2."""
    steps = [
        one.operator for one in _attention(block_forward(_layer(), _sharding(ContextExchange.RING)))
    ]
    assert [(one.queries, one.keys, one.causal) for one in steps] == [
        (2048, 2048, True),
        *[(2048, 1024, False)] * 3,
    ]
    assert len({_pairs(one) for one in steps}) == 1
    whole = next(one for one in _layer().forward if one.heads)
    assert sum(one.flops for one in steps) == whole.flops / 2
    assert sum(_pairs(one) for one in steps) == _pairs(whole)


def test_each_step_of_a_ring_waits_for_its_block_alone() -> None:
    """The first has its own; step i needs what was sent beside step i - 1."""
    items = block_forward(_layer(), _sharding(ContextExchange.RING))
    assert [sorted(one.needs) for one in _attention(items)] == [
        [],
        ["block 1"],
        ["block 2"],
        ["block 3"],
    ]
    sent = _exchanges(items)
    assert [one.tag for one in sent] == ["block 1", "block 2", "block 3"]
    assert {one.waits for one in sent} == {Waits.TAGGED}


def test_gradients_of_keys_follow_one_step_behind() -> None:
    """Keys and values alone, twice both, gradients alone; the sum waits for the last."""
    items = block_backward(_layer(), _sharding(ContextExchange.RING))
    block = 2 * (TOKENS // RANKS) * GPT.hidden / 2 * 2
    assert [one.size for one in _exchanges(items)] == [block, 2 * block, 2 * block, block]
    (total,) = [
        one
        for one in items
        if isinstance(one, Compute) and one.operator.name == "attention gradient sum"
    ]
    assert total.needs == {"block 4"}


def test_a_ring_without_a_mask_sees_whole_blocks() -> None:
    """BERT looks both ways: all keys of every block."""
    layer = _layer(name="bert-large")
    steps = _attention(block_forward(layer, _sharding(ContextExchange.RING, hidden=1024)))
    assert [one.operator.keys for one in steps] == [2048] * 4


def test_ulysses_trades_tokens_for_heads() -> None:
    """All 8192 queries of 32 / 2 / 4 heads, between three all-to-alls and one; backward one and three."""
    sharding = _sharding(ContextExchange.ULYSSES)
    forward = block_forward(_layer(), sharding)
    (core,) = [one.operator for one in _attention(forward)]
    assert (core.queries, core.keys, core.heads, core.kv_heads) == (8192, 8192, 4, 4)
    assert [one.name.split()[0] for one in _exchanges(forward)] == ["q", "k", "v", "output"]
    back = block_backward(_layer(), sharding)
    assert [one.name for one in _exchanges(back)] == [
        f"{name} gradient all-to-all" for name in ("output", "q", "k", "v")
    ]


def test_ulysses_works_kernel_by_kernel_too() -> None:
    """Unfused scores: a quarter of the heads, four times the queries, the same FLOPs."""
    sharding = _sharding(ContextExchange.ULYSSES)
    layer = _layer(fused=False)
    mine = {
        one.operator.name: one.operator
        for one in (*block_forward(layer, sharding), *block_backward(layer, sharding))
        if isinstance(one, Compute)
    }
    whole = {one.name: one for one in (*layer.forward, *layer.backward)}
    for name in ("scores", "context", "scores_dk", "context_dv"):
        assert mine[name].batch == whole[name].batch / 2 / 4
        one = mine[name]
        assert 2 * one.batch * one.m * one.n * one.k == pytest.approx(whole[name].flops / 2)


def test_few_key_heads_are_repeated_for_ulysses() -> None:
    """8 key-value heads on tp 4 x cp 4: two ranks share each, so twice the bytes of keys travel."""
    layer = _layer(name="llama3-8b")
    sharding = _sharding(ContextExchange.ULYSSES, tp=4, hidden=4096)
    sizes = {one.name.split()[0]: one.size for one in _exchanges(block_forward(layer, sharding))}
    assert sizes["q"] == 2048 * 32 * 128 / 4 * 2
    assert sizes["k"] == sizes["v"] == 2048 * 16 * 128 / 4 * 2


def test_every_rank_has_a_key_head_after_the_exchange() -> None:
    """32 query and 8 key-value heads on tp 4: two query heads a rank of four that trade, and one of keys that a neighbour has too.

    With cp 8 in two such fours, half of the 8,192 keys and values of that head, 128 each of 2 B, go across: 2 MiB.
    """
    sharding = _sharding(ContextExchange.ULYSSES, tp=4, hidden=4096)
    (core,) = [
        step.operator for step in _attention(block_forward(_layer(name="llama3-8b"), sharding))
    ]
    assert (core.queries, core.keys, core.heads, core.kv_heads) == (8192, 8192, 2, 1)
    layer = expand_layer(
        model("llama3-8b"), Lowering(), sequences=1, sequence_length=TOKENS, context=8
    )
    wide = _sharding(
        ContextExchange.HIERARCHICAL, tp=4, cp=8, tokens=1024, hidden=4096, context_inside=4
    )
    (sent,) = [one for one in _exchanges(block_forward(layer, wide)) if one.axis == "cp-across"]
    assert sent.size == 4096 * 2 * 128 * 2


def test_hierarchical_exchange_is_ulysses_inside_and_a_ring_across() -> None:
    """Two ranks a domain: 4096 queries of 8 heads, in two steps; keys of half the heads are sent across once."""
    items = block_forward(_layer(), _sharding(ContextExchange.HIERARCHICAL, context_inside=2))
    steps = [one.operator for one in _attention(items)]
    assert [(one.queries, one.keys, one.heads) for one in steps] == [
        (4096, 4096, 8),
        (4096, 2048, 8),
    ]
    assert [one.axis for one in _exchanges(items)] == ["cp-inside"] * 3 + ["cp-across", "cp-inside"]
    (sent,) = [one for one in items if isinstance(one, Communication) and one.axis == "cp-across"]
    assert sent.size == 2 * 4096 * 8 * 128 * 2


def test_recomputing_the_core_exchanges_again() -> None:
    """Selective recomputation repeats the forward ring before the backward one."""
    items = block_backward(
        _layer(),
        _sharding(ContextExchange.RING),
        again=repeats(_layer(), _sharding(ContextExchange.RING), Recompute("selective")),
    )
    sent = _exchanges(items)
    assert [one.repeated for one in sent] == [True] * 3 + [False] * 4
    assert [one.repeated for one in _attention(items)] == [True] * 4 + [False] * 4


def test_a_ring_of_unfused_kernels_is_refused() -> None:
    """Nothing returns the statistics by which steps are put together."""
    with pytest.raises(ScenarioError, match="context_exchange to all-gather"):
        block_forward(_layer(fused=False), _sharding(ContextExchange.RING))
