"""A search of services in words: the ranking, the front, and what became of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim.sheet import Section, Sheet
from mpsim.table import plural

__all__ = ["service_search_sheet"]


def service_search_sheet(
    told: Mapping[str, Any], objectives: Mapping[str, str], reasons: Mapping[str, str]
) -> Sheet:
    """Tables and sentences of a search of services.

    Parameters
    ----------
    told : mapping
        In the shape of ``mpsim search --json``, with ``leaders``: the best as flat rows.
    objectives, reasons : mapping of str to str
        Words for what it names.
    """
    objective = told["objective"]
    ranking = Section(
        tuple(_line(rank, row) for rank, row in enumerate(told["leaders"], start=1)),
        (
            *("#", objective, "TTFT p99 (ms)", "TPOT p99 (ms)", "tokens/s/user"),
            *("tokens/s/acc.", "USD/Mtoken", "acc.", "limits", "layout"),
        ),
        tuple(range(8)),
    )
    front = Section(
        tuple((_user(row), _each(row), str(row["layout"])) for row in told["front"]),
        ("tokens/s/user", "tokens/s/acc.", "layout"),
        (0, 1),
        title="Pareto front: no other simulated one is better for users and for accelerators",
    )
    others = Section(
        tuple((f"{count:,}", reasons[name]) for name, count in told["counts"].items()),
        (),
        (0,),
        f"{plural(told['layouts'], 'layout')}{'' if told['complete'] else '; not all were looked at'}",
        () if told["leaders"] else ("nothing was simulated: no layout is within the limits",),
    )
    return Sheet(
        f"{told['scenario']}: {objectives[objective]}",
        (ranking, *((front,) if len(told["front"]) > 1 else ()), others),
    )


def _line(rank: int, row: Mapping[str, Any]) -> tuple[str, ...]:
    cost = row["cost_per_million_output_tokens"]
    return (
        str(rank),
        f"{row['objective']:.5g}",
        _milli(row["ttft_p99_s"]),
        _milli(row["tpot_p99_s"]),
        _user(row),
        _each(row),
        f"{cost:.4g}" if isinstance(cost, float) else "-",
        str(row["accelerators"]),
        "kept" if row["meets_slo"] else "MISSED",
        str(row["layout"]),
    )


def _user(row: Mapping[str, Any]) -> str:
    return f"{row['output_tokens_per_s_per_user'] or 0.0:.4g}"


def _each(row: Mapping[str, Any]) -> str:
    return f"{row['output_tokens_per_s_per_accelerator']:.4g}"


def _milli(seconds: object) -> str:
    return f"{seconds * 1e3:.4g}" if isinstance(seconds, float) else "-"
