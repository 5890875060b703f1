"""Intervals of a service: what its residuals depend on, and the ranges of its figures that follow."""

from __future__ import annotations

from mpsim.result.residuals import LEVEL, Interval, Setting, chip_names, format_names, residuals
from mpsim.serving.plan import ServicePlan
from mpsim.serving.summary import Figures

__all__ = ["intervals", "setting_of"]

_LATENCIES = {"ttft_s": "ttft", "tpot_s": "tpot", "e2e_s": "e2e"}
# arrivals that wait for the service: its speed decides the throughput
_PUSHED = ("closed", "all-at-once")


def setting_of(plan: ServicePlan) -> Setting:
    """The setting of a service; a line of engines has the first word of their names."""
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


def intervals(setting: Setting, figures: Figures) -> Figures:
    """Ranges that hold what would be measured.

    Parameters
    ----------
    figures : mapping
        With the predictions: ``ttft_s`` and other latencies by mean and percentiles, ``output_tokens_per_s``.

    Returns
    -------
    dict
        ``[low, high]`` of the mean of each latency, and of the throughput where the service decides it; ``level`` and ``basis``.
    """
    ranges: dict[str, Interval] = {}
    for name, figure in _LATENCIES.items():
        mean = (figures[name] or {}).get("mean")
        if mean:
            ranges[name] = residuals(figure).interval(mean, setting)
    if setting.labels["arrival"][0] in _PUSHED:
        for name in ("output_tokens_per_s", "output_tokens_per_s_per_accelerator"):
            if figures[name]:
                ranges[name] = residuals("throughput").interval(figures[name], setting)
    basis = {name: interval.basis for name, interval in ranges.items()}
    return {
        **{name: interval.to_json() for name, interval in ranges.items()},
        "level": LEVEL,
        "basis": next(iter(basis.values()), ""),
    }
