"""Figures of any job's summary: traffic, utilisation, energy by part, price, constants, warnings.

Shapes: R rank classes, K loads of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import KERNELS, Board, Constant, Load, Status
from mpsim.hardware import Accelerator, Cluster, board_power, unverified
from mpsim.hardware.inventory import inventory_of
from mpsim.parallel import AXIS_NAMES
from mpsim.program import TICK
from mpsim.result.result import Result
from mpsim.result.words import Figures
from mpsim.shipped import read_shipped
from mpsim.units import percent

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


_TOLD = 0.01  # of the step: what less rests on moves no result that anybody would notice
_KERNELS = ("forward", "backward", "weight_gradient", "recompute", "optimizer")
_AREAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "collectives": ("collectives", ("exposed_",)),
    "hardware": ("links", ("exposed_",)),
    "interference": ("compute beside collectives", (*_KERNELS, "exposed_")),
    "kernels": ("kernels", _KERNELS),
    "straggling": ("waiting for stragglers", ("straggling",)),
}
"""Constants by the first part of their names: in words, and what parts rest on them."""


def mean_over_ranks(result: Result, values: Floats) -> Floats:
    """Mean over all ranks of figures of rank classes [R, ...]."""
    size = result.timeline.program.class_size
    mean: Floats = (size / size.sum()) @ values
    return mean


def mean_over_accelerators(result: Result, figure: Callable[[Accelerator], float]) -> float:
    """Mean over all accelerators of a figure; of equal ones exactly what each has."""
    values = np.array([figure(cluster.accelerator) for cluster in result.class_clusters])
    if (values == values[0]).all():
        return float(values[0])
    return float(mean_over_ranks(result, values))


def communication(result: Result) -> dict[str, dict[str, float]]:
    """Mean over ranks of the time that transfers of each axis run, beside kernels and not [s]."""
    hidden, exposed = (
        mean_over_ranks(result, ticks) * TICK
        for ticks in (result.communication.hidden, result.communication.exposed)
    )
    return {
        axis: {"hidden": float(hidden[i]), "exposed": float(exposed[i])}
        for i, axis in enumerate(AXIS_NAMES)
    }


def utilisation(result: Result, seconds: float) -> dict[str, float]:
    """Mean over ranks of the share of `seconds` in which each resource works."""
    share = result.timeline.step_time_s / seconds
    return {
        name: float(mean_over_ranks(result, getattr(result.utilisation, name))) * share
        for name in ("compute", "scale_up", "scale_out")
    }


def price(result: Result, seconds: float) -> float | None:
    """Price of all accelerators for `seconds` [USD]; None where one has none."""
    chips = [cluster.accelerator for cluster in result.class_clusters]
    if any(chip.price_per_hour is None for chip in chips):
        return None
    each = mean_over_accelerators(result, lambda chip: chip.price_per_hour or 0.0)
    return price_of(each, int(result.timeline.program.class_size.sum()), seconds)


def price_of(each: float | None, ranks: int, seconds: float) -> float | None:
    """Price of so many accelerators for `seconds` [USD] at a price each [USD/h], or None."""
    return None if each is None else each * ranks * seconds / 3600


def calibration(constants: Sequence[Constant]) -> dict[str, object]:
    """Constants by status: fitted on measurements, or not."""
    statuses = [constant.status for constant in constants]
    return {
        "calibrated": statuses.count(Status.CALIBRATED),
        "family_default": statuses.count(Status.FAMILY_DEFAULT),
        "datasheet": statuses.count(Status.DATASHEET),
        "constants": [
            {
                "name": constant.name,
                # JSON has no infinity: no limit
                "value": constant.value if math.isfinite(constant.value) else None,
                "unit": constant.unit,
                "status": str(constant.status),
                "source": constant.source,
                "as_of": constant.as_of,
            }
            for constant in constants
        ],
    }


def unsure(
    result: Result, precision: str, breakdown: Mapping[str, float], *, interference: bool
) -> list[str]:
    """Warnings of values that nobody verified, and of constants of other hardware that a hundredth
    of the step or more rests on. `breakdown`: time by part of the account [s].
    """
    warnings = unverified((each.accelerator for each in result.class_clusters), precision)
    defaults: dict[str, list[str]] = {}
    for constant in result.constants:
        if constant.status is not Status.FAMILY_DEFAULT:
            continue
        area, _, name = constant.name.rpartition(".")[0].partition(".")
        # without interference its constants only shorten the little that runs beside exchanges
        if interference or area != "interference":
            defaults.setdefault(area, []).append(name)
    step = math.fsum(breakdown.values())
    for area, names in sorted(defaults.items()):
        words, rests = _AREAS.get(area, (area, ("",)))
        share = math.fsum(time for part, time in breakdown.items() if part.startswith(rests)) / step
        if share >= _TOLD:
            listed = ", ".join(dict.fromkeys(sorted(names)))
            told = f"{words} ({listed}), on which {percent(share)} of the step rests"
            warnings.append(f"not measured on this hardware: {told}")
    return warnings
