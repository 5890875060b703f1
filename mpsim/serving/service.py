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
from collections.abc import Generator, Sequence

import numpy as np
import simpy

from mpsim.serving.autoscale import Autoscaler
from mpsim.serving.batching import Iteration
from mpsim.serving.entrance import AHEAD, Entrance, State
from mpsim.serving.front_end import FrontEnd, Progress
from mpsim.serving.lane import LONGEST_JUMP, Lane, Span, reached
from mpsim.serving.log import Log
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests, Served
from mpsim.serving.stream import Stream
from mpsim.serving.tally import Folded
from mpsim.serving.transfers import Transfers

Events = Generator[simpy.Event, object, None]

_MOVES = ("request", "source", "target", "start", "end", "bytes")


def _ring(call: simpy.Event, _: simpy.Event) -> None:
    """Call a process at the time that it asked for, unless something came before."""
    if not call.triggered:
        call.succeed(True)


def open_lanes(plan: ServicePlan, log: Log) -> list[list[Lane]]:
    """The batches of each pool, numbered one after the other."""
    opened: list[list[Lane]] = []
    for place, pool in enumerate(plan.pools.values()):
        computes = place == 0 and plan.prefill is not None
        new_engine = functools.partial(
            pool.policy,
            pool.rank_rules,
            pool.rank_blocks,
            log.prompt,
            [1] * log.count if computes else log.output,
            hashes=log.hashes,
            unit=log.unit,
            hands_over=computes,
            samples_first=plan.samples_first,
            longest=1 if computes else log.longest_output,
            keeps_answers=bool(log.following) and plan.prefill is None,
            tiers=pool.tiers(log.unit),
        )
        first, paces = sum(map(len, opened)), pool.paces or (1.0,) * pool.replicas
        opened.append([])
        for number in range(pool.lanes):
            engines, instance = tuple(new_engine() for _ in range(pool.ranks)), number // pool.pp
            lane = Lane(first + number, place, pool.prices, engines, paces[instance], instance)
            lane.stream_time = plan.stream_time
            opened[-1].append(lane)
    return opened


class Service:
    """One run of a service.

    `requests`: all of them, or a stream of which they are drawn page by page. `folded`: what
    becomes of requests and iterations of a stream. `progress`: told requests that have ended, and
    all there are, now and then.
    """

    def __init__(
        self,
        requests: Requests | Stream,
        plan: ServicePlan,
        *,
        folded: Folded | None = None,
        progress: Progress = lambda *_: None,
    ) -> None:
        env, log = simpy.Environment(), Log(requests, plan, folded)
        self._plan, self._env, self._log, self._end = plan, env, log, 0.0
        self._front = FrontEnd(env, plan, log, open_lanes(plan, log), progress)
        self._transfers: Transfers | None = None
        if plan.prefill is not None:
            self._transfers = Transfers(env, plan.network, log.prompt, plan.token_bytes)

    def run(self) -> Served:
        """Serve all requests."""
        env, log, front, plan = self._env, self._log, self._front, self._plan
        front.start()
        for place in range(len(front.lanes)):
            for instance in front.instances(place):
                door = Entrance(env, instance, log.stalled) if len(instance) > 1 else None
                env.process(self._work(instance[0]) if door is None else self._work_in_stages(door))
        scaler = None
        if plan.autoscale is not None:
            instances = front.instances(-1)
            scaler = Autoscaler(env, plan.autoscale, instances, front.is_done)
            env.process(scaler.run())
        for outage in plan.outages:
            env.process(front.fail(outage))
        env.run()
        if scaler is not None:
            scaler.finish(self._end)
        log.fold_rows()
        lanes = [lane for pool in front.lanes for lane in pool]
        engines = [engine for lane in lanes for engine in lane.engines]
        rows = () if self._transfers is None else self._transfers.rows
        moves = np.array(rows, dtype=float).reshape(-1, len(_MOVES))
        return Served(
            **log.times(),
            steps=log.steps(),
            preemptions=sum(engine.preempted for engine in engines),
            hit_tokens=sum(engine.cache.hit_tokens for engine in engines),
            brought_tokens=tuple(map(sum, zip(*(e.cache.brought for e in engines), strict=False))),
            engines=len(lanes),
            end=self._end,
            pools=tuple(map(len, front.lanes)),
            stalled=tuple(log.stalled),
            transfers=dict(zip(_MOVES, moves.T, strict=True)),
            moved=front.moved,
            running=() if scaler is None else tuple(scaler.spans),
            starts=0 if scaler is None else scaler.starts,
        )

    def _work(self, lane: Lane) -> Events:
        """Run one engine, iteration after iteration, as long as something comes."""
        env = self._env
        while True:
            if lane.down:
                self._front.empty(lane)
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
                self._end = max(self._end, env.now)

    def _begin(self, lane: Lane, iteration: Iteration) -> float:
        """Write down an iteration that begins; its seconds."""
        now = self._env.now
        for started in iteration.started:
            # a preempted request starts again: the first time counts
            if math.isnan(self._log.started[started]):
                self._log.started[started] = now
        seconds = lane.seconds(iteration)
        work = (1, iteration.decodes, iteration.context, iteration.prompt_tokens)
        self._log.iterate(lane, now, seconds, work, seconds)
        return seconds

    def _finish(self, lane: Lane, iteration: Iteration) -> None:
        """End an iteration, and take up what came during it."""
        sent = lane.send(iteration.decodes + len(iteration.done), self._env.now)
        self._end = max(self._end, sent[1])
        self._note(lane, *lane.finish(iteration), sent)
        self._take_up(lane)

    def _work_in_stages(self, door: Entrance) -> Events:
        """Run the batches of an instance of several stages, which wait for the first to be free."""
        env = self._env
        while True:
            comes = self._front.next(door.lanes)
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
            if lane.down:
                self._front.empty(lane)
                door.sleep(who, "down")
            elif door.state[who] is State.ENDS:
                self._take_up(lane)
                door.set(who, State.ENTERS, env.now)
            elif flight is None:
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
        if (comes := self._front.next((lane,))) is not None:
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
            self._log.stalled[lane.pool][reason] += self._env.now - begin

    def _pass(
        self, lane: Lane, steps: int, seconds: float, begin: float, end: float | None = None
    ) -> None:
        """Write down iterations passed at once, to their `end` where they waited between."""
        span = seconds if end is None else end - begin
        self._log.iterate(lane, begin, seconds, (steps, *lane.decoding, 0), span)
        lane.send(lane.decoding[0], begin + span, steps, span)
        lane.jump(steps)

    def _note(self, lane: Lane, first: Sequence[int], last: Sequence[int], sent: Span) -> None:
        """Write down first and last tokens."""
        plan, log, begin, span = self._plan, self._log, sent[0], sent[1] - sent[0]
        if self._transfers is not None and lane.pool == 0:
            for request in first:
                if not plan.samples_first:
                    log.first[request] = begin
                if log.output[request] == 1 and not plan.samples_first:
                    lane.holder(request).cache.give_back(request)
                    self._front.end(request, begin)
                else:
                    target = self._front.choose_next(request)
                    assert target is not None, "pools have no outages"
                    self._transfers.offer(request, lane, target)
            return
        for at, request in enumerate(first, 1):
            if math.isnan(log.first[request]):  # else computed again after a preemption
                log.first[request] = begin + span * at / len(first)
        for at, request in enumerate(last, 1):
            self._front.end(request, begin + span * at / len(last))

    def _take_up(self, lane: Lane) -> None:
        """Take up what has come from the pool of prompts."""
        if lane.pool and self._transfers is not None:
            self._transfers.take_up(lane)
