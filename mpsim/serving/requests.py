"""Requests: when each arrives, how long its prompt is and how many tokens it asks for.

Shapes: N requests.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lengths", "Requests"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A stream of requests, in order of arrival.

    Parameters
    ----------
    arrival : float64[N]
        Since the start of the run [s]; of a closed loop, where a user sends the next request when the last one has ended, only the first of each user counts.
    prompt, output : int64[N]
        Tokens of the prompt, and tokens to generate, at least 1 each.
    prefix : int64[N], optional
        Leading tokens of the prompt that requests of the same `prefix_group` share.
    prefix_group : int64[N], optional
        Which shared prefix; -1 for none.
    """

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    prefix: NDArray[np.int64] | None = None
    prefix_group: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def tokens(self) -> int:
        """Tokens of all prompts and outputs."""
        return int(self.prompt.sum() + self.output.sum())


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of a number of tokens.

    Parameters
    ----------
    mean : float
        Tokens; of ``uniform`` the largest value, as load generators state it.
    kind : str
        ``fixed``, ``uniform`` (from ``shortest`` x mean to mean) or ``lognormal``.
    shortest : float
        Of ``uniform``: the least length over the largest, in (0, 1].
    spread : float
        Of ``lognormal``: standard deviation over the mean.
    """

    mean: float
    kind: str = "fixed"
    shortest: float = 1.0
    spread: float = 0.0

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Lengths of `count` requests, at least one token each."""
        if self.kind == "uniform" and self.shortest < 1.0:
            low = max(1, int(self.shortest * self.mean))
            return random.integers(low, int(self.mean) + 1, count)
        if self.kind == "lognormal" and self.spread > 0:
            sigma = np.sqrt(np.log1p(self.spread**2))
            drawn = random.lognormal(np.log(self.mean) - sigma**2 / 2, sigma, count)
            return np.maximum(1, np.rint(drawn)).astype(np.int64)
        return np.full(count, max(1, round(self.mean)), dtype=np.int64)
