"""Energy of a job by part: what accelerators draw it for, and what is before the meter.

Shapes: R rank classes, K loads of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import KERNELS, Board, Load
from mpsim.hardware import Cluster, board_power
from mpsim.hardware.inventory import inventory_of
from mpsim.program import TICK
from mpsim.result.result import Result
from mpsim.result.words import Figures
from mpsim.shipped import read_shipped

IDLE = "idle"  # the part that boards would draw with nothing to do


@structs.dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a job from its kernels to the meter."""

    # by part: `IDLE`, and for each `mpsim.cost.Load` what it takes beyond that [J]
    accelerators: Mapping[str, float]
    # ``accelerators``, ``hosts``, ``nics``, ``switches``, ``facility`` [J]
    meter: Mapping[str, float]

    @property
    def total(self) -> float:
        """Energy of all accelerators, exactly the sum of its parts [J]."""
        return math.fsum(self.accelerators.values())

    @property
    def at_meter(self) -> float:
        """Energy at the meter, exactly the sum of its parts [J]."""
        return math.fsum(self.meter.values())


def measure_energy(result: Result, seconds: float | None = None) -> Energy:
    """Account for the energy of a finished job, `seconds` beyond its timeline too.

    Notes
    -----
    A board draws idle power throughout. While kernels run it draws more by their kind (see
    `mpsim.cost.Board`), the busy time of a rank shared out as its kernels take alone; transfers
    count where no kernel runs beside them, pauses as a board that waits with its clock up.

    Hosts draw ``host`` of the limit of their boards and NICs and switches what they are, whatever
    the accelerators do: a slower step pays longer for them. Switches count where there is more than
    one node. The facility takes ``PUE - 1`` of all that.
    """
    step = result.timeline.step_time_s if seconds is None else seconds
    loads = _seconds_by_load(result, step)
    size = result.timeline.program.class_size
    clusters = result.class_clusters
    chips = [cluster.accelerator for cluster in clusters]
    # most steps have one kind of board on all their ranks
    first = [chips.index(chip) for chip in chips]
    boards = {place: Board(chips[place]) for place in sorted(set(first))}
    idle = np.array([chip.idle_w for chip in chips])
    parts = {IDLE: float((idle * size).sum() * step)}
    for load, spent in loads.items():
        drawn = {place: board.watts(load) for place, board in boards.items()}
        watts = np.array([drawn[place] for place in first])
        parts[load.value] = float(((watts - idle) * spent * size).sum())
    seconds_of = [step * ranks for ranks in size.tolist()]
    return Energy(parts, _to_the_meter(math.fsum(parts.values()), clusters, seconds_of))


def _seconds_by_load(result: Result, step: float) -> dict[Load, Floats]:
    """Time of a rank of each class by what draws power; with the rest they sum to the step [s]."""
    alone_RK, own = result.kernel_seconds, result.timeline.step_time_s
    busy = np.clip(np.asarray(result.utilisation.compute, dtype=np.float64), 0.0, 1.0) * own
    sums = alone_RK.sum(axis=1)
    # kernels nobody described are taken as bound by memory, which most of what is no product is
    unknown = np.zeros_like(alone_RK)
    unknown[:, KERNELS.index(Load.STREAMS)] = 1.0
    shares_RK = np.where(
        sums[:, None] > 0, alone_RK / np.where(sums > 0, sums, 1.0)[:, None], unknown
    )
    exposed = result.communication.exposed.sum(axis=1) * TICK
    transfers = np.minimum(exposed, step - busy)
    return {
        **{load: busy * shares_RK[:, k] for k, load in enumerate(KERNELS)},
        Load.TRANSFERS: transfers,
        Load.WAITING: step - busy - transfers,
    }


def meter_constants() -> Figures:
    """Constants from accelerators to the meter: ``host``, ``nic``, ``network``, ``pue``."""
    constants: Figures = read_shipped("mpsim.result.data", "meter.yaml")
    return constants


def _to_the_meter(
    accelerators: float, clusters: tuple[Cluster, ...], seconds: Sequence[float]
) -> dict[str, float]:
    """Energy of everything up to the meter; `seconds` are accelerator-seconds of each class [J]."""
    first = [clusters.index(cluster) for cluster in clusters]
    around = {place: _around(clusters[place]) for place in sorted(set(first))}
    watts = [around[place] for place in first]
    outside = {
        name: float(math.fsum(w[name] * s for w, s in zip(watts, seconds, strict=True)))
        for name in ("hosts", "nics", "switches")
    }
    pue = meter_constants()["pue"]
    beyond = float(pue["values"][pue["default"]]) - 1.0
    inside = accelerators + math.fsum(outside.values())
    return {"accelerators": accelerators, **outside, "facility": inside * beyond}


def _around(cluster: Cluster) -> dict[str, float]:
    """Power of what surrounds one accelerator [W]."""
    known, node = meter_constants(), cluster.node
    hosts = float(known["host"]["share"]) * board_power(cluster.accelerator)
    gigabits = node.nic_bandwidth / node.accelerators * 8 / 1e9
    nics = gigabits * float(known["nic"]["watts_per_gigabit"]) if node.nics else 0.0
    counted = inventory_of(cluster).power_w if cluster.nodes > 1 else 0.0
    if counted is None:
        full = hosts + board_power(cluster.accelerator)
        counted = float(known["network"]["share"]) * full * cluster.accelerators
    return {"hosts": hosts, "nics": nics, "switches": counted / cluster.accelerators}
