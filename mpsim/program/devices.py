"""Devices: what every row takes of the accelerator it runs on, and what it loses to others there.

Shapes: N rows, R rank classes.
"""

from __future__ import annotations

import itertools

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.cost import Constant, Interference, interference_of
from mpsim.parallel.axes import COMMUNICATION
from mpsim.program.expand import expand, expanded_flops
from mpsim.program.links import Deployment
from mpsim.program.program import COLLECTIVE, TICK, Program, Stream


@structs.dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """Rows as their devices see them."""

    program: Program  # expanded: a kernel is a row
    computes: Flags  # bool[N], whether the row is a kernel on the compute stream
    # bool[N], whether it is bound by processors; other kernels are bound by memory
    product: Flags
    # held, traffic: float64[N], share of processors and of memory bandwidth that a collective
    # takes, of the home rank's device; 0 for all others
    held: Floats
    traffic: Floats
    drag: Floats  # float64[N], by how much longer a collective takes beside a kernel
    most: float  # share of a device that collectives take of a kernel at most
    # float64[N], time of a row that loses nothing, over that in the program, with its least loss
    alone: Floats


def devices_of(program: Program, deployment: Deployment, usual: Program | None = None) -> Devices:
    """Expand a program of the deployment, with templates, and look up what its rows take; those of
    `usual` have the least that they lose in their durations.
    """
    fine = expand(program)
    least = fine.duration if usual is None else np.maximum(fine.duration, expand(usual).duration)
    rank, home = fine.rank, fine.stream
    models = _models(deployment)
    carried = fine.up_bytes + fine.out_bytes
    communicates = np.isin(home, list(COMMUNICATION)) & (carried > 0)
    axes = [COMMUNICATION.get(stream, "") for stream in Stream]
    held = np.array([[model.held.get(axis, 0.0) for axis in axes] for model in models])
    lost = np.array([[model.lost * (axis == "dp") for axis in axes] for model in models])
    full = np.array([model.full_rate * TICK for model in models])
    per_byte = np.array([model.touches / (model.memory_bandwidth * TICK) for model in models])
    moved = carried * per_byte[rank]
    lasting = communicates & (fine.duration > 0)
    nothing = np.zeros(len(fine))
    speed = np.divide(carried, fine.duration, out=nothing.copy(), where=lasting)
    taken = lost[rank, home] * np.minimum(1.0, speed / full[rank])
    computes = (home == Stream.COMPUTE) & (fine.kind != COLLECTIVE)
    computes &= fine.part != fine.vocabulary.part("host")
    return Devices(
        program=structs.replace(fine, duration=least),
        computes=computes & (fine.duration > 0),
        product=expanded_flops(program) > 0,
        held=np.where(lasting, np.maximum(held[rank, home], taken), 0.0),
        traffic=np.maximum(np.divide(moved, fine.duration, out=nothing, where=lasting), taken),
        drag=np.where(lasting, np.array([model.drag for model in models])[rank], 0.0),
        most=min(model.most for model in models),
        alone=np.divide(fine.duration, least, out=np.ones(len(fine)), where=least > 0),
    )


def _models(deployment: Deployment) -> list[Interference]:
    """Constants of every rank class."""
    chips = (cluster.accelerator for cluster in deployment.class_clusters)
    return [interference_of(deployment.layout.framework.name, chip) for chip in chips]


def interference_constants(deployment: Deployment) -> tuple[Constant, ...]:
    """Constants of interference between kernels and collectives on the devices of a deployment."""
    return tuple(
        dict.fromkeys(constant for model in _models(deployment) for constant in model.constants)
    )


def ranks_of(program: Program) -> list[list[int]]:
    """Rank classes on which each row runs, home first."""
    pairs = np.unique(np.stack(program.slots[:2]), axis=1)
    pointer = np.searchsorted(pairs[0], np.arange(len(program) + 1))
    ranks = pairs[1].tolist()
    return [ranks[begin:end] for begin, end in itertools.pairwise(pointer.tolist())]
