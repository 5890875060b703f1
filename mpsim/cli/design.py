"""``mpsim design``: which cluster for some work under a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from mpsim.cli.console import draw, end_early, note, print_answer, progress_bar, write_table
from mpsim.cli.options import AsJson, Computing, Csv, Plot, Reading, quantity


def design(
    file: Path,
    search: Annotated[float | None, Option(parser=quantity("TIME"))] = None,
    upgrades: bool = True,
    csv: Csv = None,
    plot: Plot = None,
    *,
    computing: Computing,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Choose a cluster for some work: best layouts, costs, what would change the choice.

    FILE: Scenario file with a `design:` section.
    --search TIME: Time limit of the search on one kind of cluster; left out: until it is complete.
    --upgrades/--no-upgrades: Also look at changes to the chosen cluster.
    """
    from mpsim.study.design import design as run_design

    scenario = reading.load(file)
    with progress_bar(f"{scenario.name}: searches") as report:
        answer = run_design(
            scenario, search=search, upgrades=upgrades, progress=report, **computing.arguments()
        )
    if csv is not None:
        write_table(answer, csv)
    if plot is not None and answer.possible and not answer.interrupted:
        draw(answer.display(), plot)
    print_answer(answer, as_json=as_json)
    end_early(answer.interrupted)
    if answer.best is None:
        if not as_json:
            note("mpsim design: no cluster keeps every bound")
        raise typer.Exit(1)
