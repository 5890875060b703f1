"""Ten iterations of every scheduler, worked out by hand from the engines' own rules: chunking, preemption, a prefix hit.

Three requests in order: A with a prompt of 10 tokens, B of 6, C of 9 whose first 8 are A's. A block holds 4 tokens (SGLang: 1), a unit of the prefix cache is 4 tokens. The token
that an iteration gives is written to the cache by the next one: with g tokens given, p + g - 1 are in the cache. Rows are (sequences that decode, prompt tokens, blocks in use, who
ends); blocks of cached prefixes that nobody uses count as free.
"""

from __future__ import annotations

from mpsim.serving.batching import BatchRules
from mpsim.serving.policies import POLICIES

A, B, C = range(3)
PROMPTS = [10, 6, 9]
SHARED = [(1, 2), (), (1, 2)]


def _ten(rules, blocks, output, hashes=SHARED):
    """The first ten iterations, and the engine."""
    engine = POLICIES[rules.scheduler](rules, blocks, PROMPTS, output, hashes=hashes, unit=4)
    engine.waiting.extend([A, B, C])
    steps = []
    for _ in range(10):
        iteration = engine.next()
        assert iteration is not None
        used = engine.used
        _, last = engine.finish(iteration)
        steps.append((iteration.decodes, iteration.prompt_tokens, used, last))
    return steps, engine


def test_vllm_v1():
    """Budget of 8 tokens, 6 blocks; A gives 4 tokens, B 8, C 2.

    1: 8 of A (2 blocks). 2: the last 2 of A (3), all of B (2). 3: A and B decode, 11 and 7 in the cache; C hits 8 tokens, computes 1 (1 block beside A's).
    4: all decode, 12, 8 and 10 in the cache; C has its 2. 5: A would write token 13 and B token 9, a block each, one is free: B, the latest, is preempted with 3 tokens given,
    nobody is admitted; A has its 4. 6: B finds the two blocks that it left and computes the last of its 6 + 3: its 4th token. 7 to 10: tokens 5 to 8, 10 to 13 in the cache.
    """
    rules = BatchRules(prefix_cache=True, scheduler="budget", max_tokens=8, block=4)
    steps, engine = _ten(rules, 6, [4, 8, 2])
    assert steps == [
        (0, 8, 2, []),
        (0, 8, 5, []),
        (2, 1, 6, []),
        (3, 0, 6, [C]),
        (1, 0, 4, [A]),
        (0, 1, 3, []),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 4, [B]),
    ]
    assert (engine.preempted, engine.cache.hit_tokens) == (1, 8)


def test_sglang():
    """Chunks of 8 tokens, 25 tokens of cache; A gives 7 tokens, B 12, C 2; B's first 4 tokens are a unit of their own.

    1: 8 of A. 2: 2 of A; B asks for 6 + 0.7 x 12 = 14.4 of 15 free ones. 3: C asks for 9 + 0.7 (6 + 11 + 2), more than is free, so A and B decode: 18 tokens, then 20, 22, 24.
    7: two are needed, one is free: B is retracted with 5 tokens given; A decodes, 15. 8: B asks for 11 + 0.7 (1 + 12) of 10: A decodes its last.
    9: B finds its prompt, a unit and two tokens, and computes 5 of 11; C asks for 9 + 0.7 x 2 of 14, hits 8 and computes 1: 11 + 9 tokens. 10: both decode; C has its 2.
    """
    rules = BatchRules(prefix_cache=True, scheduler="prefill-first", max_tokens=8, block=1)
    steps, engine = _ten(rules, 25, [7, 12, 2], hashes=[(1, 2), (9,), (1, 2)])
    assert steps == [
        (0, 8, 8, []),
        (0, 8, 16, []),
        (2, 0, 18, []),
        (2, 0, 20, []),
        (2, 0, 22, []),
        (2, 0, 24, []),
        (1, 0, 15, []),
        (1, 0, 16, [A]),
        (0, 6, 20, []),
        (2, 0, 22, [C]),
    ]
    assert (engine.preempted, engine.cache.hit_tokens) == (1, 12)


def test_tensorrt_llm_no_evict():
    """Chunked context of 8 tokens, 9 blocks; A gives 4 tokens (4 blocks to its end), B 9 (4), C 2 (3).

    1, 2: as vLLM; 8 blocks are set aside. 3: C's 3 do not fit, A and B decode until A ends in 5, with 13 and 9 tokens in the cache. 6: C's fit now; it hits 8 tokens beside B's
    decode. 7: C has its 2. 8 to 10: B alone, 12 to 14 in the cache. Nothing is ever preempted.
    """
    rules = BatchRules(prefix_cache=True, scheduler="no-evict", max_tokens=8, block=4)
    steps, engine = _ten(rules, 9, [4, 9, 2])
    assert steps == [
        (0, 8, 2, []),
        (0, 8, 5, []),
        (2, 0, 5, []),
        (2, 0, 5, []),
        (2, 0, 7, [A]),
        (1, 1, 6, []),
        (2, 0, 6, [C]),
        (1, 0, 3, []),
        (1, 0, 4, []),
        (1, 0, 4, [B]),
    ]
    assert (engine.preempted, engine.cache.hit_tokens) == (0, 8)


def test_tensorrt_llm_max_utilisation():
    """Whole prompts, 12 tokens an iteration, 6 blocks; A gives 4 tokens, B 9, C 2.

    1: A; B does not fit the 2 tokens that are left. 2: A decodes, B; C's 9 do not fit the 5 that are left. 3: A and B decode, C hits 8 tokens, the cache is full.
    4: A needs a block for token 13: C, the latest, is paused with its first token given; A has its 4. 5: B writes token 9; C comes back, hits 8 and computes 2 of 9 + 1: its second token,
    and its last. 6 to 10: B alone, 10 to 14 in the cache.
    """
    rules = BatchRules(
        prefix_cache=True, scheduler="max-utilisation", max_tokens=12, block=4, chunked=False
    )
    steps, engine = _ten(rules, 6, [4, 9, 2])
    assert steps == [
        (0, 10, 3, []),
        (1, 6, 5, []),
        (2, 1, 6, []),
        (2, 0, 6, [A]),
        (1, 2, 6, [C]),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 4, []),
        (1, 0, 4, [B]),
    ]
    assert (engine.preempted, engine.cache.hit_tokens) == (1, 16)


def test_static_batches():
    """FasterTransformer: two sequences a batch, no prefix cache; A gives 4 tokens, B 8, C 2. C waits until B, the longest, has ended."""
    rules = BatchRules(prefix_cache=True, scheduler="static", max_sequences=2, block=4)
    steps, engine = _ten(rules, 20, [4, 8, 2], hashes=None)
    assert steps == [
        (0, 16, 5, []),
        (2, 0, 5, []),
        (2, 0, 5, []),
        (2, 0, 7, [A]),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 3, []),
        (1, 0, 4, [B]),
        (0, 9, 3, []),
        (1, 0, 3, [C]),
    ]
    assert engine.preempted == 0
