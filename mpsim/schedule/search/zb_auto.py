"""ZB-1p and ZB-2p: zero-bubble orders found by a search on measured times, within a memory limit.

The search builds the step for each of the eight settings of three switches and keeps the build
whose longest rank span (own first start to own last end) is shortest. One goes by microbatch:

1. every rank runs F0, then as many more forwards as fit in front of the input gradient I0 that
   comes back, in time and in memory, and fewer than the rank before it;
2. for each next microbatch every rank runs at most one forward and then one input gradient; a W
   goes where there is no room for the next activation, where it fits in front of the message that
   is waited for, or where waiting would make this rank's idle time the longest of all;
3. the weight gradients that are left.

The switches: whether the warm-up may overrun the arrival of I0; whether a forward is put off when
the next rank has two in stock; whether a W also runs where it delays, if not the idlest rank.

References
----------
Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 3.1 (the heuristic, automatic
scheduling). sail-sg/zero-bubble-pipeline-parallelism,
megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py, commit 39f2c186 (the rules in full).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mpsim import structs
from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import Schedule, check_counts, check_one_chunk
from mpsim.schedule.search.times import UNTIL_WEIGHT, Memory, check_times
from mpsim.schedule.stages import loop_map
from mpsim.schedule.tape import Step, from_steps
from mpsim.shipped import say


def zb_1p(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 1,
    times: Sequence[float] = (1, 1, 1),
    send: float = 0,
    until_weight: float = UNTIL_WEIGHT,
) -> Orders:
    """Orders of ZB-1p: the search with room for p activations, as many as 1F1B holds.

    `virtual_stages`: 1. `times`: of a forward, an input gradient and a weight gradient [any one
    unit]. `send`: of a message between neighbouring ranks [same unit]. `until_weight`: part of an
    activation that is held until W, the rest until I, 0 to 1; half by default. So the limit bounds
    the memory, not the number of activations held until W.

    Examples
    --------
    >>> zb_1p(pp=2, microbatches=2).tokens()[0]
    ['0F0', '0F1', '0I0', '0W0', '0I1', '0W1']
    """
    check_counts("zb-1p", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("zb-1p", virtual_stages, instead="zb-v")
    return _uniform(
        "zb-1p", pp, microbatches, times, send, Memory.of_count(pp, until_weight=until_weight)
    )


def zb_2p(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 1,
    times: Sequence[float] = (1, 1, 1),
    send: float = 0,
    until_weight: float = UNTIL_WEIGHT,
) -> Orders:
    """Orders of ZB-2p: the search with room for 2p activations; arguments as of `zb_1p`."""
    check_counts("zb-2p", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("zb-2p", virtual_stages, instead="zb-v")
    return _uniform(
        "zb-2p", pp, microbatches, times, send, Memory.of_count(2 * pp, until_weight=until_weight)
    )


def _uniform(
    name: str, pp: int, microbatches: int, times: Sequence[float], send: float, memory: Memory
) -> Orders:
    forward, backward, weight, message = check_times(name, times, send)
    steps = zb_search(
        microbatches=microbatches,
        forward=[forward] * pp,
        backward=[backward] * pp,
        weight=[weight] * pp,
        send=message,
        memory=[memory] * pp,
    )
    return from_steps(name, steps, microbatches=microbatches, stage_rank=loop_map(pp, 1))


def zb_search(
    *,
    microbatches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    weight: Sequence[float],
    send: float,
    memory: Sequence[Memory],
) -> list[list[Step]]:
    """The best of the eight builds.

    `microbatches`: at least 1. `forward`, `backward` and `weight`: times by rank [any one unit].
    `send`: of a message [same unit]. `memory`: by rank. ScheduleError if not even one activation
    fits.

    Returns list of list of Step: one order a rank.
    """
    best: _Build | None = None
    for overrun, put_off, eager in itertools.product((False, True), (True, False), (True, False)):
        build = _Build(microbatches, (forward, backward, weight), send, memory)
        build.run(_Switches(overrun=overrun, put_off=put_off, eager=eager))
        # Of equals the earlier switches stay, as in the authors' code.
        if best is None or build.span() < best.span():
            best = build
    assert best is not None  # eight builds were made, or one has raised
    return best.order


@structs.dataclass(frozen=True, slots=True)
class _Switches:
    overrun: bool  # the warm-up may end after I0 has arrived
    put_off: bool  # a forward waits while the next rank has two in stock
    eager: bool  # a W may delay the action after it


_F, _I, _W = int(Action.F), int(Action.I), int(Action.W)
_PLACE = {_F: 0, _I: 1, _W: 2}


class _Build:
    """One build: clocks, stocks and orders of all ranks while the step grows."""

    def __init__(
        self,
        microbatches: int,
        times: tuple[Sequence[float], Sequence[float], Sequence[float]],
        send: float,
        memory: Sequence[Memory],
    ) -> None:
        self.pp, self.m, self.send = len(memory), microbatches, send
        self.times, self.memory = times, memory
        self.order: list[list[Step]] = [[] for _ in memory]
        self.clock = [0.0] * self.pp
        self.idle = [0.0] * self.pp
        self.held = [0.0] * self.pp
        self.first_start = [0.0] * self.pp
        self.ends: list[list[list[float]]] = [[[] for _ in memory] for _ in _PLACE]

    def span(self) -> float:
        """Longest rank span."""
        return max(end - start for end, start in zip(self.clock, self.first_start, strict=True))

    def done(self, kind: int, rank: int) -> int:
        """How many actions of a kind a rank has run; also the microbatch of its next one."""
        return len(self.ends[_PLACE[kind]][rank])

    def cost(self, kind: int, rank: int) -> float:
        return self.times[_PLACE[kind]][rank]

    def arrival(self, kind: int, rank: int) -> float:
        """When the input of a rank's next F or I is there; 0 where it comes from no other rank."""
        source = rank - 1 if kind == _F else rank + 1
        if kind == _W or not 0 <= source < self.pp:
            return 0.0
        return self.ends[_PLACE[kind]][source][self.done(kind, rank)] + self.send

    def put(self, kind: int, rank: int) -> None:
        microbatch = self.done(kind, rank)
        start = max(self.clock[rank], self.arrival(kind, rank))
        if not self.order[rank]:
            self.first_start[rank] = start
        else:
            self.idle[rank] += start - self.clock[rank]
        self.clock[rank] = start + self.cost(kind, rank)
        self.held[rank] += self.memory[rank].change[_PLACE[kind]]
        self.ends[_PLACE[kind]][rank].append(self.clock[rank])
        self.order[rank].append((kind, rank, microbatch))

    def pending(self, rank: int) -> bool:
        """Whether a weight gradient is left to run."""
        return self.done(_W, rank) < self.done(_I, rank)

    def make_room(self, kind: int, rank: int) -> None:
        memory = self.memory[rank]
        while not memory.fits(self.held[rank] + memory.change[_PLACE[kind]]):
            if not self.pending(rank):
                raise ScheduleError(say("schedule.no_room", limit=memory.limit, rank=rank))
            self.put(_W, rank)

    def fill(self, kind: int, rank: int, *, eager: bool) -> None:
        """Run weight gradients while the input of the next action of this kind is on its way."""
        arrival = self.arrival(kind, rank)
        while self.pending(rank) and self.clock[rank] + self.cost(_W, rank) <= arrival:
            self.put(_W, rank)
        wait = arrival - self.clock[rank]
        if self.pending(rank) and wait > 0 and (eager or wait > max(self.idle) - self.idle[rank]):
            self.put(_W, rank)

    def run(self, switches: _Switches) -> None:
        self.warm_up(overrun=switches.overrun)
        for _ in range(1, self.m):
            wanted = [self.wants_forward(rank, switches) for rank in range(self.pp)]
            for rank in reversed(range(self.pp - 1)):
                wanted[rank] = wanted[rank] and wanted[rank + 1]
            for rank in range(self.pp):
                if wanted[rank]:
                    self.make_room(_F, rank)
                    self.fill(_F, rank, eager=switches.eager)
                    self.put(_F, rank)
            for rank in reversed(range(self.pp)):
                self.put_gradient(rank, eager=switches.eager)
        for rank in range(self.pp):
            while self.done(_W, rank) < self.m:
                self.put(_W, rank)

    def put_gradient(self, rank: int, *, eager: bool) -> None:
        self.make_room(_I, rank)
        self.fill(_I, rank, eager=eager)
        while rank == 0 and self.done(_F, 0) == self.m and self.pending(0):
            self.put(_W, 0)
        self.put(_I, rank)

    def warm_up(self, *, overrun: bool) -> None:
        """The first forwards and I0 of every rank."""
        for rank in range(self.pp):
            self.make_room(_F, rank)
            self.put(_F, rank)
        ahead = self.forwards_before_gradient(overrun=overrun)
        # With as many forwards as the rank before it a rank would wait, and hold up its I0.
        for rank in range(1, self.pp):
            while 0 < ahead[rank] < self.m - 1 and ahead[rank] >= ahead[rank - 1]:
                ahead[rank] -= 1
            ahead[rank] = min(ahead[rank], ahead[rank - 1])
        for rank in range(self.pp):
            for _ in range(ahead[rank]):
                self.put(_F, rank)
        for rank in reversed(range(self.pp)):
            self.put(_I, rank)

    def forwards_before_gradient(self, *, overrun: bool) -> list[int]:
        """How many forwards after F0 fit before I0 arrives, by rank."""
        last = self.pp - 1
        ahead = [0] * self.pp
        gradient = self.clock[last] + self.cost(_I, last)
        for rank in reversed(range(last)):
            arrival = gradient + self.send
            clock, held = self.clock[rank], self.held[rank]
            memory, cost = self.memory[rank], self.cost(_F, rank)
            while ahead[rank] + 1 < self.m and memory.fits(held + memory.change[0]):
                if clock >= arrival if overrun else clock + cost > arrival:
                    break
                clock, held = clock + cost, held + memory.change[0]
                ahead[rank] += 1
            gradient = max(clock, arrival) + self.cost(_I, rank)
        return ahead

    def wants_forward(self, rank: int, switches: _Switches) -> bool:
        if self.done(_F, rank) >= self.m:
            return False
        following = rank + 1
        if (
            not switches.put_off
            or following == self.pp
            or self.done(_F, rank) < self.done(_F, following) + 2
        ):
            return True
        needed_by = self.clock[following] + self.cost(_F, following) + self.cost(_I, following)
        needed_by += self.send
        if self.clock[rank] >= needed_by:
            return False
        if self.clock[rank] + self.cost(_F, rank) + self.room_cost(rank) <= needed_by:
            return True
        return needed_by - self.clock[rank] > max(self.idle) - self.idle[rank]

    def room_cost(self, rank: int) -> float:
        """Time of the weight gradients that must run before the next forward fits."""
        memory, held, count = self.memory[rank], self.held[rank] + self.memory[rank].change[0], 0
        pending = self.done(_I, rank) - self.done(_W, rank)
        while not memory.fits(held) and count < pending:
            held, count = held + memory.change[2], count + 1
        return count * self.cost(_W, rank)


ZB_1P = Schedule("zb-1p", zb_1p, splits=True)
ZB_2P = Schedule("zb-2p", zb_2p, splits=True)
