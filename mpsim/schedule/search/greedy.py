"""List scheduling, where every rank, whenever free, picks what its policy ranks first, and local
search from what comes of it.

A rank picks among the next forward of each of its chunks, the next input gradient of each, and its
oldest weight gradient. It takes a forward only where memory has room for it and, afterwards, for
the chunks that the microbatches in flight have yet to pass on the rank, one after the other, so
that the oldest can always go on.

Nothing shortens a step but letting some action of its critical
path start earlier. Where such an action waits only for the one before it on its rank, the two (and
more, if need be) can change places: either the later one moves forward or the earlier one back. A
change is kept when it respects memory and the order of F, I and W of one microbatch, and does not
make the step longer.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

from mpsim import structs
from mpsim.errors import DeadlockError
from mpsim.schedule.orders import Action
from mpsim.schedule.search.evaluate import Room, Run, Setting, evaluate, peak_held
from mpsim.schedule.tape import Step

_F, _I, _W = int(Action.F), int(Action.I), int(Action.W)


@structs.dataclass(frozen=True, slots=True)
class Policy:
    """How a free rank picks."""

    # by rank: microbatches that may be in flight, counted until I of the rank's first stage
    ahead: tuple[int, ...]
    # a rank stays idle for a message on its way rather than start an action that would delay it by
    # more than this part of that action's time; 1 never waits
    patience: float = 0.0
    # of a forward and an input gradient that could both start, take the forward
    forwards_first: bool = False
    weights_first: bool = False  # run a weight gradient before a forward
    deep_first: bool = True  # of forwards of several chunks, prefer the later chunk


def build_greedily(setting: Setting, room: Room, policy: Policy) -> list[list[Step]] | None:
    """Orders of all ranks, B split into I and W; None if one is stuck. `setting`: one chain."""
    return _Greedy(setting, room, policy).run()


class _Greedy:
    """One build: a clock of events, at each of which a rank decides what to start."""

    def __init__(self, setting: Setting, room: Room, policy: Policy) -> None:
        self.setting, self.room, self.policy = setting, room, policy
        stages, pp = len(setting.stage_rank), setting.pp
        self.m, self.stages = setting.microbatches, stages
        self.owned: list[list[int]] = [[] for _ in range(pp)]
        for stage, rank in enumerate(setting.stage_rank):
            self.owned[rank].append(stage)
        self.order: list[list[Step]] = [[] for _ in range(pp)]
        self.free, self.held = [0.0] * pp, [0.0] * pp
        self.size = [a + b for a, b in zip(room.until_input, room.until_weight, strict=True)]
        self.weights: list[deque[tuple[int, int]]] = [deque() for _ in range(pp)]
        self.done = [[0] * stages, [0] * stages]  # forwards and input gradients of each stage
        # when inputs of forwards and input gradients are there, by stage and microbatch
        self.inbox: list[list[list[float]]] = [[[] for _ in range(stages)] for _ in range(2)]
        self.inbox[0][0] = [0.0] * self.m
        self.events = [(0.0, rank) for rank in range(pp)]

    def run(self) -> list[list[Step]] | None:
        while self.events:
            time, rank = heapq.heappop(self.events)
            if time >= self.free[rank]:
                self.decide(rank, time)
        whole = 3 * self.m * self.stages
        return self.order if sum(map(len, self.order)) == whole else None

    def decide(self, rank: int, time: float) -> None:
        """Start the action that the policy ranks first, or sleep until something arrives."""
        options, coming = self.options(rank, time)
        step = min(options)[1] if options else None
        if step is None:
            return
        kind, stage, _ = step
        duration = self.setting.duration[kind][stage]
        delay = time + duration - coming
        if coming > time and delay > self.policy.patience * duration and not self.must(rank, kind):
            return  # the arrival of what is awaited is an event of its own
        self.start(rank, time, step)

    def must(self, rank: int, kind: int) -> bool:
        """Whether waiting for a message would not do, because the rank first needs room for it."""
        return kind == _W and not self.admits_any(rank)

    def options(self, rank: int, time: float) -> tuple[list[tuple[tuple[int, int], Step]], float]:
        """Actions that could start now, by place in the policy, and the next gradient's time."""
        policy = self.policy
        ready: list[tuple[tuple[int, int], Step]] = []
        coming = math.inf
        for stage in self.owned[rank]:
            backward = self.done[1][stage]
            if backward < self.done[0][stage] and backward < len(self.inbox[1][stage]):
                arrival = self.inbox[1][stage][backward]
                if arrival <= time:
                    ready.append(((1, stage), (_I, stage, backward)))
                else:
                    coming = min(coming, arrival)
            forward = self.done[0][stage]
            if forward < len(self.inbox[0][stage]) and self.admits(rank, stage, forward):
                arrival = self.inbox[0][stage][forward]
                if arrival <= time:
                    chunk = -stage if policy.deep_first else stage
                    first = 0 if policy.forwards_first else 3
                    ready.append(((first, chunk), (_F, stage, forward)))
        if self.weights[rank]:
            stage, microbatch = self.weights[rank][0]
            ready.append(((2 if policy.weights_first else 4, 0), (_W, stage, microbatch)))
        return ready, coming

    def admits_any(self, rank: int) -> bool:
        return any(
            self.done[0][stage] < self.m and self.admits(rank, stage, self.done[0][stage])
            for stage in self.owned[rank]
        )

    def admits(self, rank: int, stage: int, microbatch: int) -> bool:
        """Whether the next forward of a stage is within the policy and fits."""
        first = self.owned[rank][0]
        oldest = self.done[1][first]
        if stage == first and microbatch - oldest >= self.policy.ahead[rank]:
            return False
        if not self.room.fits(rank, self.held[rank] + self.size[stage]):
            return False
        return len(self.owned[rank]) == 1 or self.safe(rank, stage, microbatch)

    def safe(self, rank: int, stage: int, microbatch: int) -> bool:
        """Whether after this forward all in flight, the oldest first, could still pass all chunks.

        The banker's algorithm: each takes what its remaining chunks need, and gives back all.
        """
        owned, (forwards, gradients) = self.owned[rank], self.done
        held, needed = [], []
        for number in range(gradients[owned[0]], max(forwards[owned[0]], microbatch + 1)):
            passed = [
                s for s in owned if forwards[s] > number or (s, number) == (stage, microbatch)
            ]
            held.append(sum(self.size[s] for s in passed if gradients[s] <= number))
            needed.append(sum(self.size[s] for s in owned if s not in passed))
        taken = math.fsum(held)
        for given_back, missing in zip(held, needed, strict=True):
            if not self.room.fits(rank, taken + missing):
                return False
            taken -= given_back
        return True

    def start(self, rank: int, time: float, step: Step) -> None:
        kind, stage, microbatch = step
        end = time + self.setting.duration[kind][stage]
        self.free[rank] = end
        self.held[rank] += self.room.change(kind, stage)
        self.order[rank].append(step)
        if kind == _W:
            self.weights[rank].popleft()
        else:
            self.done[int(kind == _I)][stage] += 1
            self.pass_on(rank, kind, stage, end)
        if kind == _I:
            self.weights[rank].append((stage, microbatch))
        heapq.heappush(self.events, (end, rank))

    def pass_on(self, rank: int, kind: int, stage: int, end: float) -> None:
        """Put the output where it is needed and wake that rank when it arrives."""
        if kind == _F and stage + 1 == self.stages:
            direction, target = 1, stage
        else:
            direction = int(kind == _I)
            target = stage - 1 if direction else stage + 1
        if target < 0:
            return
        inbox = self.inbox[direction][target]
        arrival = end
        if self.setting.stage_rank[target] != rank:
            arrival = max(end, inbox[-1] if inbox else 0.0) + self.setting.send[direction][stage]
        inbox.append(arrival)
        heapq.heappush(self.events, (arrival, self.setting.stage_rank[target]))


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
