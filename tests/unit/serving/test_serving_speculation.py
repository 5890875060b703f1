"""Speculation: expected tokens, the price of verifying and drafting, and when it pays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsim.hardware import build_cluster
from mpsim.scenario.serving import ServiceLevel, Speculation, Workload
from mpsim.serving.batching import Batch, BatchRules
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.policies import POLICIES, Budget
from mpsim.serving.requests import Requests
from mpsim.serving.service import Service
from mpsim.serving.speculation import Draft
from mpsim.workload import model


def _plan(draft=None, *, tokens=3, acceptance=0.7, name="llama3-70b", tp=4):
    choice = draft and Speculation(tokens=tokens, acceptance=acceptance, draft=draft)
    return ServicePlan(
        name="drafts",
        model=model(name),
        cluster=build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=1),
        engine=engine("vllm-v1"),
        workload=Workload(rate=8.0),
        slo=ServiceLevel(),
        tp=tp,
        weights="fp8",
        speculation=choice,
    )


def _tpot(plan, batch, output=101):
    requests = Requests(np.zeros(batch), np.full(batch, 200), np.full(batch, output))
    served = Service(requests, plan).run()
    return float(((served.last - served.first) / (output - 1)).mean())


@pytest.mark.parametrize(
    ("tokens", "acceptance", "gain"),
    [(1, 0.0, 1.0), (1, 0.8, 1.8), (3, 0.7, 1 + 0.7 + 0.49 + 0.343), (4, 1.0, 5.0)],
)
def test_a_sequence_gains_the_leading_right_tokens_and_one_more(tokens, acceptance, gain):
    assert Draft((acceptance,) * tokens).gain == pytest.approx(gain)


@given(st.integers(1, 8), st.floats(0, 1), st.integers(2, 400))
def test_iterations_of_a_request_are_its_tokens_over_the_gain(tokens, acceptance, output):
    """The first token ends the prompt; the others take (o - 1) / gain iterations, to the next whole one."""
    gain = Draft((acceptance,) * tokens).gain
    made = Budget(BatchRules(drafts=tokens, gain=gain), 100, [10], [output])
    made.waiting.append(0)
    count, ended = 0, []
    while not ended:
        iteration = made.next()
        _, ended = made.finish(iteration)
        count += iteration.decodes
        steps = made.steady()
        made.jump(steps)
        count += steps
    assert abs(count - (output - 1) / gain) < 1.0 + 1e-4 * output
    assert made.used == 0


def test_jumps_are_the_same_as_single_iterations():
    """Gains between whole numbers: the pattern of passed iterations is that of single ones."""
    rules = BatchRules(max_tokens=64, block=4, drafts=2, gain=1.7)
    ends = {}
    for jumps in (False, True):
        made = POLICIES[rules.scheduler](rules, 60, [5, 9, 3], [50, 33, 41])
        made.waiting.extend(range(3))
        times, tick = {}, 0
        while (iteration := made.next()) is not None:
            tick += 1
            _, last = made.finish(iteration)
            times.update(dict.fromkeys(last, (tick, made.used)))
            if jumps:
                steps = made.steady()
                made.jump(steps)
                tick += steps
        ends[jumps] = times
    assert ends[False] == ends[True]


def test_verifying_prices_all_tokens_and_reads_the_cache_once():
    """Eight sequences with three drafts pass the layers as 32 tokens; the cache is read as by eight."""
    plain, drafted = _plan().prices, _plan("n-gram").prices
    tokens = drafted.token_seconds(32) - plain.token_seconds(8)
    head = drafted.head_seconds(32) - plain.head_seconds(8)
    extra = drafted.seconds(Batch(8, 8000.0)) - plain.seconds(Batch(8, 8000.0))
    assert extra == pytest.approx(tokens + head, rel=1e-9)


def test_drafting_costs_its_passes():
    """MTP: three passes of one layer and the head; a model of its own costs more than that, n-gram nothing."""
    prices = {draft: _plan(draft).prices for draft in ("n-gram", "mtp", "llama3-8b")}
    seconds = {draft: price.seconds(Batch(8, 8000.0)) for draft, price in prices.items()}
    layer = prices["mtp"]._drafting
    passes = 3 * (layer.stage_seconds(Batch(8, 8000.0)) + layer.head_seconds(8))
    assert seconds["mtp"] - seconds["n-gram"] == pytest.approx(passes, rel=1e-9)
    assert layer.work.layers == 1
    assert seconds["llama3-8b"] > seconds["mtp"]


def test_a_draft_takes_memory():
    """The 8B model's weights in fp8 on four ranks, embedding and head in 16 bits; a layer without them; nothing to look tokens up."""
    weights = {draft: _plan(draft).memory.weights for draft in (None, "n-gram", "mtp", "llama3-8b")}
    assert weights[None] == weights["n-gram"] < weights["mtp"] < weights["llama3-8b"]
    small = model("llama3-8b")
    ends = 2 * small.vocab * small.hidden
    own = (small.parameters().total - ends) * 1.0 + ends * 2.0
    assert weights["llama3-8b"] - weights[None] == pytest.approx(own / 4, rel=0.01)
    assert _plan("llama3-8b").cache_tokens < _plan().cache_tokens


def test_right_drafts_make_small_batches_faster_and_wrong_ones_make_all_slower():
    """Where weights are what takes time, three right tokens cost little: TPOT falls by nearly four. Wrong ones only cost."""
    assert _tpot(_plan("n-gram", acceptance=1.0), 1) < _tpot(_plan(), 1) / 3
    assert _tpot(_plan("mtp", acceptance=0.0), 1) > _tpot(_plan(), 1)


def test_speculation_pays_less_in_large_batches():
    """Verification of many sequences is bound by compute: the gain shrinks with the batch."""
    gains = [_tpot(_plan(), batch) / _tpot(_plan("mtp"), batch) for batch in (1, 64, 512)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.8


def test_acceptance_by_position_multiplies_along_the_draft():
    """Of drafts that are right with 0.9, 0.5 and 0.2, a sequence gains 1 + 0.9 + 0.45 + 0.09 tokens."""
    assert Draft((0.9, 0.5, 0.2)).gain == pytest.approx(2.44)
    choice = Speculation(tokens=3, acceptance=0.2, by_position=(0.9, 0.5), draft="mtp")
    plan = dataclasses.replace(_plan("mtp"), speculation=choice)
    assert plan.draft.acceptance == (0.9, 0.5, 0.2)
    with pytest.raises(ValueError, match="got by_position with 2 probabilities for 1 tokens"):
        Speculation(tokens=1, acceptance=0.2, by_position=(0.9, 0.5))


def test_a_tree_is_drafted_in_as_many_passes_as_it_is_deep():
    """Seven tokens of which three are on the path cost three passes, and verification of seven."""
    tree, chain, path = (
        Speculation(tokens=n, acceptance=last, by_position=(0.8, 0.7, 0.6), draft="mtp")
        for n, last in ((7, 0.0), (7, 0.01), (3, 0.0))
    )
    times = [
        float(dataclasses.replace(_plan("mtp"), speculation=choice).prices.seconds(Batch(1, 300.0)))
        for choice in (path, tree, chain)
    ]
    assert times == sorted(times)
    assert times[1] - times[0] < 0.25 * (times[2] - times[1])
