"""A lane: one batch of a service with what paces and wakes it, and the times of its iterations.

Ranks of an instance that keep requests of their own and meet in the experts are engines whose
iterations begin and end together: a request joins the one with the least load, and all wait for the
busiest in every layer; one without work takes part with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import simpy

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.serving.batching import Batch, Engine, Iteration
from mpsim.serving.prices import IterationPrices

Span: TypeAlias = tuple[float, float]  # from when to when [s]
LONGEST_JUMP: Final = 4096  # iterations that are passed at once at most, so that arrays stay small
_COUNTING = np.arange(LONGEST_JUMP)


@structs.dataclass(slots=True, eq=False)
class Lane:
    """One engine, or those of the ranks of an instance that act as one, with what wakes it."""

    number: int
    pool: int
    prices: IterationPrices
    engines: tuple[Engine, ...]
    pace: float = 1.0
    instance: int = 0  # of its pool
    down: int = 0  # outages under way
    closed: bool = False  # to requests that come
    stream_time: float = 0.0  # of its server for a token of an answer [s]
    sent: float = 0.0  # when its server has sent all tokens
    touched: Callable[[], None] | None = None  # of several stages: who sees to it
    nudge: simpy.Event | None = None  # ends its sleep, or iterations that are passed at once
    # requests whose keys and values have come: taken up before the next iteration
    arrived: list[int] = structs.field(default_factory=list)

    @property
    def load(self) -> int:
        """Requests that it has, waiting ones included."""
        return sum(engine.load for engine in self.engines)

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return sum(engine.used for engine in self.engines)

    @property
    def decoding(self) -> tuple[int, int]:
        """Sequences that decode, and tokens of their contexts together."""
        return sum(e.decodes for e in self.engines), sum(e.context for e in self.engines)

    @property
    def waits_for(self) -> str:
        """The reason for which nothing can run; empty where it has no requests."""
        return max(engine.waits_for for engine in self.engines)  # a transfer before the cache

    def join(self) -> Engine:
        """The engine that a request joins."""
        if len(self.engines) == 1:
            return self.engines[0]
        return min(self.engines, key=lambda engine: engine.load)

    def holder(self, request: int) -> Engine:
        """The engine that holds blocks for a request."""
        return next(engine for engine in self.engines if request in engine.cache.held)

    def next(self) -> Iteration | None:
        """Form its next iteration; None where nothing can run, or it went down as it waited to."""
        if self.down:
            return None
        if len(self.engines) == 1:
            return self.engines[0].next()
        formed = [(engine, engine.next()) for engine in self.engines]
        parts = [(engine, part) for engine, part in formed if part is not None]
        return Iteration(parts) if parts else None

    def finish(self, iteration: Iteration) -> tuple[list[int], list[int]]:
        """End an iteration; requests that gave their first token, and their last."""
        first: list[int] = []
        last: list[int] = []
        for engine, part in iteration.parts or ((self.engines[0], iteration),):
            begun, ended = engine.finish(part)
            first += begun
            last += ended
        return first, last

    def steady(self) -> int:
        """How many decoding iterations can follow in which no engine has to decide anything."""
        if len(self.engines) == 1:
            return self.engines[0].steady()
        return min((engine.steady() for engine in self.engines if not engine.rests), default=0)

    def jump(self, steps: int) -> None:
        """Pass so many decoding iterations as `steady` allows."""
        for engine in self.engines:
            if engine.decodes:
                engine.jump(steps)

    def seconds(self, iteration: Iteration) -> float:
        """Time of an iteration [s]."""
        if loads := [part.batch for _, part in iteration.parts]:
            seconds = self.prices.apart_seconds(loads, len(iteration.done))
        else:
            seconds = self.prices.seconds(iteration.batch, len(iteration.done))
        return max(self.pace * float(seconds), iteration.loading)

    def line(self) -> tuple[float, float] | None:
        """Time of the next decoding iteration, what each later one adds [s]; None if no line."""
        engine = self.engines[0]
        if len(self.engines) > 1 or not engine.decoding.even:
            return None
        if (line := self.prices.decoding(engine.decodes)) is None:
            return None
        fixed, slope = self.pace * line[0], self.pace * line[1]
        return fixed + slope * engine.context, slope * engine.decodes

    def seconds_ahead(self, steps: int) -> Floats:
        """Times of so many decoding iterations from now on, in which nothing begins or ends [s]."""
        ahead = _COUNTING[:steps]
        loads = [Batch(e.decodes, _contexts(e, ahead)) for e in self.engines if e.decodes]
        if len(self.engines) > 1:
            return self.pace * np.asarray(self.prices.apart_seconds(loads, 0))
        return self.pace * np.asarray(self.prices.seconds(loads[0]))

    def within(self, steps: int, gap: float) -> tuple[int, float]:
        """Decoding iterations until a gap ends, the one that it ends in included; their seconds."""
        if (line := self.line()) is not None:
            return _within(steps, gap, *line)
        return reached(self.seconds_ahead(steps).cumsum(), gap)

    def stages_ahead(self, steps: int) -> tuple[list[float], list[float]]:
        """Times of so many decoding iterations, and of their first stages [s]."""
        decodes, tokens = self.decoding
        ahead = _COUNTING[:steps]
        if (line := self.line()) is not None:
            stage = self.pace * float(self.prices.stage_seconds(Batch(decodes, tokens)))
            slope = line[1] / (self.prices.work.pp * self.prices.engine.slowdown)
            seconds, stages = line[0] + line[1] * ahead, stage + slope * ahead
        else:
            context: Floats = sum((_contexts(e, ahead) for e in self.engines), np.zeros(steps))
            stages = self.pace * np.asarray(self.prices.stage_seconds(Batch(decodes, context)))
            seconds = self.seconds_ahead(steps)
        return seconds.tolist(), np.minimum(stages, seconds).tolist()

    def send(self, tokens: int, end: float, steps: int = 1, span: float = 0.0) -> Span:
        """Send the tokens of iterations that take a span; from when to when the last one's are."""
        each = tokens * self.stream_time
        # the server is behind from before, from the first of them on, or waits for the last
        begin = max(self.sent, end - span * (1.0 - 1.0 / steps)) + (steps - 1) * each
        self.sent = max(begin, end) + each
        return max(begin, end), self.sent

    def wake(self) -> None:
        """Have it look again."""
        if self.touched is not None:
            self.touched()
        elif self.nudge is not None:
            event, self.nudge = self.nudge, None
            event.succeed()


def _contexts(engine: Engine, ahead: Ints) -> Floats:
    """Tokens of the contexts of an engine so many iterations from now."""
    return engine.context + engine.decodes * engine.decoding.gains(ahead).astype(np.float64)


def reached(ends: Floats, gap: float) -> tuple[int, float]:
    """Iterations until a gap ends, the one that it ends in included; when the last ends [s]."""
    steps = min(len(ends), int(np.searchsorted(ends, gap)) + 1)
    return steps, float(ends[steps - 1])


def _within(steps: int, gap: float, first: float, more: float) -> tuple[int, float]:
    """Equally growing iterations until a gap ends, the last one included; their seconds.

    The first takes `first`, each later one `more` than the one before: k of them take ``k first +
    more k (k - 1) / 2``.
    """
    half = more / 2.0
    seconds = steps * (first + half * (steps - 1))
    if gap >= seconds:
        return steps, seconds
    base = first - half
    root = math.sqrt(base * base + 2.0 * more * gap)
    # one less than it takes, against rounding
    count = max(1, min(steps, int(2.0 * gap / (base + root)) - 1))
    while count < steps and count * (first + half * (count - 1)) < gap:
        count += 1
    return count, count * (first + half * (count - 1))
