"""Fresh gradients: those that come within the only backward of a step, where nothing keeps them from one step to the next."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.training.memory.states import model_states
from mpsim.training.plan import Plan

__all__ = ["Fresh", "fresh_gradients"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Fresh:
    """Gradients of one rank that its backward makes.

    Parameters
    ----------
    total : float
        All of them; 0 where gradients are there all the time [B].
    late : float
        Those that are not there yet while the last layer of a backward is differentiated: its own, and those of an embedding of its own [B].
    """

    total: float = 0.0
    late: float = 0.0

    def at_end(self, in_layers: Floats, collected: Floats) -> Floats:
        """Gradients at the fullest moment of the end of a backward, beside `collected` ones [B].

        Parameters
        ----------
        in_layers : float64[...]
            Alive beside them while the last layer is differentiated; gone when the gradients are complete [B].
        collected : float64[...]
            Of `mpsim.training.memory.Kept` [B].
        """
        result: Floats = collected + self.total - np.where(in_layers > self.late, self.late, 0.0)
        return result

    def beside(self, in_layers: Floats) -> Floats:
        """Part of `in_layers` that is alive beside those gradients [B]."""
        if not self.total:
            return in_layers
        alive: Floats = np.where(in_layers > self.late, in_layers, 0.0)
        return alive


def fresh_gradients(plan: Plan, microbatches: int | None = None) -> Fresh:
    """Gradients that are not there before the backward of the only microbatch of a step.

    Parameters
    ----------
    plan : Plan
    microbatches : int, optional
        Of a step; those of the plan's order by default.
    """
    layout, lifetimes = plan.layout, plan.layout.framework.memory
    count = plan.orders.microbatches if microbatches is None else microbatches
    alone = count == 1 and plan.replicas == 1 and len(layout.stages) == 1
    if not (alone and lifetimes.drops_gradients) or lifetimes.steps_in_backward:
        return Fresh()
    stage = layout.stages[0]
    first = layout.held(layout.layer_parameters[layout.layer_kinds(stage)[0]])
    parts = layout.stage_parameters(stage)
    table = 0.0 if layout.model.tied_embeddings else layout.held(parts["embedding"])
    element = layout.framework.optimizer.gradient_bytes
    return Fresh(float(model_states(plan)["gradients"][0]), float(element * (first + table)))
