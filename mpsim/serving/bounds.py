"""Closed forms that no service beats: least duration of a stream, least TTFT and TPOT.

A batch passes its iterations one after the other. Each takes at least ``alpha + beta m`` for its m
tokens, for every line below the price of an iteration; so a stream takes at least ``alpha`` times
the iterations that its decoding needs at the fullest batch, plus ``beta`` times its tokens, plus
what the attention of each request adds. Waiting, ramp and drain come on top. Whatever waits for a
pool of prompts waits for that pool's work too.

Shapes: N requests.
"""

from __future__ import annotations

import math

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests

_EXACT = 16  # numbers of tokens that are looked at one by one; then in steps
_STEP = 1.15
_SLOPES = 24


@structs.dataclass(frozen=True, slots=True)
class ServiceBounds:
    """No simulation of the plan is better."""

    duration: float  # from the first arrival to the last token [s]
    # that the busiest pool's batches work, each as long as the others [s]: no stream is faster
    busy: float
    # of each request, float64[N] [s]
    ttft: Floats
    tpot: Floats

    def share_within(self, ttft: float | None, tpot: float | None) -> float:
        """The largest share of the requests that can keep both limits."""
        most = [math.inf if limit is None else limit for limit in (ttft, tpot)]
        kept = ~((self.ttft > most[0]) | (self.tpot > most[1]))
        return float(kept.mean()) if len(kept) else 1.0


def bound_service(plan: ServicePlan, requests: Requests) -> ServiceBounds:
    """Bounds of a plan that serves these requests, whose arrivals do not count in a closed loop."""
    prompts = plan.prefill or plan
    # of the fastest instance over that of one whose ranks have the nominal speed
    first, fastest = (min(pool.paces, default=1.0) for pool in (prompts, plan))
    tail, units = _computed(requests)
    ttft = _least_ttft(prompts, tail) * first
    step = _least_step(plan, requests.prompt.astype(float)) * fastest
    further = requests.output - 1
    gain = plan.rules.gain
    steps = further.astype(float) if gain == 1.0 else np.maximum(0.0, (further - 1) / gain)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(further > 0, steps * step / further, np.nan)
    alone = ttft + steps * step
    users = plan.workload.concurrency
    if users is not None:
        duration = max(float(alone.sum()) / users, float(alone.max(initial=0.0)))
    else:
        duration = float((requests.arrival + alone).max(initial=0.0))
    own_prompts = (tail, units) if plan.prefill is None else (np.zeros(0), 0.0)
    busy = _work(plan, requests, *own_prompts) * fastest / plan.lanes
    if (behind := plan.prefill) is not None:
        busy = max(busy, _work(behind, None, tail, units) * first / behind.lanes)
    return ServiceBounds(
        max(duration, busy),
        busy,
        ttft + plan.tokenizer_time * requests.prompt + plan.first_token_time,
        tpot,
    )


def _computed(requests: Requests) -> tuple[Floats, float]:
    """Tokens of each prompt that no cache can have, and of units computed at least once."""
    prompt = requests.prompt.astype(float)
    if requests.hashes is None:
        return prompt, 0.0
    known = np.array([len(units) * requests.unit for units in requests.hashes], dtype=float)
    if requests.following is not None:  # units of answers are never computed as a prompt
        return np.maximum(1.0, prompt - known), 0.0
    unique = len({value for units in requests.hashes for value in units})
    return np.maximum(1.0, prompt - known), 0.0 if unique == 0 else float(unique * requests.unit)


def _least_ttft(plan: ServicePlan, tail: Floats) -> Floats:
    """From an empty service to the end of a prompt, chunk by chunk [s]."""
    prices, engine, most = plan.prices, plan.engine, plan.rules.max_tokens
    lengths, place = np.unique(tail, return_inverse=True)
    seconds = np.empty(len(lengths))
    for number, length in enumerate(lengths.tolist()):
        whole = min(length, most) if plan.rules.chunked else length
        stage = prices.token_seconds(max(1, int(whole))) * max(1.0, math.floor(length / whole))
        attention = prices.pairs_seconds(length, length**2 / 2)
        device = (stage + attention) * prices.work.pp + prices.head_seconds(1)
        seconds[number] = device * engine.slowdown + engine.step_time
    return seconds[place.reshape(-1)]


def _least_step(plan: ServicePlan, context: Floats) -> Floats:
    """One decoding iteration of a sequence that is alone [s]."""
    prices, engine = plan.prices, plan.engine
    stage = prices.token_seconds(1 + plan.rules.drafts) + prices.context_seconds(context)
    device = (stage * prices.work.pp + prices.head_seconds(1)) * engine.slowdown
    least: Floats = np.maximum(device, prices.least_launches) + engine.step_time
    return least


def _work(plan: ServicePlan, decoded: Requests | None, tail: Floats, units: float) -> float:
    """Seconds that the batches of a pool are busy together, at least.

    `decoded`: requests whose outputs it decodes. `tail`: tokens of the prompts that it computes,
    float64[N]. `units`: tokens of shared units that it computes once at least.
    """
    prices, engine, rules = plan.prices, plan.engine, plan.rules
    pp, queries = prices.work.pp, 1 + rules.drafts
    most_gain = math.ceil(rules.gain)
    iterations, decodes, reads, fullest = 0.0, 0.0, 0.0, 0
    if decoded is not None:
        further = (decoded.output - 1).astype(float)
        decodes = float(np.ceil(further / most_gain).sum())
        middle = decoded.prompt + decoded.output / 2.0
        # the cache read over all iterations of a request: where windows cut it, the first's
        windowed = any(shape.window for shape in prices.work.attention)
        read = decoded.prompt.astype(float) if windowed else middle
        reads = float((prices.context_seconds(read) * further / most_gain).sum())
        fullest = _fullest(plan, decoded)
        iterations = decodes / fullest
        if decoded.hashes is None:  # an iteration reads no more than the cache holds
            contexts = float((further / most_gain * middle).sum())
            iterations = max(iterations, contexts / (plan.room * plan.ranks))
    longest = int(tail.max(initial=0.0))
    prompt_tokens = rules.max_tokens if rules.chunked else max(rules.max_tokens, longest)
    if plan.policy.together:
        prompt_tokens = max(prompt_tokens, longest * rules.max_sequences)
    most = fullest * queries + (prompt_tokens if len(tail) else 0)
    tokens = float(tail.sum()) + units + decodes * queries
    # under the host's time, which an iteration takes at least, attention and head may hide
    plain, floored = (
        _passes(plan, max(1, most), iterations, tokens, floor=floor)
        for floor in (0.0, prices.least_launches)
    )
    attention = reads + float(math.fsum(prices.pairs_seconds(t, t * t / 2) for t in tail.tolist()))
    ends = zip(*(ends.tolist() for ends in _grid(max(1, most))), strict=True)
    head = min(prices.head_seconds(low) / high for low, high in ends)  # of a sample, at the fullest
    head *= decodes * queries + len(tail)
    device: float = max(floored, plain + (attention * pp + head) * engine.slowdown)
    return device + engine.request_time * (decodes + len(tail))


def _fullest(plan: ServicePlan, requests: Requests) -> int:
    """Most sequences that decode in one batch, by the engine and by a cache that none share."""
    blocks, rules = plan.rank_blocks, plan.rank_rules
    shortest = int(requests.prompt.min(initial=1)) if requests.hashes is None else 1
    held = max(1, -(-max(1, shortest - 1) // rules.block))
    each = max(1, min(rules.max_sequences, blocks // held))
    return max(1, min(each * plan.ranks, len(requests)))


def _passes(
    plan: ServicePlan, most: int, iterations: float, tokens: float, *, floor: float
) -> float:
    """Least time of so many iterations that pass so many tokens, each at least `floor` [s]."""
    low, high = _grid(most)
    prices, engine = plan.prices, plan.engine
    stage = np.array([prices.token_seconds(int(number)) for number in low.tolist()])
    device = stage * prices.work.pp * engine.slowdown
    price = np.maximum(device, floor) + engine.step_time
    steepest = float((price / high).min())
    best = 0.0
    for share in np.linspace(0.0, 1.0, _SLOPES).tolist():
        slope = steepest * share
        best = max(best, float((price - slope * high).min()) * iterations + slope * tokens)
    return best


def _grid(most: int) -> tuple[Floats, Floats]:
    """Ends of steps of 1 to `most` tokens, of one each at first, then growing."""
    points = list(range(1, min(_EXACT, most) + 1))
    while points[-1] < most:
        points.append(min(most, max(points[-1] + 1, int(points[-1] * _STEP))))
    low = np.array(points, dtype=np.float64)
    return low, np.append(low[1:] - 1.0, max(float(low[-1]), float(most)))
