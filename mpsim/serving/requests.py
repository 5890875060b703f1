"""Requests: when each arrives, how long its prompt is and how many tokens it asks for.

Shapes: N requests.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lengths", "Requests"]


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
        return Requests(
            self.arrival[:count],
            self.prompt[:count],
            self.output[:count],
            self.hashes[:count] if self.hashes else None,
            self.unit,
        )

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


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of a number of tokens.

    Parameters
    ----------
    tokens : float
        The length; of ``uniform`` the longest, of ``lognormal`` the mean.
    kind : str
        ``fixed``, ``uniform`` or ``lognormal``.
    shortest : float
        Of ``uniform``: the least length over the longest, in (0, 1].
    spread : float
        Of ``lognormal``: standard deviation over the mean.
    """

    tokens: float
    kind: str = "fixed"
    shortest: float = 1.0
    spread: float = 0.0

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Lengths of `count` requests, at least one token each."""
        if self.kind == "uniform" and self.shortest < 1.0:
            low = max(1, int(self.shortest * self.tokens))
            return random.integers(low, int(self.tokens) + 1, count)
        if self.kind == "lognormal" and self.spread > 0:
            sigma = math.sqrt(math.log1p(self.spread**2))
            drawn = random.lognormal(math.log(self.tokens) - sigma**2 / 2, sigma, count)
            return np.maximum(1, np.rint(drawn)).astype(np.int64)
        return np.full(count, max(1, round(self.tokens)), dtype=np.int64)
