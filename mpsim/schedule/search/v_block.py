"""V-Half and V-Min: a repeated block of six slots on a V, shifted from rank to rank, then squeezed.

Shapes: P ranks, four kinds of slot: forward of chunk a (stage r), forward of chunk b (stage 2p - 1
- r), input gradient of b, input gradient of a. Each rank repeats its four slots every six; the two
slots between take the weight gradients. The offsets from rank to rank decide how long an activation
lives, and so how many are held: about half of what 1F1B holds for V-Half and a third for V-Min.
What a rank holds is a whole number of chunks, so V-Min may have room to spare; its input gradients
are then put off further than the authors do, which lets more forwards run before the first of them.

The repeated blocks leave gaps at both ends of the step. They are closed by moving actions to
earlier free slots, in the order of their slots and as long as no rank holds more than the fullest
did: once with the weight gradients in their slots, then once more with weight gradients in whatever
slots are free. One slot is one unit, so the order does not depend on measured times.

References
----------
Qi et al., Pipeline Parallelism with Controllable Memory, 2024, section 3 (building blocks).
sail-sg/zero-bubble-pipeline-parallelism, megatron/core/pipeline_parallel/zerobubble/scheduler/
zbv_greedy.py, commit 39f2c186 (offsets and squeezing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import Schedule, check_counts
from mpsim.schedule.search.evaluate import Setting, evaluate_orders
from mpsim.schedule.stages import v_map
from mpsim.schedule.tape import Step, from_steps

_PERIOD = 6
_FA, _FB, _IB, _IA, _W = range(5)
_FREE = -1

Block = list[list[int]]  # first slot of the four kinds, by rank

Slots = list[list[list[int]]]  # slot of each (rank, kind, microbatch)


def v_half(*, pp: int, microbatches: int, virtual_stages: int = 2) -> Orders:
    """Orders of V-Half, which holds about half of the activations of 1F1B. `virtual_stages`: 2.

    Examples
    --------
    >>> v_half(pp=2, microbatches=4).peak_inflight()
    [4, 4]
    """
    p = pp
    gap = 3 if p % 2 == 0 else 0  # else two kinds fall on one slot of the period
    block = [[2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2] for r in range(p)]
    return _orders("v-half", block, pp, microbatches, virtual_stages)


def v_min(
    *, pp: int, microbatches: int, virtual_stages: int = 2, delay: int | None = None
) -> Orders:
    """Orders of V-Min, which holds about a third of the activations of 1F1B.

    `pp`, `microbatches` and `virtual_stages`: as of `v_half`. `delay`: slots by which input
    gradients come later than in the authors' block, 0 to 5; left out, as many as make the step
    shortest without holding more. 0 gives the authors' orders.

    Examples
    --------
    >>> v_min(pp=4, microbatches=8).peak_inflight()
    [4, 4, 4, 4]
    """
    check_counts("v-min", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    if delay is not None:
        block = _min_block(pp, delay)
        if not _is_free(block):
            raise ScheduleError(
                f"v-min: got delay = {delay} with pp = {pp}; needed 0 to {_PERIOD - 1} slots that"
                " leave every kind a slot of its own; set delay to 0, or leave it out"
            )
        return _orders("v-min", block, pp, microbatches, virtual_stages)
    # The rounding up of what a rank holds can leave room that the authors' block does not use: a
    # later input gradient uses it.
    blocks = [_min_block(pp, delay) for delay in range(_PERIOD)]
    orders = [
        _orders("v-min", block, pp, microbatches, virtual_stages)
        for block in blocks
        if _is_free(block)
    ]
    room = max(orders[0].peak_inflight())
    setting = Setting.of(
        orders[0].stage_rank, microbatches=microbatches, forward=1, backward=1, weight=1
    )
    return min(
        (order for order in orders if max(order.peak_inflight()) <= room),
        key=lambda order: evaluate_orders(setting, order).makespan,
    )


def _min_block(p: int, delay: int) -> Block:
    gap = (
        2 if p % 3 == 0 else 0
    ) + delay  # without the 2, two kinds fall on one slot of the period
    return [[r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1] for r in range(p)]


def _is_free(block: Block) -> bool:
    """Whether the four kinds of every rank have slots of their own in the period."""
    return all(len({slot % _PERIOD for slot in rank}) == len(rank) for rank in block)


def _orders(schedule: str, block: Block, pp: int, microbatches: int, virtual_stages: int) -> Orders:
    check_counts(schedule, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    stage_rank = v_map(pp, virtual_stages)
    span = _PERIOD * microbatches
    slots = [[list(range(start, start + span, _PERIOD)) for start in rank] for rank in block]
    slots = _tightened(_moved(_with_weights(slots)))
    slots = _tightened(_with_weights(_moved([rank[:_W] for rank in slots])))
    steps = [_order(rank[:_W], r, pp) for r, rank in enumerate(slots)]
    return from_steps(schedule, steps, microbatches=microbatches, stage_rank=stage_rank)


def _grid(rank: Sequence[Sequence[int]]) -> list[int]:
    """Kind in each slot of a rank."""
    grid = [_FREE] * (max(slots[-1] for slots in rank) + 1)
    for kind, slots in enumerate(rank):
        for slot in slots:
            grid[slot] = kind
    return grid


def _with_weights(slots: Slots) -> Slots:
    """Add the weight gradients, in the free slots after their input gradients."""
    return [[*rank, _weight_slots(rank)] for rank in slots]


def _weight_slots(rank: list[list[int]]) -> list[int]:
    grid, chosen, waiting = _grid(rank), [], 0
    for slot, kind in enumerate(grid):
        if kind in (_IB, _IA):
            waiting += 1
        elif kind == _FREE and waiting:
            chosen.append(slot)
            waiting -= 1
    return chosen + list(range(len(grid), len(grid) + waiting))


def _held(grid: Iterable[int], *, weights: bool) -> int:
    """Most activations held at once; without `weights`, W runs in every free slot it can."""
    held = waiting = most = 0
    for kind in grid:
        if kind in (_FA, _FB):
            held += 1
            most = max(most, held)
        elif kind in (_IB, _IA):
            waiting += 1
        elif kind == _W:
            held -= 1
        elif not weights and waiting:
            held, waiting = held - 1, waiting - 1
    return most


def _needs(slots: Slots, rank: int, kind: int, microbatch: int) -> list[int]:
    """Slots of the actions that must end before one starts, besides those in its way."""
    needs = []
    if kind in (_FA, _IB) and rank > 0:
        needs.append(slots[rank - 1][kind][microbatch])
    if kind in (_FB, _IA) and rank + 1 < len(slots):
        needs.append(slots[rank + 1][kind][microbatch])
    if _FA < kind < _W:
        needs.append(slots[rank][kind - 1][microbatch])
    if microbatch:
        needs.append(slots[rank][kind][microbatch - 1])
    return needs


def _by_slot(slots: Slots) -> list[tuple[int, int, int, int]]:
    """All actions as (slot, rank, kind, microbatch), in that order."""
    return sorted(
        (slot, rank, kind, microbatch)
        for rank, kinds in enumerate(slots)
        for kind, kind_slots in enumerate(kinds)
        for microbatch, slot in enumerate(kind_slots)
    )


def _moved(slots: Slots) -> Slots:
    """Move actions to earlier free slots where no rank comes to hold more than the fullest did.

    With weight gradients in their slots both ends of the step are tightened; without, only its end.
    The middle, from the first input gradient of stage 0 to its last forward, stays.
    """
    weights = len(slots[0]) > _W
    grids = [_grid(rank) for rank in slots]
    limit = max(_held(grid, weights=weights) for grid in grids)
    last = len(slots[0][_FA]) - 1
    movable, middle = weights, False
    for slot, rank, kind, microbatch in _by_slot(slots):
        if not middle and (rank, kind, microbatch) == (0, _IA, 0):
            movable, middle = False, True
        if movable:
            earliest = _earliest(slots, rank, kind, microbatch)
            slots[rank][kind][microbatch] = _move(grids[rank], kind, earliest, slot, limit, weights)
        if middle and (rank, kind, microbatch) == (0, _FA, last):
            movable = True
    return slots


def _earliest(slots: Slots, rank: int, kind: int, microbatch: int) -> int:
    needs = _needs(slots, rank, kind, microbatch)
    if kind == _W:
        needs.append(sorted(slots[rank][_IB] + slots[rank][_IA])[microbatch])
    return max(needs, default=-1) + 1


def _move(grid: list[int], kind: int, earliest: int, slot: int, limit: int, weights: bool) -> int:
    """Move the action in a slot to the earliest free one that keeps within the limit."""
    grid[slot] = _FREE
    for candidate in range(earliest, slot):
        if grid[candidate] == _FREE:
            grid[candidate] = kind
            if _held(grid, weights=weights) <= limit:
                return candidate
            grid[candidate] = _FREE
    grid[slot] = kind
    return slot


def _tightened(slots: Slots) -> Slots:
    """Start every action as early as the order on its rank and its inputs allow."""
    free_at = [0] * len(slots)
    start: Slots = [[[0] * len(kind) for kind in rank] for rank in slots]
    for _, rank, kind, microbatch in _by_slot(slots):
        needs = _needs(start, rank, kind, microbatch)
        start[rank][kind][microbatch] = max([free_at[rank], *(slot + 1 for slot in needs)])
        free_at[rank] = start[rank][kind][microbatch] + 1
    return start


def _order(rank: list[list[int]], r: int, pp: int) -> list[Step]:
    """Order of one rank, weight gradients of chunk b before those of a where both could run."""
    first, second = r, 2 * pp - 1 - r
    place = {
        _FA: (Action.F, first),
        _FB: (Action.F, second),
        _IB: (Action.I, second),
        _IA: (Action.I, first),
    }
    grid = _grid(rank)
    total = sum(len(slots) for slots in rank[_IB:])
    done = [0] * _W
    waiting = {_IB: 0, _IA: 0}
    weights = {_IB: 0, _IA: 0}
    steps: list[Step] = []
    for kind in [*grid, *[_FREE] * total]:
        if kind != _FREE:
            action, stage = place[kind]
            steps.append((int(action), stage, done[kind]))
            done[kind] += 1
            if kind in waiting:
                waiting[kind] += 1
            continue
        for gradient in (_IB, _IA):
            if waiting[gradient]:
                steps.append((int(Action.W), place[gradient][1], weights[gradient]))
                waiting[gradient] -= 1
                weights[gradient] += 1
                break
    return steps


V_HALF = Schedule("v-half", v_half, chunks=2, splits=True)
V_MIN = Schedule("v-min", v_min, chunks=2, splits=True)
