"""A lane: one engine of a service with what paces and wakes it, and the times of its iterations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import numpy as np
import simpy
from numpy.typing import NDArray

from mpsim.serving.batching import Batch, Engine, Iteration
from mpsim.serving.prices import IterationPrices
from mpsim.serving.ranks import AttentionRanks, JointIteration

__all__ = ["LONGEST_JUMP", "Lane", "within"]

Floats = NDArray[np.float64]

LONGEST_JUMP: Final = 4096
"""Iterations that are passed at once at most, so that arrays stay small."""
_COUNTING = np.arange(LONGEST_JUMP)


@dataclasses.dataclass(slots=True, eq=False)
class Lane:
    """One engine, or the ranks of an instance that act as one, with what wakes it."""

    number: int
    pool: int
    prices: IterationPrices
    engine: Engine | AttentionRanks
    pace: float
    down: int = 0  # outages under way
    closed: bool = False  # to requests that come
    touched: Callable[[], None] | None = None  # of several stages: who sees to it
    nudge: simpy.Event | None = None  # ends its sleep, or iterations that are passed at once
    # requests whose keys and values have come: taken up before the next iteration
    arrived: list[int] = dataclasses.field(default_factory=list)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Its engines: one, or one a rank."""
        return self.engine.engines if isinstance(self.engine, AttentionRanks) else (self.engine,)

    def seconds(self, iteration: Iteration) -> float:
        """Time of an iteration [s]."""
        if isinstance(iteration, JointIteration):
            loads = [part.batch for _, part in iteration.parts]
            return self.pace * float(self.prices.apart_seconds(loads, len(iteration.done)))
        return self.pace * float(self.prices.seconds(iteration.batch, len(iteration.done)))

    def next(self) -> Iteration | None:
        """Its next iteration; None where nothing can run, or it went down as it waited to."""
        return None if self.down else self.engine.next()

    def line(self) -> tuple[float, float] | None:
        """Time of the next decoding iteration, and how much longer each later one is [s]; None where these are no line."""
        engine = self.engine
        if isinstance(engine, AttentionRanks) or not engine.decoding.even:
            return None
        line = self.prices.decoding(engine.decodes, engine.context)
        return None if line is None else (self.pace * line[0], self.pace * line[1])

    def seconds_ahead(self, steps: int) -> Floats:
        """Times of so many decoding iterations from now on, in which nothing begins or ends [s]."""
        engine, ahead = self.engine, _COUNTING[:steps]
        if isinstance(engine, AttentionRanks):
            loads = [
                Batch(rank.decodes, _contexts(rank, ahead))
                for rank in engine.engines
                if rank.decodes
            ]
            return self.pace * np.asarray(self.prices.apart_seconds(loads, 0))
        batch = Batch(engine.decodes, _contexts(engine, ahead))
        return self.pace * np.asarray(self.prices.seconds(batch))

    def stages_ahead(self, steps: int) -> tuple[list[float], list[float]]:
        """Times of so many decoding iterations, and of their first stages, which others wait for [s]."""
        batch = Batch(self.engine.decodes, self.engine.context)
        if (line := self.line()) is not None:
            (first, more), stage = line, self.pace * float(self.prices.stage_seconds(batch))
            slope = more / (self.prices.work.pp * self.prices.engine.slowdown)
            seconds = [first + more * number for number in range(steps)]
            stages = [stage + slope * number for number in range(steps)]
        else:
            ahead = _COUNTING[:steps]
            context: Floats = sum((_contexts(e, ahead) for e in self.engines), np.zeros(steps))
            whole = self.prices.stage_seconds(batch._replace(context=context))
            seconds = self.seconds_ahead(steps).tolist()
            stages = (self.pace * np.broadcast_to(whole, steps)).tolist()
        return seconds, [min(*pair) for pair in zip(stages, seconds, strict=True)]

    def wake(self) -> None:
        """Have it look again."""
        if self.touched is not None:
            self.touched()
        elif self.nudge is not None:
            event, self.nudge = self.nudge, None
            event.succeed()


def _contexts(engine: Engine, ahead: NDArray[np.int64]) -> Floats:
    """Tokens of the contexts of an engine so many iterations from now."""
    gains: Floats = engine.context + engine.decodes * engine.decoding.gains(ahead).astype(
        np.float64
    )
    return gains


def within(steps: int, gap: float, first: float, more: float) -> tuple[int, float]:
    """How many of equally growing iterations end before a gap does, the one that it ends in included, and their seconds.

    The first takes `first`, each later one `more` than the one before: k of them take ``k first + more k (k - 1) / 2``.
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
