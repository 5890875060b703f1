"""A service in words: the lines that ``mpsim run`` prints and a notebook shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsim.result.words import Figures, shares, told
from mpsim.serving.engines import engine
from mpsim.table import Section, Sheet, plural
from mpsim.units import Dimension, format_quantity, percent, price

_PARTS = {"exposed_kv": "waiting for transfers", "idle_cache": "idle for lack of cache"}


def service_sheet(summary: Figures) -> Sheet:
    """The figures of one service, then its warnings."""
    warnings = tuple(f"warning: {warning}" for warning in summary["warnings"])
    return Sheet(str(summary["scenario"]), (Section(tuple(_rows(summary)), lines=warnings),))


def _rows(summary: Figures) -> list[tuple[str, str]]:
    output, batch = summary["output_tokens_per_s"], summary["batch"]
    count = summary.get("replicas", 1)  # results stored before have none
    share = summary["output_tokens_per_s_per_accelerator"]
    ran = " that ran" if "autoscale" in summary else ""
    each = " an instance" if count > 1 else ""
    inside = f", in {count} instances" if each and "pools" not in summary else ""
    served = (
        f"{plural(summary['requests'], 'request')} in {_time(summary['measured_s'])},"
        f" {summary['request_rate_per_s']:.4g} a second"
    )
    if summary["measured_s"] < summary["duration_s"]:
        served += f" of the {_time(summary['duration_s'])} that were simulated"
    if "percentile_error" in summary:
        served += f"; percentiles within {percent(summary['percentile_error'])}"
    return [
        ("accelerators", f"{summary['accelerators']}{inside}"),
        ("served", served),
        ("TTFT", _latency(summary["ttft_s"])),
        ("TPOT", _latency(summary["tpot_s"])),
        ("ITL", _latency(summary["itl_s"])),
        ("E2E", _latency(summary["e2e_s"])),
        ("queue", _latency(summary["queue_s"])),
        ("throughput", f"{output:,.1f} output tokens/s; {share:,.1f} per accelerator{ran}"),
        *_ranges(summary),
        ("goodput", _goodput(summary)),
        ("where time goes", _shares(summary)),
        ("batch", f"{batch['mean']:.1f} sequences{each} on average, {batch['max']:.0f} at most"),
        ("cache", _cache(summary, each)),
        ("memory", _memory(summary["memory"])),
        ("energy and price", _cost(summary)),
        ("engine", f"{summary['engine']}: {engine(summary['engine']).title}"),
        *told(summary),
        *_scaling(summary),
        *_pools(summary),
    ]


def _ranges(summary: Figures) -> list[tuple[str, str]]:
    """Ranges that hold the measured means in four cases of five."""
    ranges = summary.get("interval", {})
    words = [
        f"{name.removesuffix('_s').upper()} {' to '.join(map(_time, ranges[name]))}"
        for name in ("ttft_s", "tpot_s", "e2e_s")
        if name in ranges
    ]
    if "output_tokens_per_s" in ranges:
        words.append("{:,.0f} to {:,.0f} output tokens/s".format(*ranges["output_tokens_per_s"]))
    return [("80 % between", ", ".join(words) + " (means)")] if words else []


def _scaling(summary: Figures) -> list[tuple[str, str]]:
    """Instances that ran; nothing where all do."""
    if (scaled := summary.get("autoscale")) is None:
        return []
    ran = "{mean:.3g} instances on average, {least} to {max}".format(**scaled)
    hours = f"{scaled['gpu_hours']:,.4g} GPU-hours, {plural(scaled['starts'], 'start')}"
    return [("autoscaling", f"{ran}, the others stopped; {hours}")]


def _pools(summary: Figures) -> list[tuple[str, str]]:
    """Each pool, and what goes between them."""
    if "pools" not in summary:
        return []
    rows = [
        (
            f"{name} pool",
            (
                f"{plural(pool['replicas'], 'instance')} on {pool['accelerators']} accelerators:"
                f" {_shares({**summary, **pool})}; cache {_use(pool['cache_use'])}"
            ),
        )
        for name, pool in summary["pools"].items()
    ]
    size = format_quantity(summary["transferred_bytes"], Dimension.BYTES)
    return [*rows, ("transfers", f"{size}; {_latency(summary['transfer_s'])}")]


def _time(seconds: float) -> str:
    return format_quantity(seconds, Dimension.TIME)


def _latency(figures: Figures | None) -> str:
    if figures is None:
        return "none"
    text = ", ".join(f"{name} {_time(figures[name])}" for name in ("mean", "p50", "p90", "p99"))
    if figures.get("p99_interval"):
        text += " ({} to {})".format(*map(_time, figures["p99_interval"]))
    return text


def _goodput(summary: Figures) -> str:
    if summary["goodput_per_s"] is None:
        return "no limits given (serving.slo)"
    slo = summary["slo"]
    limits = [f"{name} {_time(slo[f'{name}_s'])}" for name in ("ttft", "tpot") if slo[f"{name}_s"]]
    verdict = "met" if slo["met"] else "MISSED"
    if slo["binding"] and not slo["met"]:
        verdict += f", most by {slo['binding']}"
    if not summary["steady_state"]["reached"]:
        verdict += " (in this run, which is not steady)"
    return (
        f"{summary['goodput_per_s']:.4g} requests/s within {', '.join(limits)};"
        f" {percent(summary['requests_within_slo'])} of the requests, {percent(slo['share'])}"
        f" needed: {verdict}"
    )


def _shares(summary: Figures) -> str:
    account = time_that_ran(summary)
    parts = {_PARTS.get(name, name.replace("_", " ")): part for name, part in account.items()}
    ran = " of the time of instances that ran" if "autoscale" in summary else ""
    return shares(parts, math.fsum(parts.values())) + ran


def time_that_ran(summary: Figures) -> dict[str, float]:
    """Parts of the time of accelerators that ran [s]: without what autoscaling stopped."""
    stopped = ("down",) if "autoscale" in summary else ()
    return {part: s for part, s in summary["account_s"].items() if part not in stopped}


def _cache(summary: Figures, each: str) -> str:
    use = summary["cache_use"]
    text = f"{_use(use)} of {summary['memory']['tokens']:,} tokens{each}"
    if summary["prefix_hit_share"]:
        text += f"; {percent(summary['prefix_hit_share'])} of prompt tokens cached"
    places = {"host_cache": "the host's memory", "disk_cache": "its drives"}
    brought = summary.get("prefix_brought_share", {})
    for tier in (tier for tier in places if brought.get(tier)):
        text += f"; {percent(brought[tier])} brought back from {places[tier]}"
    if summary["preemptions"]:
        text += f"; {plural(summary['preemptions'], 'preemption')}"
    return text


def _use(use: Mapping[str, float]) -> str:
    return f"{percent(use['mean'])} on average, {percent(use['max'])} at most"


def _memory(memory: Figures) -> str:
    parts = ", ".join(
        f"{name} {format_quantity(memory[name], Dimension.BYTES)}"
        for name in ("weights", "activations", "reserve", "cache")
    )
    return f"{parts} of {format_quantity(memory['capacity'], Dimension.BYTES)}"


def _cost(summary: Figures) -> str:
    energy, cost = summary["energy_j_per_output_token"], summary["cost_per_million_output_tokens"]
    parts = ["energy unknown" if energy is None else f"{energy:.4g} J an output token"]
    parts.append("no price given" if cost is None else f"{price(cost)} a million output tokens")
    return ", ".join(parts)
