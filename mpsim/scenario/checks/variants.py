"""Checks of the variants a scenario describes: its sweep and its overrides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import pydantic

from mpsim.errors import Problem
from mpsim.scenario.layers import Layers, lay_values
from mpsim.scenario.translate import translate

if TYPE_CHECKING:
    from mpsim.document import Document
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_overrides", "check_sweep"]

MAX_POINTS: Final = 100_000
FIXED_KEYS: Final = ("schema", "name", "sweep", "include", "overrides")


def check_sweep(scenario: Scenario) -> list[Problem]:
    """Every value of the sweep fits the key it is for."""
    total = math.prod(map(len, scenario.sweep.values()))
    if total > MAX_POINTS:
        message = f"makes {total} points; needed at most {MAX_POINTS}: try fewer values"
        return [Problem(message, key="sweep")]
    problems: list[Problem] = []
    for key, values in scenario.sweep.items():
        if key.partition(".")[0] in FIXED_KEYS:
            problems.append(Problem(f"{key} cannot be swept; take another key", key=f"sweep.{key}"))
            continue
        for index, value in enumerate(values):
            wrong = _misfits(lay_values(scenario.source, {key: value}), type(scenario))
            if wrong:
                at = f"sweep.{key}" if "unknown key" in wrong[0] else f"sweep.{key}.{index}"
                problems.append(Problem(wrong[0], key=at))
                break
    return problems


def check_overrides(scenario: Scenario) -> list[Problem]:
    """Every named override fits the scenario it changes, chosen or not."""
    problems = []
    for name in scenario.overrides:
        layers = Layers(scenario.source.file)
        layers.lay(scenario.source)
        layers.lay_override(name, scenario.source)
        wrong = _misfits(layers.document(), type(scenario))
        problems += [Problem(message, key=f"overrides.{name}") for message in wrong]
    return problems


def _misfits(document: Document, kind: type[Scenario]) -> list[str]:
    """What the schema has against `document`, key first."""
    found: list[Problem] = list(document.problems)
    try:
        kind.model_validate(document.data)
    except pydantic.ValidationError as error:
        found += translate(error, kind)
    return [f"{problem.key}: {problem.message}" for problem in found]
