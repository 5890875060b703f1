"""The service: engines that serve a stream of requests, one simulator event an iteration.

Iterations of an engine between which nothing begins or ends are one event: their times are one
array expression, since the context of every sequence grows alike. With several pipeline stages an
instance has as many batches under way as stages; each has requests of its own and waits for the
first stage to be free.

Where prefill and decode have pools of their own, a prompt keeps its blocks until its keys and
values have come to the engine that decodes it, which starts fetching them once it has blocks for
them: a full decode pool holds up the other one.

Requests that arrive at the same time are handed out in their order; engines act in the order of
their numbers. Equal inputs give equal bytes.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from mpsim.serving.autoscale import Autoscaler
from mpsim.serving.batching import Iteration
from mpsim.serving.entrance import AHEAD, Entrance, State
from mpsim.serving.lane import LONGEST_JUMP, Lane, reached
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests, Served
from mpsim.serving.stream import Stream, Tail
from mpsim.serving.tally import Folded
from mpsim.serving.transfers import Transfers

Progress: TypeAlias = Callable[[int, int], None]
"""Takes requests that have ended, and all there are, now and then."""
Floats = NDArray[np.float64]
Events = Generator[simpy.Event, object, None]

# requests that loads differ by until a prefix is not followed any more: SGLang's router
_UNEVEN = 32
_PAGE = 16_384  # iterations of a stream that are folded at once
_TOLD = 1000  # requests that end between two reports at most
_COLUMNS = (
    *("start", "seconds", "count", "decodes", "context"),
    *("prompt_tokens", "used", "engine", "span"),
)
_MOVES = ("request", "source", "target", "start", "end", "bytes")


def _ring(call: simpy.Event, _: simpy.Event) -> None:
    """Call a process at the time that it asked for, unless something came before."""
    if not call.triggered:
        call.succeed(True)


class Service:
    """One run of a service.

    `requests`: all of them, or a stream of which they are drawn page by page. `folded`: what
    becomes of requests and iterations of a stream. `progress`: told requests that have ended, and
    all there are, now and then.

    From the last token of a request to the queue of the same user's next one in a closed loop is
    the way out and in again (`first_token_time`). An iteration that begins meanwhile goes without.
    """

    def __init__(
        self,
        requests: Requests | Stream,
        plan: ServicePlan,
        *,
        folded: Folded | None = None,
        progress: Progress = lambda *_: None,
    ) -> None:
        self._folded, self._progress = folded, progress
        if isinstance(requests, Requests):
            self._count, self._pages = len(requests), iter([requests])
            self._longest, self._unit = int(requests.output.max(initial=0)), requests.unit
        else:
            self._count, self._pages = requests.count, requests.pages()
            self._longest, self._unit = requests.longest_output, requests.unit
        load = plan.workload
        self._plan, self._concurrency, self._routing = plan, load.concurrency, plan.routing
        self._until = np.inf if load.duration is None else load.duration
        self._outages = plan.outages
        self._fragile = bool(self._outages) or plan.autoscale is not None
        self._turnaround = plan.first_token_time
        # when the front end has seen to all that came
        self._tokenizer, self._free = plan.tokenizer_time, 0.0
        self._due: deque[float] = deque()  # when requests of a closed loop that are under way come
        # where all are kept, plain lists are faster: nothing is dropped from them
        self._column: type[Tail[Any]] = cast("Any", list) if folded is None else Tail
        self._arrival, self._queued, self._started, self._first, self._last = (
            self._column() for _ in range(5)
        )
        self._prompt, self._output = self._column(), self._column()
        self._hashes: Tail[tuple[int, ...]] | None = None
        self._loaded, self._folds = 0, 0  # requests that were drawn, and that were folded
        self._left: deque[list[int]] = deque()  # of each page: requests, those that have not ended
        self._load()
        self._env = simpy.Environment()
        self._pools = [*plan.pools.values()]
        self._lanes: list[list[Lane]] = []  # which number their batches one after the other
        for place, pool in enumerate(self._pools):
            self._lanes.append(self._open(place, pool))
        self._rows: list[tuple[float, ...]] = []
        self._stalled = [{"cache": 0.0, "transfer": 0.0, "down": 0.0} for _ in self._pools]
        self._moved = 0
        self._homeless: list[tuple[int, int]] = []  # while every instance is down
        self._sent = self._handed = self._ends = 0
        self._end = 0.0
        self._transfers: Transfers | None = None
        if plan.prefill is not None:
            prompts = self._prompt, plan.token_bytes
            self._transfers = Transfers(self._env, plan.network, *prompts)

    def _open(self, place: int, pool: ServicePlan) -> list[Lane]:
        """The batches of a pool."""
        computes = place == 0 and self._plan.prefill is not None
        first = sum(len(lanes) for lanes in self._lanes)
        output = [1] * self._count if computes else self._output
        rules, blocks, paces = pool.rank_rules, pool.rank_blocks, pool.paces
        lanes: list[Lane] = []
        for number in range(pool.lanes):
            engines = tuple(
                pool.policy(
                    rules,
                    blocks,
                    self._prompt,
                    output,
                    hashes=self._hashes,
                    unit=self._unit,
                    hands_over=computes,
                    samples_first=self._plan.samples_first,
                    longest=1 if computes else self._longest,
                )
                for _ in range(pool.ranks)
            )
            instance = number // pool.pp
            pace = paces[instance] if paces else 1.0
            lanes.append(Lane(first + number, place, pool.prices, engines, pace, instance))
        return lanes

    def _instances(self, place: int) -> list[list[Lane]]:
        """Batches of each instance of a pool."""
        lanes, stages = self._lanes[place], self._pools[place].pp
        return [lanes[first : first + stages] for first in range(0, len(lanes), stages)]

    def run(self) -> Served:
        """Serve all requests."""
        if self._concurrency is None:
            self._env.process(self._arrivals())
        else:
            for _ in range(min(self._concurrency, self._count)):
                self._send(0.0)
        lanes = [lane for pool in self._lanes for lane in pool]
        for instance in (
            own for place in range(len(self._pools)) for own in self._instances(place)
        ):
            if len(instance) == 1:
                self._env.process(self._work(instance[0]))
            else:
                door = Entrance(self._env, instance, self._stalled)
                self._env.process(self._work_in_stages(door))
        scaler = None
        if (rules := self._plan.autoscale) is not None:
            scaler = Autoscaler(self._env, rules, self._instances(-1), self._is_done)
            self._env.process(scaler.run())
        for outage in self._outages:
            self._env.process(self._fail(*outage))
        self._env.run()
        if scaler is not None:
            scaler.finish(self._end)
        engines = [engine for lane in lanes for engine in lane.engines]
        self._fold_rows()
        rows = () if self._transfers is None else self._transfers.rows
        moves = np.array(rows, dtype=float).reshape(-1, len(_MOVES))
        return Served(
            arrival=np.array(self._arrival),
            started=np.array(self._started),
            first=np.array(self._first),
            last=np.array(self._last),
            steps=self._steps(),
            preemptions=sum(engine.preempted for engine in engines),
            hit_tokens=sum(engine.cache.hit_tokens for engine in engines),
            engines=len(lanes),
            end=self._end,
            pools=tuple(len(pool) for pool in self._lanes),
            stalled=tuple(self._stalled),
            transfers=dict(zip(_MOVES, moves.T, strict=True)),
            moved=self._moved,
            running=() if scaler is None else tuple(scaler.spans),
            starts=0 if scaler is None else scaler.starts,
        )

    def _is_done(self) -> bool:
        """Whether all requests have been served, or users send no more."""
        if self._concurrency is None:
            return self._ends >= self._count
        return self._ends >= self._sent and not self._due

    def _steps(self) -> dict[str, Floats]:
        """Iterations that were written down, by column."""
        table = np.array(self._rows, dtype=float).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, table.T, strict=True))

    def _load(self) -> None:
        """Take up the next page of requests, as long as there is one."""
        page = next(self._pages, None)
        if page is None:
            return
        count = len(page)
        if self._concurrency is None:
            arrival = page.arrival.tolist()
            self._arrival += arrival
            self._queued += [*map(self._passed, arrival, page.prompt.tolist())]
        else:
            self._arrival += [math.nan] * count
        for column in (self._started, self._first, self._last):
            column += [math.nan] * count
        self._prompt += page.prompt.tolist()
        self._output += page.output.tolist()
        if page.hashes is not None:
            if self._hashes is None:
                self._hashes = self._column()
            self._hashes += page.hashes
        self._loaded += count
        self._left.append([count, count])

    def _fold(self, request: int) -> None:
        """Note that a request of a stream has ended; fold pages of which all have."""
        assert self._folded is not None, "asked of a stream"
        place, at = request - self._folds, 0
        while place >= self._left[at][0]:
            place -= self._left[at][0]
            at += 1
        self._left[at][1] -= 1
        while self._left and not self._left[0][1] and self._sent >= self._folds + self._left[0][0]:
            count, _ = self._left.popleft()
            columns = (self._arrival, self._started, self._first, self._last)
            arrival, started, first, last = (np.array(column.drop(count)) for column in columns)
            prompt, output = (np.array(c.drop(count)) for c in (self._prompt, self._output))
            if self._queued:
                self._queued.drop(count)
            if self._hashes:
                self._hashes.drop(count)
            part = Served(arrival, started, first, last, {})
            self._folded.fold(self._folds, Requests(arrival, prompt, output), part)
            self._folds += count
        if len(self._rows) >= _PAGE:
            self._fold_rows()

    def _fold_rows(self) -> None:
        """Fold the iterations of a stream that were written down."""
        if self._folded is not None and self._rows:
            self._folded.fold_rows(self._steps())
            self._rows.clear()

    def _arrivals(self) -> Events:
        """Hand requests out when they come."""
        while self._sent < self._count:
            wait = self._queued[self._sent] - self._env.now
            if wait > 0.0:
                yield self._env.timeout(wait)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give the next request to an engine, and wake it."""
        request = self._sent
        self._sent += 1
        # whoever asks for the next one of its own looks as many ahead as there are batches
        if self._sent + len(self._lanes[0]) >= self._loaded < self._count:
            self._load()
        self._put(self._lanes[0], request, request)

    def _fail(self, replica: int, begin: float, end: float) -> Events:
        """Take an instance down for a while; the iteration under way still ends."""
        lanes = self._instances(-1)[replica]
        yield self._env.timeout(begin)
        for lane in lanes:
            lane.down += 1
            lane.wake()
        yield self._env.timeout(end - begin)
        for lane in lanes:
            lane.down -= 1
        if not lanes[0].down:
            waiting, self._homeless = self._homeless, []
            self._resettle(waiting)
        for lane in lanes:
            lane.wake()

    def _empty(self, lane: Lane) -> None:
        """Hand requests of an instance that is down to others, which compute their tokens again."""
        lost = [entry for engine in lane.engines for entry in engine.clear()]
        self._moved += len(lost)
        self._resettle(lost)

    def _resettle(self, lost: Sequence[tuple[int, int]]) -> None:
        """Hand out again requests whose instance went down."""
        for request, generated in lost:
            self._handed += 1
            self._put(self._lanes[-1], self._handed - 1, request, generated)

    def _put(self, lanes: Sequence[Lane], turn: int, request: int, generated: int = 0) -> None:
        """Queue a request at one of some batches, and wake it."""
        lane = self._choose(lanes, turn, request)
        if lane is None:
            self._homeless.append((request, generated))
            return
        lane.join().enter(request, generated)
        lane.wake()

    def _choose(self, lanes: Sequence[Lane], turn: int, request: int) -> Lane | None:
        """The batch that a request joins; None where all are down."""
        if self._fragile:
            lanes = [lane for lane in lanes if not (lane.down or lane.closed)]
            if not lanes:
                return None
        if self._routing == "round-robin" or len(lanes) == 1:
            return lanes[turn % len(lanes)]
        loads = [lane.load for lane in lanes]
        if self._routing == "prefix-aware" and max(loads) - min(loads) <= _UNEVEN:
            cached = [max(e.cache.cached(request) for e in lane.engines) for lane in lanes]
            units = self._hashes[request] if self._hashes else ()
            if 0 < len(units) <= 2 * max(cached):  # else nobody knows it
                return lanes[min(range(len(lanes)), key=lambda at: (-cached[at], loads[at]))]
        return lanes[min(range(len(lanes)), key=loads.__getitem__)]

    def _next(self, lanes: Sequence[Lane]) -> float | None:
        """When the next request comes to neighbouring batches; None if only the others can tell."""
        if lanes[0].pool or self._fragile:
            return None
        turns = len(self._lanes[0])
        if self._concurrency is not None:
            if turns > 1:
                return None
            return self._due[0] if self._due else np.inf
        if len(lanes) < turns and self._routing != "round-robin":
            return None
        ahead = (lanes[0].number - self._sent) % turns  # requests that come to others before
        request = self._sent + (ahead if ahead <= turns - len(lanes) else 0)
        return self._queued[request] if request < self._count else np.inf

    def _work(self, lane: Lane) -> Events:
        """Run one engine, iteration after iteration, as long as something comes."""
        env = self._env
        while True:
            if lane.down:
                self._empty(lane)
                yield from self._sleep(lane, "down")
                continue
            self._take_up(lane)
            iteration = lane.next()
            if iteration is None:
                yield from self._sleep(lane)
                continue
            yield env.timeout(self._begin(lane, iteration))
            self._finish(lane, iteration)
            if (steps := lane.steady()) > 1:
                yield from self._go_on(lane, steps)
                self._end = env.now

    def _begin(self, lane: Lane, iteration: Iteration) -> float:
        """Write down an iteration that begins; its seconds."""
        now = self._env.now
        for started in iteration.started:
            # a preempted request starts again: the first time counts
            if math.isnan(self._started[started]):
                self._started[started] = now
        seconds = lane.seconds(iteration)
        decodes, context = iteration.decodes, iteration.context
        work = (1, decodes, context, iteration.prompt_tokens, lane.used, lane.number)
        self._rows.append((now, seconds, *work, seconds))
        return seconds

    def _finish(self, lane: Lane, iteration: Iteration) -> None:
        """End an iteration, and take up what came during it."""
        self._end = self._env.now
        self._note(lane, *lane.finish(iteration))
        self._take_up(lane)

    def _work_in_stages(self, door: Entrance) -> Events:
        """Run the batches of an instance of several stages, which wait for the first to be free."""
        env = self._env
        while True:
            comes = self._next(door.lanes)
            due, who = door.advance(math.inf if comes is None else comes)
            if due > env.now or door.state[who] is State.RUNS:
                door.call = env.event()
                if due < math.inf:
                    timer = env.timeout(due - env.now)
                    timer.callbacks.append(functools.partial(_ring, door.call))
                yield door.call
                # something came, or may have by now
                if door.call.value is None or door.state[who] is State.RUNS:
                    continue
            door.take_back(math.inf)
            lane, flight = door.lanes[who], door.flights[who]
            if (passed := door.passed(who)).iterations:
                self._pass(lane, passed.iterations, passed.seconds, passed.begin, passed.end)
                self._end = max(self._end, passed.end)
            if flight is not None:
                door.flights[who] = None
                door.set(who, State.ENTERS, env.now)
                self._finish(lane, flight)
            elif lane.down:
                self._empty(lane)
                door.sleep(who, "down")
            elif door.state[who] is State.ENDS:
                self._take_up(lane)
                door.set(who, State.ENTERS, env.now)
            else:
                self._decide(door, who)

    def _decide(self, door: Entrance, who: int) -> None:
        """Let a batch whose turn it is enter the first stage, or sleep."""
        lane = door.lanes[who]
        self._take_up(lane)
        if (steps := min(lane.steady(), AHEAD)) > 0:
            door.plan(who, *lane.stages_ahead(steps))
        elif (iteration := lane.next()) is not None:
            door.flights[who], spent = iteration, self._begin(lane, iteration)
            stage = lane.pace * float(lane.prices.stage_seconds(iteration.batch))
            door.enter(who, self._env.now, spent, min(stage, spent))
        else:
            door.sleep(who, lane.waits_for)

    def _go_on(self, lane: Lane, steps: int) -> Events:
        """Pass iterations at once, to the end of the one during which something comes."""
        if lane.down:  # since the iteration that has just ended
            return
        env, begin, steps = self._env, self._env.now, min(steps, LONGEST_JUMP)
        if (comes := self._next((lane,))) is not None:
            steps, seconds = lane.within(steps, comes - begin)
            self._pass(lane, steps, seconds, begin)
            yield env.timeout(seconds)
            return
        times = lane.seconds_ahead(steps).cumsum()
        nudge = lane.nudge = env.event()
        yield nudge | env.timeout(float(times[-1]))
        lane.nudge = None
        passed = env.now - begin
        steps, seconds = reached(times, passed)
        if (rest := seconds - passed) > 0:
            yield env.timeout(rest)
        self._pass(lane, steps, seconds, begin)

    def _sleep(self, lane: Lane, why: str = "") -> Events:
        """Wait until something changes, and note what for; but not if it went down meanwhile."""
        if lane.down and not why:
            return
        begin, reason = self._env.now, why or lane.waits_for
        lane.nudge = self._env.event()
        yield lane.nudge
        if reason:
            self._stalled[lane.pool][reason] += self._env.now - begin

    def _pass(
        self, lane: Lane, steps: int, seconds: float, begin: float, end: float | None = None
    ) -> None:
        """Write down iterations passed at once, to their `end` where they waited between."""
        span = seconds if end is None else end - begin
        work = (steps, *lane.decoding, 0, lane.used, lane.number)
        self._rows.append((begin, seconds, *work, span))
        lane.jump(steps)

    def _note(self, lane: Lane, first: Sequence[int], last: Sequence[int]) -> None:
        """Write down first and last tokens; a user of a closed loop then sends the next request."""
        plan, now = self._plan, self._env.now
        if plan.prefill is not None and lane.pool == 0:
            for request in first:
                if not plan.samples_first:
                    self._first[request] = now
                if self._output[request] == 1 and not plan.samples_first:
                    lane.holder(request).release(request)
                    self._ended(request)
                else:
                    self._offer(lane, request)
            return
        for request in first:
            if math.isnan(self._first[request]):  # else computed again after a preemption
                self._first[request] = now
        for request in last:
            self._ended(request)

    def _ended(self, request: int) -> None:
        """A request has its last token."""
        self._last[request] = self._env.now
        self._ends += 1
        if not self._ends % min(_TOLD, 1 + self._count // 100):
            self._progress(self._ends, self._count)
        more = self._sent + len(self._due) < self._count
        in_time = self._env.now + self._turnaround < self._until
        if self._concurrency is not None and more and in_time:
            self._send(self._env.now + self._turnaround)
        if self._folded is not None:
            self._fold(request)

    def _passed(self, came: float, prompt: int) -> float:
        """When a prompt that comes to the front end is through it: one passes after another."""
        self._free = max(came, self._free) + self._tokenizer * prompt
        return self._free

    def _send(self, comes: float) -> None:
        """Let the next request of a closed loop come to the front end."""
        if self._sent + len(self._due) >= self._loaded:
            self._load()
        request = self._sent + len(self._due)
        self._arrival[request] = comes
        wait = self._passed(comes, self._prompt[request]) - self._env.now
        if wait <= 0.0:
            self._hand_out()
            return
        self._due.append(self._free)
        self._env.timeout(wait).callbacks.append(self._reach)

    def _reach(self, _: simpy.Event) -> None:
        """A request under way reaches the queue."""
        self._due.popleft()
        self._hand_out()

    def _offer(self, lane: Lane, request: int) -> None:
        """Offer a computed prompt to an engine that decodes."""
        target = self._choose(self._lanes[1], self._handed, request)
        assert target is not None, "pools have no outages"
        assert self._transfers is not None, "asked of pools"
        self._handed += 1
        self._transfers.offer(request, lane, target)

    def _take_up(self, lane: Lane) -> None:
        """Take up what has come from the pool of prompts."""
        if lane.pool and self._transfers is not None:
            self._transfers.take_up(lane)
