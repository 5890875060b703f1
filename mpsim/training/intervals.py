"""Intervals of a training step: what residuals depend on, and ranges of its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsim import structs
from mpsim.framework import Framework, framework_line
from mpsim.parallel import AXIS_NAMES, EXPOSED
from mpsim.result.memory import Memory
from mpsim.result.residuals import (
    LEVEL,
    Residuals,
    Setting,
    chip_names,
    format_names,
    residuals,
)
from mpsim.result.words import Figures
from mpsim.training.plan import Plan

_KERNELS = ("forward", "backward", "weight_gradient", "recompute")
_RATES = ("tokens_per_s", "tokens_per_s_per_accelerator", "mfu", "hfu")
_LONG = 16_384  # tokens from which attention is a large part of a step, whatever the model


def setting_of(
    plan: Plan, seconds: Mapping[str, float] | None = None, memory: Memory | None = None
) -> Setting:
    """The setting of a step. `seconds`: of each part of its account. `memory`: if accounted."""
    layout = plan.layout
    setting = Setting(
        {
            "framework": framework_line(layout.framework.name),
            "accelerator": chip_names(layout.cluster.accelerator),
            "format": format_names(layout.precision),
            "length": ("long" if plan.sequence_length > _LONG else "short",),
            "layout": (),
            "rest": (),
            "seen": ("memory",),
            "model": ("experts" if layout.model.moe is not None else "dense",),
        },
        layout.mesh.world,
        shares=shares_of(seconds or {}, compiled=layout.framework.memory.places_buffers),
    )
    odds = fits_probability(memory, setting) if memory else 1.0
    own = known.runs_like(setting.labels) if (known := layout.cluster.calibration) else 0
    return of_layout(
        structs.replace(setting, full=fullness(layout.framework, odds), own=own),
        {axis: layout.mesh.degree(axis) for axis in AXIS_NAMES},
        micro_batch=plan.micro_batch,
        zero=plan.zero,
        schedule=plan.schedule,
        recompute=plan.recompute.granularity,
    )


def fullness(software: Framework, odds: float) -> float:
    """`Setting.full` of odds of fitting: 0 where a compiler places what a step allocates."""
    return 0.0 if software.memory.places_buffers else round(1.0 - odds, 4)


def shares_of(seconds: Mapping[str, float], *, compiled: bool = False) -> dict[str, float]:
    """Shares of an account whose noises differ. `compiled`: the step is one program."""
    whole = math.fsum(seconds.values())
    sums = [math.fsum(seconds.get(name, 0.0) for name in of) for of in (_KERNELS, EXPOSED)]
    names = ("compiled" if compiled else "compute", "exchange", "rest")
    parts = (*sums, whole - math.fsum(sums))
    return {name: each / whole for name, each in zip(names, parts, strict=True)} if whole else {}


def told(figures: Figures) -> Setting:
    """The setting that the interval of a result rests on."""
    return Setting.from_json(figures["interval"]["of"])


def of_layout(
    setting: Setting,
    degrees: Mapping[str, int],
    *,
    micro_batch: int,
    zero: int,
    schedule: str,
    recompute: str,
) -> Setting:
    """The setting of the same model, machine and software in another layout."""
    axes = ", ".join(f"{axis} {degrees[axis]}" for axis in ("tp", "pp", "cp", "ep", "dp"))
    rest = f"{micro_batch} a microbatch, zero {zero}, {schedule}, recompute {recompute}"
    return structs.replace(setting, labels={**setting.labels, "layout": (axes,), "rest": (rest,)})


def residuals_of(setting: Setting) -> Residuals:
    """Residuals of the step time; those of mixtures of experts say nothing of dense models."""
    return residuals("step-experts" if setting.labels["model"] == ("experts",) else "step")


def intervals(setting: Setting, summary: Figures) -> dict[str, object]:
    """Ranges that hold what would be measured. `summary`: with the predictions: ``step_time_s``,
    ``tokens_per_s``, ``mfu``, ``peak_memory_bytes`` and so on.

    Returns
    -------
    dict
        ``[low, high]`` of each figure, ``level``, ``basis`` and what the setting is (``of``).
    """
    known = residuals_of(setting)
    step = known.interval(summary["step_time_s"], setting)
    # a rate is an amount over the step time, and the amount is known exactly
    rates = {name: step.inverse(summary[name] * summary["step_time_s"]) for name in _RATES}
    peak = residuals("memory").interval(summary["peak_memory_bytes"], setting)
    ranges = {"step_time_s": step, **rates, "peak_memory_bytes": peak}
    return {
        **{name: interval.to_json() for name, interval in ranges.items()},
        "level": LEVEL,
        "basis": step.basis,
        "memory_basis": peak.basis,
        "of": setting.to_json(),
    }


def fits_probability(memory: Memory, setting: Setting) -> float:
    """Odds that what is needed fits on every rank, by residuals of published peaks."""
    return residuals("memory").around(memory.filled, setting).odds(1.0)


def nearest_measured(setting: Setting) -> dict[str, object] | None:
    """Measured runs nearest to a setting, and how far off their predictions were; None if none."""
    known = residuals_of(setting)
    runs = known.nearest(setting)
    if runs is None:
        return None
    scale = runs.scale(setting.size)
    apart = [name for name in known.attributes if setting.level(name, runs.labels[name])]
    return {
        **{name: names[0] for name, names in runs.labels.items()},
        "smallest": int(runs.smallest),
        "largest": int(runs.largest),
        **structs.named(runs, "rows", "mean_abs_error", "bias"),
        "scale": scale,
        "differs": apart + (["scale"] if scale != 1.0 else []),
    }
