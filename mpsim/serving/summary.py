"""Figures of a service: latencies, throughput, goodput, account, energy and price.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import Board, Load
from mpsim.cost.constants import constant_groups
from mpsim.result.words import Figures
from mpsim.serving.batching import Batch
from mpsim.serving.confidence import (
    QUANTILES,
    SteadyState,
    distribution,
    share_interval,
    steady_state,
)
from mpsim.serving.plan import CACHE_BYTES, ServicePlan
from mpsim.serving.requests import Requests, Served
from mpsim.serving.sketch import Sketch
from mpsim.units import percent

if TYPE_CHECKING:
    from mpsim.serving.many import Folded


Floats = NDArray[np.float64]

ACCOUNT = (
    *("decode", "prefill", "exposed_tp", "exposed_ep", "exposed_pp", "exposed_kv"),
    *("host", "bubble", "down", "idle_cache", "idle"),
)
"""Parts of the time of accelerators; they sum to the duration."""

_BESIDE = ("exposed_tp", "exposed_ep", "exposed_pp", "host")  # within an iteration
_FELT = 0.01  # of the time: below it nobody feels a wait for cache
_MEGA = 1e6
_HOUR = 3600.0


def latencies(served: Served, requests: Requests, first_token_time: float) -> dict[str, Floats]:
    """TTFT, TPOT, E2E and queue time of every request that was served [s].

    Notes
    -----
    TPOT is (E2E - TTFT) / (output - 1) of a request, NaN where it gave one token. Server, tokenizer
    and network (`first_token_time`) count to TTFT and E2E.
    """
    ttft = served.first - served.arrival + first_token_time
    e2e = served.last - served.arrival + first_token_time
    further = requests.output - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(further > 0, (served.last - served.first) / further, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queue": served.started - served.arrival}


def itl(
    steps: Mapping[str, Floats], *, since: float = 0.0, until: float = math.inf
) -> tuple[Floats, Floats]:
    """Gaps between tokens, which are decoding iterations, and how many sequences had each."""
    decoding = (steps["decodes"] > 0) & (steps["start"] >= since) & (steps["start"] < until)
    each = steps["seconds"][decoding] / steps["count"][decoding]
    return each, steps["decodes"][decoding] * steps["count"][decoding]


def _together(plan: ServicePlan, by_pool: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean over the accelerators of all pools."""
    weight = {name: pool.pool_accelerators / plan.accelerators for name, pool in plan.pools.items()}
    parts = dict.fromkeys(ACCOUNT, 0.0)
    for name, own in by_pool.items():
        for part, seconds in own.items():
            parts[part] += weight[name] * seconds
    return parts


def _running(served: Served) -> float:
    """Time in which instances ran, their sum [s]."""
    return math.fsum(end - begin for _, begin, end in served.running)


def _scaling(plan: ServicePlan, served: Served) -> Figures:
    """How many instances ran; nothing where all do."""
    if not served.running:
        return {}
    each, hours = plan.tp * plan.pp, _running(served) / _HOUR
    edges = [
        (at, sign) for _, *ends in served.running for at, sign in zip(ends, (1, -1), strict=True)
    ]
    most = max(itertools.accumulate(sign for _, sign in sorted(edges)))
    figures = {"gpu_hours": hours * each, "mean": hours * _HOUR / served.end, "max": most}
    return {
        "autoscale": {
            **figures,
            "least": plan.autoscale.least if plan.autoscale else 1,
            "starts": served.starts,
        }
    }


def _of_pool(served: Served, place: int) -> Mapping[str, Floats]:
    """Iterations of the batches of one pool."""
    if len(served.pools) == 1:
        return served.steps
    first = sum(served.pools[:place])
    numbers = served.steps["engine"]
    mine = (numbers >= first) & (numbers < first + served.pools[place])
    return {name: column[mine] for name, column in served.steps.items()}


class RowSums:
    """Sums over the iterations of a pool, which come page by page in the order of their ends."""

    def __init__(self, plan: ServicePlan) -> None:
        self._plan = plan
        self._parts = dict.fromkeys(ACCOUNT, 0.0)
        self._seconds, self._active = 0.0, 0.0
        self._over = {"decodes": (0.0, 0.0), "used": (0.0, 0.0)}
        self._reach: dict[float, float] = {}

    def add(self, steps: Mapping[str, Floats]) -> RowSums:
        """Add iterations; the sums."""
        prices, parts, work = self._plan.prices, self._parts, self._plan.work
        left, count = steps["seconds"], steps["count"]
        if not len(left):
            return self
        self._seconds += float(left.sum())
        for column, (total, most) in self._over.items():
            values = steps[column]
            weighted = total + float((values * left).sum())
            self._over[column] = weighted, max(most, float(values.max()))
        for part, each in zip(_BESIDE, _beside(self._plan, steps), strict=True):
            took = np.minimum(each * count, left)
            parts[part] += float(took.sum())
            left = left - took
        prompts = steps["prompt_tokens"] > 0
        share = prompts.astype(float)
        mixed = np.flatnonzero(prompts & (steps["decodes"] > 0))
        columns = (steps[name][mixed].tolist() for name in ("seconds", "decodes", "context"))
        for at, seconds, decodes, context in zip(mixed.tolist(), *columns, strict=True):
            alone = float(prices.stage_seconds(Batch(int(decodes), context))) * work.pp
            share[at] = max(0.0, 1.0 - alone / seconds)
        parts["prefill"] += float((left * share).sum())
        parts["decode"] += float((left * (1.0 - share)).sum())
        if work.pp > 1:
            self._add_active(steps)
        return self

    def _add_active(self, steps: Mapping[str, Floats]) -> None:
        """Add the time in which any batch of an instance runs."""
        instance = steps["engine"] // self._plan.pp
        for number in np.unique(instance).tolist():
            mine = instance == number
            start, span = steps["start"][mine], steps["span"][mine]
            order = np.argsort(start, kind="stable")
            starts = start[order]
            before = self._reach.get(number, float(starts[0]))
            reach = np.maximum.accumulate(np.append(before, starts + span[order]))
            gaps = np.maximum(0.0, starts - reach[:-1]).sum()
            self._active += float(reach[-1] - before - gaps)
            self._reach[number] = float(reach[-1])

    def over_time(self, column: str) -> dict[str, float]:
        """Mean over the time in which engines work, and the most, of a column of the iterations."""
        total, most = self._over[column]
        return {"mean": total / self._seconds if self._seconds else 0.0, "max": most}

    def account(self, served: Served, place: int) -> dict[str, float]:
        """Seconds of each part; they sum to the duration.

        Notes
        -----
        An iteration with prompts and decoding sequences is divided by what it would have taken
        without its prompts. Of several pipeline stages each works on one batch at a time: what an
        accelerator does not work while its stage has a batch elsewhere is bubble. Time without work
        is ``idle``, or ``idle_cache`` where requests waited that had no room in the cache, or
        ``exposed_kv`` where their keys and values were on the way from the pool of prompts.
        """
        # a batch is on one stage of several at a time, and as many batches run as there are stages
        lanes, stages = served.pools[place], self._plan.pp
        parts = {part: value / lanes for part, value in self._parts.items()}
        worked = math.fsum(parts.values())
        idle = max(0.0, served.end - worked)
        if stages > 1:
            active = self._active / (lanes // stages)
            parts["bubble"] = max(0.0, min(idle, active - worked))
            idle -= parts["bubble"]
        stalled = dict(served.stalled[place])
        if served.running:
            stalled["down"] += lanes * served.end - stages * _running(served)
        for part, reason in (("exposed_kv", "transfer"), ("down", "down"), ("idle_cache", "cache")):
            parts[part] = min(idle, stalled[reason] / lanes)
            idle -= parts[part]
        parts["idle"] = idle
        return parts


def _beside(plan: ServicePlan, steps: Mapping[str, Floats]) -> tuple[Floats, ...]:
    """Time of each iteration beside products and attention, as `_BESIDE` names it [s]."""
    prices, engine, work = plan.prices, plan.engine, plan.work
    tokens = prices.tokens_of(steps["decodes"], steps["prompt_tokens"])
    exposed = {
        number: (*prices.exposed_seconds(number), prices.send_seconds(number))
        for number in set(tokens.tolist())
    }
    met = np.array([exposed[number] for number in tokens.tolist()]).reshape(-1, 3).T
    tensor, experts, sent = met * engine.slowdown
    each = engine.step_time + engine.layer_time * work.layers * work.pp
    host = each + prices.request_seconds(steps["decodes"])
    return tensor * work.pp, experts * work.pp, sent, host


def summarise(
    plan: ServicePlan,
    requests: Requests,
    served: Served,
    *,
    until: float | None = None,
    folded: Folded | None = None,
) -> Figures:
    """Every figure of a service, SI units; what came or was done after `until` [s] counts not."""
    if folded is not None:
        tally, sums = folded.tally(served.end), {"serving": folded.sums}
    else:
        tally = _tally(plan, requests, served, until)
        sums = {
            name: RowSums(pool).add(_of_pool(served, place))
            for place, (name, pool) in enumerate(plan.pools.items())
        }
    duration, output, limited = tally.seconds, tally.output, bool(tally.missed)
    by_pool = {name: sums[name].account(served, place) for place, name in enumerate(plan.pools)}
    parts = _together(plan, by_pool)
    unused = math.fsum(
        parts[part] for part in ("idle", "idle_cache", "down", "exposed_kv", "bubble")
    )
    busy = 1.0 - unused / served.end if served.end else 0.0
    figures = {name: distribution(values) for name, values in tally.spreads.items()}
    tpot = figures["tpot"]
    mean_tpot = cast("float", tpot["mean"]) if tpot else 0.0
    accelerators = plan.accelerators
    energy = sum(_energy(plan.pools[name], own, served.end) for name, own in by_pool.items())
    energy *= duration / served.end if served.end else 0.0
    price = plan.price_per_hour
    paid = _running(served) / served.end / plan.replicas if served.running else 1.0
    return {
        "accelerators": accelerators,
        "duration_s": served.end,
        "measured_s": duration,
        "requests": tally.count,
        "request_rate_per_s": _rate(tally.finished, duration),
        "steady_state": tally.state,
        "ttft_s": figures["ttft"],
        "tpot_s": tpot,
        "itl_s": tally.gaps,
        "e2e_s": figures["e2e"],
        "queue_s": figures["queue"],
        "output_tokens_per_s": _rate(output, duration),
        "total_tokens_per_s": _rate(output + tally.prompt, duration),
        "output_tokens_per_s_per_accelerator": _rate(output, duration) / accelerators,
        "output_tokens_per_s_per_user": 1.0 / mean_tpot if mean_tpot else None,
        "goodput_per_s": _rate(tally.kept, duration) if limited else None,
        "requests_within_slo": tally.share if limited else None,
        "requests_within_slo_interval": list(tally.interval) if limited and tally.count else None,
        "slo": {
            "ttft_s": plan.slo.ttft,
            "tpot_s": plan.slo.tpot,
            "share": plan.slo.share,
            "met": not limited or (tally.share >= plan.slo.share and not tally.state["growing"]),
            "binding": tally.binding,
        },
        **_speculation(plan),
        **_scaling(plan, served),
        "preemptions": served.preemptions,
        "moved": served.moved,
        "prefix_hit_share": served.hit_tokens / max(1.0, tally.prompts),
        **_pool_figures(plan, list(sums.values())[-1]),
        "account_s": parts,
        "utilisation": busy,
        **_disaggregation(plan, served, by_pool, sums),
        "energy_j_per_output_token": energy / output if output else None,
        "cost_per_million_output_tokens": None
        if price is None or not output
        else price * paid * duration / _HOUR / output * _MEGA,
        **({"percentile_error": folded.error} if folded else {}),
        "warnings": _warnings(plan, served, tally, parts),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """Tally of the requests of a run, all kept or folded, from which the figures come."""

    seconds: float  # the part of the run that counts [s]
    # count, finished: requests that count, and whose last token was given in it
    count: int
    finished: int
    # output, prompt, prompts: tokens generated in it, of prompts that ended in it, and of all
    # prompts
    output: float
    prompt: float
    prompts: float
    spreads: Mapping[str, Floats | Sketch]  # latencies by name [s]
    gaps: dict[str, float] | None  # mean and percentiles of the gaps between tokens [s]
    kept: int  # requests that count and kept every limit
    # requests that count and missed a limit, by limit; empty without limits
    missed: Mapping[str, int]
    interval: tuple[float, float]  # of the share that kept them
    state: SteadyState

    @property
    def share(self) -> float:
        """Share of the requests that count which kept every limit."""
        return self.kept / max(1, self.count)

    @property
    def binding(self) -> str | None:
        """The limit that most missed; None where none did."""
        most = max(self.missed, key=self.missed.__getitem__, default=None)
        return most if most and self.missed[most] else None


def _tally(plan: ServicePlan, requests: Requests, served: Served, until: float | None) -> Tally:
    """The tally of a run whose requests are all kept."""
    times = latencies(served, requests, plan.first_token_time)
    window = window_of(plan, requests, served, until)
    gaps = itl(served.steps, since=window.begin, until=math.inf if until is None else until)
    ended, service = np.isfinite(served.last), times["e2e"] - times["queue"]
    state = steady_state(
        *(values[ended] for values in (served.arrival, times["queue"], service)),
        kind=plan.workload.arrival,
        users=plan.workload.concurrency,
        since=window.begin,
    )
    done = window.counted
    kept, missed = kept_of(plan, times, done)
    return Tally(
        window.seconds,
        int(done.sum()),
        window.finished,
        window.output,
        window.prompt,
        float(requests.prompt.sum()),
        {name: values[done] for name, values in times.items()},
        _weighted(*gaps),
        int(kept.sum()),
        {name: int(each.sum()) for name, each in missed.items()},
        share_interval(kept[done]) if done.any() else (0.0, 1.0),
        state,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """The part of a run that counts: from the end of the warm-up to `until`, or to its end."""

    # when it begins, and how long it is [s]
    begin: float
    seconds: float
    counted: NDArray[np.bool_]  # requests that came in it and were served, bool[N]
    finished: int  # requests whose last token was given in it
    # output, prompt: tokens generated in it, and tokens of the prompts that ended in it
    output: float
    prompt: float


def window_of(
    plan: ServicePlan, requests: Requests, served: Served, until: float | None = None
) -> _Window:
    """The run without its warm-up, and without what came or was done after `until`.

    Notes
    -----
    Tokens of a request that was under way at either end are divided as if they came evenly between
    its first and its last.
    """
    done, begin = np.isfinite(served.last), plan.workload.warmup or 0.0
    begin = min(begin, served.end)
    end = served.end if until is None else until
    inside = done & (served.last >= begin) & (served.first <= end)
    tokens = requests.output.astype(float)
    begun = (served.first >= begin) & (served.first <= end)
    if begin or until is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            last, first = np.minimum(served.last, end), np.maximum(served.first, begin)
            share = (last - first) / (served.last - served.first)
        whole = begun & (served.last <= end)
        further = np.where(whole, requests.output - 1.0, share * (tokens - 1.0))
        tokens = np.where(requests.output > 1, further, 0.0) + begun
    return _Window(
        begin=begin,
        seconds=end - begin,
        counted=done & (served.arrival >= begin) & (served.arrival <= end),
        finished=int((inside & (served.last <= end)).sum()),
        output=float(tokens[inside].sum()),
        prompt=float(requests.prompt[done & begun].sum()),
    )


def _weighted(values: Floats, weights: Floats) -> dict[str, float] | None:
    """Mean and percentiles of values that occur so often each."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ordered, reach = values[order], np.cumsum(weights[order])
    figures = {"mean": float(np.average(values, weights=weights))}
    for name, share in QUANTILES.items():
        figures[name] = float(ordered[int(np.searchsorted(reach, share * reach[-1]))])
    return figures


def _speculation(plan: ServicePlan) -> Figures:
    """Drafted tokens and what a decoding sequence gains in an iteration; nothing without drafts."""
    if plan.draft is None:
        return {}
    each = plan.draft.acceptance
    acceptance = each[0] if len(set(each)) == 1 else list(each)
    gain = plan.draft.gain
    figures = {"tokens": len(each), "acceptance": acceptance, "tokens_per_iteration": gain}
    return {"speculation": figures}


def _pool_figures(plan: ServicePlan, sums: RowSums) -> Figures:
    """How full the batches and the cache of a pool are, and its memory."""
    memory = dataclasses.asdict(plan.memory)
    del memory["block_bytes"]
    each = max(1, plan.blocks // plan.pp)
    used = {name: value / each for name, value in sums.over_time("used").items()}
    return {
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
                "replicas": pool.replicas,
                "account_s": accounts[name],
                **_pool_figures(pool, sums[name]),
            }
            for name, pool in plan.pools.items()
        },
        "transfer_s": distribution(moves["end"] - moves["start"]),
        "transferred_bytes": float(moves["bytes"].sum()),
    }


def kept_of(
    plan: ServicePlan, times: Mapping[str, Floats], done: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]:
    """Requests that count and keep all limits, and those that miss one, by limit."""
    limits = {"ttft": plan.slo.ttft, "tpot": plan.slo.tpot}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    missed = {name: done & (times[name] > limit) for name, limit in given.items()}
    return done & ~np.logical_or.reduce([~done, *missed.values()]), missed


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
) -> list[str]:
    """Say what a reader should know, such as a state that is not steady, or a flag's cost."""
    warnings = [pool.straddles for pool in plan.pools.values() if pool.straddles]
    if plan.workload.shared_prefix and not plan.engine.prefix_cache:
        keys = "serving.workload.shared_prefix, serving.workload.prefix_groups"
        warnings.append(f"not used: {keys}: serving.engine.prefix_cache is false")
    if not tally.state["reached"] and plan.workload.arrival != "all-at-once":
        reason = tally.state["reason"]
        warnings.append(f"there is no steady state, numbers hold for this run: {reason}")
    if served.moved:
        warnings.append(
            f"{served.moved} requests lost their instance to an outage and went on elsewhere, computed again"
        )
    short = parts["idle_cache"] > _FELT * served.end
    if served.preemptions or short:
        wide = CACHE_BYTES[plan.kv] > 1.0 and plan.given_blocks is None
        told = [
            f"{served.preemptions} requests were preempted for lack of cache and computed again"
        ]
        if short:
            told.append(
                f"requests waited for cache in {percent(parts['idle_cache'] / served.end)} of the time"
            )
        mend = f"; kv: fp8 holds {2 * plan.cache_tokens:,} tokens where {plan.kv} holds {plan.cache_tokens:,}"
        warnings.append(", ".join(told[not served.preemptions :]) + (mend if wide else ""))
    if tally.share < plan.slo.share and tally.binding == "tpot":
        warnings += _long_chunks(plan)
    return warnings


def _long_chunks(plan: ServicePlan) -> list[str]:
    """Say how long a full chunk of a prompt holds up tokens, and which one keeps the limit."""
    limit, most = plan.slo.tpot, (plan.engine.max_tokens, plan.workload.prompt.tokens)
    if limit is None or not plan.engine.chunked or plan.prefill is not None:
        return []

    def seconds(tokens: int) -> float:
        return float(plan.prices.seconds(Batch(1, 0.0, tokens, tokens * tokens / 2.0)))

    tokens = min(most) if plan.workload.trace is None else most[0]
    fitting = [2**power for power in range(8, 15) if seconds(2**power) <= limit]
    if seconds(tokens) <= limit or not fitting:
        return []
    return [
        (
            f"a prompt's {tokens:,} tokens in one iteration take {1e3 * seconds(tokens):.3g} ms, and hold up tokens whose limit is {1e3 * limit:.3g} ms; "
            f"max_tokens: {max(fitting):,} keeps it"
        )
    ]
