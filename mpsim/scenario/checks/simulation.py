"""Checks of how the step is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.errors import Problem

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_network"]


def check_network(scenario: Scenario) -> list[Problem]:
    """The engine can do what the network asks of it."""
    simulation = scenario.simulation
    if simulation.network == "analytic" or simulation.engine != "replay":
        return []
    message = "replay cannot change rates while it runs, as network: flow needs; set engine to auto"
    return [Problem(message, key="simulation.engine")]
