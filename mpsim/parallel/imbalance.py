"""How many tokens the busiest rank gets when experts are not equally popular."""

from __future__ import annotations

import math

import numpy as np

from mpsim.memo import remembered

__all__ = ["expected_maximum", "rank_load"]

_REACH = 9.0  # standard deviations; nothing lies beyond in double precision
_POINTS = 20_001


def rank_load(experts: int, ranks: int, spread: float) -> float:
    """Tokens of the busiest rank over the mean, expected for experts of unequal popularity.

    Parameters
    ----------
    experts : int
        Routed experts of a layer, evenly divided among `ranks`.
    ranks : int
        Expert-parallel ranks, at least 1.
    spread : float
        Standard deviation of the tokens of an expert over their mean, in [0, inf).

    Returns
    -------
    float
        In [1, ranks].

    Notes
    -----
    Experts get independent, normally distributed shares, and all tokens go somewhere: a rank of ``L = experts / ranks`` experts deviates
    by ``spread / sqrt(L) * sqrt(1 - 1 / ranks)``, and the busiest of r by that times the expected maximum of r normal numbers.

    Examples
    --------
    >>> rank_load(64, 1, 0.5)
    1.0
    >>> round(rank_load(64, 8, 0.5), 3)
    1.235
    """
    deviation = spread * math.sqrt(ranks / experts) * math.sqrt(1.0 - 1.0 / ranks)
    return min(1.0 + deviation * expected_maximum(ranks), float(ranks))


@remembered(4096)
def expected_maximum(count: int) -> float:
    """Expected largest of `count` independent standard normal numbers: ``integral of x n phi(x) Phi(x)^(n-1)``."""
    x = np.linspace(-_REACH, _REACH, _POINTS)
    density = np.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi)
    below = np.array([0.5 * math.erfc(-bound / math.sqrt(2.0)) for bound in x.tolist()])
    step = x[1] - x[0]
    return float((x * count * density * below ** (count - 1)).sum() * step)
