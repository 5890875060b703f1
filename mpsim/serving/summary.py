"""Figures of a service: latencies, throughput, goodput, the account of every accelerator-second, energy and price.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import device_power
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.service import Served

__all__ = ["ACCOUNT", "account", "itl", "latencies", "summarise"]

Floats = NDArray[np.float64]

ACCOUNT = ("decode", "prefill", "exposed_tp", "host", "bubble", "idle")
"""Parts of the time of accelerators; they sum to the duration."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LEVEL = 0.8
_LEVEL_Z = 1.2816  # half-width of an 80 % interval of the normal distribution
_MEGA = 1e6
_HOUR = 3600.0
_SETTLED = 1.5  # queueing in the second half of the arrivals over that in the first, from which a service does not keep up


def latencies(served: Served, requests: Requests, first_token_time: float) -> dict[str, Floats]:
    """TTFT, TPOT, E2E and queue time of every request that was served [s].

    Notes
    -----
    TPOT is (E2E - TTFT) / (output - 1) of a request, NaN where it gave one token. Server, tokenizer and network (`first_token_time`) count to TTFT and E2E.
    """
    ttft = served.first - served.arrival + first_token_time
    e2e = served.last - served.arrival + first_token_time
    further = requests.output - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(further > 0, (served.last - served.first) / further, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queue": served.started - served.arrival}


def itl(served: Served) -> tuple[Floats, Floats]:
    """Gaps between tokens, and how many sequences had each: the lengths of decoding iterations and their batches."""
    steps = served.steps
    decoding = steps["decodes"] > 0
    each = steps["seconds"][decoding] / steps["count"][decoding]
    return each, steps["decodes"][decoding] * steps["count"][decoding]


def account(plan: ServicePlan, served: Served) -> dict[str, float]:
    """Mean over accelerators of the time spent on each part [s]; sums to the duration.

    Notes
    -----
    An iteration with prompts and decoding sequences is divided by what it would have taken without its prompts. Of several pipeline stages each works on one batch at a
    time: what an accelerator does not work while its stage has a batch elsewhere is bubble.
    """
    prices, steps, work = plan.prices, served.steps, plan.work
    totals = dict.fromkeys(ACCOUNT, 0.0)
    known: dict[tuple[float, float], tuple[float, float]] = {}
    columns = (
        steps[name].tolist() for name in ("seconds", "count", "decodes", "context", "prompt_tokens")
    )
    engine = plan.engine
    for seconds, count, decodes, context, prompt_tokens in zip(*columns, strict=True):
        key = (decodes, prompt_tokens)
        if key not in known:
            tokens = decodes + prompt_tokens
            exposed = prices.parts(tokens)["communication"] * work.pp * engine.slowdown
            host = (
                engine.step_time
                + engine.request_time * decodes
                + engine.layer_time * work.layers * work.pp
            )
            known[key] = exposed, host + (engine.prompt_step_time if prompt_tokens else 0.0)
        exposed, host = known[key]
        busy = max(0.0, seconds - count * (exposed + host))
        share = 0.0
        if prompt_tokens:
            share = 1.0
            if decodes:
                alone = float(prices.stage_seconds(int(decodes), context, 0, 0.0)) * work.pp
                share = max(0.0, 1.0 - alone / seconds)
        totals["exposed_tp"] += min(exposed * count, seconds)
        totals["host"] += min(host * count, max(0.0, seconds - exposed * count))
        totals["prefill"] += busy * share
        totals["decode"] += busy * (1.0 - share)
    # a batch is on one stage of several at a time, and as many batches run as there are stages
    per_engine = {part: value / served.engines for part, value in totals.items()}
    worked = sum(per_engine.values())
    per_engine["idle"] = max(0.0, served.end - worked)
    if work.pp > 1:
        active = _active(served)
        per_engine["bubble"] = max(0.0, min(per_engine["idle"], active - worked))
        per_engine["idle"] -= per_engine["bubble"]
    return per_engine


def _active(served: Served) -> float:
    """Mean over replicas of the time in which any of its batches runs [s]."""
    spans = np.stack([served.steps["start"], served.steps["start"] + served.steps["seconds"]])
    order = np.argsort(spans[0], kind="stable")
    starts, ends = spans[:, order]
    reach = np.maximum.accumulate(ends)
    gaps = np.maximum(0.0, starts[1:] - reach[:-1]).sum()
    return float(reach[-1] - starts[0] - gaps) if len(starts) else 0.0


def summarise(plan: ServicePlan, requests: Requests, served: Served) -> dict[str, Any]:
    """Every figure of a service, SI units."""
    times = latencies(served, requests, plan.first_token_time)
    done = np.isfinite(served.last)
    duration = served.end
    output = float(requests.output[done].sum())
    total = output + float(requests.prompt[done].sum())
    parts = account(plan, served)
    busy = 1.0 - (parts["idle"] + parts["bubble"]) / duration if duration else 0.0
    gaps, weights = itl(served)
    accelerators = plan.accelerators
    goodput, kept = _goodput(plan, times, done, duration)
    energy = _energy(plan, parts, duration)
    price = plan.cluster.accelerator.price_per_hour
    memory = plan.memory
    warnings = _warnings(plan, served, times)
    return {
        "accelerators": accelerators,
        "duration_s": duration,
        "requests": int(done.sum()),
        "request_rate_per_s": float(done.sum() / duration) if duration else 0.0,
        "ttft_s": _distribution(times["ttft"][done]),
        "tpot_s": _distribution(times["tpot"][done]),
        "itl_s": _weighted(gaps, weights),
        "e2e_s": _distribution(times["e2e"][done]),
        "queue_s": _distribution(times["queue"][done]),
        "output_tokens_per_s": output / duration if duration else 0.0,
        "total_tokens_per_s": total / duration if duration else 0.0,
        "output_tokens_per_s_per_accelerator": output / duration / accelerators
        if duration
        else 0.0,
        "output_tokens_per_s_per_user": _inverse(float(np.nanmean(times["tpot"][done])))
        if (requests.output[done] > 1).any()
        else None,
        "goodput_per_s": goodput,
        "requests_within_slo": kept,
        "slo": {
            "ttft_s": plan.slo.ttft,
            "tpot_s": plan.slo.tpot,
            "share": plan.slo.share,
            "met": kept is None or kept >= plan.slo.share,
        },
        "preemptions": served.preemptions,
        "prefix_hit_share": served.hit_tokens / max(1.0, float(requests.prompt.sum())),
        "batch": _over_time(served, "decodes"),
        "cache_use": {
            name: value / plan.blocks for name, value in _over_time(served, "used").items()
        }
        if plan.blocks
        else None,
        "account_s": parts,
        "utilisation": busy,
        "memory": {
            **{
                name: value
                for name, value in dataclasses.asdict(memory).items()
                if name != "block_bytes"
            },
            "blocks": plan.blocks,
            "tokens": plan.cache_tokens,
        },
        "energy_j_per_output_token": energy / output if output else None,
        "cost_per_million_output_tokens": None
        if price is None or not output
        else price * accelerators * duration / _HOUR / output * _MEGA,
        "warnings": warnings,
    }


def _distribution(values: Floats) -> dict[str, Any] | None:
    """Mean and percentiles of a latency, each percentile with an 80 % interval from the order of the values."""
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return None
    figures: dict[str, Any] = {"mean": float(finite.mean())}
    count = len(finite)
    for name, share in _QUANTILES.items():
        figures[name] = float(np.quantile(finite, share))
        half = _LEVEL_Z * math.sqrt(share * (1 - share) * count)
        low, high = (min(count - 1, max(0, round(share * count + sign * half))) for sign in (-1, 1))
        figures[f"{name}_interval"] = [float(finite[low]), float(finite[high])]
    return figures


def _weighted(values: Floats, weights: Floats) -> dict[str, Any] | None:
    """Mean and percentiles of values that occur so often each."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ordered, reach = values[order], np.cumsum(weights[order])
    figures = {"mean": float(np.average(values, weights=weights))}
    for name, share in _QUANTILES.items():
        figures[name] = float(ordered[int(np.searchsorted(reach, share * reach[-1]))])
    return figures


def _over_time(served: Served, column: str) -> dict[str, float]:
    """Mean over the time in which engines work, and the most, of a column of the iterations."""
    steps = served.steps
    if not len(steps["seconds"]):
        return {"mean": 0.0, "max": 0.0}
    return {
        "mean": float(np.average(steps[column], weights=steps["seconds"])),
        "max": float(steps[column].max()),
    }


def _goodput(
    plan: ServicePlan, times: dict[str, Floats], done: NDArray[np.bool_], duration: float
) -> tuple[float | None, float | None]:
    """Requests a second that keep every limit, and their share; None without limits."""
    if plan.slo.ttft is None and plan.slo.tpot is None:
        return None, None
    kept = done.copy()
    if plan.slo.ttft is not None:
        kept &= times["ttft"] <= plan.slo.ttft
    if plan.slo.tpot is not None:
        kept &= ~(times["tpot"] > plan.slo.tpot)
    return float(kept.sum() / duration), float(kept.sum() / max(1, done.sum()))


def _energy(plan: ServicePlan, parts: dict[str, float], duration: float) -> float:
    """Energy of all accelerators [J]: a board draws between idle and full power by the share of the time in which kernels run."""
    chip = plan.cluster.accelerator
    kernels = parts["prefill"] + parts["decode"] + parts["exposed_tp"]
    power = float(device_power(kernels / duration if duration else 0.0, chip.tdp_w, chip.idle_w))
    return power * duration * plan.accelerators


def _inverse(seconds: float) -> float | None:
    return 1.0 / seconds if seconds and math.isfinite(seconds) else None


def _warnings(plan: ServicePlan, served: Served, times: dict[str, Floats]) -> list[str]:
    """Say what a reader should know: overload, preemptions, a short run."""
    warnings = []
    queue = times["queue"][np.isfinite(times["queue"])]
    half = len(queue) // 2
    if plan.workload.arrival in ("poisson", "gamma", "trace") and half >= 10:
        early, late = float(queue[:half].mean()), float(queue[half:].mean())
        service = float(np.nanmean(times["e2e"] - times["queue"]))
        if late > _SETTLED * early and late > service:
            warnings.append(
                f"requests come faster than they are served: those of the second half wait {late:.3g} s in the mean, those of the first {early:.3g} s; there is no steady state"
            )
    if served.preemptions:
        warnings.append(
            f"{served.preemptions} requests were preempted for lack of cache and computed again"
        )
    return warnings
