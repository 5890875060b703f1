"""``mpsim run``: simulate scenarios and print their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson, Engine, Overrides, Sets, load_scenarios

if TYPE_CHECKING:
    from mpsim.result import Result

__all__ = ["run"]


def run(
    files: Annotated[list[Path], typer.Argument(help="One or more scenario files.")],
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Write every plot as PNG.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write a trace for Perfetto (.json or .json.gz)."
        ),
    ] = None,
    sets: Sets = None,
    overrides: Overrides = None,
    engine: Annotated[
        Engine | None, typer.Option("--engine", help="Which engine runs the program.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one training step of each scenario and say where the time goes."""
    from mpsim.cli.console import print_json
    from mpsim.cli.summary import print_summary
    from mpsim.result import simulate

    if trace is not None and len(files) > 1:
        raise typer.BadParameter(
            f"one trace holds one scenario, got {len(files)}", param_hint="--trace"
        )
    scenarios = load_scenarios(files, sets=sets, overrides=overrides, engine=engine)
    for scenario in scenarios:
        result = simulate(scenario)
        if as_json:
            print_json(result.summary)
        else:
            print_summary(result.summary)
        folder = plots if plots is None or len(files) == 1 else plots / scenario.name
        _write(result, folder, trace)


def _write(result: Result, plots: Path | None, trace: Path | None) -> None:
    from mpsim.cli.console import wrote

    if plots is not None:
        for path in result.save_plots(plots):
            wrote(path)
    if trace is not None:
        result.write_trace(trace)
        wrote(trace)
