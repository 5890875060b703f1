"""Intervals of a service: what its residuals depend on."""

from __future__ import annotations

from mpsim.result.residuals import Setting, chip_names, format_names
from mpsim.serving.plan import ServicePlan

__all__ = ["setting_of"]


def setting_of(plan: ServicePlan) -> Setting:
    """What the residuals of latencies and throughput depend on; a line of engines has the first word of their names."""
    return Setting(
        {
            "engine": (plan.engine.name, plan.engine.name.partition("-")[0]),
            "accelerator": chip_names(plan.cluster.accelerator),
            "format": format_names(plan.weights),
            "model": ("experts" if plan.model.moe is not None else "dense",),
            "arrival": (plan.workload.arrival,),
        },
        plan.tp * plan.pp,
    )
