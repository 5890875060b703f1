"""Requests: when each arrives, how long its prompt is and how many tokens it asks for.

Shapes: N requests.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

__all__ = ["Requests"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A stream of requests, in order of arrival.

    Parameters
    ----------
    arrival : float64[N]
        Since the start of the run [s]. In a closed loop, where a user sends the next request when the last one has ended, they do not count.
    prompt, output : int64[N]
        Tokens of the prompt, and tokens to generate, at least 1 each.
    hashes : tuple of N tuples of int, optional
        Leading units of each prompt: equal numbers stand for equal tokens after equal tokens.
    unit : int
        Tokens of such a unit.
    """

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    hashes: tuple[tuple[int, ...], ...] | None = None
    unit: int = 512

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return int((self.prompt + self.output).max(initial=0))

    def first(self, count: int) -> Requests:
        """The first so many of them."""
        hashes = self.hashes[:count] if self.hashes else None
        columns = (self.arrival[:count], self.prompt[:count], self.output[:count])
        return Requests(*columns, hashes, self.unit)

    def repeated(self, times: int) -> Requests:
        """All of them so many times, one after the other; every time shares prefixes with itself alone."""
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
