"""``mpsim check``: every mistake of a scenario at once, or what was derived from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpsim.cli.options import AsJson, Overrides, Sets, load_scenario

__all__ = ["check"]


def check(
    file: Annotated[Path, typer.Argument(help="Scenario file.")],
    sets: Sets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Report every mistake of a scenario at once, or say what was derived from it."""
    from mpsim.cli.console import print_json, print_text
    from mpsim.scenario import check as problems_of

    scenario = load_scenario(file, sets=sets, overrides=overrides)
    derived = problems_of(scenario)
    if as_json:
        print_json({"scenario": scenario.name, "ok": True, "derived": derived})
        return
    print_text("\n".join([f"{file}: ok", *(f"  {key}: {value}" for key, value in derived.items())]))
