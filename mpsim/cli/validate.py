"""``mpsim validate``: measured data against predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mpsim.cli.console import draw as save
from mpsim.cli.console import end_early, note, print_answer, progress_bar, wrote
from mpsim.cli.options import AsJson, Plots, Reading, Trace, pairs, wrong
from mpsim.errors import CalibrationError, HardwareError

if TYPE_CHECKING:
    from mpsim.validate import Comparison, Validation


def validate(
    files: list[Path],
    runs: list[Path] | None = None,
    scenario: Path | None = None,
    trace: Trace = None,
    plots: Plots = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Predict measured data row by row, or with --runs measured steps, and say how far off.

    FILES: CSV files: columns are dotted keys of a scenario (or `scenario`: its file) and measured
        results such as step_time, tokens_per_s, memory, ttft, with units; or with --runs a machine
        file.
    --runs: Training steps of 'mpsim measure', predicted on the machine file; repeatable.
    --scenario: Scenario for rows that name none.
    """
    if runs:
        if scenario is not None or reading.sets:
            raise typer.BadParameter("with --runs every step is its own scenario")
        _validate_runs(files, runs, plots=plots, trace=trace, as_json=as_json)
        return
    if trace is not None:
        raise wrong("needs --runs: CSV rows have no timeline", "--trace")
    from mpsim.validate import validate_files

    base = None if scenario is None else reading.load(scenario)
    try:
        with progress_bar("rows") as progress:
            validation = validate_files(
                files, scenario=base, values=_values(reading.sets), progress=progress
            )
    except CalibrationError as error:
        raise wrong(str(error), "FILE.csv") from error
    if plots is not None and not validation.interrupted:
        draw(validation, plots)
    print_answer(validation, as_json=as_json)
    for remark in validation.remarks:
        note(remark)
    end_early(validation.interrupted)
    if not any(record.predicted for record in validation.records):
        note("mpsim validate: no row was predicted; each says why")
        raise typer.Exit(1)


def _values(sets: Sequence[str] | None) -> dict[str, object]:
    """Values of --set by dotted key, as YAML reads them."""
    from mpsim.document import parse_scalar

    values = pairs(sets, option="--set", needed="KEY=VALUE")
    return {key: parse_scalar(text) for key, text in values.items()}


def draw(validation: Validation, folder: Path) -> None:
    """Draw two pictures of every kind that has scored rows."""
    from mpsim.validate.pictures import agreement_of, errors_of

    for total in validation.kinds:
        scored = [record for record in validation.records if record.error is not None]
        scored = [record for record in scored if record.kind == total.kind]
        if scored:
            save(agreement_of(scored), folder / f"{total.kind}-agreement.png")
            save(errors_of(scored), folder / f"{total.kind}-error.png")


def _validate_runs(
    machines: Sequence[Path],
    runs: Sequence[Path],
    *,
    plots: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict every measured step on the machine file, and print how far off that is."""
    from mpsim.hardware.machine import read_machine
    from mpsim.validate import compare_runs

    if len(machines) != 1:
        raise wrong(
            f"got {len(machines)} files; with --runs needed one machine file of 'mpsim calibrate'",
            "FILE",
        )
    try:
        machine = read_machine(machines[0])
        with progress_bar("steps") as progress:
            comparison = compare_runs(machine, runs, progress=progress)
    except (CalibrationError, HardwareError) as error:
        raise wrong(str(error), "--runs") from error
    if trace is not None:
        wrote(comparison.write_trace(trace))
    if plots is not None:
        _draw_steps(comparison, plots)
    print_answer(comparison, as_json=as_json)
    for warning in comparison.warnings:
        note(f"warning: {warning}")


def _draw_steps(comparison: Comparison, folder: Path) -> None:
    """Timelines side by side, and predicted against measured."""
    from mpsim.validate.pictures import agreement_of, beside

    steps = [
        record
        for record in comparison.records
        if record.kind == "step" and record.error is not None
    ]
    if steps:
        save(agreement_of(steps), folder / "steps-agreement.png")
    lanes = beside(comparison.scored)
    if lanes.names:
        save(lanes, folder / "timelines.png")
