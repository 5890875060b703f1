"""``mpsim calibrate``: measurements into a machine file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mpsim import structs
from mpsim.cli.console import draw, note, print_json, print_sheet, print_table, print_text, wrote
from mpsim.cli.options import AsJson, Plots, Reading, check_file, pairs, wrong
from mpsim.errors import CalibrationError, FormatError, HardwareError
from mpsim.shipped import say
from mpsim.table import Sheet

if TYPE_CHECKING:
    from mpsim.calibrate import Calibrated, Score
    from mpsim.scenario import Scenario

COLUMNS = ("what", "form", "points", "error", "held out", "error", "worst", "noise")


def calibrate(
    files: Annotated[list[Path] | None, Argument()] = None,
    recorded: Annotated[list[Path] | None, Option("--from")] = None,
    scenario: Path | None = None,
    out: Annotated[Path | None, Option(callback=check_file)] = None,
    name: str = "",
    on: str = "",
    only: list[str] | None = None,
    plots: Plots = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Fit the cost models to measurements, and write a cluster that any scenario can name.

    FILES: Measurements of one machine: from 'mpsim measure', nccl-tests (text, or JSON of -J),
        torch.profiler, or as CSV; of repeated ones the quietest counts. Or tables of measured
        services on one accelerator, or with --scenario of training steps, as validate reads them.
    --from TRACE|LOG: A recorded training step (torch.profiler) or a log of the run that --scenario
        describes; repeatable.
    --scenario FILE: Scenario of the run that --from recorded, or that rows of FILES change.
    --out -o: The machine file to write; left out: a new machine.yaml.
    --name: Name of the machine; left out: that of its device.
    --on: Accelerator of the machine in the catalog, such as h100-sxm.
    --only COLUMN=VALUE: Use only rows of a CSV table with this value; repeatable.
    """
    wanted = pairs(only, option="--only", needed="COLUMN=VALUE, such as gpu=H100")
    if bool(recorded) == bool(files) or (recorded and scenario is None):
        raise wrong(
            "give measurements, or recordings with --from and their scenario with --scenario",
            "FILE",
        )
    if scenario is not None and (on or only or (files and plots)):
        raise wrong(say("cli.of_measurements"), "--plots" if plots else "--on")
    machine = out or Path("machine.yaml")
    if out is None and check_file(machine) and machine.exists():
        raise wrong(
            f"{machine} exists already; needed another file, or --out {machine} to write over it",
            "--out",
        )
    try:
        if scenario is not None:
            calibrated = _from_steps(reading.load(scenario), recorded or [], files or [], name)
        else:
            calibrated = _fitted(files or [], wanted, name=name, on=on)
    except (CalibrationError, FormatError, HardwareError) as error:
        raise wrong(str(error), "--from" if recorded else "FILE") from error
    calibrated.write(machine)
    wrote(machine)
    if plots is not None:
        _draw(calibrated, plots)
    if as_json:
        print_json({**calibrated.document, "steps": calibrated.steps})
    else:
        _print(calibrated)
    for warning in calibrated.warnings:
        note(warning if scenario else f"warning: {warning}")


def _from_steps(
    scenario: Scenario, recorded: Sequence[Path], files: Sequence[Path], name: str
) -> Calibrated:
    """The machine of recorded runs, or of tables of measured ones, of which each row has to run."""
    from mpsim.calibrate import Run, calibrate_recorded, calibrate_runs
    from mpsim.simulate import simulate_step
    from mpsim.validate import validate_files

    if scenario.serves:
        raise CalibrationError("the scenario serves; a recorded training step is calibrated from")
    if recorded:
        return calibrate_recorded(simulate_step(scenario), recorded, name=name)
    runs: dict[str, list[Run]] = {"training": [], "memory": []}
    wrong, validation = [], validate_files(files, scenario=scenario)
    for remark in validation.remarks:
        note(remark)
    if validation.interrupted:  # a part of the runs would make another machine
        raise KeyboardInterrupt
    for row in validation.records:
        if row.skipped_because or row.setting is None or row.kind not in runs:
            wrong.append(f"{row.id}: {row.skipped_because or 'is no training step'}")
        elif row.measured or row.kind == "training":
            run = Run(row.id, row.setting, row.unit, row.predicted or 0.0, row.measured)
            runs[row.kind].append(run)
    return calibrate_runs(simulate_step(scenario), *runs.values(), name=name, wrong=wrong)


def _fitted(files: Sequence[Path], wanted: Mapping[str, str], *, name: str, on: str) -> Calibrated:
    """The machine file: of serving where the files hold services, else kernels and collectives."""
    from mpsim.calibrate import calibrate, calibrate_serving
    from mpsim.measured.sources import read_source
    from mpsim.validate import served_points

    served = [served_points(file, only=wanted) for file in files]
    found = [points for points in served if points is not None]
    if not found:
        return calibrate([read_source(file, only=wanted) for file in files], name=name, on=on)
    if len(found) < len(files):
        other = files[served.index(None)]
        raise CalibrationError(say("cli.services_apart", file=other))
    points = [point for part, _ in found for point in part]
    skipped = [reason for _, part in found for reason in part]
    if not points:
        raise CalibrationError(
            f"no row is left to fit{': ' + skipped[0] if skipped else ' with --only'}"
        )
    calibrated = calibrate_serving(points, files=files, name=name)
    if skipped:
        more = f"{len(skipped)} rows were skipped, such as {skipped[0]}"
        return structs.replace(calibrated, warnings=(*calibrated.warnings, more))
    return calibrated


def _print(calibrated: Calibrated) -> None:
    if calibrated.runs is not None:
        print_sheet(Sheet("", (calibrated.runs,)))
        return
    rows = [_cells(score) for score in calibrated.fit.scores]
    print_table(rows, header=COLUMNS, title="fits: fitted / measured - 1", right=range(2, 8))
    print_text(" ")
    constants = [
        (name, f"{fitted.value:.5g}", f"{fitted.low:.3g} to {fitted.high:.3g}", fitted.unit)
        for name, fitted in sorted(calibrated.fit.constants.items())
        if fitted.low != fitted.high
    ]
    header = ("constant", "value", "95 %", "unit")
    print_table(constants, header=header, title="constants", right=(1,))


def _cells(score: Score) -> tuple[str, ...]:
    held = score.errors(held_out=True)
    worst = max(held.tolist(), key=abs, default=None)
    seen, unseen = (_percent(score.median(held_out=apart)) for apart in (False, True))
    points = (str(len(score.ids) - len(held)), seen, str(len(held) or ""), unseen)
    return score.what, score.form, *points, _percent(worst, "+"), _percent(score.noise)


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}"


def _draw(calibrated: Calibrated, folder: Path) -> None:
    """Residuals of every fit, and measured against fitted."""
    from mpsim.calibrate.parts import residuals_of

    for name, talks in (("kernels", False), ("collectives", True)):
        if scores := [row for row in calibrated.fit.scores if ("rank" in row.what) is talks]:
            draw(residuals_of(scores), folder / f"residuals-{name}.png")
