"""``mpsim validate``: measured data against predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson, Plots, Trace

if TYPE_CHECKING:
    from mpsim.validate import Family, Validation

__all__ = ["validate"]

WORST = 5  # rows named under a table
REASONS = 8  # reasons for skipping named under a table
COLUMNS = ("family", "rows", "predicted", "mean", "median", "p90", "bias", "worst", "differ", "")


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Measured training runs, collectives, kernels or schedules as CSV, whose columns say which; or with --runs a machine file.",
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
    trace: Trace = None,
    plots: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Predict measured data row by row, or with --runs measured training steps, and say how far off the predictions are."""
    if runs:
        from mpsim.cli.validate_runs import validate_runs

        validate_runs(files, runs, plots=plots, trace=trace, as_json=as_json)
        return
    if trace is not None:
        raise typer.BadParameter("needs --runs: CSV rows have no timeline", param_hint="--trace")
    from mpsim.cli.console import print_json, progress_bar
    from mpsim.errors import CalibrationError
    from mpsim.validate import validate_files

    try:
        with progress_bar("rows") as progress:
            validation = validate_files(files, progress=progress)
    except CalibrationError as error:
        raise typer.BadParameter(str(error), param_hint="FILE.csv") from error
    _warn_of_bugs(validation)
    if plots is not None:
        _draw(validation, plots)
    if as_json:
        print_json(validation.to_json())
    else:
        _print(validation)


def _warn_of_bugs(validation: Validation) -> None:
    """Say on stderr when rows were skipped by no fault of theirs."""
    from mpsim.cli.console import note

    bugs = [one for one in validation.records if (one.skipped_because or "").startswith("internal")]
    if bugs:
        note(
            f"{len(bugs)} rows met a bug of mpsim, such as {bugs[0].id}: {bugs[0].skipped_because}"
        )


def _print(validation: Validation) -> None:
    from mpsim.cli.console import print_table, print_text

    for total in validation.kinds:
        families = [one for one in validation.families if one.kind == total.kind]
        rows = [_cells(one) for one in families]
        rows += [_cells(total)] if len(families) > 1 else []
        title = f"{total.kind}: error of predictions (predicted / measured - 1)"
        print_table(rows, header=COLUMNS, title=title, right=range(1, len(COLUMNS) - 1))
        remarks = [*_worst(validation, total.kind), *_reasons(validation, total.kind)]
        remarks += _decisions(validation) if total.kind == "training" else []
        print_text("\n".join([*remarks, " "]))


def _cells(family: Family) -> tuple[str, ...]:
    from mpsim.cli.summary import percent

    figures = (family.mean_abs_error, family.median_abs_error, family.p90_abs_error)
    signed = (family.bias, family.worst)
    return (
        family.family,
        str(family.rows),
        str(family.predicted),
        *("" if one is None else percent(one) for one in figures),
        *("" if one is None else f"{one:+.1%}" for one in signed),
        str(family.mismatched) if family.kind == "schedule" else "",
        family.worst_id if family.worst else "",
    )


def _worst(validation: Validation, kind: str) -> list[str]:
    """The rows that are furthest off, and those whose oracle differs."""
    lines = [
        f"  {one.error:+.1%}  {one.id}: measured {one.measured:.6g}, predicted {one.predicted:.6g} {one.unit}"
        for one in validation.worst(kind, WORST)
        if one.error
    ]
    differ = Counter(
        (one.family, ", ".join(one.mismatched))
        for one in validation.records
        if one.kind == kind and one.mismatched
    )
    lines += [
        f"  {count} rows of {name} differ in {what}" for (name, what), count in differ.items()
    ]
    return ["furthest off:", *lines] if lines else []


def _reasons(validation: Validation, kind: str) -> Sequence[str]:
    """Why rows were skipped, the commonest reason first."""
    reasons = Counter(
        one.skipped_because
        for one in validation.records
        if one.kind == kind and one.skipped_because
    )
    lines = [f"  {count} x {reason}" for reason, count in reasons.most_common(REASONS)]
    more = sum(reasons.values()) - sum(count for _, count in reasons.most_common(REASONS))
    lines += [f"  {more} x other reasons"] if more else []
    return ["skipped:", *lines] if lines else []


def _decisions(validation: Validation) -> Sequence[str]:
    """How good a choice the predictions make among runs of one model on as many accelerators."""
    lines = [
        f"  {one.family}: {one.groups} groups of {one.rows} rows, tau {one.tau:.2f}, regret {one.mean_regret:.1%}, "
        f"at most {one.worst_regret:.1%}, by chance {one.random_regret:.1%}"
        for one in validation.decisions
    ]
    return ["layout predicted fastest against the fastest measured:", *lines] if lines else []


def _draw(validation: Validation, folder: Path) -> None:
    """Two pictures of every kind that has scored rows."""
    from mpsim.cli.console import wrote
    from mpsim.plot import AgreementDisplay, ErrorDisplay

    folder.mkdir(parents=True, exist_ok=True)
    for total in validation.kinds:
        scored = [
            one for one in validation.records if one.kind == total.kind and one.error is not None
        ]
        if not scored:
            continue
        wrote(AgreementDisplay.from_records(scored).save(folder / f"{total.kind}-agreement.png"))
        wrote(ErrorDisplay.from_records(scored).save(folder / f"{total.kind}-error.png"))
