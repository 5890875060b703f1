"""Habits of data parallelism in one Plan: which actions gather parameters, and after which gradients are reduced.

Shapes: N actions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.framework import Reduction
from mpsim.schedule import Action
from mpsim.training.pipeline import first_forward, last_gradient
from mpsim.training.plan import Plan

__all__ = ["gathers", "reduces", "reduction_kind"]

_NEEDING = (Action.F, Action.B, Action.I)  # a weight gradient needs activations and gradients only
_GRADIENT = (Action.B, Action.W)


def gathers(plan: Plan) -> NDArray[np.bool_]:
    """Actions that wait for parameters to be gathered, bool[N].

    Notes
    -----
    Sharded parameters: every forward, and every backward too where they are given up after the forward; with a pipeline that keeps
    them gathered, the first forward of each stage. Recomputation runs on what was gathered for the backward. Otherwise: the
    first forward, where the framework gathers beside it what the optimizer updated.
    """
    orders = plan.orders
    if plan.gathers_units and not plan.keeps_gathered:
        again = _NEEDING if plan.layout.framework.data.reshard_after_forward else (Action.F,)
        return np.isin(orders.kind, [int(kind) for kind in again])
    once = plan.gathers_units or plan.gathers_beside
    return _only(plan, first_forward(plan.orders) if once else None)


def reduces(plan: Plan) -> NDArray[np.bool_]:
    """Actions after which gradients are reduced, bool[N]."""
    if plan.replicas == 1:
        return _only(plan, None)
    if plan.reduces_every_microbatch:
        return np.isin(plan.orders.kind, [int(kind) for kind in _GRADIENT])
    return _only(plan, last_gradient(plan.orders))


def reduction_kind(plan: Plan) -> str:
    """Which collective sums gradients, as the cost model calls it, or ``rooted``."""
    if plan.zero == 0:
        return "all_reduce"
    if plan.zero == 3:
        return "reduce_scatter"
    return {
        Reduction.REDUCE_SCATTER: "reduce_scatter",
        Reduction.ALL_REDUCE: "all_reduce",
        Reduction.ROOTED: "rooted",
    }[plan.layout.framework.data.gradient_reduction]


def _only(plan: Plan, actions: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    chosen = np.zeros(len(plan.orders), dtype=bool)
    if actions is not None:
        chosen[actions] = True
    return chosen
