"""``mpsim validate``: measured data against predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson, Plots, Trace

if TYPE_CHECKING:
    from mpsim.validate import Comparison, Family, StepComparison, Validation

__all__ = ["validate", "verdict"]

WORST = 5  # rows named under a table
REASONS = 8  # reasons for skipping named under a table
COLUMNS = ("family", "rows", "predicted", "mean", "median", "p90", "bias", "worst", "differ", "")
STEP_COLUMNS = (
    "step",
    "measured",
    "predicted",
    "error",
    "spread",
    "order",
    "most of the difference",
)
ACTION_COLUMNS = ("family", "kind", "steps", "mean", "median", "worst", "bias")


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Measured training runs, inference, collectives, kernels or schedules as CSV, whose columns say which; or with --runs a machine file.",
        ),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            metavar="FILE",
            help="Training steps of 'mpsim measure', predicted on the machine file; repeatable.",
        ),
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            "--machine",
            metavar="FILE",
            help="A machine file whose constants of serving count for measured services on its accelerator.",
        ),
    ] = None,
    trace: Trace = None,
    plots: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Predict measured data row by row, or with --runs measured training steps, and say how far off the predictions are."""
    if runs and machine is not None:
        raise typer.BadParameter("with --runs the machine file is FILE", param_hint="--machine")
    if runs:
        _validate_runs(files, runs, plots=plots, trace=trace, as_json=as_json)
        return
    if trace is not None:
        raise typer.BadParameter("needs --runs: CSV rows have no timeline", param_hint="--trace")
    from mpsim.cli.console import end_early, print_json
    from mpsim.cli.progress import progress_bar
    from mpsim.errors import CalibrationError, HardwareError
    from mpsim.hardware import read_machine
    from mpsim.validate import validate_files

    try:
        known = None if machine is None else read_machine(machine)
    except HardwareError as error:
        raise typer.BadParameter(str(error), param_hint="--machine") from error
    try:
        with progress_bar("rows") as progress:
            validation = validate_files(files, machine=known, progress=progress)
    except CalibrationError as error:
        raise typer.BadParameter(str(error), param_hint="FILE.csv") from error
    _warn_of_bugs(validation)
    if plots is not None:
        _draw(validation, plots)
    if as_json:
        print_json(validation.to_json())
    else:
        _print(validation)
    end_early(validation.interrupted)


def _warn_of_bugs(validation: Validation) -> None:
    """Say on stderr when rows were skipped by no fault of theirs."""
    from mpsim.cli.console import note

    bugs = [
        record
        for record in validation.records
        if (record.skipped_because or "").startswith("internal")
    ]
    if bugs:
        note(
            f"{len(bugs)} rows met a bug of mpsim, such as {bugs[0].id}: {bugs[0].skipped_because}"
        )


def _print(validation: Validation) -> None:
    from mpsim.cli.console import print_table, print_text

    for total in validation.kinds:
        families = [family for family in validation.families if family.kind == total.kind]
        rows = [_cells(family) for family in families]
        rows += [_cells(total)] if len(families) > 1 else []
        title = f"{total.kind}: error of predictions (predicted / measured - 1)"
        print_table(rows, header=COLUMNS, title=title, right=range(1, len(COLUMNS) - 1))
        remarks = [*_worst(validation, total.kind), *_reasons(validation, total.kind)]
        remarks += _covered(validation, total.kind)
        remarks += _decisions(validation) if total.kind == "training" else []
        print_text("\n".join([*remarks, " "]))


def _cells(family: Family) -> tuple[str, ...]:
    from mpsim.units import percent

    figures = (family.mean_abs_error, family.median_abs_error, family.p90_abs_error)
    signed = (family.bias, family.worst)
    return (
        family.family,
        str(family.rows),
        str(family.predicted),
        *("" if figure is None else percent(figure) for figure in figures),
        *("" if error is None else f"{error:+.1%}" for error in signed),
        str(family.mismatched) if family.kind == "schedule" else "",
        family.worst_id if family.worst else "",
    )


def _worst(validation: Validation, kind: str) -> list[str]:
    """The rows that are furthest off, and those whose oracle differs."""
    lines = [
        f"  {row.error:+.1%}  {row.id}: measured {row.measured:.6g}, predicted {row.predicted:.6g} {row.unit}"
        for row in validation.worst(kind, WORST)
        if row.error
    ]
    differ = Counter(
        (record.family, ", ".join(record.mismatched))
        for record in validation.records
        if record.kind == kind and record.mismatched
    )
    lines += [
        f"  {count} rows of {name} differ in {what}" for (name, what), count in differ.items()
    ]
    return ["furthest off:", *lines] if lines else []


def _covered(validation: Validation, kind: str) -> list[str]:
    """How many measured figures lie in the interval of their prediction."""
    held = [
        record.measured in record.interval
        for record in validation.records
        if record.kind == kind and record.interval and record.figure and record.measured
    ]
    if not held:
        return []
    return [
        f"80 % intervals hold {sum(held)} of {len(held)} measured figures ({sum(held) / len(held):.0%})"
    ]


def _reasons(validation: Validation, kind: str) -> Sequence[str]:
    """Why rows were skipped, the commonest reason first."""
    reasons = Counter(
        record.skipped_because
        for record in validation.records
        if record.kind == kind and record.skipped_because
    )
    lines = [f"  {count} x {reason}" for reason, count in reasons.most_common(REASONS)]
    others = sum(reasons.values()) - sum(count for _, count in reasons.most_common(REASONS))
    lines += [f"  {others} x other reasons"] if others else []
    return ["skipped:", *lines] if lines else []


def _decisions(validation: Validation) -> Sequence[str]:
    """How good a choice the predictions make among runs of one model on as many accelerators."""
    lines = [
        f"  {decision.family}: {decision.groups} groups of {decision.rows} rows, tau {decision.tau:.2f}, regret {decision.mean_regret:.1%}, "
        f"at most {decision.worst_regret:.1%}, by chance {decision.random_regret:.1%}"
        for decision in validation.decisions
    ]
    return ["layout predicted fastest against the fastest measured:", *lines] if lines else []


def _draw(validation: Validation, folder: Path) -> None:
    """Two pictures of every kind that has scored rows."""
    from mpsim.cli.console import wrote
    from mpsim.plot import AgreementDisplay, ErrorDisplay

    folder.mkdir(parents=True, exist_ok=True)
    for total in validation.kinds:
        scored = [
            record
            for record in validation.records
            if record.kind == total.kind and record.error is not None
        ]
        if not scored:
            continue
        wrote(AgreementDisplay.from_records(scored).save(folder / f"{total.kind}-agreement.png"))
        wrote(ErrorDisplay.from_records(scored).save(folder / f"{total.kind}-error.png"))


def _validate_runs(
    machines: Sequence[Path],
    runs: Sequence[Path],
    *,
    plots: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict every measured step on the machine file, and print how far off that is."""
    from mpsim.cli.console import note, print_json, wrote
    from mpsim.cli.progress import progress_bar
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
        _draw_steps(comparison, plots)
    if as_json:
        print_json(comparison.to_json())
    else:
        _print_steps(comparison)
    for warning in comparison.warnings:
        note(f"warning: {warning}")


def _print_steps(comparison: Comparison) -> None:
    from mpsim.cli.console import print_table, print_text

    rows = [_step_cells(step) for step in comparison.steps]
    title = f"steps on {comparison.machine}: predicted / measured - 1"
    print_table(rows, header=STEP_COLUMNS, title=title, right=range(1, 5))
    print_text(" ")
    families = [
        (
            family.family,
            family.kind,
            str(family.predicted),
            _percent(family.mean_abs_error),
            _percent(family.median_abs_error),
            "" if family.worst is None else f"{family.worst:+.1%}",
            "" if family.bias is None else f"{family.bias:+.1%}",
        )
        for family in comparison.families
    ]
    print_table(families, header=ACTION_COLUMNS, title="by family and action", right=range(2, 7))
    print_text("\n".join([" ", *verdict(comparison)]))


def verdict(comparison: Comparison) -> list[str]:
    """The figures in sentences."""
    lines = []
    if comparison.median_error is not None:
        lines.append(
            f"median error of {len(comparison.scored)} steps: {comparison.median_error:.1%}"
        )
    parts = comparison.components
    if parts:
        most = max(parts, key=lambda part: parts[part])
        bias = [step.differences[most] for step in comparison.scored if step.differences]
        way = "too long" if sum(bias) > 0 else "too short"
        lines.append(
            f"{most} explains most of the difference: {parts[most]:.0%} of it; predicted {way} by "
            f"{abs(sum(bias)) / len(bias):.1%} of a step in the mean"
        )
    memory = [step.memory_error for step in comparison.scored if step.memory_error is not None]
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


def _step_cells(step: StepComparison) -> tuple[str, ...]:
    from mpsim.units import Dimension, format_quantity

    if step.predicted is None or step.error is None:
        reason = (step.skipped_because or "").strip()
        return (step.title, format_quantity(step.measured, Dimension.TIME), "", "", "", "", reason)
    order = {True: "same", False: step.first_difference, None: ""}[step.same_order]
    part = step.explained_by
    return (
        step.title,
        format_quantity(step.measured, Dimension.TIME),
        format_quantity(step.predicted, Dimension.TIME),
        f"{step.error:+.1%}",
        f"{step.noise:.0%}" + (" noisy" if step.noisy else ""),
        order,
        f"{part} {step.differences[part]:+.1%} of the step" if part else "",
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _draw_steps(comparison: Comparison, folder: Path) -> None:
    """Timelines side by side, and predicted against measured."""
    from mpsim.cli.console import wrote
    from mpsim.plot import AgreementDisplay
    from mpsim.plot.measured import BesideDisplay

    folder.mkdir(parents=True, exist_ok=True)
    steps = [
        record
        for record in comparison.records
        if record.kind == "step" and record.error is not None
    ]
    if steps:
        wrote(AgreementDisplay.from_records(steps).save(folder / "steps-agreement.png"))
    beside = BesideDisplay.from_steps(comparison.scored)
    if beside.lanes:
        wrote(beside.save(folder / "timelines.png"))
