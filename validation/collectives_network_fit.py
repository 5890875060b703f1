"""Fit of what a fabric adds to a collective across nodes: how quiet.ib and quiet.efa-v1 of mpsim/cost/data/collectives.yaml came about.

Covers: five constants a fabric: the share of a NIC, the extra time of a hop, and the filling of the pipeline (root, its growth by doubling of nodes, its end).

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

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collectives_data import Sweep, load_sweeps

Floats = NDArray[np.float64]
START = {  # from here, and from two other ends of the filling
    "nic_fraction": 0.95,
    "hop_extra": 6e-6,
    "root": 0.02e-6,
    "root_doubling": 4e-9,
    "root_limit": 3e7,
}
ENDS = (3e7, 1.3e8, 5e8)
LARGE = 512e6
STEPS, ROUNDS = (0.5, 0.25, 0.1, 0.05, 0.02), 6


def of_fabric(sweeps: Sequence[Sweep], nic: str) -> list[Sweep]:
    """Sweeps that fit a fabric: on its NICs, between nodes; of InfiniBand those over three nodes or more."""
    found = [s for s in sweeps if s.group.crosses and not s.apart]
    fewest = 3 if nic == "ib-ndr" else 2
    return [s for s in found if s.cluster.node.nic.name == nic and s.group.domains >= fewest]


def with_constants(sweep: Sweep, values: Mapping[str, float]) -> Floats:
    """Times of a sweep with these constants of its fabric [s]."""
    model = CollectiveModel(sweep.cluster, loaded=False)
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


def fitted_network(sweeps: Sequence[Sweep]) -> dict[str, float]:
    """Constants of a fabric, by coordinate descent from three starts."""
    found = [_descend(sweeps, {**START, "root_limit": end}) for end in ENDS]
    return min(found, key=lambda values: _loss(sweeps, values))


def _descend(sweeps: Sequence[Sweep], values: dict[str, float]) -> dict[str, float]:
    loss = _loss(sweeps, values)
    for step in STEPS:
        for _ in range(ROUNDS):
            before = loss
            for leaf, factor in itertools.product(values, (1 + step, 1 / (1 + step))):
                trial = {**values, leaf: values[leaf] * factor}
                if trial["nic_fraction"] <= 1 and (new := _loss(sweeps, trial)) < loss:
                    values, loss = trial, new
            if loss == before:
                break
    return values


if __name__ == "__main__":
    every = load_sweeps()
    for nic in ("ib-ndr", "efa-v1"):
        print(nic, {k: float(f"{v:.3g}") for k, v in fitted_network(of_fabric(every, nic)).items()})
