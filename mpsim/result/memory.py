"""Memory: what the fullest moment of each rank holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpsim.document import load_catalog
from mpsim.parallel import Sharding, Stage
from mpsim.program.blocks import Blocks
from mpsim.program.plan import Plan
from mpsim.schedule import Action
from mpsim.workload import Expansion, OperatorKind

__all__ = ["COMPONENTS", "Memory", "account_memory"]

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
    """Bytes of every pipeline rank at its fullest moment.

    Parameters
    ----------
    components : mapping of str to float64[P]
        By `COMPONENTS` [B].
    capacity : float
        Of one accelerator [B].
    """

    components: Mapping[str, NDArray[np.float64]]
    capacity: float

    @property
    def total(self) -> NDArray[np.float64]:
        """All components of each rank [B]."""
        total: NDArray[np.float64] = np.sum([self.components[name] for name in COMPONENTS], axis=0)
        return total

    @property
    def fullest(self) -> int:
        """The pipeline rank that needs most."""
        return int(np.argmax(self.total))

    @property
    def fits(self) -> bool:
        """Whether every rank's total is within capacity."""
        return bool(self.total.max() <= self.capacity)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes one microbatch keeps on a stage: until the input gradient, until the weight gradient, as logits."""

    for_input: float
    for_weight: float
    logits: float
    working: float  # of one layer, while it is recomputed


def account_memory(plan: Plan) -> Memory:
    """Add up model states, activations in flight, buffers and overhead of every pipeline rank.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    Memory

    Notes
    -----
    Activations follow the action order: a forward adds what its stage keeps, an input gradient frees what only it needed, a
    weight gradient (or full backward) the rest. The peak is exact for the order; the bytes are those of the operator list.
    """
    constants = _constants()
    kept = _kept_by_stage(plan)
    peaks = [_peak(plan, rank, kept) for rank in range(plan.mesh.pp)]
    activations = np.array([one[0] for one in peaks])
    owned = plan.rank_parameters
    software = plan.framework
    replicas = plan.replicas if plan.zero else 1
    states = {
        "parameters": owned * software.optimizer.parameter_bytes,
        "gradients": owned * software.optimizer.gradient_bytes,
        "optimizer": owned * software.optimizer.optimizer_bytes / replicas,
        "activations": activations,
        "logits": np.array([one[1] for one in peaks]),
        "buffers": np.full(plan.mesh.pp, _buffers(plan)),
    }
    fragments = constants["fragmentation"] * np.sum(
        [states["activations"], states["logits"]], axis=0
    )
    states["overhead"] = constants["context"] + fragments
    return Memory(components=states, capacity=plan.cluster.accelerator.memory_bytes)


def _constants() -> Mapping[str, float]:
    data = dict(load_catalog("mpsim.result.data"))["memory"]
    return {name: float(entry["value"]) for name, entry in data["constants"].items()}


def _buffers(plan: Plan) -> float:
    """Receive and send buffers of both directions, and one gradient bucket where it is reduced in buckets."""
    message = plan.sharding.tokens * plan.model.hidden * plan.sharding.activation_bytes
    messages = (
        4 * message / (plan.mesh.tp if plan.sequence_parallel else 1) if plan.mesh.pp > 1 else 0.0
    )
    overlapped = plan.framework.overlaps_gradients(plan.mesh.pp) and plan.replicas > 1
    return messages + (plan.framework.data.bucket_bytes if overlapped else 0.0)


def _kept_by_stage(plan: Plan) -> list[_Kept]:
    parts = Blocks.expand(plan)
    kinds = {kind: _layer(parts[kind], plan) for kind in plan.model.layer_kinds}
    embedding = _all(parts["embedding"], plan.sharding)
    head = _all(parts["head"], plan.sharding)
    return [
        _stage(stage, [kinds[kind] for kind in plan.layer_kinds(stage)], embedding, head)
        for stage in plan.stages
    ]


def _stage(stage: Stage, layers: list[_Kept], embedding: _Kept, head: _Kept) -> _Kept:
    ends = [one for one, here in ((embedding, stage.embedding), (head, stage.head)) if here]
    return _Kept(
        for_input=sum(one.for_input for one in (*layers, *ends)),
        for_weight=sum(one.for_weight for one in (*layers, *ends)),
        logits=sum(one.logits for one in ends),
        working=max((one.working for one in layers), default=0.0),
    )


def _layer(expansion: Expansion, plan: Plan) -> _Kept:
    if plan.recompute == "full":
        whole = _all(expansion, plan.sharding)
        kept = expansion.input_bytes / plan.sharding.divisor(expansion.input_split)
        return _Kept(0.0, kept, 0.0, whole.for_input + whole.for_weight - kept)
    return _all(expansion, plan.sharding, selective=plan.recompute == "selective")


def _all(expansion: Expansion, sharding: Sharding, *, selective: bool = False) -> _Kept:
    for_input = for_weight = logits = core = 0.0
    for one in expansion.forward:
        share = sharding.divisor(one.saved_split)
        if one.kind is OperatorKind.LOSS:
            logits += (one.saved + one.saved_for_weight) / share
        elif selective and one.recomputed_selectively:
            core += (one.saved + one.saved_for_weight) / share
        else:
            for_input += one.saved / share
            for_weight += one.saved_for_weight / share
    return _Kept(for_input, for_weight, logits, core)


def _peak(plan: Plan, rank: int, kept: list[_Kept]) -> tuple[float, float]:
    """Activations and logits of one rank at the moment in its order when both together are most [B]."""
    orders = plan.orders
    rows = slice(int(orders.rank_ptr[rank]), int(orders.rank_ptr[rank + 1]))
    kind, stage = orders.kind[rows], orders.stage[rows]
    table = np.array([(one.for_input, one.for_weight, one.logits) for one in kept])
    sign = {
        Action.F: (1, 1, 1),
        Action.B: (-1, -1, -1),
        Action.I: (-1, 0, -1),
        Action.W: (0, -1, 0),
    }
    signs = np.array([sign[action] for action in Action], dtype=float)
    held = np.cumsum(table[stage] * signs[kind], axis=0)
    at = int(np.argmax(held.sum(axis=1)))
    working = max((kept[one].working for one in np.unique(stage)), default=0.0)
    return float(held[at, :2].sum()) + working, float(held[at, 2])
