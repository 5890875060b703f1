"""Continuous batching: iterations of each scheduler against schedules worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.serving.batching import BatchRules
from mpsim.serving.policies import POLICIES


def engine(rules, blocks, prompt, output, *, hashes=None, unit=512):
    """An engine with all requests waiting in order."""
    made = POLICIES[rules.scheduler](rules, blocks, prompt, output, hashes=hashes, unit=unit)
    made.waiting.extend(range(len(prompt)))
    return made


def steps_of(made, count):
    """(decodes, prompt tokens, blocks used, requests that ended) of the next iterations, at most `count`."""
    steps = []
    for _ in range(count):
        iteration = made.next()
        if iteration is None:
            break
        used = made.used
        _, last = made.finish(iteration)
        steps.append((iteration.decodes, iteration.prompt_tokens, used, last))
    return steps


def test_budget_scheduler_chunks_prompts_into_what_decoding_leaves():
    """vLLM V1 with a budget of 8: prompts of 6 and 10 tokens, three and two tokens to generate, blocks of 4.

    1: prompt 0 whole (6) and 2 of prompt 1;  blocks 2 + 1
    2: 0 decodes (its 7th token, block 2 holds it), 7 of prompt 1 (9 of 10);  blocks 2 + 3
    3: 0 decodes and ends (8 tokens), the last of prompt 1;  blocks 2 + 3
    4: 1 decodes and ends (11th token)
    """
    rules = BatchRules(prefix_cache=True, scheduler="budget", max_tokens=8, block=4)
    made = engine(rules, 100, [6, 10], [3, 2])
    assert steps_of(made, 10) == [(0, 8, 3, []), (1, 7, 5, []), (1, 1, 5, [0]), (1, 0, 3, [1])]
    assert made.used == 0


@pytest.mark.parametrize("jumps", [False, True])
def test_an_engine_that_polls_every_third_iteration_sees_a_request_then(jumps):
    """Request 1 comes after one decoding iteration of request 0: two more pass before its prompt runs, and the engine looks again right after a prompt."""
    rules = BatchRules(
        prefix_cache=True, scheduler="prefill-first", max_tokens=8, block=4, poll_steps=3
    )
    made = POLICIES[rules.scheduler](rules, 100, [4, 4, 4], [20, 20, 20])
    made.enter(0)
    assert steps_of(made, 2) == [(0, 4, 1, []), (1, 0, 2, [])]
    made.enter(1)
    if jumps:
        assert made.steady() == 2
        made.jump(2)
    else:
        assert steps_of(made, 2) == [(1, 0, 2, []), (1, 0, 2, [])]
    assert steps_of(made, 1) == [(0, 4, 3, [])]
    made.enter(2)
    assert steps_of(made, 1) == [(0, 4, 4, [])]


@pytest.mark.parametrize(("prefix_cache", "computed"), [(False, 5), (True, 1)])
def test_budget_scheduler_preempts_the_latest_and_computes_it_again(prefix_cache, computed):
    """Two requests of 4 + 5 tokens, blocks of 4, three blocks: both prompts fit, their fifth tokens need a block each and one is free.

    1: both prompts (8 tokens, 2 blocks)
    2: request 1 is preempted with one token generated; 0 decodes into the third... its second block; nobody is admitted
    3: request 1 waits for two blocks (4 + 1 tokens), one is free: 0 decodes alone until it ends with its fifth token
    then 1 computes 5 tokens again, or finds the block that it left and computes the fifth, and decodes the three that are left.
    """
    rules = BatchRules(prefix_cache=prefix_cache, scheduler="budget", max_tokens=64, block=4)
    made = engine(rules, 3, [4, 4], [5, 5])
    assert steps_of(made, 20) == [
        (0, 8, 2, []),
        (1, 0, 2, []),
        (1, 0, 2, []),
        (1, 0, 2, []),
        (1, 0, 2, [0]),
        (0, computed, 2, []),
        (1, 0, 2, []),
        (1, 0, 2, []),
        (1, 0, 2, [1]),
    ]
    assert made.preempted == 1
    assert made.used == 0


def test_blocks_of_a_preempted_request_go_to_whoever_needs_them():
    """Two requests of 8 tokens in four blocks of 4: the second, preempted, leaves two blocks, of which the first takes one for its 9th token, and the other for its 13th."""
    rules = BatchRules(prefix_cache=True, scheduler="budget", max_tokens=64, block=4)
    for output, computed in ((4, 5), (5, 5), (6, 9)):
        made = engine(rules, 4, [8, 8], [output, 3])
        assert steps_of(made, 9)[-2][:2] == (0, computed)
        assert made.preempted == 1
        assert made.cache.hit_tokens == 0  # of what requests share


def test_a_cached_prefix_is_neither_computed_nor_stored_again():
    """Prompts of 10 tokens share 8, two blocks of 4: the second computes 2 tokens and takes one block."""
    rules = BatchRules(
        prefix_cache=True, scheduler="budget", max_tokens=64, max_sequences=1, block=4
    )
    made = engine(rules, 10, [10, 10], [1, 1], hashes=[(7, 8), (7, 8)], unit=4)
    assert [step[1] for step in steps_of(made, 5)] == [10, 2]
    assert made.cache.hit_tokens == 8
    assert made.used == 0  # what stays cached is free to whoever needs it


def test_prefill_first_runs_prompts_alone():
    """SGLang: both prompts, then decoding of both; a prompt that arrives stops decoding for an iteration."""
    rules = BatchRules(prefix_cache=True, scheduler="prefill-first", max_tokens=64, block=1)
    made = engine(rules, 1000, [4, 4, 5], [4, 4, 2])
    made.waiting.pop()
    assert steps_of(made, 2) == [(0, 8, 8, []), (2, 0, 10, [])]
    made.waiting.append(2)
    assert steps_of(made, 5) == [(0, 5, 15, []), (3, 0, 18, [2]), (2, 0, 14, [0, 1])]


def test_no_evict_admits_only_what_fits_to_its_end():
    """TensorRT-LLM: 4 + 4 tokens take two blocks of 4, so three blocks hold one request at a time."""
    rules = BatchRules(
        prefix_cache=True, scheduler="no-evict", max_tokens=64, block=4, chunked=False
    )
    made = engine(rules, 3, [4, 4], [4, 4])
    steps = steps_of(made, 20)
    assert [step[0] for step in steps] == [0, 1, 1, 1, 0, 1, 1, 1]
    assert made.preempted == 0


def test_prompts_kept_back_come_together_or_when_the_patience_ends():
    """TensorRT-LLM with two iterations of patience and 0.5 of a budget of 16: one prompt of 4 beside one decoding sequence is below 8 tokens.

    1: prompt 0, nothing decodes that could go on meanwhile
    2, 3: request 1 has come, 1 + 4 < 8: kept back twice;  4: it is taken
    5: request 2 has come, 2 + 7 >= 8: it is taken at once
    """
    rules = BatchRules(
        prefix_cache=True,
        scheduler="no-evict",
        max_tokens=16,
        block=4,
        chunked=False,
        batch_wait_steps=2,
        batch_wait_share=0.5,
    )
    made = POLICIES[rules.scheduler](rules, 100, [4, 4, 7], [9, 9, 9])
    made.waiting.append(0)
    assert steps_of(made, 1) == [(0, 4, 1, [])]
    made.waiting.append(1)
    assert [step[:2] for step in steps_of(made, 3)] == [(1, 0), (1, 0), (1, 4)]
    made.waiting.append(2)
    assert [step[:2] for step in steps_of(made, 1)] == [(2, 7)]


def test_static_batches_start_and_end_together():
    """The next batch waits for the longest of the last one."""
    rules = BatchRules(prefix_cache=True, scheduler="static", max_sequences=2, block=4)
    made = engine(rules, 100, [4, 4, 4], [2, 3, 1])
    assert [(step[0], step[1]) for step in steps_of(made, 20)] == [(0, 8), (2, 0), (1, 0), (0, 4)]


def counted(made):
    """Blocks in use, counted request by request: of its own, as its tokens need, and cached units that any of them uses once."""
    used = 0
    for request, held in made.cache.held.items():
        own = held
        if request in made.decoding._began:
            tick, tokens = made.decoding._began[request]
            # the last of its tokens is written by the next iteration
            own = max(own, made.cache.own(request, tokens + made.decoding.tick - tick - 1))
        used += own
    cached = {unit for units in made.cache.shared.values() for unit in units}
    return used + len(cached) * made.cache.unit_blocks


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12),
    scheduler=st.sampled_from(["budget", "prefill-first", "no-evict", "max-utilisation", "static"]),
    block=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 6),
    shared=st.booleans(),
)
def test_blocks_are_conserved_and_every_request_ends_once(lengths, scheduler, block, spare, shared):
    """Whatever the rules: blocks held by requests and free ones are all blocks at every iteration, and no request is lost."""
    prompt, output = (list(column) for column in zip(*lengths, strict=True))
    blocks = max(-(-(p + o) // block) for p, o in lengths) + spare
    hashes = [tuple(range(p // 8)) for p in prompt] if shared else None
    rules = BatchRules(prefix_cache=True, scheduler=scheduler, max_tokens=32, block=block)
    made = engine(rules, blocks, prompt, output, hashes=hashes, unit=16)
    ended = []
    for _ in range(10_000):
        iteration = made.next()
        if iteration is None:
            break
        assert 0 <= made.used <= blocks
        _, last = made.finish(iteration)
        ended += last
        assert made.used == counted(made)
        steps = made.steady()
        made.jump(steps)
        assert made.used == counted(made)
        assert 0 <= made.used <= blocks
    assert sorted(ended) == list(range(len(lengths)))
    assert made.used == 0


@pytest.mark.parametrize("scheduler", ["budget", "no-evict"])
def test_jumps_are_the_same_as_single_steps(scheduler):
    """Iterations passed at once leave the same state as one after the other."""
    rules = BatchRules(prefix_cache=True, scheduler=scheduler, max_tokens=64, block=4)
    ends = {}
    for jumps in (False, True):
        made = engine(rules, 40, [5, 9, 3], [20, 11, 17])
        times, tick = {}, 0
        while (iteration := made.next()) is not None:
            tick += 1
            _, last = made.finish(iteration)
            times.update(dict.fromkeys(last, tick))
            if jumps:
                steps = made.steady()
                made.jump(steps)
                tick += steps
        ends[jumps] = times
    assert ends[False] == ends[True]
