"""Memory: what the fullest moment of each rank holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.memo import remembered
from mpsim.parallel import AXIS_NAMES
from mpsim.result.memory import Memory, join_memory
from mpsim.schedule import Action
from mpsim.shipped import load_catalog
from mpsim.table import plural
from mpsim.training.memory.activations import held_by_rank, kept_by_piece
from mpsim.training.memory.fresh import fresh_gradients
from mpsim.training.memory.states import buffers, gradient_scratch, model_states
from mpsim.training.plan import Plan
from mpsim.units import Dimension, format_quantity

_PLANS = 64  # whose memory stays known, for points of a sweep
_SHOWN = 0.01  # of the total: smaller components are not told


def account_memory(plan: Plan) -> Memory:
    """Add up states, activations in flight, buffers and overhead of pipeline ranks by class.

    Notes
    -----
    Activations follow the action order: a forward adds what its stage keeps, an input gradient
    frees what only it needed, a weight gradient (or full backward) the rest; while a layer is
    differentiated, what is recomputed of it and the gradients of its largest product are alive too.
    The peak is exact for the order; the bytes are those of the operator list.
    """
    if plan.classes:
        return join_memory([account_memory(part) for part in plan.parts])
    # links carry nothing here: steps that differ in their rates are accounted once
    layout = structs.replace(plan.layout, cluster=plan.layout.cluster.at_any_rate)
    return _accounted(structs.replace(plan, name="", layout=layout))


@remembered(_PLANS)
def _accounted(plan: Plan) -> Memory:
    held = held_by_rank(plan)
    peak, logits, collected, passing, *others = np.array([rank.at_fullest for rank in held]).T
    states = model_states(plan)
    reserved, needed = overhead(plan, peak, collected + passing, np.stack(others))
    states |= {
        "gradients": states["gradients"] - fresh_gradients(plan).total + collected,
        "activations": peak - logits - collected - passing,
        "logits": logits,
        "buffers": buffers(plan) + gradient_scratch(plan) + passing,
        "overhead": reserved,
    }
    return Memory(
        components=states,
        capacities=np.array([each.accelerator.memory_bytes for each in plan.class_clusters]),
        needed=np.sum([*states.values()], axis=0) - reserved + needed,
        when=tuple(_moment(plan, rank, held_rank.fullest) for rank, held_rank in enumerate(held)),
    )


def at_the_peak(plan: Plan, memory: Memory) -> list[str]:
    """Say what lies on the fullest rank at its fullest moment: each component with its bytes, the
    largest first, and what layers keep of a microbatch.
    """
    rank = memory.fullest
    part, number = plan.parts[rank // plan.layout.mesh.pp], rank % plan.layout.mesh.pp
    sizes = {name: float(sizes[rank]) for name, sizes in memory.components.items()}
    shown = [name for name in sizes if sizes[name] >= _SHOWN * float(memory.total[rank])]
    shown.sort(key=lambda name: -sizes[name])
    words = [f"{name} {format_quantity(sizes[name], Dimension.BYTES)}" for name in shown]
    by_stage, stages = kept_by_piece(part), part.layout.rank_stages(number)
    kept_of = [piece for stage in stages for piece in by_stage[stage.index]]
    pieces = [(name, kept.for_input + kept.for_weight) for name, kept in kept_of]
    alike = [[*run] for _, run in itertools.groupby(pieces, key=lambda piece: round(piece[1]))]
    held = held_by_rank(part)[number]
    # logits are held from the forward to the backward too, but are a component of their own
    kept = max(sum(size for _, size in pieces) + sum(each.logits for _, each in kept_of), 1.0)
    count = round(max(held.before[held.fullest], held.after[held.fullest]) / kept)
    each = ", ".join(
        f"{_named([name for name, _ in run])} {format_quantity(run[0][1], Dimension.BYTES)}"
        for run in alike
        if run[0][1] > 0
    )
    if not count:  # the optimizer's step
        return words
    return [*words, f"kept of each of {plural(count, 'microbatch', 'microbatches')}: {each}"]


def _named(names: Sequence[str]) -> str:
    """A part of the model, or several that keep as much."""
    return names[0] if len(names) == 1 else f"{len(names)} of {names[0]} to {names[-1]} each"


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


def overhead(plan: Plan, peaks: Floats, apart: Floats, others: Floats) -> Floats:
    """Memory outside the allocator, and what that loses between tensors that come and go [B].

    `plan`: whose software loses some. `peaks` and `apart` (float64[..., P]): most of each rank
    beside what stands all the time, and the part of it that is no activation: gradients of one
    microbatch, units [B]. `others` (float64[2, ..., P]): `Held.elsewhere` and `Held.stays` [B].
    Returns as many: what is reserved, and what of it is needed.
    """
    outside = outside_allocator(plan)
    if plan.layout.framework.memory.places_buffers:
        return np.full_like(others, outside)
    constants = memory_constants()
    lost: Floats = constants["fragmentation"] * (peaks - apart)
    return outside + lost + constants["reshaped"] * others


def outside_allocator(plan: Plan) -> float:
    """Context of the driver and buffers of communicators [B]: one for each axis of several ranks,
    one of those that divide the model (norm of gradients), and one of all where there are several.
    """
    constants, mesh = memory_constants(), plan.layout.mesh
    if plan.layout.framework.memory.places_buffers:
        return constants["context"]
    groups = sum(mesh.degree(axis) > 1 for axis in AXIS_NAMES) + (mesh.tp * mesh.pp > 1)
    return constants["context"] + constants["communicator"] * (groups + (groups > 1))


def memory_constants() -> Mapping[str, float]:
    """``context``, ``communicator``: what the driver and one communicator take [B];
    ``fragmentation``, ``reshaped``: shares that `overhead` takes.
    """
    data = dict(load_catalog("mpsim.training.data"))["memory"]
    return {name: float(entry["value"]) for name, entry in data["constants"].items()}
