"""Sections of a service: latencies, batches over time, where accelerators' time goes.

Shapes: N values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.chart import Axis, Bars, Limit, Part
from mpsim.plot.palette import COMMUNICATION
from mpsim.plot.service import batch_chart, cache_chart, itl_chart, latency_chart
from mpsim.report.assumed import assumed_section, warnings_section
from mpsim.report.blocks import Column, Figure, Figures, Note, Section, Table, at
from mpsim.serving import ServiceResult
from mpsim.serving.summary import ACCOUNT
from mpsim.units import Dimension, format_quantity

__all__ = ["HEADLINE", "service_sections"]

Floats = NDArray[np.float64]

_LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "gap between tokens",
    "e2e_s": "whole request",
    "queue_s": "waiting in the queue",
}
_COLOURS = {
    "decode": "forward",
    "prefill": "backward",
    "exposed_kv": "cp",
    "down": "other",
    "idle_cache": "straggling",
    "idle": "bubble",
}


HEADLINE = (
    Figure(
        "output tokens/s per accelerator",
        "output_tokens_per_s_per_accelerator",
        "",
    ),
    Figure(
        "output tokens/s",
        "output_tokens_per_s",
        "",
        "interval.output_tokens_per_s",
    ),
    Figure("TTFT, mean", "ttft_s.mean", "s", "interval.ttft_s"),
    Figure("TTFT, 99th percentile", "ttft_s.p99", "s", "ttft_s.p99_interval"),
    Figure("TPOT, mean", "tpot_s.mean", "s", "interval.tpot_s"),
    Figure("TPOT, 99th percentile", "tpot_s.p99", "s", "tpot_s.p99_interval"),
    Figure("goodput, requests/s", "goodput_per_s", "", note="within every limit"),
    Figure("requests within limits", "requests_within_slo", "share"),
    Figure("energy of an output token", "energy_j_per_output_token", "J"),
    Figure("price of a million output tokens", "cost_per_million_output_tokens", "USD"),
)
"""Headline figures of a service."""


def service_sections(result: ServiceResult, *, whole: bool = True) -> list[Section]:
    """Every section of one service, the headline first; without what happens over time unless `whole`."""
    summary = result.summary
    sections = [
        _headline(result),
        _latency(result, curves=whole),
        *([_batches(result)] if whole else []),
        _account(summary),
        _memory(summary),
        assumed_section(result.scenario),
        warnings_section(summary),
    ]
    return [section for section in sections if section.blocks]


def _headline(result: ServiceResult) -> Section:
    summary = result.summary
    shown = [item for item in HEADLINE if at(summary, item.key) is not None]
    chip = result.plan.cluster.accelerator.title
    return Section(
        "headline",
        "Headline",
        f"{summary['requests']:,} requests served on {summary['accelerators']:,} x {chip}.",
        [Figures(shown), *_trust(summary)],
    )


def _trust(summary: Mapping[str, Any]) -> Iterator[Note]:
    slo = summary["slo"]
    if summary["requests_within_slo"] is not None:
        needed = f"{100 * summary['requests_within_slo']:.1f} % of the requests are within the limits, {100 * slo['share']:.1f} % needed"
        yield Note(
            f"{needed}: {'met' if slo['met'] else 'missed'}.", "good" if slo["met"] else "warning"
        )
    ranges = summary.get("interval") or {}
    if "basis" in ranges:
        yield Note(
            f"The ranges hold the measured mean in {100 * ranges['level']:.0f} cases of 100 (basis: {ranges['basis']})."
        )


def _latency(result: ServiceResult, *, curves: bool) -> Section:
    summary = result.summary
    names = ("mean", "p50", "p90", "p99")
    rows = [
        (label, *(figures.get(name) for name in names))
        for key, label in _LATENCIES.items()
        if (figures := summary.get(key))
    ]
    columns = (Column("latency"), *(Column(name, "s") for name in names))
    blocks: list[Any] = [Table("Latencies", columns, rows)]
    if curves:
        charts = (latency_chart(result, "ttft"), latency_chart(result, "tpot"), itl_chart(result))
        blocks += [chart for chart in charts if len(chart.series[0].x)]
    return Section(
        "latency", "Latency", "How long requests wait, and how that spreads over them.", blocks
    )


def _batches(result: ServiceResult) -> Section:
    blocks = [batch_chart(result), cache_chart(result)]
    return Section(
        "batches", "Batches over time", "How full the batches and the cache are.", blocks
    )


def _account(summary: Mapping[str, Any]) -> Section:
    """Where the accelerators' time goes, of all of them and of each pool."""
    pools = {name: pool["account_s"] for name, pool in summary.get("pools", {}).items()}
    accounts = {"all": summary["account_s"], **(pools if len(pools) > 1 else {})}
    parts = [
        Part(
            part.replace("_", " "),
            [account.get(part, 0.0) for account in accounts.values()],
            _COLOURS.get(part, part.removeprefix("exposed_")),
            part.removeprefix("exposed_") in COMMUNICATION,
        )
        for part in ACCOUNT
        if any(account.get(part, 0.0) for account in accounts.values())
    ]
    whole = summary["account_s"]
    most = max(whole, key=lambda part: whole[part])
    return Section(
        "time",
        "Where the time goes",
        "Every second of the mean accelerator is counted once.",
        [
            Bars(
                title="Parts of the time of accelerators",
                alt=f"Most is {most.replace('_', ' ')} with {100 * whole[most] / summary['duration_s']:.1f} % of the time.",
                names=list(accounts),
                parts=parts,
                value=Axis(name="time", unit="s"),
            )
        ],
    )


def _memory(summary: Mapping[str, Any]) -> Section:
    pools = summary.get("pools") or {"all": summary}
    named = ("weights", "activations", "reserve", "cache")
    parts = [
        Part(
            name,
            [float(pool["memory"][name]) for pool in pools.values()],
            f"memory.{'parameters' if name == 'weights' else 'overhead' if name == 'reserve' else 'logits' if name == 'cache' else name}",
        )
        for name in named
    ]
    capacity = float(summary["memory"]["capacity"])
    return Section(
        "memory",
        "Memory",
        f"The cache holds {summary['memory']['tokens']:,} tokens.",
        [
            Bars(
                title="Memory of an accelerator",
                alt=f"The cache takes {format_quantity(float(summary['memory']['cache']), Dimension.BYTES)} of {format_quantity(capacity, Dimension.BYTES)}.",
                names=list(pools),
                parts=parts,
                value=Axis(name="memory", unit="B"),
                limits=[Limit(capacity, f"capacity {format_quantity(capacity, Dimension.BYTES)}")],
            )
        ],
    )
