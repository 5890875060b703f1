"""Fit of the curves of collectives inside a scale-up domain: how the numbers of mpsim/cost/data/collectives.yaml came about.

Covers: t = min(a1 + S/b1, a2 + S/b2 + c sqrt(S / (1 + S/limit))) for each link, collective and group size, with three factors for each GPU beside the
one a link is fitted for: on latencies, on bandwidths, on those of all-to-all. An all-to-all also copies its own part, which is not fitted.

Run from the repository's root: python validation/collectives_fit.py prints the values as YAML.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.cost.constants import constant_groups
from mpsim.cost.network import group_bandwidth, ring_passes

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collectives_data import Sweep, load_sweeps

Floats = NDArray[np.float64]
Key = tuple[str, str, int]  # link, kind, ranks
Factors = Mapping[str, tuple[float, float, float]]  # by GPU: latency, rate, rate of all-to-all
LEAVES = ("quick_latency", "quick_fraction", "latency", "fraction", "root")
DEVICE_LEAVES = ("device_latency", "device_rate", "device_p2p")
FITTED_FOR = {"nvlink4": ("h100-sxm", "h200-sxm"), "nvlink5": ("b200-sxm",)}  # without factors
LIMIT = 1e9  # of the filling; from 1e8 to none the errors are alike, below they grow [B]
SMALLEST = 512.0  # below, times derived from printed bandwidths are too coarse [B]
LATENCY_END, LARGE = 2.0**16, 2.0**29
HIDDEN_END = 2.0**25  # host time of some ways of timing, and of NCCL before 2.20, shows below [B]
OLD = ("2.8-era", "2.9.9", "2.18.5")
HOST_TIMED = ("8-GPU H100 node (comment in file)",)  # floor of 45 to 75 us, elsewhere 8 to 16
WEIGHTS = (0.8, 1.0, 4.0)  # of a point below LATENCY_END, between, from LARGE on
SPREAD = 0.35  # an error beyond about this counts little more: a switch or a hiccup, not the curve
QUAD = 0.5  # how much faster than in proportion an error counts
SHRINK = 3.0  # what a factor of e on a GPU must gain
STARTS, ROUNDS, TURNS, STEPS = 12, 8, 3, (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Measured points of one curve, with the factors of the GPU of each, and the time of its own copy."""

    sizes: Floats
    times: Floats
    copies: Floats
    gpus: NDArray[np.str_]

    def weights(self) -> Floats:
        low = np.where(self.sizes < LATENCY_END, WEIGHTS[0], WEIGHTS[1])
        return np.where(self.sizes < LARGE, low, WEIGHTS[2])


def key_of(sweep: Sweep) -> Key:
    """Which curve a sweep belongs to."""
    link = sweep.cluster.node.scale_up.name
    return link, sweep.kind, sweep.group.ranks


def fitted(sweeps: Iterable[Sweep], factors: Factors) -> dict[Key, dict[str, float]]:
    """Constants of every curve with 10 sizes or more, small ones among them, given how the GPUs differ."""
    pooled, known = pooled_sweeps(sweeps), tuple(sorted(factors.items()))
    return {key: _fitted_once(key, tuple(found), known) for key, found in pooled.items()}


@functools.cache
def _fitted_once(
    key: Key,
    sweeps: tuple[Sweep, ...],
    factors: tuple[tuple[str, tuple[float, float, float]], ...],
) -> dict[str, float]:
    return _leaves(key, sweeps[0], _curve(key, points_of(sweeps), dict(factors)))


def fitted_together(sweeps: Sequence[Sweep]) -> dict[str, tuple[float, float, float]]:
    """Factors of the GPUs, in turns with the curves."""
    pooled = {key: points_of(found) for key, found in pooled_sweeps(sweeps).items()}
    names = sorted({str(g) for p in pooled.values() for g in p.gpus})
    reference = {g for group in FITTED_FOR.values() for g in group}
    links = {key[0] for key in pooled if key[0] in FITTED_FOR}
    others = [g for g in names if g not in reference and _link_of(g, pooled) in links]
    factors = dict.fromkeys(others, (1.0, 1.0, 1.0))
    for _ in range(TURNS):
        curves = {
            key: _curve(key, points, factors) for key, points in pooled.items() if key[0] in links
        }
        for gpu in others:
            factors[gpu] = _factors(gpu, factors[gpu], pooled, curves)
    return factors


def pooled_sweeps(sweeps: Iterable[Sweep]) -> dict[Key, list[Sweep]]:
    """Sweeps of one node by curve, where they suffice for one."""
    pooled: dict[Key, list[Sweep]] = collections.defaultdict(list)
    for sweep in sweeps:
        if not sweep.group.crosses and not sweep.apart:
            pooled[key_of(sweep)].append(sweep)
    return {key: found for key, found in pooled.items() if _suffices(points_of(found).sizes)}


def _suffices(sizes: Floats) -> bool:
    return len(set(sizes)) >= 10 and min(sizes) < LATENCY_END


def _link_of(gpu: str, pooled: Mapping[Key, Points]) -> str:
    return next(key[0] for key, points in pooled.items() if gpu in points.gpus)


def points_of(sweeps: Sequence[Sweep]) -> Points:
    """Points that count: where host time hides the curve, large ones only."""
    parts = []
    for s in sweeps:
        hidden = s.harness or s.version in OLD or s.system in HOST_TIMED
        keep = s.sizes >= (HIDDEN_END if hidden else SMALLEST)
        gpu = np.full(int(keep.sum()), s.cluster.accelerator.name)
        parts.append((s.sizes[keep], s.times[keep], own_copy(s)[keep], gpu))
    return Points(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def own_copy(sweep: Sweep) -> Floats:
    """Time of the part that a rank of an all-to-all sends itself [s]."""
    if sweep.kind != "all_to_all":
        return 0.0 * sweep.sizes
    share = constant_groups("collectives")["device.rules"].value("copy_fraction")
    return (
        2 * sweep.sizes / sweep.group.ranks / (share * sweep.cluster.accelerator.memory_bandwidth)
    )


def seconds(x: Floats, points: Points, latency: Floats | float, rate: Floats | float) -> Floats:
    """The curve: latency and seconds per byte of the quick protocol are what `x` adds to those of the other, or the other way about."""
    s = points.sizes
    quick = latency * x[0] + (x[1] + x[3]) * s / rate
    simple = latency * (x[0] + x[2]) + x[3] * s / rate + x[4] * np.sqrt(s / (1 + s / LIMIT))
    return np.minimum(quick, simple) + points.copies


def _loss(x: Floats, points: Points, latency: Floats | float, rate: Floats | float) -> float:
    error = np.abs(np.log(seconds(x, points, latency, rate) / points.times))
    return float(points.weights() @ np.minimum(error + QUAD * error**2, SPREAD + 0.2 * error))


def _of(kind: str, points: Points, factors: Factors) -> tuple[Floats, Floats]:
    known = [factors.get(str(g), (1.0, 1.0, 1.0)) for g in points.gpus]
    rate = 2 if kind == "all_to_all" else 1
    return np.array([f[0] for f in known]), np.array([f[rate] for f in known])


def _curve(key: Key, points: Points, factors: Factors) -> Floats:
    """Descent in the logarithms of the five constants from several starts."""
    latency, rate = _of(key[1], points, factors)
    least, most = float(points.times.min()), points.sizes.max()
    slope = float(np.median(points.times[points.sizes == most])) / most
    draw = np.random.default_rng(1)
    found = []
    for _ in range(STARTS):
        near = np.exp(draw.uniform([0.3, -0.5, -0.1, -1.0], [3.0, 1.5, 0.1, 1.0]))
        start = [least, slope * near[0], least * near[1], slope * near[2], slope * near[3] * 1800]
        found.append(descend(np.log(start), lambda v: _loss(np.exp(v), points, latency, rate)))
    return np.exp(min(found, key=lambda pair: pair[0])[1])


def _factors(
    gpu: str,
    start: tuple[float, float, float],
    pooled: Mapping[Key, Points],
    curves: Mapping[Key, Floats],
) -> tuple[float, float, float]:
    """Best factors of one GPU for given curves."""
    own = {key: _only(pooled[key], gpu) for key in curves if gpu in pooled[key].gpus}

    def loss(v: Floats) -> float:
        f = np.exp(v)
        each = (
            _loss(curves[key], points, f[0], f[2 if key[1] == "all_to_all" else 1])
            for key, points in own.items()
        )
        return sum(each) + SHRINK * float(np.abs(v).sum())

    _, best = descend(np.log(start), loss)
    return tuple(map(float, np.exp(best)))  # type: ignore[return-value]


def _only(points: Points, gpu: str) -> Points:
    mine = points.gpus == gpu
    return Points(points.sizes[mine], points.times[mine], points.copies[mine], points.gpus[mine])


def descend(x: Floats, loss: Callable[[Floats], float]) -> tuple[float, Floats]:
    """Coordinate descent by ever smaller steps: the loss and where."""
    least = loss(x)
    for step in STEPS:
        for _ in range(ROUNDS):
            before = least
            for i, by in itertools.product(range(len(x)), (step, -step)):
                trial = x.copy()
                trial[i] += by
                new = loss(trial)
                if new < least:
                    x, least = trial, new
            if least == before:
                break
    return least, x


def _leaves(key: Key, sweep: Sweep, x: Floats) -> dict[str, float]:
    """As fractions of the link's rate."""
    rate, passes = group_bandwidth(sweep.cluster, key[2]), ring_passes(key[1], key[2])
    quick, simple = passes / (x[1] + x[3]) / rate, passes / x[3] / rate
    values = (x[0], quick, x[0] + x[2], simple, x[4])
    return dict(zip(LEAVES, map(float, values), strict=True))


def lines(values: Mapping[Key, Mapping[str, float]], link: str) -> list[str]:
    """The values of one link as lines of YAML."""
    return [
        f"      {leaf}_{kind}_{ranks}: {value:.4g}"
        for (name, kind, ranks), leaves in sorted(values.items())
        if name == link
        for leaf, value in leaves.items()
    ]


if __name__ == "__main__":
    every = load_sweeps()
    devices = fitted_together(every)
    for gpu, values in devices.items():
        print(gpu, {leaf: round(v, 3) for leaf, v in zip(DEVICE_LEAVES, values, strict=True)})
    found = fitted(every, devices)
    for name in sorted({key[0] for key in found}):
        print(f"  inside.{name}:", *lines(found, name), sep="\n")
