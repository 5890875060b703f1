"""The service: engines that serve a stream of requests, one simulator event an iteration.

Iterations of an engine between which nothing begins or ends are one event: their times are one array expression (the context of every sequence grows by one token each).
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from mpsim.serving.batching import BatchRules, Engine, Iteration
from mpsim.serving.prices import IterationPrices
from mpsim.serving.requests import Requests

__all__ = ["Served", "serve"]

Floats = NDArray[np.float64]

_LONG = 4096  # iterations of one jump at most, so that its arrays stay small
_PLAIN = 12  # below so many iterations a loop is faster than an array


@dataclasses.dataclass(slots=True, eq=False)
class Served:
    """When every request was served, and every iteration ran.

    Parameters
    ----------
    arrival, started, first, last : float64[N]
        Arrival, start of the first iteration that took part of its prompt, end of those that gave its first and its last token [s]; NaN where it was not served.
    preemptions : int
    steps : dict of str to float64 arrays
        Iterations, or jumps over equal ones: start, seconds, count, decodes, context, prompt_tokens, blocks.
    """

    arrival: Floats
    started: Floats
    first: Floats
    last: Floats
    preemptions: int
    steps: dict[str, Floats]
    end: float


class _Log:
    """Columns of iterations under construction."""

    names = ("start", "seconds", "count", "decodes", "context", "prompt_tokens", "used")

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def add(self, *row: float) -> None:
        self.rows.append(row)

    def columns(self) -> dict[str, Floats]:
        table = np.array(self.rows, dtype=float).reshape(-1, len(self.names))
        return dict(zip(self.names, table.T, strict=True))


def serve(
    requests: Requests,
    prices: IterationPrices,
    rules: BatchRules,
    *,
    blocks: int,
    replicas: int = 1,
    concurrency: int | None = None,
    routing: str = "round-robin",
) -> Served:
    """Serve a stream of requests.

    Parameters
    ----------
    requests : Requests
    prices : IterationPrices
        Of one engine; all replicas are alike.
    rules : BatchRules
    blocks : int
        Blocks of cache of each engine.
    replicas : int
    concurrency : int, optional
        Users of a closed loop, each of which sends its next request when the last has ended; None for an open one.
    routing : str
        ``round-robin`` or ``least-load``.
    """
    return _Service(requests, prices, rules, blocks, replicas, concurrency, routing).run()


class _Service:
    def __init__(
        self,
        requests: Requests,
        prices: IterationPrices,
        rules: BatchRules,
        blocks: int,
        replicas: int,
        concurrency: int | None,
        routing: str,
    ) -> None:
        self.requests = requests
        self.prices = prices
        self.concurrency = concurrency
        self.routing = routing
        count = len(requests)
        self.arrival = requests.arrival.tolist()
        if concurrency is not None:
            self.arrival = [0.0] * min(concurrency, count) + [np.inf] * max(0, count - concurrency)
        prompt, output = requests.prompt.tolist(), requests.output.tolist()
        self.engines = [Engine(rules, blocks, prompt, output) for _ in range(replicas)]
        self.started = [np.nan] * count
        self.first = [np.nan] * count
        self.last = [np.nan] * count
        self.log = _Log()
        self.env = simpy.Environment()
        self.wake: list[simpy.Event | None] = [None] * replicas
        self.sent = 0  # requests handed out so far
        self.turn = itertools.cycle(range(replicas))
        self.pending = count

    def run(self) -> Served:
        count = len(self.requests)
        if self.concurrency is not None:
            for _ in range(min(self.concurrency, count)):
                self._hand_out()
        else:
            self.env.process(self._arrivals())
        for number in range(len(self.engines)):
            self.env.process(self._work(number))
        self.env.run()
        return Served(
            arrival=np.array(self.arrival),
            started=np.array(self.started),
            first=np.array(self.first),
            last=np.array(self.last),
            preemptions=sum(engine.preempted for engine in self.engines),
            steps=self.log.columns(),
            end=float(self.env.now),
        )

    def _hand_out(self) -> None:
        """Give the next request to an engine."""
        request = self.sent
        self.sent += 1
        if self.routing == "least-load" and len(self.engines) > 1:
            number = min(range(len(self.engines)), key=lambda one: self.engines[one].load)
        else:
            number = next(self.turn)
        self.engines[number].waiting.append(request)
        wake = self.wake[number]
        if wake is not None:
            self.wake[number] = None
            wake.succeed()

    def _arrivals(self):
        """Open loop: requests come when they come."""
        for at in self.arrival:
            if at > self.env.now:
                yield self.env.timeout(at - self.env.now)
            self._hand_out()

    def _next_arrival(self) -> float:
        return (
            self.arrival[self.sent]
            if self.concurrency is None and self.sent < len(self.arrival)
            else np.inf
        )

    def _work(self, number: int):
        """One engine, iteration after iteration."""
        env, engine, prices = self.env, self.engines[number], self.prices
        while True:
            it = engine.next()
            if it is None:
                if self.sent >= len(self.requests) and not engine.waiting:
                    if self.concurrency is None or self.sent >= len(self.requests):
                        return
                self.wake[number] = env.event()
                yield self.wake[number]
                continue
            now = env.now
            for request in it.started:
                if self.started[request] != self.started[request]:
                    self.started[request] = now
            seconds = prices.seconds(
                it.decodes, it.context, it.prompt_tokens, it.pairs, len(it.done)
            )
            self.log.add(
                now,
                seconds,
                1,
                it.decodes,
                it.context,
                it.prompt_tokens,
                engine.blocks - engine.free,
            )
            yield env.timeout(seconds)
            first, last = engine.finish(it)
            self._note(first, last)
            steps = engine.steady()
            if steps > 1:
                yield from self._jump(engine, steps)

    def _jump(self, engine: Engine, steps: int):
        """Pass iterations in which nothing begins or ends, up to the one during which the next request arrives."""
        env, prices = self.env, self.prices
        steps = min(steps, _LONG)
        decodes, context = engine.decodes, engine.context
        times = np.cumsum(
            prices.seconds(decodes, context + decodes * np.arange(steps, dtype=float))
        )
        gap = self._next_arrival() - env.now
        if gap < times[-1]:
            steps = min(steps, int(np.searchsorted(times, gap)) + 1)
        seconds = float(times[steps - 1])
        self.log.add(env.now, seconds, steps, decodes, context, 0, engine.blocks - engine.free)
        engine.jump(steps)
        yield env.timeout(seconds)

    def _note(self, first: Sequence[int], last: Sequence[int]) -> None:
        now = self.env.now
        for request in first:
            self.first[request] = now
        for request in last:
            self.last[request] = now
            self.pending -= 1
            if self.concurrency is not None and self.sent < len(self.requests):
                self.arrival[self.sent] = now
                self._hand_out()
