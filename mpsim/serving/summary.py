"""Figures of a service: latencies, throughput, goodput, account, energy and price.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import cast

from mpsim import structs
from mpsim.cost import Board, Load
from mpsim.cost.constants import constant_groups
from mpsim.result.words import Figures
from mpsim.scenario.settled import longest_context
from mpsim.serving.batching import Batch
from mpsim.serving.cache import TIERS
from mpsim.serving.confidence import distribution
from mpsim.serving.plan import CACHE_BYTES, ServicePlan
from mpsim.serving.requests import Served
from mpsim.serving.tally import ACCOUNT, RowSums, Tally
from mpsim.shipped import say
from mpsim.units import percent

_BUSY = 0.9  # share of the time that a process has work
_CAME = 0.9  # of the stated rate, below which somebody should know
_FELT = 0.01  # of the time: below it nobody feels a wait for cache
_UNUSED = ("idle", "idle_cache", "down", "exposed_kv", "bubble")  # parts of an account
_MEGA = 1e6
_HOUR = 3600.0


def _scaling(plan: ServicePlan, served: Served) -> Figures:
    """How many instances ran; nothing where all do."""
    if not served.running:
        return {}
    edges = [edge for _, begin, end in served.running for edge in ((begin, 1), (end, -1))]
    return {
        "autoscale": {
            "gpu_hours": served.running_s / _HOUR * plan.tp * plan.pp,
            "mean": served.running_s / served.end,
            "max": max(itertools.accumulate(sign for _, sign in sorted(edges))),
            "least": plan.autoscale.least if plan.autoscale else 1,
            "starts": served.starts,
        }
    }


def figures_of(plan: ServicePlan, served: Served, tally: Tally) -> Figures:
    """Every figure of a service whose run came to a tally, SI units."""
    sums = tally.sums
    by_pool = {name: sums[name].account(served, place) for place, name in enumerate(plan.pools)}
    weight = {name: pool.pool_accelerators / plan.accelerators for name, pool in plan.pools.items()}
    parts = {part: sum(weight[name] * by_pool[name][part] for name in by_pool) for part in ACCOUNT}
    unused = math.fsum(parts[part] for part in _UNUSED)
    energy = sum(_energy(plan.pools[name], own, served.end) for name, own in by_pool.items())
    energy *= tally.seconds / served.end if served.end else 0.0
    ran = served.running_s / served.end / plan.replicas if served.running else 1.0
    # shares of the prompts' tokens that tiers below the device had; nothing without tiers
    tiers = zip(TIERS, served.brought_tokens, strict=False)
    brought = {tier: tokens / max(1.0, tally.prompts) for tier, tokens in tiers}
    return {
        "accelerators": plan.accelerators,
        "duration_s": served.end,
        "measured_s": tally.seconds,
        **_of_requests(plan, tally, ran),
        **_speculation(plan),
        **_scaling(plan, served),
        "preemptions": served.preemptions,
        "moved": served.moved,
        "prefix_hit_share": served.hit_tokens / max(1.0, tally.prompts),
        **({"prefix_brought_share": brought} if brought else {}),
        **_pool_figures(plan, list(sums.values())[-1]),
        "account_s": parts,
        "utilisation": (1.0 - unused / served.end) / ran if served.end else 0.0,
        **_disaggregation(plan, served, by_pool, sums),
        **_costs(plan, tally, energy, ran),
        **({"percentile_error": tally.error} if tally.error else {}),
        "warnings": list(_warnings(plan, served, tally, parts)),
    }


def _of_requests(plan: ServicePlan, tally: Tally, ran: float) -> Figures:
    """Latencies, rates, and how many requests keep the limits; `ran`: share of accelerator time."""
    limited, slo, seconds = bool(tally.missed), plan.slo, tally.seconds
    figures = {name: distribution(values) for name, values in tally.spreads.items()}
    tpot, output = figures["tpot"], _rate(tally.output, seconds)
    mean_tpot = cast("float", tpot["mean"]) if tpot else 0.0
    return {
        "requests": tally.count,
        "request_rate_per_s": _rate(tally.finished, seconds),
        "steady_state": tally.state,
        "ttft_s": figures["ttft"],
        "tpot_s": tpot,
        "itl_s": tally.gaps,
        "e2e_s": figures["e2e"],
        "queue_s": figures["queue"],
        "output_tokens_per_s": output,
        "total_tokens_per_s": _rate(tally.output + tally.prompt, seconds),
        "output_tokens_per_s_per_accelerator": output / (plan.accelerators * ran),
        "output_tokens_per_s_per_user": 1.0 / mean_tpot if mean_tpot else None,
        "goodput_per_s": _rate(tally.kept, seconds) if limited else None,
        "requests_within_slo": tally.share if limited else None,
        "requests_within_slo_interval": list(tally.interval) if limited and tally.count else None,
        "slo": {
            "ttft_s": slo.ttft,
            "tpot_s": slo.tpot,
            "share": slo.share,
            "met": not limited or (tally.share >= slo.share and not tally.state["growing"]),
            "binding": tally.binding,
        },
    }


def _costs(plan: ServicePlan, tally: Tally, energy: float, ran: float) -> Figures:
    """Energy and price of the tokens that were generated; None without tokens or price."""
    seconds, output, price = tally.seconds, tally.output, plan.price_per_hour
    cost = None
    if price is not None and output:
        cost = price * ran * seconds / _HOUR / output * _MEGA
    return {
        "energy_j_per_output_token": energy / output if output else None,
        "cost_per_million_output_tokens": cost,
    }


def _speculation(plan: ServicePlan) -> Figures:
    """Drafted tokens and what a decoding sequence gains in an iteration; nothing without drafts."""
    if plan.draft is None:
        return {}
    each, gain = plan.draft.acceptance, plan.draft.gain
    acceptance = each[0] if len(set(each)) == 1 else list(each)
    figures = {"tokens": len(each), "acceptance": acceptance, "tokens_per_iteration": gain}
    return {"speculation": figures}


def _pool_figures(plan: ServicePlan, sums: RowSums) -> Figures:
    """How full the batches and the cache of a pool are, and its memory."""
    memory = structs.asdict(plan.memory)
    del memory["block_bytes"]
    each = max(1, plan.blocks // plan.pp)
    used = {name: value / each for name, value in sums.over_time("used").items()}
    return {
        "replicas": plan.replicas,
        "batch": sums.over_time("decodes"),
        "cache_use": used,
        "memory": {**memory, "blocks": plan.blocks, "tokens": plan.cache_tokens},
    }


def _disaggregation(
    plan: ServicePlan, served: Served, accounts: Mapping[str, object], sums: Mapping[str, RowSums]
) -> Figures:
    """Figures of each pool, and of the transfers between them; nothing without pools."""
    if plan.prefill is None:
        return {}
    moves = served.transfers
    return {
        "pools": {
            name: {
                "accelerators": pool.pool_accelerators,
                "account_s": accounts[name],
                **_pool_figures(pool, sums[name]),
            }
            for name, pool in plan.pools.items()
        },
        "transfer_s": distribution(moves["end"] - moves["start"]),
        "transferred_bytes": float(moves["bytes"].sum()),
    }


def _energy(plan: ServicePlan, parts: dict[str, float], duration: float) -> float:
    """Energy of all accelerators [J]: prompts multiply, decoding streams, the rest waits."""
    board = Board(plan.cluster.accelerator)
    products, streams, transfers, waiting = (
        board.watts(load) for load in (Load.PRODUCTS, Load.STREAMS, Load.TRANSFERS, Load.WAITING)
    )
    dense = constant_groups("kernels")["power_draw"].value("prompt_products")
    watts = {
        "prefill": dense * products + (1.0 - dense) * streams,
        "decode": streams,
        **dict.fromkeys((name for name in parts if name.startswith("exposed_")), transfers),
    }
    drawn = math.fsum((watts[name] - waiting) * parts[name] for name in watts)
    off = parts["down"] if plan.autoscale is not None else 0.0  # others' then
    return (waiting * (duration - off) + drawn) * plan.pool_accelerators


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _warnings(
    plan: ServicePlan, served: Served, tally: Tally, parts: Mapping[str, float]
) -> Iterator[str]:
    """Say what a reader should know, such as a state that is not steady, or a flag's cost."""
    yield from (pool.straddles for pool in plan.pools.values() if pool.straddles)
    load, engine = plan.workload, (plan.prefill or plan).engine
    prefixes = ("shared_prefix", "prefix_groups") if load.shared_prefix else ()
    keys = [f"serving.workload.{name}" for name in prefixes]
    keys += [f"serving.engine.{name}" for name in TIERS if getattr(engine, name)]
    if keys and not engine.prefix_cache:
        yield f"not used: {', '.join(keys)}: serving.engine.prefix_cache is false"
    known = longest_context(plan.model.name)
    if tally.longest > known:
        yield say("serving.longest", longest=tally.longest, model=plan.model.name, known=known)
    rate = _rate(tally.finished, tally.seconds)
    if load.turns > 1 and load.rate is not None and rate < _CAME * load.rate:
        stay = load.turns * (tally.spreads["e2e"].mean + load.think_time)
        count = math.ceil(3.0 * load.rate * stay)
        yield say("serving.sessions", rate=rate, stated=load.rate, stay=stay, count=count)
    most = plan.replicas * plan.pp / plan.stream_time if plan.stream_time else math.inf
    if _rate(tally.output, tally.seconds) > _BUSY * most:
        yield say("serving.one_process", most=most, wider=10 * plan.engine.stream_interval)
    launched = list(tally.sums.values())[-1].launched / plan.lanes  # of the pool that decodes
    if launched > (1.0 - _BUSY) * served.end:
        yield say("serving.launched", share=percent(launched / served.end))
    if not tally.state["reached"] and plan.workload.arrival != "all-at-once":
        yield f"there is no steady state, numbers hold for this run: {tally.state['reason']}"
    if served.moved:
        yield say("serving.moved", moved=served.moved)
    felt, short = served.preemptions, parts["idle_cache"]
    found = "serving.preempted_found" if engine.prefix_cache else "serving.preempted"
    lacks = [say(found, preempted=felt)] * bool(felt)
    if short > _FELT * served.end:
        lacks.append(say("serving.waited", share=percent(short / served.end)))
    if lacks and CACHE_BYTES[plan.kv] > 1.0 and plan.given_blocks is None:
        tokens = plan.cache_tokens
        lacks[-1] += say("serving.narrow", twice=2 * tokens, kv=plan.kv, tokens=tokens)
    if lacks:
        yield ", ".join(lacks)
    if tally.share < plan.slo.share and tally.binding == "tpot":
        yield from _long_chunks(plan)


def _long_chunks(plan: ServicePlan) -> Iterator[str]:
    """Say how long a full chunk of a prompt holds up tokens, and which one keeps the limit."""
    limit, most, load = plan.slo.tpot, plan.engine.max_tokens, plan.workload
    prompt = load.prompt.tokens if load.trace is None else 0
    if limit is None or not plan.engine.chunked or plan.prefill is not None:
        return

    def seconds(tokens: int) -> float:  # a chunk in the middle of the prompt, beside one like it
        pairs = tokens * max(tokens, prompt) / 2.0
        return float(plan.prices.seconds(Batch(1, float(prompt), tokens, pairs)))

    tokens = min(most, prompt or most)
    fitting = [2**power for power in range(8, 15) if seconds(2**power) <= limit]
    if seconds(tokens) > limit and fitting:
        times = {"took": 1e3 * seconds(tokens), "limit": 1e3 * limit}
        yield say("serving.long_chunk", tokens=tokens, **times, fits=max(fitting))
