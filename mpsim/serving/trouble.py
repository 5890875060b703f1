"""Trouble: ranks that are slow and nodes that fail, as the variation of a scenario has them.

The ranks of an instance wait for each other in every layer, so an instance is as slow as its slowest rank.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster
from mpsim.scenario.variation import Variation

__all__ = ["outages_of", "paces_of"]

_STREAM = 17  # of the seed: the requests are drawn from others


class _Instances(Protocol):
    """The part of a plan that says where its instances are."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def variation(self) -> Variation | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def first_rank(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...


def paces_of(plan: _Instances) -> tuple[float, ...]:
    """Time of each instance over that of one whose ranks all have the nominal speed; empty where all have.

    Notes
    -----
    Speeds that are drawn are lognormal with mean 1, one a rank of the cluster.
    """
    variation = plan.variation
    if variation is None or not (variation.slow or variation.speed):
        return ()
    count = plan.cluster.accelerators
    speed = np.ones(count)
    if variation.speed:
        sigma = math.sqrt(math.log1p(variation.speed**2))
        random = np.random.default_rng([plan.seed, _STREAM])
        speed = random.lognormal(-(sigma**2) / 2, sigma, count)
    nodes = plan.cluster.node_of(np.arange(count))
    for part in variation.slow:
        if part.node is not None:
            speed[nodes == part.node] *= part.speed
        else:
            speed[list(part.ranks or ())] *= part.speed
    return tuple(1.0 / float(speed[ranks].min()) for ranks in _ranks(plan))


def outages_of(plan: _Instances) -> tuple[tuple[int, float, float], ...]:
    """Instances with a rank on a node that fails, from when to when they are down [s]."""
    variation = plan.variation
    if variation is None:
        return ()
    nodes = [plan.cluster.node_of(ranks) for ranks in _ranks(plan)]
    return tuple(
        (replica, outage.at, outage.at + outage.duration)
        for outage in variation.outages
        for replica in range(plan.replicas)
        if (nodes[replica] == outage.node).any()
    )


def _ranks(plan: _Instances) -> list[NDArray[np.int64]]:
    """Ranks of each instance in the cluster."""
    each = plan.tp * plan.pp
    first = plan.first_rank
    return [
        np.arange(first + number * each, first + (number + 1) * each)
        for number in range(plan.replicas)
    ]
