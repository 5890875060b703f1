"""A result in words: the lines that ``mpsim run`` prints and a notebook shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mpsim.table import Section, Sheet, plural
from mpsim.units import Dimension, format_quantity, percent, price

Figures: TypeAlias = Mapping[str, Any]
"""Figures by name as JSON holds them: numbers, texts, lists, further such mappings."""
_LEAST_SHARE = 0.0005  # that is told
_MUCH = 0.8  # of the FLOPs that are counted: where fewer are executed, it is told
_DOUBT = 0.005  # odds of fitting nearer to 0 or 1 are not worth a word
_EVERYBODY_ASKS = {
    *("step time", "throughput", "utilisation", "where time goes", "memory", "price"),
    # who varies the step asks for what comes of it, who leaves a key out for what it became
    *("nearest measured", "with variation", "taken by default", "nodes"),
}


def shares(parts: Mapping[str, float], whole: float) -> str:
    """Parts as percentages of the whole, those under a twentieth of a percent left out."""
    return ", ".join(
        f"{name} {percent(part / whole)}"
        for name, part in parts.items()
        if part / whole >= _LEAST_SHARE
    )


def summary_sheet(summary: Figures, *, long: bool = True) -> Sheet:
    """The results of one scenario, all or those that everybody asks for, then its warnings."""
    warnings = tuple(f"warning: {warning}" for warning in summary["warnings"])
    rows = (row for row in summary_rows(summary) if long or row[0] in _EVERYBODY_ASKS)
    return Sheet(str(summary["scenario"]), (Section(tuple(rows), lines=warnings),))


def summary_rows(summary: Figures) -> list[tuple[str, str]]:
    """Lines of a summary, one a figure, with units."""
    flops = summary["model_tflops_per_accelerator"], summary["hardware_tflops_per_accelerator"]
    shares = f"MFU {percent(summary['mfu'])}, HFU {percent(summary['hfu'])}{of_peak(summary)}"
    units = summary.get("tensor_utilisation")  # results that were stored before it was kept lack it
    tensor = f"; matrix units {percent(units)}" if units is not None else ""
    tensor += _convention(summary)
    rate, each = summary["tokens_per_s"], summary["tokens_per_s_per_accelerator"]
    cost = summary["cost_per_step"]
    return [
        ("accelerators", f"{summary['accelerators']}"),
        *_model(summary),
        ("step time", _step_time(summary)),
        ("throughput", f"{rate:,.0f} tokens/s; {each:,.1f} tokens/s per accelerator"),
        (
            "utilisation",
            f"{shares} ({flops[0]:.1f} and {flops[1]:.1f} TFLOP/s per accelerator){tensor}",
        ),
        *_ranges(summary),
        ("where time goes", _shares(summary)),
        ("hidden comm.", _hidden(summary) or "none"),
        ("pipeline bubble", f"{percent(summary['bubble_fraction'])} of all rank time"),
        ("memory", _memory(summary)),
        ("price", "no price given" if cost is None else f"{price(cost)} a step"),
        ("energy", _energy(summary)),
        *_energy_parts(summary),
        ("numbers from", f"engine {summary['engine']}; {_calibration(summary['calibration'])}"),
        ("nearest measured", validated(summary["validated"])),
        *_variation(summary),
        *told(summary),
    ]


def told(summary: Figures) -> list[tuple[str, str]]:
    """Rows that the scenario's file does not show; none for results of before they were kept."""
    keys, nodes = summary.get("taken_by_default"), summary.get("nodes")
    rows = [("taken by default", ", ".join(keys))] if keys else []
    return [*rows, ("nodes", nodes)] if nodes else rows


def _convention(summary: Figures) -> str:
    """Warning where much of MFU or HFU is what papers count and nothing computes."""
    if summary["mfu"] > summary["hfu"]:
        return "; MFU counts gradients of frozen weights too"
    counted = summary["hardware_flops_per_step"]
    masked = summary.get("executed_flops_per_step", counted) < _MUCH * counted
    return "; MFU and HFU count the attention that masks skip" if masked else ""


def of_peak(summary: Figures) -> str:
    """Which peak MFU is a share of, where it is not the usual one of 16 bits."""
    peak = summary.get("peak_format", "bf16")  # results that were stored before it was kept lack it
    return "" if peak in ("bf16", "fp16") else f" of the {peak} peak"


def _model(summary: Figures) -> list[tuple[str, str]]:
    """The size of the model; nothing for results that were stored before it was kept."""
    known = summary.get("parameters")
    if known is None:
        return []
    active = f", {known['active'] / 1e9:.4g} B active" if known["active"] != known["total"] else ""
    total, largest = known["total"] / 1e9, known["per_rank"] / 1e9
    return [("parameters", f"{total:.4g} B{active}, {largest:.4g} B on the largest rank")]


def execution_rows(summary: Figures) -> list[tuple[str, str]]:
    """Lines of a summary of an imported program, one a figure, with units."""
    where = f" of {summary['cluster']}" if "cluster" in summary else ""
    rows = [
        ("accelerators", f"{summary['accelerators']}{where}"),
        ("step time", format_quantity(summary["step_time_s"], Dimension.TIME)),
        ("products", f"{summary['hardware_tflops_per_accelerator']:.1f} TFLOP/s per accelerator"),
        ("where time goes", _shares(summary)),
        ("hidden comm.", _hidden(summary) or "none"),
    ]
    memory = summary.get("memory")
    if memory:
        verdict = "fits" if memory["total"] <= memory["capacity"] else "DOES NOT FIT"
        rows.append(("memory", f"{of_capacity(memory)}: {verdict}"))
    known = summary.get("calibration")
    basis = _calibration(known) if known else "times of the file"
    rows.append(("numbers from", f"engine {summary['engine']}; {basis}"))
    return rows


def _step_time(summary: Figures) -> str:
    """The step time, and the range that holds a measured one in four cases of five."""
    step = format_quantity(summary["step_time_s"], Dimension.TIME)
    if not (ranges := summary.get("interval")):
        return step
    ends = " to ".join(format_quantity(end, Dimension.TIME) for end in ranges["step_time_s"])
    return f"{step} (80 % interval {ends})"


def _ranges(summary: Figures) -> list[tuple[str, str]]:
    """Ranges that hold the measured values in four cases of five."""
    if not (ranges := summary.get("interval")):
        return []
    rate = " to ".join(f"{end:,.0f}" for end in ranges["tokens_per_s"])
    mfu = " to ".join(percent(end) for end in ranges["mfu"])
    peak = " to ".join(format_quantity(end, Dimension.BYTES) for end in ranges["peak_memory_bytes"])
    return [("80 % interval", f"{rate} tokens/s, MFU {mfu}, memory {peak}")]


def validated(nearest: Figures | None) -> str:
    """Measured runs nearest to the scenario, and their errors with names hidden."""
    if nearest is None:
        return "nothing like it"
    runs = f"{plural(nearest['rows'], 'run')} of {nearest['framework']} on {nearest['smallest']}"
    runs += f" to {nearest['largest']}" if nearest["largest"] != nearest["smallest"] else ""
    error = f", off by {percent(nearest['mean_abs_error'])}"
    error += " on average" if nearest["rows"] > 1 else ""
    if "framework" in nearest["differs"]:
        error = ", whose errors say little of other software"
    elif "accelerator" in nearest["differs"]:
        error = ", whose errors say little of another accelerator"
    other = f"; other {', '.join(nearest['differs'])}" if nearest["differs"] else ""
    return f"{runs} {nearest['accelerator']}{error}{other}"


def _variation(summary: Figures) -> list[tuple[str, str]]:
    """Step times under the scenario's variation, and who is to blame for waiting."""
    varied = summary.get("variation")
    if not varied:
        return []
    times = {percentile["percent"]: percentile["seconds"] for percentile in varied["percentiles"]}
    mean, middle, high = (
        format_quantity(time, Dimension.TIME) for time in (varied["mean_s"], times[50], times[95])
    )
    drawn = (
        f"mean {mean}, median {middle}, 95th percentile {high} of"
        f" {plural(varied['samples'], 'step')}"
    )
    caused = {name: time for name, time in varied["blame"]["caused_rank_s"].items() if time > 0}
    worst = max(caused, key=lambda name: caused[name], default="nobody")
    text = f"{drawn}; {varied['slowdown']:.4f} of the undisturbed step; most waiting for {worst}"
    return [("with variation", text)]


def _shares(summary: Figures) -> str:
    """Parts of the step as percentages, those under a twentieth of a percent left out."""
    parts = {
        f"exposed {name.removeprefix('exposed_')}"
        if name.startswith("exposed_")
        else name.replace("_", " "): part
        for name, part in summary["breakdown_s"].items()
    }
    return shares(parts, summary["step_time_s"])


def _hidden(summary: Figures) -> str:
    """Communication beside kernels, by axis, over all of it; as shares of the step."""
    step = summary["step_time_s"]
    return ", ".join(
        f"{axis} {percent(times['hidden'] / step)} of"
        f" {percent((times['hidden'] + times['exposed']) / step)}"
        for axis, times in summary["communication_s"].items()
        if times["hidden"] >= _LEAST_SHARE * step
    )


def of_capacity(memory: Figures) -> str:
    """Memory of the fullest rank, of what an accelerator has."""
    return " of ".join(format_quantity(memory[k], Dimension.BYTES) for k in ("total", "capacity"))


def _memory(summary: Figures) -> str:
    memory = summary["memory"]
    verdict = "fits" if summary["fits_memory"] else "DOES NOT FIT"
    return (
        f"{of_capacity(memory)} on rank {memory['rank']} (stage {memory['stage']}):"
        f" {verdict}{odds_words(summary)}"
    )


def odds_words(summary: Figures) -> str:
    """How many of such cases fit, if in doubt; nothing for results stored before."""
    odds = summary.get("fits_probability")
    if odds is None or not _DOUBT <= odds <= 1.0 - _DOUBT:
        return ""
    return f" ({percent(odds)} of such cases fit)"


def _energy(summary: Figures) -> str:
    if (energy := summary["energy_j_per_step"]) is None:
        return "unknown"
    text = f"{format_quantity(energy, Dimension.ENERGY)} a step"
    if "energy_j_per_token" not in summary:  # results that were stored before it was kept lack it
        return text
    each = format_quantity(summary["energy_j_per_token"], Dimension.ENERGY)
    power = format_quantity(summary["accelerator_power_w"], Dimension.POWER)
    return f"{text} ({each} a token, {power} an accelerator)"


def _energy_parts(summary: Figures) -> list[tuple[str, str]]:
    """Energy of accelerators by part, and at the meter; nothing for older stored results."""
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


def _calibration(calibration: Figures) -> str:
    """How many constants were fitted on measurements, and how many were not."""
    counts = [(key, calibration[key]) for key in ("calibrated", "family_default", "datasheet")]
    return ", ".join(
        f"{plural(count, 'constant')} {key.replace('_', ' ')}" for key, count in counts if count
    )
