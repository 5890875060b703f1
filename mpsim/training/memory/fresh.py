"""Fresh gradients: those that come within a backward: of the only one of a step, where nothing keeps them from step to step, and those of a sharded root."""

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
    waiting : float
        Whole gradients of a sharded root unit, those of the head waiting for those of the embedding, and the copy that is reduced [B].
    """

    total: float = 0.0
    late: float = 0.0
    waiting: float = 0.0

    def __bool__(self) -> bool:
        return self.total + self.waiting > 0

    def at_end(self, in_layers: Floats, collected: Floats) -> Floats:
        """Gradients at the fullest moment of the end of a backward, beside `collected` ones [B].

        Parameters
        ----------
        in_layers : float64[...]
            Alive beside them while the last layer is differentiated; gone when the gradients are complete [B].
        collected : float64[...]
            Of `mpsim.training.memory.Kept` [B].
        """
        result: Floats = collected + np.where(
            self._ends_in_layer(in_layers), self.total - self.late, self.total + self.waiting
        )
        return result

    def beside(self, in_layers: Floats) -> Floats:
        """Part of `in_layers` that is alive beside those gradients [B]."""
        alive: Floats = np.where(self._ends_in_layer(in_layers), in_layers, 0.0)
        return alive

    def _ends_in_layer(self, in_layers: Floats) -> NDArray[np.bool_]:
        """Whether the end of a backward is fullest in its last layer, not when the embedding has followed."""
        result: NDArray[np.bool_] = in_layers > self.late + self.waiting
        return result


def fresh_gradients(plan: Plan, microbatches: int | None = None) -> Fresh:
    """Gradients that are not there before the backward of the only microbatch of a step.

    Parameters
    ----------
    microbatches : int, optional
        Of a step; those of the plan's order by default.
    """
    layout, lifetimes = plan.layout, plan.layout.framework.memory
    count = plan.orders.microbatches if microbatches is None else microbatches
    if len(layout.stages) > 1:
        return Fresh()
    stage = layout.stages[0]
    compiled = lifetimes.drops_gradients and lifetimes.frees_weights
    if plan.gathers_units and not compiled:
        return Fresh(waiting=_root_gradients(plan))
    alone = count == 1 and (plan.replicas == 1 or compiled)
    if not (alone and lifetimes.drops_gradients) or lifetimes.steps_in_backward:
        return Fresh()
    first = layout.held(layout.trained(layout.layer_parameters)[layout.layer_kinds(stage)[0]])
    parts = layout.trained_parameters(stage)
    table = 0.0 if layout.model.tied_embeddings else layout.held(parts["embedding"])
    element = layout.framework.optimizer.gradient_bytes
    return Fresh(float(model_states(plan)["gradients"][0]), float(element * (first + table)))


def _root_gradients(plan: Plan) -> float:
    """Whole gradients of embedding and head where they are one unit, as computed and as reduced [B]."""
    layout, data = plan.layout, plan.layout.framework.data
    if not data.root_unit:
        return 0.0
    parts = layout.trained_parameters(layout.stages[0])
    root = sum(layout.held(parts[name]) for name in ("embedding", "head") if name in parts)
    element = layout.framework.lowering.weight_grad_bytes
    copied = (data.reduced_bytes or element) if data.reduce_copy_traffic else 0
    return float((element + copied) * root)
