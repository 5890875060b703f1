"""Checks of model, cluster and framework: their presets exist and their fields agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from mpsim.errors import Problem, ScenarioError
from mpsim.framework import framework
from mpsim.scenario.described import Described

__all__ = ["check_cluster", "check_framework", "check_model"]

MAX_MESSAGE: Final = 400  # characters; a value quoted in it can be of any length


def check_model(scenario: Described) -> list[Problem]:
    """The model's preset exists, and its fields agree."""
    return _raised(lambda: scenario.transformer)


def check_cluster(scenario: Described) -> list[Problem]:
    """The cluster's presets exist, and its parts make a cluster."""
    return _raised(lambda: scenario.hardware) or _raised(lambda: scenario.clusters)


def check_framework(scenario: Described) -> list[Problem]:
    """The framework's preset exists, and has the fields that are replaced."""
    if _raised(lambda: scenario.hardware):  # no machine, no habits of its host
        chosen = scenario.framework
        return _raised(lambda: framework(chosen.preset, chosen.overrides))
    return _raised(lambda: scenario.software)


def _raised(look_up: Callable[[], object]) -> list[Problem]:
    try:
        look_up()
    except ScenarioError as error:
        return [
            dataclasses.replace(problem, message=problem.message[:MAX_MESSAGE])
            for problem in error.problems
        ]
    return []
