"""Times of a service that has run: when every request was served, and every iteration ran."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["Served"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Served:
    """When every request was served, and every iteration ran.

    Shapes: N requests, S iterations or jumps over equal ones, T transfers.

    Parameters
    ----------
    arrival, started, first, last : float64[N]
        Arrival, start of the first iteration that took part of its prompt, end of those that gave its first and its last token [s]. NaN where a closed loop ended before.
    steps : mapping of str to float64[S]
        ``start``, ``seconds`` (of all of a jump), ``count``, ``decodes``, ``context``, ``prompt_tokens``, ``used`` (blocks of cache), ``engine``,
        ``span`` (to the end of the last; more than ``seconds`` where a batch waited for the first stage between iterations).
    preemptions, hit_tokens : int
        Requests that were preempted, prompt tokens that the prefix cache had.
    engines : int
        Batches that run beside each other: replicas times pipeline stages.
    end : float
        End of the last iteration [s].
    pools : tuple of int
        Of these batches, those of each pool; prompts first where they have one.
    stalled : tuple of mappings of str to float
        For each pool: time in which its batches had requests but no ``cache`` for them, or waited for a ``transfer``, their sum [s].
    transfers : mapping of str to float64[T]
        ``request``, ``source`` and ``target`` (batches), ``start``, ``end``, ``bytes``.
    moved : int
        Requests that an instance lost to an outage, each time.
    running : tuple of (int, float, float)
        With autoscaling, each instance and from when to when it ran [s].
    starts : int
        Instances that were started.
    """

    arrival: Floats
    started: Floats
    first: Floats
    last: Floats
    steps: Mapping[str, Floats]
    preemptions: int = 0
    hit_tokens: int = 0
    engines: int = 1
    end: float = math.inf
    pools: tuple[int, ...] = (1,)
    stalled: tuple[Mapping[str, float], ...] = ()
    transfers: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    moved: int = 0
    running: tuple[tuple[int, float, float], ...] = ()
    starts: int = 0

    def first_requests(self, count: int) -> Served:
        """The same run with the first so many requests: the others were never sent."""
        names = ("arrival", "started", "first", "last")
        return dataclasses.replace(self, **{name: getattr(self, name)[:count] for name in names})

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Names of the batches that run beside each other."""
        kinds = ("engine",) if len(self.pools) == 1 else ("prefill", "decode")
        return tuple(
            f"{kind} {number}"
            for kind, count in zip(kinds, self.pools, strict=True)
            for number in range(count)
        )
