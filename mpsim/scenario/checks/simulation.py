"""Checks of how the step is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.errors import Problem

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_network"]


def check_network(scenario: Scenario) -> list[Problem]:
    """The network is modelled the way that is simulated."""
    if scenario.simulation.network == "analytic":
        return []
    message = "flow networks are not simulated by this version; set network to analytic"
    return [Problem(message, key="simulation.network")]
