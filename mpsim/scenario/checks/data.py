"""Checks of data parallelism: what its ranks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.errors import Problem

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario

__all__ = ["check_zero"]


def check_zero(scenario: Scenario) -> list[Problem]:
    """Data-parallel sharding is of a kind that is simulated."""
    zero = scenario.parallelism.zero
    if zero <= 1:
        return []
    shared = "gradients" if zero == 2 else "gradients and parameters"
    message = f"got {zero}; sharded {shared} are not simulated by this version; set zero to 0 or 1"
    return [Problem(message, key="parallelism.zero")]
