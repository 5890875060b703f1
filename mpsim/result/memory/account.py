"""Memory: what the fullest moment of each rank holds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.result.memory.activations import held_by_rank, kept_by_stage
from mpsim.result.memory.states import buffers, gradient_scratch, model_states
from mpsim.schedule import Action
from mpsim.shipped import load_catalog
from mpsim.training.plan import Plan

__all__ = ["COMPONENTS", "Memory", "account_memory", "joined_memory", "memory_constants"]

COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "overhead",
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes of every pipeline rank (of every class of replicas, where these differ) at its fullest moment.

    Parameters
    ----------
    components : mapping of str to float64[P]
        By `COMPONENTS` [B].
    capacities : float64[P]
        Of an accelerator of each rank [B].
    when : tuple of str
        The action of each rank during which it is fullest, such as ``backward of microbatch 3``.
    """

    components: Mapping[str, NDArray[np.float64]]
    capacities: NDArray[np.float64]
    when: tuple[str, ...] = ()

    @property
    def total(self) -> NDArray[np.float64]:
        """All components of each rank [B]."""
        total: NDArray[np.float64] = np.sum([self.components[name] for name in COMPONENTS], axis=0)
        return total

    @property
    def fullest(self) -> int:
        """The rank that needs most, of what it has where ranks have different capacities."""
        alike = bool((self.capacities == self.capacities[0]).all())
        return int(np.argmax(self.total if alike else self.total / self.capacities))

    @property
    def capacity(self) -> float:
        """Of an accelerator of the fullest rank [B]."""
        return float(self.capacities[self.fullest])

    @property
    def fits(self) -> bool:
        """Whether every rank's total is within capacity."""
        return bool((self.total <= self.capacities).all())


def account_memory(plan: Plan) -> Memory:
    """Add up model states, activations in flight, buffers and overhead of every pipeline rank (of every class of replicas).

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    Memory

    Notes
    -----
    Activations follow the action order: a forward adds what its stage keeps, an input gradient frees what only it needed, a
    weight gradient (or full backward) the rest; while a layer is differentiated, what is recomputed of it and the gradients of its
    largest product are alive too. The peak is exact for the order; the bytes are those of the operator list.
    """
    if plan.classes:
        return joined_memory([account_memory(one) for one in plan.parts])
    constants = memory_constants()
    kept = kept_by_stage(plan)
    held = held_by_rank(plan, kept)
    peak = [one.most[one.fullest] for one in held]
    logits = np.array([one.logits[one.fullest] for one in held])
    collected = np.array([one.collected[one.fullest] for one in held])
    states = model_states(plan) | {
        "activations": np.array(peak) - logits - collected,
        "logits": logits,
        "buffers": buffers(plan) + gradient_scratch(plan),
    }
    states["gradients"] = states["gradients"] + collected
    fragments = constants["fragmentation"] * (np.array(peak) - collected)
    states["overhead"] = constants["context"] + fragments
    return Memory(
        components=states,
        capacities=np.array(
            [plan.cluster_of(rank).accelerator.memory_bytes for rank in range(plan.mesh.pp)]
        ),
        when=tuple(_moment(plan, rank, one.fullest) for rank, one in enumerate(held)),
    )


def joined_memory(parts: Sequence[Memory]) -> Memory:
    """The memory of several classes of replicas, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Memory(
        components={
            name: np.concatenate([one.components[name] for one in parts]) for name in COMPONENTS
        },
        capacities=np.concatenate([one.capacities for one in parts]),
        when=tuple(itertools.chain(*(one.when for one in parts))),
    )


_NAMES = {
    Action.F: "forward",
    Action.B: "backward",
    Action.I: "input gradient",
    Action.W: "weight gradient",
}


def _moment(plan: Plan, rank: int, action: int) -> str:
    row = int(plan.orders.rank_ptr[rank]) + action
    name = _NAMES[Action(int(plan.orders.kind[row]))]
    return f"{name} of microbatch {int(plan.orders.microbatch[row])}"


def memory_constants() -> Mapping[str, float]:
    """``context``: what the driver and libraries take [B]; ``fragmentation``: share of activations lost between them."""
    data = dict(load_catalog("mpsim.result.data"))["memory"]
    return {name: float(entry["value"]) for name, entry in data["constants"].items()}
