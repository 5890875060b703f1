"""The front end: requests come, pass its tokenizer one after another, and are handed to batches.

Those of a closed loop are sent by users. From the last token of a request to the queue of the same
user's next one is the way out and in again (`first_token_time`). An iteration that begins meanwhile
goes without.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import simpy

from mpsim.serving.lane import Lane
from mpsim.serving.log import Log
from mpsim.serving.plan import Outage, ServicePlan
from mpsim.serving.requests import Requests

Progress: TypeAlias = Callable[[int, int], None]
"""Takes requests that have ended, and all there are, now and then."""

# requests that loads differ by until a prefix is not followed any more: SGLang's router
_UNEVEN = 32
_TOLD = 1000  # requests that end between two reports at most


class FrontEnd:
    """Requests on their way to a batch of `lanes`; anew where its instance went down."""

    def __init__(
        self,
        env: simpy.Environment,
        plan: ServicePlan,
        log: Log,
        lanes: Sequence[Sequence[Lane]],
        progress: Progress,
    ) -> None:
        self._env, self._log, self.lanes, self._progress = env, log, lanes, progress
        load = plan.workload
        self._users, self._turns = load.concurrency, len(lanes[0])
        self._until = math.inf if load.duration is None else load.duration
        self._turnaround, self._tokenizer = plan.first_token_time, plan.tokenizer_time
        self._free = self._latest = 0.0  # when it has seen to all that came; when the last did
        # requests of a closed loop under way: when each is through, and when it came, ascending
        self._due: list[tuple[float, float]] = []
        self._sent = self._ends = 0
        self._stages = [pool.pp for pool in plan.pools.values()]
        self._routing = plan.routing
        self._fragile = bool(plan.outages) or plan.autoscale is not None
        # first requests of sessions that have not begun; None where requests follow no answer
        later = {*log.following}
        opens = (request for request in range(len(log.following)) if request not in later)
        self._begin = opens if log.following else None
        self.moved = 0  # requests that an instance lost to an outage, each time
        self._handed = 0  # requests that joined the last pool after another batch had them
        self._homeless: list[tuple[int, int]] = []  # while every instance is down
        self._pass_page(log.page)

    def start(self) -> None:
        """Let requests come."""
        if self._begin is not None:
            for request in itertools.islice(self._begin, self._users):
                opens = self._log.think if self._users else self._log.arrival
                self._env.process(self._turn(request, opens[request]))
        elif self._users is None:
            self._env.process(self._arrivals())
        else:
            for _ in range(min(self._users, self._log.count)):
                self._send(0.0)

    def is_done(self) -> bool:
        """Whether all requests have been served, or users send no more."""
        if self._users is None or self._begin is not None:
            return self._ends >= self._log.count
        return self._ends >= self._sent and not self._due

    def next(self, lanes: Sequence[Lane]) -> float | None:
        """When the next request comes to neighbouring batches; None if only the others can tell."""
        turns = self._turns
        if lanes[0].pool or self._fragile or self._begin is not None:
            return None
        if self._users is not None:
            if turns > 1:
                return None
            return self._due[0][0] if self._due else math.inf
        if len(lanes) < turns and self._routing != "round-robin":
            return None
        ahead = (lanes[0].number - self._sent) % turns  # requests that come to others before
        request = self._sent + (ahead if ahead <= turns - len(lanes) else 0)
        return self._log.queued[request] if request < self._log.count else math.inf

    def end(self, request: int, now: float) -> None:
        """Note when a request has its last token: a user of a closed loop then sends the next."""
        count, comes = self._log.count, now + self._turnaround
        self._ends += 1
        if not self._ends % min(_TOLD, 1 + count // 100):
            self._progress(self._ends, count)
        more = self._sent + len(self._due) < count
        if self._begin is not None:
            self._follow(request, comes)
        elif self._users is not None and more and comes < self._until:
            self._send(comes)
        self._log.end(request, now)

    def _arrivals(self) -> Generator[simpy.Event, object, None]:
        """Hand requests out when they come."""
        while self._sent < self._log.count:
            wait = self._log.queued[self._sent] - self._env.now
            if wait > 0.0:
                yield self._env.timeout(wait)
            self._hand_out()

    def _follow(self, request: int, back: float) -> None:
        """Let a user to whom an answer comes back send the next turn, or begin anew if it waits."""
        assert self._begin is not None
        turn = self._log.following[request]
        if turn < 0 and self._users is not None:
            turn = next(self._begin, -1)
        if turn >= 0:
            self._env.process(self._turn(turn, back + self._log.think[turn]))

    def _turn(self, request: int, comes: float) -> Generator[simpy.Event, object, None]:
        """Let a request of a session come, pass the tokenizer, and join a batch."""
        env, log = self._env, self._log
        yield env.timeout(comes - env.now)
        log.arrival[request] = env.now
        yield env.timeout(self._passed(env.now, log.prompt[request]) - env.now)
        self.put(self.choose(0, request, request), request)

    def _send(self, comes: float) -> None:
        """Let the next request of a closed loop come."""
        request = self._sent + len(self._due)
        if request >= self._log.loaded:
            self._log.load()
        through = self._passed(comes, self._log.prompt[request])
        bisect.insort(self._due, (through, comes))
        if through <= self._env.now:
            self._reach()
        else:
            self._env.timeout(through - self._env.now).callbacks.append(self._reach)

    def _reach(self, _: simpy.Event | None = None) -> None:
        """Let a request under way reach the queue."""
        self._log.arrival[self._sent] = self._due.pop(0)[1]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the next request to a batch, and wake it."""
        request, log = self._sent, self._log
        self._sent += 1
        # whoever asks for the next one of its own looks as many ahead as there are batches
        if self._sent + self._turns >= log.loaded < log.count:
            self._pass_page(log.load())
        self.put(self.choose(0, request, request), request)

    def _pass_page(self, page: Requests | None) -> None:
        """Work out when requests that come by themselves are through."""
        if page is not None and self._users is None and self._begin is None:
            came, prompts = page.arrival.tolist(), page.prompt.tolist()
            self._log.queued += [*map(self._passed, came, prompts)]

    def _passed(self, came: float, prompt: int) -> float:
        """When a prompt that comes is through: one passes after another."""
        spent = self._tokenizer * prompt
        if came < self._latest:  # of another instance, whose server is not as far behind
            return came + spent
        self._latest, self._free = came, max(came, self._free) + spent
        return self._free

    def instances(self, place: int) -> list[Sequence[Lane]]:
        """Batches of each instance of a pool."""
        lanes, stages = self.lanes[place], self._stages[place]
        return [lanes[first : first + stages] for first in range(0, len(lanes), stages)]

    def choose(self, place: int, turn: int, request: int) -> Lane | None:
        """The batch of a pool that a request joins; None where all are down."""
        lanes = self.lanes[place]
        if self._fragile:
            lanes = [lane for lane in lanes if not (lane.down or lane.closed)]
            if not lanes:
                return None
        if self._routing == "round-robin" or len(lanes) == 1:
            return lanes[turn % len(lanes)]
        loads = [lane.load for lane in lanes]
        if self._routing == "prefix-aware" and max(loads) - min(loads) <= _UNEVEN:
            cached = [max(e.cache.known(request) for e in lane.engines) for lane in lanes]
            units = len(self._log.hashes[request]) if self._log.hashes else 0
            units = min(units, -(-self._log.prompt[request] // self._log.unit))
            if 0 < units <= 2 * max(cached):  # else nobody knows it
                return lanes[min(range(len(lanes)), key=lambda at: (-cached[at], loads[at]))]
        return lanes[min(range(len(lanes)), key=loads.__getitem__)]

    def choose_next(self, request: int) -> Lane | None:
        """The batch that goes on with a request which another one had."""
        self._handed += 1
        return self.choose(-1, self._handed - 1, request)

    def put(self, lane: Lane | None, request: int, generated: int = 0) -> None:
        """Queue a request at the batch that was chosen, and wake it."""
        if lane is None:
            self._homeless.append((request, generated))
            return
        lane.join().enter(request, generated)
        lane.wake()

    def empty(self, lane: Lane) -> None:
        """Hand requests of an instance that is down to others, which compute their tokens again."""
        lost = [entry for engine in lane.engines for entry in engine.clear()]
        self.moved += len(lost)
        self._resettle(lost)

    def fail(self, outage: Outage) -> Generator[simpy.Event, object, None]:
        """Take an instance down for a while; the iteration under way still ends."""
        lanes = self.instances(-1)[outage.instance]
        yield self._env.timeout(outage.start)
        for lane in lanes:
            lane.down += 1
            lane.wake()
        yield self._env.timeout(outage.end - outage.start)
        for lane in lanes:
            lane.down -= 1
        if not lanes[0].down:
            waiting, self._homeless = self._homeless, []
            self._resettle(waiting)
        for lane in lanes:
            lane.wake()

    def _resettle(self, lost: Sequence[tuple[int, int]]) -> None:
        """Hand out again requests whose instance went down."""
        for request, generated in lost:
            self.put(self.choose_next(request), request, generated)
