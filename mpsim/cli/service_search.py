"""The part of ``mpsim search`` that looks for services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpsim.scenario import Scenario

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
    from mpsim.cli.console import note, print_json, print_sheet, wrote
    from mpsim.cli.progress import phases_bar
    from mpsim.study.search.services import search_services

    with phases_bar(scenario.name) as report:
        outcome = search_services(scenario, values, progress=report, **options)
    if csv is not None:
        outcome.to_csv(csv)
        wrote(csv)
    if plot is not None and outcome.rows:
        from mpsim.plot import ServiceFrontDisplay

        title = f"{scenario.name}: tokens/s of a user against tokens/s of an accelerator"
        ServiceFrontDisplay.from_search(outcome).titled(title).save(plot)
        wrote(plot)
    elif plot is not None:
        note(f"nothing was simulated, so there is nothing to draw in {plot}")
    if as_json:
        print_json(outcome.to_json())
    else:
        print_sheet(outcome.sheet())
    for remark in outcome.remarks:
        note(remark)
    return outcome.interrupted
