"""Lognormal factors of durations: what jitter and variation both draw from.

A factor has mean 1; its spread is given as a coefficient of variation.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import FOLDED, Mesh
from mpsim.program import Program, Stream
from mpsim.training.vocabulary import PIPELINE, Kind

__all__ = ["COMPUTE", "QUANTILES", "VALUES", "factors", "peers_of", "sigma_of"]

COMPUTE = (*PIPELINE, Kind.OPTIMIZER)
"""Kinds of rows whose kernels vary; all others are of the network."""
QUANTILES = 2**16
"""Values of a factor, all equally likely: the tails end at 4.3 standard deviations."""
VALUES = 2**22
"""Durations drawn at a time: arrays of this size are reused instead of being mapped anew."""


def sigma_of(variation: float) -> float:
    """Parameter of the lognormal distribution with this coefficient of variation."""
    return math.sqrt(math.log1p(variation**2))


def factors(sigma: float, peers: int) -> NDArray[np.float64]:
    """Equally likely values of the largest of `peers` lognormal factors of mean 1."""
    normal = statistics.NormalDist()
    level = ((np.arange(QUANTILES) + 0.5) / QUANTILES) ** (1 / peers)
    result: NDArray[np.float64] = np.exp(
        sigma * np.array([normal.inv_cdf(share) for share in level.tolist()]) - sigma**2 / 2
    )
    return result


def peers_of(program: Program, mesh: Mesh) -> int:
    """Ranks of a class that meet inside actions: those over whose axes templates have collectives."""
    streams: set[int] = set()
    for template in program.templates:
        streams |= set(np.unique(template.stream).tolist())
    if Stream.EP in streams:  # experts' groups are cut from all ranks of a stage
        return int(program.class_size.max(initial=1))
    return math.prod(mesh.degree(axis.name) for axis in FOLDED if axis.streams[0] in streams)
