"""List scheduling: every rank, whenever free, picks what its policy ranks first.

A rank picks among the next forward of each of its chunks, the next input gradient of each, and its
oldest weight gradient. It takes a forward only where memory has room for it and, afterwards, for
the chunks that the microbatches in flight have yet to pass on the rank, one after the other, so
that the oldest can always go on.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from mpsim import structs
from mpsim.schedule.orders import Action
from mpsim.schedule.search.evaluate import Room, Setting
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
