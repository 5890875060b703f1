"""A search of services in words: the ranking, the front, and what became of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpsim.sheet import Section, Sheet
from mpsim.table import plural

if TYPE_CHECKING:
    from mpsim.study.service_search.outcome import FoundService, ServiceSearch

__all__ = ["service_search_sheet"]


def service_search_sheet(
    outcome: ServiceSearch, objectives: Mapping[str, str], reasons: Mapping[str, str]
) -> Sheet:
    """Tables and sentences of a search of services; `objectives` and `reasons` are words for what it names."""
    ranking = Section(
        tuple(_line(rank, row) for rank, row in enumerate(outcome.leaders, start=1)),
        (
            *("#", outcome.objective, "TTFT p99 (ms)", "TPOT p99 (ms)", "tokens/s/user"),
            *("tokens/s/acc.", "USD/Mtoken", "acc.", "limits", "layout"),
        ),
        tuple(range(8)),
    )
    front = Section(
        tuple(
            (f"{row.per_user:.4g}", f"{row.per_accelerator:.4g}", row.name) for row in outcome.front
        ),
        ("tokens/s/user", "tokens/s/acc.", "layout"),
        (0, 1),
        title="no other simulated one is better for users and for accelerators",
    )
    others = Section(
        tuple((f"{count:,}", reasons[name]) for name, count in outcome.counts.items()),
        (),
        (0,),
        f"{plural(outcome.looked_at, 'layout')}{'' if outcome.complete else '; not all were looked at'}",
        () if outcome.rows else ("nothing was simulated: no layout is within the limits",),
    )
    return Sheet(
        f"{outcome.scenario}: {objectives[outcome.objective]}",
        (ranking, *((front,) if len(outcome.front) > 1 else ()), others),
    )


def _line(rank: int, row: FoundService) -> tuple[str, ...]:
    flat = row.flat()
    cost = flat["cost_per_million_output_tokens"]
    return (
        str(rank),
        f"{row.objective:.5g}",
        _milli(flat["ttft_p99_s"]),
        _milli(flat["tpot_p99_s"]),
        f"{row.per_user:.4g}",
        f"{row.per_accelerator:.4g}",
        f"{cost:.4g}" if isinstance(cost, float) else "-",
        str(row.accelerators),
        "kept" if row.meets_slo else "MISSED",
        row.name,
    )


def _milli(seconds: object) -> str:
    return f"{seconds * 1e3:.4g}" if isinstance(seconds, float) else "-"
