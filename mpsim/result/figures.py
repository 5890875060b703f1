"""Figures of any job's summary: traffic, utilisation, energy, price, constants, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mpsim.arrays import Floats
from mpsim.cost import Constant, Status
from mpsim.hardware import Accelerator, unverified
from mpsim.parallel import AXIS_NAMES
from mpsim.program import TICK
from mpsim.result.result import Result
from mpsim.units import percent

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
