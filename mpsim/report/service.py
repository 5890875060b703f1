"""Sections of a service: latencies, batches over time, where accelerators' time goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mpsim.plot.chart import Axis, Bars
from mpsim.plot.service import batch_chart, cache_chart, itl_chart, latency_chart
from mpsim.plot.step import memory_bars, parts_of
from mpsim.report.blocks import Block, Column, Figures, Note, Sections, Table, figure
from mpsim.report.lanes import lives_of
from mpsim.serving import ServiceResult
from mpsim.serving.tally import ACCOUNT
from mpsim.shipped import say
from mpsim.study.rows import figure_of
from mpsim.units import percent

_LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "gap between tokens",
    "e2e_s": "whole request",
    "queue_s": "waiting in the queue",
}
_OF_LATENCY = ("mean", "p50", "p90", "p99")
_MEMORY = {
    "parameters": "weights",
    "activations": "activations",
    "overhead": "reserve",
    "cache": "cache",
}
"""Components of memory, and what a service's summary calls them."""

HEADLINE = (
    *map(figure, ("output_tokens_per_s_per_accelerator", "output_tokens_per_s")),
    *map(figure, ("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99")),
    figure("goodput_per_s", "within every limit"),
    *map(figure, ("requests_within_slo", "energy_j_per_output_token")),
    figure("cost_per_million_output_tokens"),
)
"""Headline figures of a service."""

SERVICE: Sections[ServiceResult] = Sections()  # sections of a service


def _served(result: ServiceResult) -> str:
    chip, summary = result.plan.cluster.accelerator.title, result.summary
    return f"{summary['requests']:,} requests served on {summary['accelerators']:,} x {chip}."


@SERVICE.add("headline", "Headline", _served)
def _headline(result: ServiceResult) -> Iterator[Block]:
    """The figures that a reader wants first, and how far to trust them."""
    summary, slo = result.summary, result.summary["slo"]
    yield Figures([item for item in HEADLINE if figure_of(summary, item.key) is not None])
    if summary["requests_within_slo"] is not None:
        verdict, mood = ("met", "good") if slo["met"] else ("missed", "warning")
        yield Note(
            f"{percent(summary['requests_within_slo'])} of the requests are within the limits, "
            f"{percent(slo['share'])} needed: {verdict}.",
            mood,
        )
    ranges = summary.get("interval") or {}
    if "basis" in ranges:
        yield Note(say("report.mean_ranges", percent=100 * ranges["level"], basis=ranges["basis"]))


@SERVICE.add("latency", "Latency")
def _latencies(result: ServiceResult) -> Iterator[Block]:
    """How long requests wait."""
    rows = [
        (label, *(figures.get(name) for name in _OF_LATENCY))
        for key, label in _LATENCIES.items()
        if (figures := result.summary.get(key))
    ]
    yield Table(
        "Latencies", (Column("latency"), *(Column(name, "s") for name in _OF_LATENCY)), rows
    )


@SERVICE.add("spread", "Latency over requests", slow=True)
def _spreads(result: ServiceResult) -> Iterator[Block]:
    """How latencies spread over requests, and gaps over tokens."""
    charts = (latency_chart(result, "ttft"), latency_chart(result, "tpot"), itl_chart(result))
    yield from (chart for chart in charts if len(chart.series[0].x))


@SERVICE.add("batches", "Batches over time", slow=True)
def _batches(result: ServiceResult) -> Iterable[Block]:
    """How full the batches and the cache are."""
    return [batch_chart(result), cache_chart(result)]


@SERVICE.add("lives", "Lives of requests", slow=True)
def _lives(result: ServiceResult) -> Iterator[Block]:
    """Requests around the one that waited longest pass queue, prompt, transfer and tokens."""
    if np.isfinite(result.served.last).any():
        yield lives_of(result)


@SERVICE.add("time", "Where the time goes")
def _account(result: ServiceResult) -> Iterator[Block]:
    """Every second of the mean accelerator is counted once."""
    whole, pools = result.summary["account_s"], result.summary.get("pools", {})
    accounts = {"all": whole}
    if len(pools) > 1:
        accounts |= {name: pool["account_s"] for name, pool in pools.items()}
    most = max(whole, key=lambda part: whole[part])
    share = whole[most] / result.summary["duration_s"]
    yield Bars(
        title="Parts of the time of accelerators",
        alt=f"Most is {most.replace('_', ' ')} with {percent(share)} of the time.",
        names=list(accounts),
        parts=parts_of(
            {part: [each.get(part, 0.0) for each in accounts.values()] for part in ACCOUNT}
        ),
        value=Axis("time", "s"),
    )


@SERVICE.add(
    "memory",
    "Memory",
    lambda result: f"The cache holds {result.summary['memory']['tokens']:,} tokens.",
)
def _memory(result: ServiceResult) -> Iterator[Block]:
    pools = result.summary.get("pools") or {"all": result.summary}
    components = {
        word: np.array([float(pool["memory"][name]) for pool in pools.values()])
        for word, name in _MEMORY.items()
    }
    yield memory_bars(list(pools), components, float(result.summary["memory"]["capacity"]))
