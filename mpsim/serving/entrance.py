"""The first stage of several: batches enter it one after another, first come first served.

Iterations in which nothing begins or ends need no decision and no event: when each enters and ends
follows from the others. They are passed ahead of time up to the next decision, and taken back where
something comes before.
"""

from __future__ import annotations

import bisect
import enum
import functools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import simpy

from mpsim.serving.batching import Iteration
from mpsim.serving.lane import Lane

AHEAD: Final = 96  # iterations of a batch that are looked ahead at most


class State(enum.Enum):
    """A batch of the instance: what it does."""

    SLEEPS = enum.auto()
    ENDS = enum.auto()  # something ends when it is due, for which its engine is asked
    ENTERS = enum.auto()  # it asks to enter when it is due, and its engine decides with what
    RUNS = enum.auto()  # it enters as often as was planned without a decision


class Passed(NamedTuple):
    """Iterations passed without a decision: begin of the first, end of the last, their time [s]."""

    begin: float = 0.0
    end: float = 0.0
    seconds: float = 0.0
    iterations: int = 0


class Entrance:
    """Batches of one instance, by their number: what each does, and what it has under way.

    `stalled`: time for which the batches of each pool slept, by reason [s].
    """

    def __init__(
        self, env: simpy.Environment, lanes: Sequence[Lane], stalled: Sequence[dict[str, float]]
    ) -> None:
        batches = len(lanes)
        self.lanes, self.call = lanes, env.event()
        self.flights: list[Iteration | None] = [None] * batches
        self.due = [0.0] * batches
        self.state = [State.ENTERS] * batches
        self._env, self._stalled = env, stalled
        self._asleep = [(0.0, "")] * batches
        self._free = 0.0
        self._plans: list[tuple[list[float], list[float]]] = [([], [])] * batches
        self._next = [0] * batches  # iteration of each plan
        self._log: list[tuple[float, int, float, float]] = []  # entered, who, asked, free before
        self._passed = [Passed()] * batches
        for who, lane in enumerate(lanes):
            lane.touched = functools.partial(self._touch, who)

    def set(self, who: int, state: State, due: float) -> None:
        """Have a batch do something else."""
        self.state[who], self.due[who] = state, due

    def sleep(self, who: int, reason: str) -> None:
        """Have a batch wait until it is touched."""
        self._asleep[who] = self._env.now, reason
        self.set(who, State.SLEEPS, math.inf)

    def _touch(self, who: int) -> None:
        """Have a batch look again before it enters: something came, or it went down."""
        lane, now = self.lanes[who], self._env.now
        self.take_back(now)
        if self.state[who] is State.SLEEPS:
            begin, reason = self._asleep[who]
            if reason:
                self._stalled[lane.pool][reason] += now - begin
            self.set(who, State.ENDS if lane.down else State.ENTERS, now)
        elif self.state[who] is not State.ENDS:
            # an iteration is under way: whoever takes requests up does so at its end
            looks = (lane.down or lane.pool) and self.due[who] > now
            self.state[who] = State.ENDS if looks else State.ENTERS
        if not self.call.triggered:
            self.call.succeed()

    def enter(self, who: int, now: float, seconds: float, stage: float) -> None:
        """Let a batch enter for one iteration, which its engine ends."""
        self._free = now + stage
        self.set(who, State.ENDS, self._free + (seconds - stage))

    def plan(self, who: int, seconds: list[float], stages: list[float]) -> None:
        """Let a batch whose turn it is enter for so many iterations."""
        self._plans[who], self._next[who] = (seconds, stages), 0
        self.state[who] = State.RUNS  # due when it asked: its turn comes before that of others

    def advance(self, until: float) -> tuple[float, int]:
        """Pass what needs no decision while nothing comes; when the next is due, and whose."""
        due, state, log, free = self.due, self.state, self._log, self._free
        plans, places, runs = self._plans, self._next, State.RUNS
        ends = [(due[who], who) for who, what in enumerate(state) if what is State.ENDS]
        first_end, ending = min(ends, default=(math.inf, 0))
        while True:
            entered = asked = min(due)
            who = due.index(asked)
            if asked < free:
                entered = free
            if first_end <= entered:
                entered, who = first_end, ending
                break
            if state[who] is not runs or entered >= until:
                break
            seconds, stages = plans[who]
            at = places[who]
            log.append((entered, who, asked, free))
            stage = stages[at]
            free = entered + stage
            due[who] = free + (seconds[at] - stage)
            places[who] = at = at + 1
            if at == len(seconds):
                state[who] = State.ENTERS
        self._free = free
        return entered, who

    def take_back(self, now: float) -> None:
        """Take back iterations that would enter from now on, and note the others."""
        log = self._log
        kept = bisect.bisect_left(log, (now,))
        for _, who, asked, free in reversed(log[kept:]):
            self.due[who], self.state[who], self._free = asked, State.RUNS, free
            self._next[who] -= 1
        times: dict[int, list[float]] = {}  # when each batch entered
        for entered, who, _, _ in log[:kept]:
            times.setdefault(who, []).append(entered)
        for who, entries in times.items():
            own, seconds, last = self._passed[who], self._plans[who][0], self._next[who]
            begin, count = own.begin if own.iterations else entries[0], len(entries)
            spent = own.seconds + math.fsum(seconds[last - count : last])
            end = entries[-1] + seconds[last - 1]
            self._passed[who] = Passed(begin, end, spent, own.iterations + count)
        log.clear()

    def passed(self, who: int) -> Passed:
        """Iterations that a batch has passed since it was last asked for."""
        found, self._passed[who] = self._passed[who], Passed()
        return found
