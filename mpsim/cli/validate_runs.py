"""``mpsim validate MACHINE --runs FILE``: measured training steps against predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mpsim.validate import Comparison, StepComparison

__all__ = ["validate_runs"]

STEPS = ("step", "measured", "predicted", "error", "spread", "order", "most of the difference")
FAMILIES = ("family", "kind", "steps", "mean", "median", "worst", "bias")


def validate_runs(
    machines: Sequence[Path],
    runs: Sequence[Path],
    *,
    plots: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict every measured step on the machine file, and print how far off that is."""
    from mpsim.cli.console import note, print_json, progress_bar, wrote
    from mpsim.errors import CalibrationError, HardwareError
    from mpsim.hardware import read_machine
    from mpsim.validate import compare_runs, write_both

    if len(machines) != 1:
        raise typer.BadParameter(
            f"got {len(machines)} files; with --runs needed one machine file of 'mpsim calibrate'",
            param_hint="FILE",
        )
    try:
        machine = read_machine(machines[0])
        with progress_bar("steps") as progress:
            comparison = compare_runs(machine, runs, progress=progress)
    except (CalibrationError, HardwareError) as error:
        raise typer.BadParameter(str(error), param_hint="--runs") from error
    if trace is not None:
        wrote(write_both(comparison, trace))
    if plots is not None:
        _draw(comparison, plots)
    if as_json:
        print_json(comparison.to_json())
    else:
        _print(comparison)
    for warning in comparison.warnings:
        note(f"warning: {warning}")


def _print(comparison: Comparison) -> None:
    from mpsim.cli.console import print_table, print_text

    rows = [_cells(one) for one in comparison.steps]
    title = f"steps on {comparison.machine}: predicted / measured - 1"
    print_table(rows, header=STEPS, title=title, right=range(1, 5))
    print_text(" ")
    families = [
        (
            one.family,
            one.kind,
            str(one.predicted),
            _percent(one.mean_abs_error),
            _percent(one.median_abs_error),
            "" if one.worst is None else f"{one.worst:+.1%}",
            "" if one.bias is None else f"{one.bias:+.1%}",
        )
        for one in comparison.families
    ]
    print_table(families, header=FAMILIES, title="by family and action", right=range(2, 7))
    print_text("\n".join([" ", *verdict(comparison)]))


def verdict(comparison: Comparison) -> list[str]:
    """What the figures say, in sentences."""
    lines = []
    if comparison.median_error is not None:
        lines.append(
            f"median error of {len(comparison.scored)} steps: {comparison.median_error:.1%}"
        )
    parts = comparison.components
    if parts:
        most = max(parts, key=lambda part: parts[part])
        bias = [one.differences[most] for one in comparison.scored if one.differences]
        way = "too long" if sum(bias) > 0 else "too short"
        lines.append(
            f"{most} explains most of the difference: {parts[most]:.0%} of it; predicted {way} by "
            f"{abs(sum(bias)) / len(bias):.1%} of a step in the mean"
        )
    memory = [one.memory_error for one in comparison.scored if one.memory_error is not None]
    if memory:
        mean = sum(map(abs, memory)) / len(memory)
        lines.append(
            f"peak memory of {len(memory)} steps: mean error {mean:.1%}, worst {max(memory, key=abs):+.1%}"
        )
    if not comparison.tells:
        lines.append(
            f"the machine was too noisy to tell: steps spread by {comparison.noise:.0%}, the same kernel changed by "
            f"{comparison.drift:.0%} while measuring, other processes used {comparison.busy:.0%} of the host"
        )
    return lines


def _cells(one: StepComparison) -> tuple[str, ...]:
    from mpsim.units import Dimension, format_quantity

    if one.predicted is None or one.error is None:
        reason = (one.skipped_because or "").strip()
        return (one.title, format_quantity(one.measured, Dimension.TIME), "", "", "", "", reason)
    order = {True: "same", False: one.first_difference, None: ""}[one.same_order]
    part = one.explained_by
    return (
        one.title,
        format_quantity(one.measured, Dimension.TIME),
        format_quantity(one.predicted, Dimension.TIME),
        f"{one.error:+.1%}",
        f"{one.noise:.0%}" + (" noisy" if one.noisy else ""),
        order,
        f"{part} {one.differences[part]:+.1%} of the step" if part else "",
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _draw(comparison: Comparison, folder: Path) -> None:
    """Timelines side by side, and predicted against measured."""
    from mpsim.cli.console import wrote
    from mpsim.plot import AgreementDisplay
    from mpsim.plot.measured import BesideDisplay

    folder.mkdir(parents=True, exist_ok=True)
    steps = [one for one in comparison.records if one.kind == "step" and one.error is not None]
    if steps:
        wrote(AgreementDisplay.from_records(steps).save(folder / "steps-agreement.png"))
    beside = BesideDisplay.from_steps(comparison.scored)
    if beside.lanes:
        wrote(beside.save(folder / "timelines.png"))
