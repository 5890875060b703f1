"""ZB-V by search: zero-bubble orders on a V of two chunks, greedy on times, within a memory.

Chunk a of rank r is stage r, on the way down; chunk b is stage 2p - 1 - r, up. A build's parts:

1. warm-up: forwards of a and b until every rank has run its first forward of b, and no later rank
   has run fewer forwards than the one before it;
2. rounds of one input gradient and one forward a rank, of the chunk whose input is there; a W goes
   where there is no room, where it fits in front of the message that is waited for, or where
   waiting would make this rank the idlest;
3. the weight gradients that are left, first in, first out.

A build is repeated with the idle time that its predecessor reached on each rank, as long as that
shortens the longest idle time. Two switches say whether a W may be run before a forward, and before
an input gradient on the way down, that it delays; the best of the four settings is kept.

References
----------
Qi et al., Pipeline Parallelism with Controllable Memory, 2024 (ZB-V).
sail-sg/zero-bubble-pipeline-parallelism,
megatron/core/pipeline_parallel/zerobubble/scheduler/zbv.py, commit 39f2c186 (the rules).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import check_counts
from mpsim.schedule.search.times import UNTIL_WEIGHT, Memory, check_times
from mpsim.schedule.stages import v_map
from mpsim.schedule.tape import Step, from_steps

_NAME = "zb-v-search"
_F, _I, _W = int(Action.F), int(Action.I), int(Action.W)
_PLACE = {_F: 0, _I: 1, _W: 2}
_FIRST, _SECOND = 0, 1  # which chunk of a rank the forward passes first


def zb_v_search(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 2,
    times: Sequence[float] = (1, 1, 1),
    send: float = 0,
    until_weight: float = UNTIL_WEIGHT,
    memory_limit: float | None = None,
) -> Orders:
    """Orders of ZB-V, searched for given times.

    `virtual_stages`: 2. `times`: of a forward, an input gradient and a weight gradient of one chunk
    [any one unit]. `send`: of a message between neighbouring ranks [same unit]. `until_weight`:
    part of an activation that is held until W, the rest until I, 0 to 1. `memory_limit`:
    activations of one chunk that fit on a rank, at least 2 pp, which is the default.

    Examples
    --------
    >>> zb_v_search(pp=1, microbatches=1).tokens()
    [['0F0', '1F0', '1I0', '0I0', '1W0', '0W0']]
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    stage_rank = v_map(pp, virtual_stages)
    forward, backward, weight, message = check_times(_NAME, times, send)
    needed = 2 * pp
    if memory_limit is not None and memory_limit < needed:
        raise ScheduleError(
            f"{_NAME}: got memory_limit = {memory_limit} activations; needed at least 2 pp ="
            f" {needed}; raise it, or use v-half or v-min, which hold less"
        )
    memory = Memory.of_count(memory_limit or needed, until_weight=until_weight)
    best: _Build | None = None
    for gradients, forwards in itertools.product((True, False), repeat=2):
        switches = (gradients, forwards)
        build = _refined((forward, backward, weight), message, memory, pp, microbatches, switches)
        if best is None or max(build.idle) < max(best.idle):
            best = build
    assert best is not None  # four builds were made
    return from_steps(_NAME, best.order, microbatches=microbatches, stage_rank=stage_rank)


def _refined(
    times: tuple[float, float, float],
    send: float,
    memory: Memory,
    pp: int,
    microbatches: int,
    switches: tuple[bool, bool],
) -> _Build:
    """Build again with the idle times of the build before, while the longest gets shorter."""
    best = _Build(times, send, memory, pp, microbatches, switches, [-1.0] * pp)
    while True:
        again = _Build(times, send, memory, pp, microbatches, switches, best.idle)
        if max(again.idle) >= max(best.idle):
            return best
        best = again


class _Build:
    """One build: clocks, stocks and orders of all ranks while the step grows."""

    def __init__(
        self,
        times: tuple[float, float, float],
        send: float,
        memory: Memory,
        pp: int,
        microbatches: int,
        switches: tuple[bool, bool],
        approved: list[float],
    ) -> None:
        self.times, self.send, self.memory = times, send, memory
        self.pp, self.m, self.approved = pp, microbatches, approved
        self.fill_gradients, self.fill_forwards = switches
        self.order: list[list[Step]] = [[] for _ in range(pp)]
        self.clock, self.idle, self.held = [0.0] * pp, [0.0] * pp, [0.0] * pp
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(pp)]
        self.ends: dict[tuple[int, int, int, int], float] = {}
        self.count = [[[0, 0] for _ in times] for _ in range(pp)]
        self.warm_up()
        for _ in range(2 * microbatches):
            self.put_gradients()
            self.put_forwards()
        for rank in range(pp):
            while self.waiting[rank]:
                self.put_weight(rank)

    def done(self, kind: int, rank: int, chunk: int) -> int:
        return self.count[rank][_PLACE[kind]][chunk]

    def source(self, kind: int, rank: int, chunk: int) -> tuple[int, int, int, int] | None:
        """The action on another rank whose output the next action of this chunk needs."""
        # Gradients pass the chunks in reverse: the second's go down the ranks, the first's up.
        other = rank - 1 if (kind == _F) == (chunk == _FIRST) else rank + 1
        if not 0 <= other < self.pp:
            return None
        return kind, other, chunk, self.done(kind, rank, chunk)

    def arrival(self, kind: int, rank: int, chunk: int) -> float | None:
        """When the input from another rank is there; None where there is none."""
        source = self.source(kind, rank, chunk)
        return None if source is None else self.ends[source] + self.send

    def ready(self, kind: int, rank: int, chunk: int) -> bool:
        """Whether the input from another rank, if any, has been computed."""
        source = self.source(kind, rank, chunk)
        return source is None or source in self.ends

    def put(self, kind: int, rank: int, chunk: int, microbatch: int | None = None) -> None:
        if microbatch is None:
            microbatch = self.done(kind, rank, chunk)
        start = self.clock[rank]
        if kind != _W:
            start = max(start, self.arrival(kind, rank, chunk) or 0.0)
        if self.order[rank]:
            self.idle[rank] += start - self.clock[rank]
        place = _PLACE[kind]
        self.clock[rank] = self.ends[kind, rank, chunk, microbatch] = start + self.times[place]
        self.held[rank] += self.memory.change[place]
        self.count[rank][place][chunk] += 1
        stage = rank if chunk == _FIRST else 2 * self.pp - 1 - rank
        self.order[rank].append((kind, stage, microbatch))
        if kind == _I:
            self.waiting[rank].append((chunk, microbatch))

    def put_weight(self, rank: int) -> None:
        chunk, microbatch = self.waiting[rank].popleft()
        self.put(_W, rank, chunk, microbatch)

    def make_room(self, kind: int, rank: int) -> None:
        change = self.memory.change[_PLACE[kind]]
        while self.waiting[rank] and not self.memory.fits(self.held[rank] + change):
            self.put_weight(rank)

    def fill(self, kind: int, rank: int, chunk: int, *, eager: bool) -> None:
        """Run weight gradients while the input of the next action is on its way."""
        arrival = self.arrival(kind, rank, chunk)
        if arrival is None:
            return
        weight = self.times[_PLACE[_W]]
        while self.waiting[rank] and arrival >= self.clock[rank] + weight:
            self.put_weight(rank)
        longest = max(*self.idle, 0.0, max(self.approved) - self.approved[rank])
        if eager and self.waiting[rank] and arrival - self.clock[rank] > longest - self.idle[rank]:
            self.put_weight(rank)

    def warm_up(self) -> None:
        for rank in range(self.pp):
            self.put(_F, rank, _FIRST)
        for rank in reversed(range(self.pp)):
            self.forwards_before_turn(rank)
            self.put(_F, rank, _SECOND)
        chunk = _FIRST
        for rank in range(1, self.pp):
            while self.behind(rank):
                for later in reversed(range(rank, self.pp)):
                    if self.done(_F, later, chunk) < self.m:
                        self.put(_F, later, chunk)
                chunk = _SECOND if chunk == _FIRST else _FIRST

    def forwards_before_turn(self, rank: int) -> None:
        """Forwards of the first chunk that fit before the first microbatch comes back up."""
        arrival = self.arrival(_F, rank, _SECOND)
        room = self.memory.change[0] * 2 * (rank + 1)
        while (
            arrival is not None
            and self.memory.fits(self.held[rank] + room)
            and self.clock[rank] + self.times[0] <= arrival
            and self.done(_F, 0, _FIRST) < self.m
        ):
            for earlier in range(rank + 1):
                self.put(_F, earlier, _FIRST)

    def behind(self, rank: int) -> bool:
        """Whether a rank has run fewer forwards, or no more of chunk b, than the one before."""
        own, before = self.count[rank][0], self.count[rank - 1][0]
        return sum(own) < sum(before) or own[_SECOND] <= before[_SECOND] < self.m

    def put_gradients(self) -> None:
        for rank in range(self.pp):
            self.make_room(_I, rank)
        up: list[int] = []
        down: list[int] = []
        for rank in range(self.pp):
            (up if self.gradient_of_first(rank) else down).append(rank)
        for chunk, ranks in ((_FIRST, up[::-1]), (_SECOND, down)):
            for rank in ranks:
                eager = chunk == _FIRST or self.fill_gradients
                self.fill(_I, rank, chunk, eager=eager)
                self.put(_I, rank, chunk)

    def gradient_of_first(self, rank: int) -> bool:
        """Whether the next input gradient is one of the first chunk, which goes up the ranks."""
        if self.done(_I, rank, _FIRST) >= self.done(_I, rank, _SECOND):
            return False
        return self.ready(_I, rank, _FIRST) or self.done(_I, rank, _SECOND) >= self.m

    def put_forwards(self) -> None:
        for rank in range(self.pp):
            chunk = self.next_forward(rank)
            if chunk is not None:
                self.make_room(_F, rank)
                self.fill(_F, rank, chunk, eager=self.fill_forwards)
                self.put(_F, rank, chunk)

    def next_forward(self, rank: int) -> int | None:
        first, second = self.count[rank][0]
        if second >= self.m:
            return None
        if second >= first:
            return _FIRST
        if self.ready(_F, rank, _SECOND):
            return _SECOND
        return _FIRST if first < self.m and self.ready(_F, rank, _FIRST) else None
