"""Checks of how the step is simulated."""

from __future__ import annotations

from mpsim.errors import Problem
from mpsim.scenario.described import Described

__all__ = ["check_network"]


def check_network(scenario: Described) -> list[Problem]:
    """The engine can do what the network asks of it."""
    simulation = scenario.simulation
    asks = ["network: flow"] * (simulation.network == "flow")
    asks += ["interference"] * simulation.interference
    if not asks or simulation.engine != "replay":
        return []
    message = f"replay cannot change rates while it runs, as {' and '.join(asks)} needs; set engine to auto"
    return [Problem(message, key="simulation.engine")]
