"""Memory: what the fullest moment of each rank holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpsim.result.memory import Memory, join_memory
from mpsim.schedule import Action
from mpsim.shipped import load_catalog
from mpsim.training.memory.activations import held_by_rank, kept_by_stage
from mpsim.training.memory.fresh import fresh_gradients
from mpsim.training.memory.states import buffers, gradient_scratch, model_states
from mpsim.training.plan import Plan

__all__ = ["COMPONENTS", "account_memory", "fragments", "memory_constants"]

COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "overhead",
)


def account_memory(plan: Plan) -> Memory:
    """Add up model states, activations in flight, buffers and overhead of every pipeline rank (of every class of replicas).

    Notes
    -----
    Activations follow the action order: a forward adds what its stage keeps, an input gradient frees what only it needed, a
    weight gradient (or full backward) the rest; while a layer is differentiated, what is recomputed of it and the gradients of its
    largest product are alive too. The peak is exact for the order; the bytes are those of the operator list.
    """
    if plan.classes:
        return join_memory([account_memory(part) for part in plan.parts])
    constants = memory_constants()
    activations = kept_by_stage(plan)
    held = held_by_rank(plan, activations)
    peak = [held_rank.most[held_rank.fullest] for held_rank in held]
    logits = np.array([held_rank.logits[held_rank.fullest] for held_rank in held])
    collected = np.array([held_rank.collected[held_rank.fullest] for held_rank in held])
    passing = np.array([held_rank.passing[held_rank.fullest] for held_rank in held])
    states = model_states(plan) | {
        "activations": np.array(peak) - logits - collected - passing,
        "logits": logits,
        "buffers": buffers(plan) + gradient_scratch(plan) + passing,
    }
    states["gradients"] = states["gradients"] - fresh_gradients(plan).total + collected
    states["overhead"] = constants["context"] + fragments(plan, np.array(peak), collected + passing)
    return Memory(
        components=states,
        capacities=np.array(
            [
                plan.layout.cluster_of(rank).accelerator.memory_bytes
                for rank in range(plan.layout.mesh.pp)
            ]
        ),
        when=tuple(_moment(plan, rank, held_rank.fullest) for rank, held_rank in enumerate(held)),
    )


_NAMES = {
    Action.F: "forward",
    Action.B: "backward",
    Action.I: "input gradient",
    Action.W: "weight gradient",
}


def _moment(plan: Plan, rank: int, action: int) -> str:
    row = int(plan.orders.rank_ptr[rank]) + action
    if row == int(plan.orders.rank_ptr[rank + 1]):
        return "optimizer step"
    name = _NAMES[Action(int(plan.orders.kind[row]))]
    return f"{name} of microbatch {int(plan.orders.microbatch[row])}"


def fragments(
    plan: Plan, peaks: NDArray[np.float64], apart: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Memory lost between activations that come and go [B].

    Parameters
    ----------
    plan : Plan
        Whose software loses some.
    peaks, apart : float64[..., P]
        Most of each rank beside what stands all the time, and the part of it that is no activation: gradients of one microbatch, units [B].
    """
    placed = plan.layout.framework.memory.places_buffers
    share = 0.0 if placed else memory_constants()["fragmentation"]
    lost: NDArray[np.float64] = share * (peaks - apart)
    return lost


def memory_constants() -> Mapping[str, float]:
    """``context``: what the driver and libraries take [B]; ``fragmentation``: share of activations lost between them."""
    data = dict(load_catalog("mpsim.training.data"))["memory"]
    return {name: float(entry["value"]) for name, entry in data["constants"].items()}
