"""Local search: change an order where its critical path stays on one rank.

Nothing shortens a step but letting some action of its critical path start earlier. Where such an
action waits only for the one before it on its rank, the two (and more, if need be) can change
places: either the later one moves forward or the earlier one back. A change is kept when it
respects memory and the order of F, I and W of one microbatch, and does not make the step longer.
"""

from __future__ import annotations

import math
import random

from mpsim import structs
from mpsim.errors import DeadlockError
from mpsim.schedule.orders import Action
from mpsim.schedule.search.evaluate import Room, Run, Setting, evaluate, peak_held
from mpsim.schedule.tape import Step

_F, _I = int(Action.F), int(Action.I)
_LONGEST_MOVE = 8  # places; longer ones come about in several moves


@structs.dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Orders and when they run."""

    steps: list[list[Step]]
    run: Run

    @property
    def cost(self) -> tuple[float, float]:
        """The makespan, and among equals the sum of the ends of all ranks: smaller is better."""
        # A move off one of several critical paths changes the sum alone: it is progress too.
        return self.run.makespan, math.fsum(ends[-1] for ends in self.run.end)


def improve(
    setting: Setting,
    room: Room,
    start: Candidate,
    *,
    bound: float,
    evaluations: int,
    rng: random.Random,
) -> tuple[Candidate, int]:
    """The best that local search finds from `start` on.

    `start`: where to start: B split into I and W, within `room`. `bound`: stop when the makespan is
    down to this. `evaluations`: most orders to evaluate. `rng`: says which change is tried next.

    Returns
    -------
    Candidate
        Never worse than `start`.
    int
        Evaluations spent.
    """
    best, spent = start, 0
    while spent < evaluations and best.run.makespan > bound:
        spent += 1  # a change that cannot be made counts too, so that this ends
        places = _critical(setting, best)
        if not places:
            break
        changed = _changed(room, best.steps, rng.choice(places), rng)
        if changed is None:
            continue
        try:
            other = Candidate(changed, evaluate(setting, changed))
        except DeadlockError:
            continue
        # Equals too: a walk on the plateau reaches what no single move does.
        if other.cost <= best.cost:
            best = other
    return best, spent


def _critical(setting: Setting, candidate: Candidate) -> list[tuple[int, int]]:
    """(rank, place) of a critical path's actions that wait for those before on their rank."""
    run, steps = candidate.run, candidate.steps
    rank = max(range(len(steps)), key=lambda r: run.end[r][-1])
    place = len(steps[rank]) - 1
    index = {step: (r, i) for r, order in enumerate(steps) for i, step in enumerate(order)}
    places = []
    while True:
        if place and run.start[rank][place] == run.end[rank][place - 1]:
            places.append((rank, place))
            place -= 1
            continue
        before = _producer(steps[rank][place], len(setting.stage_rank))
        if before is None:
            return places
        rank, place = index[before]


def _producer(step: Step, stages: int) -> Step | None:
    """The action whose output an action needs."""
    kind, stage, microbatch = step
    if kind == _F:
        return (_F, stage - 1, microbatch) if stage else None
    if kind == _I:
        return (_I, stage + 1, microbatch) if stage + 1 < stages else (_F, stage, microbatch)
    return (_I, stage, microbatch)


def _changed(
    room: Room, steps: list[list[Step]], at: tuple[int, int], rng: random.Random
) -> list[list[Step]] | None:
    """The orders with one action of a rank moved; None where that may not be."""
    rank, place = at
    order = list(steps[rank])
    reach = rng.randint(1, _LONGEST_MOVE)
    if rng.random() < 1 / 2:
        source, target = place, max(0, place - reach)  # the later one moves forward
    else:
        source, target = (
            place - 1,
            min(len(order) - 1, place - 1 + reach),
        )  # the earlier one moves back
    step = order.pop(source)
    passed = order[min(source, target) : max(source, target)]
    # F, I and W of one microbatch keep their order.
    if any(other[1:] == step[1:] for other in passed):
        return None
    order.insert(target, step)
    if not room.fits(rank, peak_held(room, order)):
        return None
    return [order if r == rank else same for r, same in enumerate(steps)]
