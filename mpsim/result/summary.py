"""The summary: one flat mapping of SI numbers, the JSON of ``mpsim run``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsim.cost import Constant, Status, device_power
from mpsim.hardware import SCALED_FORMATS, Accelerator, recalled
from mpsim.hardware.routes import routes_of
from mpsim.program import PARTS, TICK
from mpsim.result.communication import AXES
from mpsim.result.memory import COMPONENTS
from mpsim.result.validated import nearest_validated
from mpsim.workload import model_flops

if TYPE_CHECKING:
    from mpsim.result.result import Result

__all__ = ["summarise"]


def summarise(result: Result) -> dict[str, Any]:
    """Build the summary of a result; every key is defined in docs/reference/metrics.md."""
    plan, step = result.plan, result.timeline.step_time_s
    accelerators = plan.mesh.world
    peak = _mean(result, lambda chip: chip.peak(plan.precision))
    model = model_flops(plan.model, plan.global_batch, plan.sequence_length)
    hardware = _hardware_flops(result)
    breakdown = _breakdown(result)
    tokens = plan.tokens_per_step / step
    each = accelerators * step
    return {
        "scenario": plan.name,
        "engine": result.timeline.engine,
        "accelerators": accelerators,
        "step_time_s": step,
        "tokens_per_s": tokens,
        "tokens_per_s_per_accelerator": tokens / accelerators,
        "model_flops_per_step": model,
        "hardware_flops_per_step": hardware,
        "model_tflops_per_accelerator": model / each / 1e12,
        "hardware_tflops_per_accelerator": hardware / each / 1e12,
        "mfu": model / each / peak,
        "hfu": hardware / each / peak,
        "bubble_fraction": breakdown["bubble"] / step,
        "breakdown_s": breakdown,
        "communication_s": _communication(result),
        "memory": _memory(result),
        "fits_memory": result.memory.fits,
        "peak_memory_bytes": float(result.memory.total.max()),
        "energy_j_per_step": _energy(result),
        "cost_per_step": _cost(result),
        "utilisation": _utilisation(result),
        "calibration": _calibration(result.constants),
        "validated": nearest_validated(plan.cluster.accelerator, plan.framework.name, accelerators),
        "warnings": _warnings(result),
        **({"variation": result.variation.to_json()} if result.scenario.variation else {}),
    }


def _weights(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    size = result.timeline.program.class_size
    weights: np.ndarray[Any, np.dtype[np.float64]] = size / size.sum()
    return weights


def _breakdown(result: Result) -> dict[str, float]:
    """Mean over ranks of each part [s]."""
    mean = _weights(result) @ result.parts * TICK
    return dict(zip(PARTS, mean.tolist(), strict=True))


def _communication(result: Result) -> dict[str, dict[str, float]]:
    """Mean over ranks of the time that transfers of each axis run, beside kernels and not [s]."""
    weights, found = _weights(result), result.communication
    hidden, exposed = (weights @ one * TICK for one in (found.hidden, found.exposed))
    return {
        axis: {"hidden": float(hidden[i]), "exposed": float(exposed[i])}
        for i, axis in enumerate(AXES)
    }


def _hardware_flops(result: Result) -> float:
    program = result.program
    inside = np.array([one.flops.sum() for one in program.templates])
    chosen = program.template >= 0
    each = inside[program.template[chosen]] * program.class_size[program.rank[chosen]]
    return float(each.sum())


def _mean(result: Result, figure: Callable[[Accelerator], float]) -> float:
    """Mean over all accelerators of a figure."""
    chips = [one.accelerator for one in result.plan.class_clusters]
    values = np.array([figure(one) for one in chips])
    if (values == values[0]).all():
        return float(values[0])
    return float(_weights(result) @ values)


def _memory(result: Result) -> dict[str, float | int]:
    memory = result.memory
    rank = memory.fullest
    parts: dict[str, float | int] = {
        name: float(memory.components[name][rank]) for name in COMPONENTS
    }
    total = float(memory.total[rank])
    stage = rank % result.plan.mesh.pp
    return {**parts, "total": total, "capacity": memory.capacity, "rank": rank, "stage": stage}


def _energy(result: Result) -> float:
    """Energy of all accelerators over the step, idle power included, hosts and network not [J]."""
    power = np.array(
        [
            device_power(busy, cluster.accelerator.tdp_w, cluster.accelerator.idle_w)
            for busy, cluster in zip(
                result.utilisation.compute, result.plan.class_clusters, strict=True
            )
        ]
    )
    size = result.timeline.program.class_size
    return float((power * size).sum() * result.timeline.step_time_s)


def _cost(result: Result) -> float | None:
    chips = [one.accelerator for one in result.plan.class_clusters]
    if any(one.price_per_hour is None for one in chips):
        return None
    price = _mean(result, lambda chip: chip.price_per_hour or 0.0)
    return price * result.plan.mesh.world * result.timeline.step_time_s / 3600


def _utilisation(result: Result) -> dict[str, float]:
    weights = _weights(result)
    return {
        name: float(weights @ getattr(result.utilisation, name))
        for name in ("compute", "scale_up", "scale_out")
    }


def _calibration(constants: Sequence[Constant]) -> dict[str, Any]:
    """Say which constants were fitted on measurements, and which were not."""
    return {
        "calibrated": sum(one.status is Status.CALIBRATED for one in constants),
        "family_default": sum(one.status is Status.FAMILY_DEFAULT for one in constants),
        "datasheet": sum(one.status is Status.DATASHEET for one in constants),
        "constants": [_constant(one) for one in constants],
    }


def _constant(one: Constant) -> Mapping[str, Any]:
    return {
        "name": one.name,
        "value": one.value if math.isfinite(one.value) else None,  # JSON has no infinity: no limit
        "unit": one.unit,
        "status": str(one.status),
        "source": one.source,
        "as_of": one.as_of,
    }


def _warnings(result: Result) -> list[str]:
    plan, memory = result.plan, result.memory
    warnings = []
    if plan.network == "analytic" and plan.mesh.pp > 1 and routes_of(plan.cluster).names:
        warnings.append(
            "links of the fabric are thinner than the NICs below them, and network: analytic lets stages use them without "
            "meeting each other; set simulation.network to flow"
        )
    if not memory.fits:
        warnings.append(
            f"does not fit: rank {memory.fullest} needs {memory.total[memory.fullest] / 1e9:.1f} GB of "
            f"{memory.capacity / 1e9:.1f} GB; 'mpsim check' says what would make it fit"
        )
    peak = f"peak_flops.{SCALED_FORMATS.get(plan.precision, plan.precision)}"
    used = ("memory_bytes", "memory_bandwidth", "tdp_w", "idle_w", peak)
    for name, chip in {
        one.accelerator.name: one.accelerator for one in plan.class_clusters
    }.items():
        if unsure := [figure for figure in recalled(chip) if figure in used]:
            warnings.append(
                f"figures of {name} that are recalled, not verified: {', '.join(unsure)}"
            )
    defaults = sorted(
        {
            one.name.rpartition(".")[0]
            for one in result.constants
            if one.status is Status.FAMILY_DEFAULT
        }
    )
    if defaults:
        warnings.append(f"not calibrated on this hardware: {', '.join(defaults)}")
    return warnings
