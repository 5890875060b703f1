"""Fit of what a fabric adds to a collective across nodes: how quiet.ib and quiet.efa-v1 of mpsim/cost/data/collectives.yaml came about.

Covers: six constants a fabric: the share of a NIC, what each doubling of nodes takes off it, the extra time of a hop, and the filling of the pipeline
(root, its growth by doubling of nodes, its end). Two nodes of EFA 1 tell nothing of doublings: those of InfiniBand are kept there.

Run from the repository's root: python validation/collectives_network_fit.py prints the values.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel
from mpsim.cost.constants import constant_groups

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collectives_data import Sweep, load_sweeps

Floats = NDArray[np.float64]
START = {  # from here, and from two other ends of the filling
    "nic_fraction": 0.95,
    "hop_extra": 6e-6,
    "root": 0.02e-6,
    "root_doubling": 4e-9,
    "root_limit": 3e7,
    "congestion": 0.005,
}
ENDS = (3e7, 1.3e8, 5e8)
LARGE = 512e6
STEPS, ROUNDS = (0.5, 0.25, 0.1, 0.05, 0.02), 6


def of_fabric(sweeps: Sequence[Sweep], nic: str) -> list[Sweep]:
    """Sweeps that fit a fabric: on its NICs, between nodes; of InfiniBand those over three nodes or more."""
    found = [s for s in sweeps if s.group.crosses and not s.apart]
    fewest = 3 if nic == "ib-ndr" else 2
    on = [s for s in found if s.cluster.node.nic.name.startswith(nic)]
    return [s for s in on if s.group.domains >= fewest]


def with_constants(sweep: Sweep, values: Mapping[str, float]) -> Floats:
    """Times of a sweep with these constants of its fabric [s]."""
    model = CollectiveModel(sweep.cluster, loaded=False, shared=False)
    constants = dict(model.library.network.constants)
    for leaf, value in values.items():
        constants[leaf] = dataclasses.replace(constants[leaf], value=value)
    model.library.network = dataclasses.replace(model.library.network, constants=constants)
    return model.seconds(sweep.kind, sweep.sizes, sweep.group)


def _loss(sweeps: Sequence[Sweep], values: Mapping[str, float]) -> float:
    total = 0.0
    for sweep in sweeps:
        error = np.abs(np.log(with_constants(sweep, values) / sweep.times))
        weights = np.where(sweep.sizes >= LARGE, 2.0, 1.0) / np.sqrt(len(error))
        total += float(weights @ (error + error**2))
    return total


def fitted_network(
    sweeps: Sequence[Sweep], start: Mapping[str, float] = START, kept: Sequence[str] = ()
) -> dict[str, float]:
    """Constants of a fabric, by coordinate descent from three starts; those `kept` stay as they are."""
    free = [leaf for leaf in start if leaf not in kept]
    found = [_descend(sweeps, {**start, "root_limit": end}, free) for end in ENDS]
    return min(found, key=lambda values: _loss(sweeps, values))


def _descend(
    sweeps: Sequence[Sweep], values: dict[str, float], free: Sequence[str]
) -> dict[str, float]:
    loss = _loss(sweeps, values)
    for step in STEPS:
        for _ in range(ROUNDS):
            before = loss
            for leaf, factor in itertools.product(free, (1 + step, 1 / (1 + step))):
                trial = {**values, leaf: values[leaf] * factor}
                if trial["nic_fraction"] <= 1 and (new := _loss(sweeps, trial)) < loss:
                    values, loss = trial, new
            if loss == before:
                break
    return values


def fitted_fabric(sweeps: Sequence[Sweep], nic: str) -> dict[str, float]:
    """Constants of a fabric from sweeps on it; what two nodes cannot tell stays as shipped."""
    if nic == "ib-ndr":
        return fitted_network(sweeps)
    network = CollectiveModel(sweeps[0].cluster, loaded=False).library.network
    shipped = {leaf: network.value(leaf) for leaf in START}
    kept = ("congestion", "root_doubling")
    if nic == "roce":
        kept = (*kept, "nic_fraction", "root_limit")
        ib = constant_groups("collectives")["quiet.ib"]
        start = {**shipped, "hop_extra": ib.value("hop_extra"), "root": ib.value("root")}
        return _descend(sweeps, start, [leaf for leaf in START if leaf not in kept])
    return fitted_network(sweeps, shipped, kept)


def other_half(sweep: Sweep, nic: str) -> Floats:
    """Times of every size of the only sweep of a fabric, each by constants fitted on every second of the other sizes."""
    result = np.empty_like(sweep.times)
    odd = np.arange(len(sweep.sizes)) % 2 == 1
    for keep in (odd, ~odd):
        half = dataclasses.replace(sweep, sizes=sweep.sizes[keep], times=sweep.times[keep])
        result[~keep] = with_constants(sweep, fitted_fabric([half], nic))[~keep]
    return result


if __name__ == "__main__":
    every = load_sweeps()
    for nic in ("ib-ndr", "efa-v1", "roce"):
        fit = fitted_fabric(of_fabric(every, nic), nic)
        print(nic, {leaf: float(f"{v:.3g}") for leaf, v in fit.items()})
