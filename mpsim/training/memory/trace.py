"""Allocations of one rank over a step: every tensor that the account of memory counts, in the order
in which it comes and goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsim import structs
from mpsim.engine.timeline import Timeline
from mpsim.program import TICK
from mpsim.result.memory import Memory
from mpsim.schedule import Action
from mpsim.training.memory.activations import Kept, held_by_rank, kept_by_piece
from mpsim.training.memory.allocator import Block, CachingAllocator
from mpsim.training.memory.curve import action_times
from mpsim.training.memory.fresh import Fresh, fresh_gradients
from mpsim.training.memory.states import step_scratch
from mpsim.training.plan import Plan

_STANDING = ("parameters", "gradients", "optimizer")
_MICROSECONDS = 1e6


class Change(NamedTuple):
    """An allocation (`size` above 0) or the end of one of its name (0): bytes and time [us]."""

    time_us: float
    name: str
    size: int


@structs.dataclass(frozen=True, slots=True)
class Played:
    """A trace that an allocator has gone through."""

    allocator: CachingAllocator  # as it is at the end of the step
    # every change with the address and size of its block, and what the allocator reserved for it
    changes: tuple[tuple[Change, int, int, int], ...]
    allocated: int  # allocated, reserved: highest of either [B]
    reserved: int
    moment: str  # whose allocation made most


def allocation_trace(timeline: Timeline, plan: Plan, memory: Memory, rank: int) -> list[Change]:
    """List what a rank class allocates and frees in a step. `rank`: rank class: the pipeline rank,
    where replicas are alike.

    Notes
    -----
    Model states and buffers come first and stay. A forward adds what each layer keeps; a backward
    goes through layers in reverse, each with what it has besides, and its gradients, if the step's
    first. The sum of sizes is at most the total of `memory` less its overhead.
    """
    part = plan.parts[rank // plan.layout.mesh.pp]
    number = rank % plan.layout.mesh.pp
    orders, pieces, fresh = part.orders, kept_by_piece(part), fresh_gradients(part)
    rows = range(int(orders.rank_ptr[number]), int(orders.rank_ptr[number + 1]))
    fused = orders.fused & part.fuses_blocks
    start, end = action_times(timeline, rank)
    states = _states(part, memory, rank, number)
    made = {name: size for name, size in states.items() if name.endswith(" gradients")}
    made = made if fresh.total else {}
    changes = [Change(0.0, name, size) for name, size in states.items() if name not in made]
    for at, row in enumerate(rows):
        # halves of a block go through their layers in turns, a backward before a forward
        first, last = at - bool(at and fused[row - 1]), at + bool(fused[row])
        action, stage = Action(int(orders.kind[row])), int(orders.stage[row])
        steps = [*_action(action, int(orders.microbatch[row]), pieces[stage], fresh, made)]
        each = (end[last] - start[first]) / max(len(steps), 1)
        later = last > first and action is Action.F
        changes += [
            Change((start[first] + place * each) * TICK * _MICROSECONDS, *step)
            for place, step in enumerate(steps, start=int(later))
        ]
    changes.sort(key=lambda change: change.time_us)
    over = float(end[-1]) * TICK * _MICROSECONDS
    if lists := round(float(step_scratch(part)[number])):
        changes += [Change(over, "optimizer step", lists), Change(over, "optimizer step", 0)]
    return [*changes, *(Change(over, name, 0) for name in made)]


def _states(plan: Plan, memory: Memory, rank: int, number: int) -> dict[str, int]:
    """Model states by layer, and buffers, by name [B]."""
    held = held_by_rank(plan)[number]
    layout, parts = plan.layout, dict[str, float]()
    for stage in layout.rank_stages(number):
        counts = layout.stage_parameters(stage)
        ends = [part for part in ("embedding", "head") if part in counts]
        parts |= {part: layout.held(counts[part]) for part in ends}
        for layer, kind in enumerate(layout.layer_kinds(stage), start=stage.first_layer):
            parts[f"layers.{layer}"] = layout.held(layout.layer_parameters[kind])
    whole = sum(parts.values())
    fresh = fresh_gradients(plan).total
    sizes = {name: float(memory.components[name][rank]) for name in _STANDING}
    sizes["gradients"] += fresh - float(held.collected[held.fullest])
    shares = itertools.product(sizes.items(), parts.items())
    states = {f"{part} {name}": size * count / whole for (name, size), (part, count) in shares}
    states["buffers"] = float(memory.components["buffers"][rank] - held.passing[held.fullest])
    return {name: round(size) for name, size in states.items() if round(size) > 0}


def _action(
    action: Action,
    microbatch: int,
    pieces: Sequence[tuple[str, Kept]],
    fresh: Fresh,
    made: Mapping[str, int],
) -> Iterator[tuple[str, int]]:
    """Allocations and ends of one action, by name and size; `made` are gradients that it makes."""
    units = fresh.gathered
    for part, kept in pieces if action is Action.F else reversed(pieces):
        sizes = {} if action is Action.W else {"activations": kept.for_input, "logits": kept.logits}
        sizes |= {} if action is Action.I else {"weight inputs": kept.for_weight}
        own = {f"{part} {kind} of microbatch {microbatch}": round(sizes[kind]) for kind in sizes}
        if action is Action.F:
            yield from ((name, size) for name, size in own.items() if size)
            continue
        layer = part.startswith("layers.")
        beside = round(max(kept.in_layers, kept.in_head) + (units if layer else 0.0))
        units = fresh.passing if layer else units
        if action is not Action.W and beside:
            yield f"{part} backward of microbatch {microbatch}", beside
            yield f"{part} backward of microbatch {microbatch}", 0
        yield from ((name, 0) for name, size in own.items() if size)
        if size := made.get(f"{part} gradients"):
            yield f"{part} gradients", size


def play(changes: Sequence[Change], *, expandable: bool = False) -> Played:
    """Give a trace to torch's caching allocator."""
    allocator, alive = CachingAllocator(expandable=expandable), dict[str, Block]()
    played, most, moment = [], 0, ""
    for change in changes:
        reserved = allocator.reserved
        if change.size:
            alive[change.name] = allocator.allocate(change.size, name=change.name)
        block = alive[change.name]
        played.append((change, block.address, block.size, allocator.reserved - reserved))
        if not change.size:
            allocator.free(alive.pop(change.name))
        if allocator.allocated > most:
            most, moment = allocator.allocated, change.name
    return Played(allocator, tuple(played), most, allocator.reserved, moment)
