"""Options that several commands share, and how a scenario is loaded with them."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.complete import keys
from mpsim.cli.paths import check_file, check_folder, check_picture, check_trace

if TYPE_CHECKING:
    from mpsim.scenario import Scenario

__all__ = [
    "AllowInclude",
    "AsJson",
    "Background",
    "Csv",
    "Emit",
    "Engine",
    "Failures",
    "Overrides",
    "Plot",
    "Plots",
    "Restart",
    "Resume",
    "Sets",
    "Storage",
    "Trace",
    "Yes",
    "check_over",
    "finite",
    "load_scenario",
    "load_scenarios",
    "quantity",
    "share",
]


class Engine(enum.StrEnum):
    """Which engine runs the program."""

    AUTO = "auto"
    SIMPY = "simpy"
    REPLAY = "replay"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, SI units.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=keys,
        help="Change one dotted key, e.g. parallelism.tp=4; repeatable.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", metavar="NAME", help="Apply a named block of `overrides:`; repeatable."
    ),
]
AllowInclude = Annotated[
    bool,
    typer.Option("--allow-include", help="Let a scenario include files outside its folder."),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="Go on, however much memory and time it is estimated to take."),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", callback=check_picture, help="Draw it (.png, .svg, .pdf)."
    ),
]
Plots = Annotated[
    Path | None,
    typer.Option(
        "--plots", metavar="DIR", callback=check_folder, help="Draw every picture into DIR as PNG."
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", callback=check_file, help="Write the table as CSV."),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        callback=check_trace,
        help="Write a trace for Perfetto (.json or .json.gz).",
    ),
]
Emit = Annotated[
    list[str] | None,
    typer.Option(
        "--emit",
        metavar="FORMAT[=FILE]",
        help="Write the scenario as another tool's configuration too (see 'mpsim show formats'); repeatable.",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="FILE",
        callback=check_file,
        help="Keep finished rows here and start from them.",
    ),
]


def finite(value: float | None) -> float | None:
    """`value` if it is a finite number of at least 0; what a bound lets pass is not always one."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter(f"got {value:g}; needed a finite number of 0 or more")
    return value


def share(value: float | None) -> float | None:
    """`value` if it is a number from 0 to 1."""
    if value is not None and not 0 <= value <= 1:
        raise typer.BadParameter(f"got {value:g}; needed a number from 0 to 1")
    return value


def quantity(dimension: str) -> Callable[[str], float]:
    """Reader of an option that is a quantity with a unit; `dimension` is a name of `mpsim.units.Dimension`."""

    def read(text: str) -> float:
        from mpsim.errors import UnitError
        from mpsim.units import Dimension, parse_quantity

        try:
            return parse_quantity(text, Dimension[dimension])
        except UnitError as error:
            raise typer.BadParameter(str(error)) from None

    return read


Storage = Annotated[
    float | None,
    typer.Option(
        "--storage",
        metavar="RATE",
        parser=quantity("BANDWIDTH"),
        help="Bandwidth for all checkpoints, e.g. '200 GB/s'.",
    ),
]
Restart = Annotated[
    float | None,
    typer.Option(
        "--restart",
        metavar="TIME",
        parser=quantity("TIME"),
        help="From an interruption to the first step, e.g. '10 min'; left out: assumed.",
    ),
]
Failures = Annotated[
    float,
    typer.Option(
        "--failures", callback=finite, help="Times the published failure rates of components."
    ),
]
Background = Annotated[
    bool,
    typer.Option(
        "--background/--blocking",
        help="Write checkpoints beside training, or stand still for it.",
    ),
]


def check_over(scenario: Scenario, values: Mapping[str, Sequence[object]]) -> None:
    """Refuse keys and values of ``--over`` that fit no scenario, all at once and before any is simulated."""
    from mpsim.errors import ScenarioError
    from mpsim.scenario import wrong_values

    problems = [
        dataclasses.replace(problem, key="", file="--over")
        for problem in wrong_values(scenario, values, indexed=False)
    ]
    if problems:
        raise ScenarioError(problems)


def load_scenario(
    file: Path,
    *,
    sets: list[str] | None = None,
    overrides: list[str] | None = None,
    engine: Engine | None = None,
    allow_include: bool = False,
) -> Scenario:
    """Read a scenario with what the command line changes in it."""
    from mpsim.scenario import load

    changes = [*(sets or [])]
    if engine is not None:
        changes.append(f"simulation.engine={engine.value}")
    return load(file, overrides=overrides or [], set=changes, allow_include=allow_include)


def load_scenarios(
    files: list[Path],
    *,
    sets: list[str] | None = None,
    overrides: list[str] | None = None,
    engine: Engine | None = None,
    allow_include: bool = False,
) -> list[Scenario]:
    """Read several scenarios; the mistakes of all of them are reported together."""
    from mpsim.errors import Problem, ScenarioError

    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for file in files:
        try:
            scenarios.append(
                load_scenario(
                    file, sets=sets, overrides=overrides, engine=engine, allow_include=allow_include
                )
            )
        except ScenarioError as error:
            problems.extend(error.problems)
    if problems:
        raise ScenarioError(problems)
    return scenarios
