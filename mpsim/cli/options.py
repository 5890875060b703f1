"""Options that several commands share, and how a scenario is loaded with them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mpsim.scenario import Scenario

__all__ = ["AsJson", "Engine", "Overrides", "Sets", "load_scenario", "load_scenarios"]


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
        help="Change one dotted key, e.g. parallelism.tp=4; repeatable.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", metavar="NAME", help="Apply a named block of `overrides:`; repeatable."
    ),
]


def load_scenario(
    file: Path,
    *,
    sets: list[str] | None = None,
    overrides: list[str] | None = None,
    engine: Engine | None = None,
) -> Scenario:
    """Read a scenario with what the command line changes in it."""
    from mpsim.scenario import load

    changes = [*(sets or [])]
    if engine is not None:
        changes.append(f"simulation.engine={engine.value}")
    return load(file, overrides=overrides or [], set=changes)


def load_scenarios(
    files: list[Path],
    *,
    sets: list[str] | None = None,
    overrides: list[str] | None = None,
    engine: Engine | None = None,
) -> list[Scenario]:
    """Read several scenarios; the mistakes of all of them are reported together."""
    from mpsim.errors import Problem, ScenarioError

    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for file in files:
        try:
            scenarios.append(load_scenario(file, sets=sets, overrides=overrides, engine=engine))
        except ScenarioError as error:
            problems.extend(error.problems)
    if problems:
        raise ScenarioError(problems)
    return scenarios
