"""Fit of the two-regime curve of collectives inside a scale-up domain: how the numbers of mpsim/cost/data/collectives.yaml came about.

Covers: t = min(quick_latency + passes S / (quick_fraction rate), latency + passes S / (fraction rate) + root sqrt(S)), five constants for each link,
collective and group size. The first regime is NCCL's low-latency protocols, the second its Simple protocol, whose root stands for the
filling of the pipeline of chunks.

Run from the repository's root: python validation/collectives_fit.py prints the values as YAML.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.cost.network import group_bandwidth
from mpsim.cost.traffic import ring_passes

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collectives_data import Sweep, load_sweeps

Floats = NDArray[np.float64]
Key = tuple[str, str, int]  # link, kind, ranks
LEAVES = ("quick_latency", "quick_fraction", "latency", "fraction", "root")
SMALLEST = 512.0  # below, times derived from printed bandwidths are too coarse [B]
LATENCY_END, LARGE = 2.0**16, 2.0**28
HIDDEN_END = (
    2.0**25
)  # launches from one thread, torch, and releases of NCCL before 2.20 cost time of their own below this [B]
OLD = ("2.8-era", "2.9.9", "2.18.5")
WEIGHTS = (0.5, 1.0, 4.0)  # of a point below LATENCY_END, between, above LARGE
CUTS = 2.0 ** np.arange(12, 27)
ROUNDS, STEPS = 12, (0.2, 0.1, 0.05, 0.02, 0.01)
FLOORS = np.array([1e-6, 1e-9, 1e-6, 1e-3, 0.0])


def key_of(sweep: Sweep) -> Key:
    """Which curve a sweep belongs to."""
    link = sweep.cluster.node.scale_up.name
    return link, sweep.kind, sweep.group.ranks


def fitted(sweeps: Iterable[Sweep]) -> dict[Key, dict[str, float]]:
    """Constants of every curve with 10 sizes or more, small ones among them."""
    pooled: dict[Key, list[Sweep]] = collections.defaultdict(list)
    for sweep in sweeps:
        if not sweep.group.crosses and not sweep.apart:
            pooled[key_of(sweep)].append(sweep)
    points = {key: _points(found) for key, found in pooled.items()}
    return {
        key: _curve(key, *at)
        for key, at in points.items()
        if len(set(at[0])) >= 10 and min(at[0]) < LATENCY_END
    }


def _points(sweeps: Sequence[Sweep]) -> tuple[Floats, Floats, float]:
    """Sizes, times and the raw rate of the group."""
    kept = [s.sizes >= (HIDDEN_END if s.harness or s.version in OLD else SMALLEST) for s in sweeps]
    sizes = np.concatenate([s.sizes[keep] for s, keep in zip(sweeps, kept, strict=True)])
    times = np.concatenate([s.times[keep] for s, keep in zip(sweeps, kept, strict=True)])
    return sizes, times, group_bandwidth(sweeps[0].cluster, sweeps[0].group.per_domain)


def seconds(x: Floats, sizes: Floats) -> Floats:
    """The curve, with seconds per byte in place of fractions."""
    return np.minimum(x[0] + x[1] * sizes, x[2] + x[3] * sizes + x[4] * np.sqrt(sizes))


def _loss(x: Floats, sizes: Floats, times: Floats, weights: Floats) -> float:
    error = np.abs(np.log(seconds(x, sizes) / times))
    return float(weights @ (error + 2.0 * error**2))


def _curve(key: Key, sizes: Floats, times: Floats, rate: float) -> dict[str, float]:
    weights = np.where(sizes < LATENCY_END, WEIGHTS[0], np.where(sizes < LARGE, *WEIGHTS[1:]))
    starts = [_start(cut, sizes, times, weights) for cut in CUTS]
    found = [_descend(x, sizes, times, weights) for x in starts if x is not None]
    best = min(found, key=lambda x: _loss(x, sizes, times, weights))
    passes = ring_passes(key[1], key[2])
    values = (best[0], passes / best[1] / rate, best[2], passes / best[3] / rate, best[4])
    return dict(zip(LEAVES, map(float, values), strict=True))


def _start(cut: float, sizes: Floats, times: Floats, weights: Floats) -> Floats | None:
    """Least squares on either side of a size."""
    low, high = sizes <= cut, sizes > cut
    if len(set(sizes[low])) < 4 or len(set(sizes[high])) < 4:
        return None
    terms = np.stack([np.ones_like(sizes), sizes, np.sqrt(sizes)], axis=1)
    quick = _positive(terms[low, :2], times[low], weights[low])
    simple = _positive(terms[high], times[high], weights[high])
    return np.maximum(np.concatenate([quick, simple]), FLOORS * [1, 1e-6, 1, 1e-12, 1])


def _positive(terms: Floats, times: Floats, weights: Floats) -> Floats:
    """Relative least squares with coefficients of 0 or more, by trying every set of terms."""
    scaled, best = terms * (weights / times)[:, None], (np.inf, np.zeros(terms.shape[1]))
    for count in range(1, terms.shape[1] + 1):
        for columns in itertools.combinations(range(terms.shape[1]), count):
            some, *_ = np.linalg.lstsq(scaled[:, columns], weights, rcond=None)
            error = float(np.sum((scaled[:, columns] @ some - weights) ** 2))
            if np.all(some >= 0) and error < best[0]:
                full = np.zeros(terms.shape[1])
                full[list(columns)] = some
                best = (error, full)
    return best[1]


def _descend(x: Floats, sizes: Floats, times: Floats, weights: Floats) -> Floats:
    """Coordinate descent by factors, on the loss of the whole curve."""
    x, loss = x.copy(), _loss(x, sizes, times, weights)
    for step in STEPS:
        for _ in range(ROUNDS):
            before = loss
            for i, factor in itertools.product(range(len(x)), (1 + step, 1 / (1 + step))):
                trial = x.copy()
                trial[i] *= factor
                new = _loss(trial, sizes, times, weights)
                if new < loss:
                    x, loss = trial, new
            if loss == before:
                break
    return x


def lines(values: Mapping[Key, Mapping[str, float]], link: str) -> list[str]:
    """The values of one link as lines of YAML."""
    return [
        f"      {leaf}_{kind}_{ranks}: {value:.4g}"
        for (name, kind, ranks), leaves in sorted(values.items())
        if name == link
        for leaf, value in leaves.items()
    ]


if __name__ == "__main__":
    found = fitted(load_sweeps())
    for name in sorted({key[0] for key in found}):
        print(f"  inside.{name}:", *lines(found, name), sep="\n")
