"""A result in words: the lines that ``mpsim run`` prints and a notebook shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim.sheet import Section, Sheet
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent, price

__all__ = ["execution_rows", "shares", "summary_rows", "summary_sheet"]

_LEAST_SHARE = 0.0005  # that is told


def shares(parts: Mapping[str, float], whole: float) -> str:
    """Parts as percentages of the whole, those under a twentieth of a percent left out."""
    return ", ".join(
        f"{name} {percent(part / whole)}"
        for name, part in parts.items()
        if part / whole >= _LEAST_SHARE
    )


def summary_sheet(summary: Mapping[str, Any]) -> Sheet:
    """The figures of one scenario, then its warnings."""
    warnings = tuple(f"warning: {warning}" for warning in summary["warnings"])
    return Sheet(str(summary["scenario"]), (Section(tuple(summary_rows(summary)), lines=warnings),))


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of a summary, one a figure, with units."""
    rate = summary["tokens_per_s"], summary["tokens_per_s_per_accelerator"]
    flops = summary["model_tflops_per_accelerator"], summary["hardware_tflops_per_accelerator"]
    throughput = f"{rate[0]:,.0f} tokens/s; {rate[1]:,.1f} tokens/s per accelerator"
    shares = f"MFU {percent(summary['mfu'])}, HFU {percent(summary['hfu'])}"
    units = summary.get("tensor_utilisation")  # results that were stored before it was kept lack it
    tensor = f"; matrix units {percent(units)}" if units is not None else ""
    exposed = tuple(part for part in summary["breakdown_s"] if part.startswith("exposed_"))
    return [
        ("accelerators", f"{summary['accelerators']}"),
        *_model(summary),
        ("step time", format_quantity(summary["step_time_s"], Dimension.TIME)),
        ("throughput", throughput),
        (
            "utilisation",
            f"{shares} ({flops[0]:.1f} and {flops[1]:.1f} TFLOP/s per accelerator){tensor}",
        ),
        *_ranges(summary),
        ("where time goes", _shares(summary, skip=exposed)),
        ("exposed comm.", _shares(summary, only=exposed) or "none"),
        ("hidden comm.", _hidden(summary) or "none"),
        ("pipeline bubble", f"{percent(summary['bubble_fraction'])} of all rank time"),
        ("memory", _memory(summary)),
        ("energy and price", _energy_and_price(summary)),
        *_energy_parts(summary),
        ("numbers from", f"engine {summary['engine']}; {_calibration(summary['calibration'])}"),
        ("nearest measured", _validated(summary["validated"])),
        *_variation(summary),
    ]


def _model(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The size of the model; nothing for results that were stored before it was kept."""
    known = summary.get("parameters")
    if known is None:
        return []
    active = f", {known['active'] / 1e9:.4g} B active" if known["active"] != known["total"] else ""
    return [
        (
            "parameters",
            f"{known['total'] / 1e9:.4g} B{active}, {known['per_rank'] / 1e9:.4g} B on the largest rank",
        )
    ]


def execution_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of a summary of an imported program, one a figure, with units."""
    exposed = tuple(part for part in summary["breakdown_s"] if part.startswith("exposed_"))
    step = summary["step_time_s"]
    waits = {part.removeprefix("exposed_"): summary["breakdown_s"][part] / step for part in exposed}
    rows = [
        (
            "accelerators",
            f"{summary['accelerators']}"
            + (f" of {summary['cluster']}" if "cluster" in summary else ""),
        ),
        ("step time", format_quantity(summary["step_time_s"], Dimension.TIME)),
        ("products", f"{summary['hardware_tflops_per_accelerator']:.1f} TFLOP/s per accelerator"),
        ("where time goes", _shares(summary, skip=exposed)),
        (
            "exposed comm.",
            ", ".join(f"{axis} {percent(share)}" for axis, share in waits.items()) or "none",
        ),
        ("hidden comm.", _hidden(summary) or "none"),
    ]
    memory = summary.get("memory")
    if memory:
        total, capacity = (
            format_quantity(memory[key], Dimension.BYTES) for key in ("total", "capacity")
        )
        verdict = "fits" if memory["total"] <= memory["capacity"] else "DOES NOT FIT"
        rows.append(("memory", f"{total} of {capacity}: {verdict}"))
    basis = (
        _calibration(summary["calibration"]) if "calibration" in summary else "times of the file"
    )
    rows.append(("numbers from", f"engine {summary['engine']}; {basis}"))
    return rows


def _ranges(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Ranges that hold the measured values in four cases of five."""
    ranges = summary.get("interval")
    if not ranges:
        return []
    step = " to ".join(format_quantity(end, Dimension.TIME) for end in ranges["step_time_s"])
    rate = " to ".join(f"{end:,.0f}" for end in ranges["tokens_per_s"])
    mfu = " to ".join(percent(end) for end in ranges["mfu"])
    peak = " to ".join(format_quantity(end, Dimension.BYTES) for end in ranges["peak_memory_bytes"])
    text = f"step {step}, {rate} tokens/s, MFU {mfu}, memory {peak}"
    return [("80 % between", text)]


def _validated(nearest: Mapping[str, Any] | None) -> str:
    """Measured runs nearest to the scenario, and the error of their predictions with names hidden."""
    if nearest is None:
        return "nothing like it"
    runs = f"{plural(nearest['rows'], 'run')} of {nearest['framework']} on {nearest['smallest']}"
    runs += f" to {nearest['largest']}" if nearest["largest"] != nearest["smallest"] else ""
    error = f"off by {percent(nearest['mean_abs_error'])} in the mean"
    other = f"; other {', '.join(nearest['differs'])}" if nearest["differs"] else ""
    return f"{runs} {nearest['accelerator']}, {error}{other}"


def _variation(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Step times under the scenario's variation, which the figures above leave out, and who is to blame for waiting."""
    varied = summary.get("variation")
    if not varied:
        return []
    times = {percentile["percent"]: percentile["seconds"] for percentile in varied["percentiles"]}
    mean, middle, high = (
        format_quantity(time, Dimension.TIME) for time in (varied["mean_s"], times[50], times[95])
    )
    drawn = f"mean {mean}, median {middle}, 95th percentile {high} of {varied['samples']} steps"
    caused = {name: time for name, time in varied["blame"]["caused_rank_s"].items() if time > 0}
    worst = max(caused, key=lambda name: caused[name], default="nobody")
    text = (
        f"{drawn}; {varied['slowdown']:.4f} of the undisturbed step above; most waiting for {worst}"
    )
    return [("with variation", text)]


def _shares(
    summary: Mapping[str, Any], *, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()
) -> str:
    """Parts of the step as percentages, those under a tenth of a percent left out."""
    chosen = {
        name.removeprefix("exposed_").replace("_", " "): part
        for name, part in summary["breakdown_s"].items()
        if name not in skip and (not only or name in only)
    }
    return shares(chosen, summary["step_time_s"])


def _hidden(summary: Mapping[str, Any]) -> str:
    """Communication that runs beside kernels, by axis, over all of it; both as shares of the step."""
    step = summary["step_time_s"]
    return ", ".join(
        f"{axis} {percent(times['hidden'] / step)} of {percent((times['hidden'] + times['exposed']) / step)}"
        for axis, times in summary["communication_s"].items()
        if times["hidden"] >= _LEAST_SHARE * step
    )


def _memory(summary: Mapping[str, Any]) -> str:
    memory = summary["memory"]
    total, capacity = (
        format_quantity(memory[key], Dimension.BYTES) for key in ("total", "capacity")
    )
    verdict = "fits" if summary["fits_memory"] else "DOES NOT FIT"
    return f"{total} of {capacity} on rank {memory['rank']} (stage {memory['stage']}): {verdict}"


def _energy_and_price(summary: Mapping[str, Any]) -> str:
    energy, cost = summary["energy_j_per_step"], summary["cost_per_step"]
    parts = [
        "energy unknown"
        if energy is None
        else f"{format_quantity(energy, Dimension.ENERGY)} a step"
    ]
    if "energy_j_per_token" in summary:  # results that were stored before it was kept lack it
        each = format_quantity(summary["energy_j_per_token"], Dimension.ENERGY)
        power = format_quantity(summary["accelerator_power_w"], Dimension.POWER)
        parts[0] += f" ({each} a token, {power} an accelerator)"
    parts.append("no price given" if cost is None else f"{price(cost)} a step")
    return ", ".join(parts)


def _energy_parts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The energy of accelerators by part, and what the meter sees; nothing for results that were stored before it was kept."""
    parts, meter = summary.get("energy_parts_j"), summary.get("meter_parts_j")
    if not parts or not meter:
        return []
    total = summary["meter_energy_j_per_step"]
    at_meter = format_quantity(summary["meter_power_w"], Dimension.POWER)
    a_step = format_quantity(total, Dimension.ENERGY)
    return [
        ("where energy goes", shares(parts, summary["energy_j_per_step"])),
        ("at the meter", f"{at_meter}, {a_step} a step: {shares(meter, total)}"),
    ]


def _calibration(calibration: Mapping[str, Any]) -> str:
    """How many constants were fitted on measurements, and how many were not."""
    counts = [(key, calibration[key]) for key in ("calibrated", "family_default", "datasheet")]
    return ", ".join(
        f"{plural(count, 'constant')} {key.replace('_', ' ')}" for key, count in counts if count
    )
