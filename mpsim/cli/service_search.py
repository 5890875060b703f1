"""The part of ``mpsim search`` that looks for services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpsim.scenario import Scenario
    from mpsim.study.service_search import FoundService, ServiceSearch

__all__ = ["search_service"]


def search_service(
    scenario: Scenario,
    values: Mapping[str, Sequence[object]],
    *,
    csv: Path | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> bool:
    """Search layouts of a service and print them; whether somebody interrupted it."""
    from mpsim.cli.console import note, phases_bar, print_json, wrote
    from mpsim.study.service_search import search_services

    with phases_bar(scenario.name) as report:
        outcome = search_services(scenario, values, progress=report, **options)
    if csv is not None:
        outcome.to_csv(csv)
        wrote(csv)
    if plot is not None and outcome.rows:
        from mpsim.plot import ServiceFrontDisplay

        ServiceFrontDisplay.from_search(outcome).save(plot)
        wrote(plot)
    elif plot is not None:
        note(f"nothing was simulated, so there is nothing to draw in {plot}")
    if as_json:
        print_json(outcome.to_json())
    else:
        _print(outcome)
    for remark in outcome.remarks:
        note(remark)
    return outcome.interrupted


def _print(outcome: ServiceSearch) -> None:
    from mpsim.cli.console import print_table, print_text
    from mpsim.study.service_search import SERVICE_OBJECTIVES, SERVICE_REASONS

    print_table(
        (_line(rank, row) for rank, row in enumerate(outcome.leaders, start=1)),
        header=(
            *("#", outcome.objective, "TTFT p99 (ms)", "TPOT p99 (ms)", "tokens/s/user"),
            *("tokens/s/acc.", "USD/Mtoken", "acc.", "limits", "layout"),
        ),
        title=f"{outcome.scenario}: {SERVICE_OBJECTIVES[outcome.objective]}",
        right=range(8),
    )
    if len(outcome.front) > 1:
        print_table(
            (
                (f"{row.per_user:.4g}", f"{row.per_accelerator:.4g}", row.name)
                for row in outcome.front
            ),
            header=("tokens/s/user", "tokens/s/acc.", "layout"),
            title="\nno other simulated one is better for users and for accelerators",
            right=(0, 1),
        )
    print_table(
        ((str(count), SERVICE_REASONS[name]) for name, count in outcome.counts.items()),
        title=f"\n{outcome.looked_at} layouts{'' if outcome.complete else '; not all were looked at'}",
        right=(0,),
    )
    if not outcome.rows:
        print_text("nothing was simulated: no layout is within the limits")


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
