"""The service: engines that serve a stream of requests, one simulator event an iteration.

Iterations of an engine between which nothing begins or ends are one event: their times are one array expression, since the context of every sequence grows by one token each. With
several pipeline stages an engine has as many batches under way as stages; each has requests of its own and waits for the first stage to be free.

Requests that arrive at the same time are handed out in their order; engines act in the order of their numbers. Equal inputs give equal bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.serving.batching import BatchRules, Engine
from mpsim.serving.prices import IterationPrices
from mpsim.serving.requests import Requests

__all__ = ["Served", "serve"]

Floats = NDArray[np.float64]
Events = Generator[simpy.Event, object, None]

_LONGEST_JUMP = 4096  # iterations, so that arrays stay small
_COLUMNS = ("start", "seconds", "count", "decodes", "context", "prompt_tokens", "used", "engine")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Served:
    """When every request was served, and every iteration ran.

    Shapes: N requests, S iterations or jumps over equal ones.

    Parameters
    ----------
    arrival, started, first, last : float64[N]
        Arrival, start of the first iteration that took part of its prompt, end of those that gave its first and its last token [s]. NaN where a closed loop ended before.
    steps : mapping of str to float64[S]
        ``start``, ``seconds`` (of all of a jump), ``count``, ``decodes``, ``context``, ``prompt_tokens``, ``used`` (blocks of cache), ``engine``.
    preemptions, hit_tokens : int
        Requests that were preempted, prompt tokens that the prefix cache had.
    engines : int
        Batches that run beside each other: replicas times pipeline stages.
    end : float
        End of the last iteration [s].
    """

    arrival: Floats
    started: Floats
    first: Floats
    last: Floats
    steps: Mapping[str, Floats]
    preemptions: int
    hit_tokens: int
    engines: int
    end: float


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
        Of one instance; all replicas are alike.
    rules : BatchRules
    blocks : int
        Blocks of cache of each instance.
    replicas : int
    concurrency : int, optional
        Users of a closed loop, each of whom sends the next request when the last one has ended; None for an open one.
    routing : str
        ``round-robin`` or ``least-load``.

    Raises
    ------
    ScenarioError
        If a request does not fit into the cache of an instance.
    """
    stages = prices.work.pp
    room = blocks // stages * rules.block
    if requests.longest > room:
        too_long = int((requests.prompt + requests.output > room).sum())
        raise ScenarioError(
            f"{too_long} of {len(requests)} requests do not fit into the cache: the longest has {requests.longest:,} tokens, an instance holds {room:,}; "
            "raise tp or pp, take narrower weights or kv, or shorten the requests"
        )
    return _Service(requests, prices, rules, blocks, replicas, concurrency, routing).run()


class _Service:
    """One run."""

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
        count, self._stages = len(requests), prices.work.pp
        self._count = count
        self._prices = prices
        self._concurrency = concurrency
        self._least_load = routing == "least-load"
        self._arrival = requests.arrival.tolist()
        if concurrency is not None:
            self._arrival = [0.0] * min(concurrency, count) + [np.nan] * max(0, count - concurrency)
        prompt, output = requests.prompt.tolist(), requests.output.tolist()
        self._engines = [
            Engine(
                rules,
                blocks // self._stages,
                prompt,
                output,
                hashes=requests.hashes,
                unit=requests.unit,
            )
            for _ in range(replicas * self._stages)
        ]
        self._started = [np.nan] * count
        self._first = [np.nan] * count
        self._last = [np.nan] * count
        self._rows: list[tuple[float, ...]] = []
        self._env = simpy.Environment()
        self._asleep: list[simpy.Event | None] = [None] * len(self._engines)
        self._entrances = [simpy.Resource(self._env) for _ in range(replicas)]
        self._sent = 0

    def run(self) -> Served:
        """Serve all requests."""
        if self._concurrency is None:
            self._env.process(self._arrivals())
        else:
            for _ in range(min(self._concurrency, self._count)):
                self._hand_out()
        for number in range(len(self._engines)):
            self._env.process(self._work(number))
        self._env.run()
        table = np.array(self._rows, dtype=float).reshape(-1, len(_COLUMNS))
        return Served(
            arrival=np.array(self._arrival),
            started=np.array(self._started),
            first=np.array(self._first),
            last=np.array(self._last),
            steps=dict(zip(_COLUMNS, table.T, strict=True)),
            preemptions=sum(engine.preempted for engine in self._engines),
            hit_tokens=sum(engine.hit_tokens for engine in self._engines),
            engines=len(self._engines),
            end=float(self._env.now),
        )

    def _arrivals(self) -> Events:
        """Hand requests out when they come."""
        for at in self._arrival:
            if at > self._env.now:
                yield self._env.timeout(at - self._env.now)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give the next request to an engine, and wake it."""
        request, engines = self._sent, self._engines
        self._sent += 1
        number = request % len(engines)
        if self._least_load:
            number = min(range(len(engines)), key=lambda place: engines[place].load)
        engines[number].waiting.append(request)
        asleep = self._asleep[number]
        if asleep is not None:
            self._asleep[number] = None
            asleep.succeed()

    def _gap(self) -> float:
        """Seconds until the next request of an open loop."""
        if self._concurrency is None and self._sent < self._count:
            return float(self._arrival[self._sent] - self._env.now)
        return np.inf

    def _work(self, number: int) -> Events:
        """Run one engine, iteration after iteration, until nothing can come any more."""
        env, engine, prices = self._env, self._engines[number], self._prices
        entrance = self._entrances[number // self._stages]
        while True:
            request = entrance.request() if self._stages > 1 else None
            if request is not None:
                yield request
            iteration = engine.next()
            if iteration is None:
                if request is not None:
                    entrance.release(request)
                if self._sent >= self._count:
                    return
                asleep = self._asleep[number] = env.event()
                yield asleep
                continue
            for started in iteration.started:
                if (
                    self._started[started] != self._started[started]
                ):  # not the first time where it was preempted
                    self._started[started] = env.now
            step = (iteration.decodes, iteration.context, iteration.prompt_tokens, iteration.pairs)
            seconds = float(prices.seconds(*step, len(iteration.done)))
            self._rows.append((env.now, seconds, 1, *step[:3], engine.used, number))
            if request is not None:  # the first stage is free again before the last one ends
                stage = float(prices.stage_seconds(*step))
                yield env.timeout(min(stage, seconds))
                entrance.release(request)
                yield env.timeout(max(0.0, seconds - stage))
            else:
                yield env.timeout(seconds)
            self._note(*engine.finish(iteration))
            if request is None and (steps := engine.steady()) > 1:
                yield env.timeout(self._jump(engine, number, steps))

    def _jump(self, engine: Engine, number: int, steps: int) -> float:
        """Pass iterations in which nothing begins or ends, to the end of the one during which the next request comes; their seconds."""
        steps = min(steps, _LONGEST_JUMP)
        decodes, context = engine.decodes, engine.context
        contexts = context + decodes * np.arange(steps, dtype=np.float64)
        times = np.cumsum(self._prices.seconds(decodes, contexts))
        gap = self._gap()
        if gap < times[-1]:
            steps = min(steps, int(np.searchsorted(times, gap)) + 1)
        seconds = float(times[steps - 1])
        self._rows.append((self._env.now, seconds, steps, decodes, context, 0, engine.used, number))
        engine.jump(steps)
        return seconds

    def _note(self, first: Sequence[int], last: Sequence[int]) -> None:
        """Write down first and last tokens; a user of a closed loop then sends the next request."""
        now = self._env.now
        for request in first:
            self._first[request] = now
        for request in last:
            self._last[request] = now
            if self._concurrency is not None and self._sent < self._count:
                self._arrival[self._sent] = now
                self._hand_out()
