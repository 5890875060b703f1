"""Checks of a model with an encoder and a decoder."""

from __future__ import annotations

from mpsim.errors import Problem
from mpsim.scenario.described import Described

__all__ = ["check_stacks"]

_REASONS = {
    "pp": "the encoder's output would travel through every stage of the decoder",
    "cp": "keys of the encoder and of the decoder would be exchanged apart",
}


def check_stacks(scenario: Described) -> list[Problem]:
    """An encoder and a decoder are not divided by axes that would have to carry one to the other."""
    if not scenario.transformer.encoder_layers:
        return []
    return [
        Problem(
            f"got {degree}, but {scenario.transformer.name} has an encoder and a decoder: {reason}, which is not simulated; "
            f"set {axis} to 1 and take tp, dp or zero instead",
            key=f"parallelism.{axis}",
        )
        for axis, reason in _REASONS.items()
        if (degree := getattr(scenario.parallelism, axis)) > 1
    ]
