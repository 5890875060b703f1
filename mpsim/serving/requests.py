"""Requests: when each arrives and what it asks for; when each was served.

Shapes: N requests, S iterations or jumps over equal ones, T transfers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints

TIMES = ("arrival", "started", "first", "last")  # of every request, columns of `Served`


@structs.dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A stream of requests, in order of arrival."""

    # since the start of the run [s]; of no use in a closed loop, where users wait for answers
    arrival: Floats
    # prompt, output: tokens of the prompt, and tokens to generate, at least 1 each
    prompt: Ints
    output: Ints
    # leading units of each prompt: equal numbers stand for equal tokens after equal tokens
    hashes: tuple[tuple[int, ...], ...] | None = None
    unit: int = 512  # tokens of such a unit
    # of sessions: the request that follows the answer to each, -1 after the last, int64[N], and
    # the time before a request from the answer that it follows, float64[N] [s]
    following: Ints | None = None
    think: Floats | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def until(self) -> float | None:
        """When the last session begins, after which they grow fewer [s]; None without sessions."""
        if self.following is None:
            return None
        return float(self.arrival[np.setdiff1d(np.arange(len(self)), self.following)].max())

    def first(self, count: int) -> Requests:
        """The first so many of them."""
        hashes = self.hashes[:count] if self.hashes else None
        columns = (self.arrival[:count], self.prompt[:count], self.output[:count])
        if self.following is None or self.think is None:
            return Requests(*columns, hashes, self.unit)
        following = np.where(self.following < count, self.following, -1)[:count]
        return Requests(*columns, hashes, self.unit, following, self.think[:count])

    def repeated(self, times: int) -> Requests:
        """All of them so many times over; every time shares prefixes with itself alone."""
        count, units = len(self), [max(own, default=0) for own in self.hashes or ()]
        period = float(self.arrival[-1]) * count / max(1, count - 1)
        further = 1 + max(units, default=0)
        hashes = [
            tuple(unit + turn * further for unit in own)
            for turn in range(times)
            for own in self.hashes or ()
        ]
        arrival = (self.arrival + period * np.arange(times)[:, None]).reshape(-1)
        prompt, output = np.tile(self.prompt, times), np.tile(self.output, times)
        return Requests(arrival, prompt, output, tuple(hashes) or None, self.unit)


@structs.dataclass(frozen=True, slots=True, eq=False)
class Served:
    """When every request was served, and every iteration ran."""

    # arrival, started, first, last: arrival, start of the first iteration that took part of its
    # prompt, end of those that gave its first and its last token, float64[N] [s]; NaN where a
    # closed loop ended before
    arrival: Floats
    started: Floats
    first: Floats
    last: Floats
    # ``start``, ``seconds`` (of all of a jump), ``count``, ``decodes``, ``context``,
    # ``prompt_tokens``, ``used`` (blocks of cache), ``engine``, ``span`` (to the end of the last;
    # more than ``seconds`` where a batch waited for the first stage between iterations): float64[S]
    steps: Mapping[str, Floats]
    # preemptions, hit_tokens: requests that were preempted, prompt tokens that the prefix cache had
    preemptions: int = 0
    hit_tokens: int = 0
    engines: int = 1  # batches that run beside each other: replicas times pipeline stages
    end: float = math.inf  # end of the last iteration [s]
    # of these batches, those of each pool; prompts first where they have one
    pools: tuple[int, ...] = (1,)
    # by pool: time in which batches lacked ``cache`` or waited for a ``transfer``, their sum [s]
    stalled: tuple[Mapping[str, float], ...] = ()
    # ``request``, ``source`` and ``target`` (batches), ``start``, ``end``, ``bytes``: float64[T]
    transfers: Mapping[str, Floats] = structs.field(default_factory=dict)
    moved: int = 0  # requests that an instance lost to an outage, each time
    # with autoscaling, each instance and from when to when it ran [s]
    running: tuple[tuple[int, float, float], ...] = ()
    starts: int = 0  # instances that were started
    brought_tokens: tuple[int, ...] = ()  # of prompts, that each tier below the device had

    @property
    def running_s(self) -> float:
        """Time in which instances ran, their sum [s]."""
        return math.fsum(end - begin for _, begin, end in self.running)

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Names of the batches that run beside each other."""
        kinds = ("engine",) if len(self.pools) == 1 else ("prefill", "decode")
        return tuple(
            f"{kind} {number}"
            for kind, count in zip(kinds, self.pools, strict=True)
            for number in range(count)
        )
