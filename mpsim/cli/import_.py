"""``mpsim import``: files of other tools as scenarios, measured points or timelines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli.console import note, print_json, print_table, print_text, wrote
from mpsim.cli.options import AsJson, Plots, Trace, option
from mpsim.cli.paths import check_file
from mpsim.errors import CalibrationError, FormatError
from mpsim.output import write_whole
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from mpsim.formats import Imported, Points, Recorded
    from mpsim.formats.execution import Execution

__all__ = ["import_"]

MOST = 10_000_000  # ranks: more is a slip of the keyboard


def import_(
    format: Annotated[  # noqa: A002 - the word of the command line
        str,
        typer.Argument(
            metavar="FORMAT",
            help="Format of the files (see 'mpsim show formats'); auto: recognise it by its content.",
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files to read: one configuration, or those of one benchmark or recording.",
        ),
    ],
    output: Annotated[
        Path | None,
        option(
            "--output -o",
            "Write the scenario here instead of on stdout, or points as CSV.",
            callback=check_file,
        ),
    ] = None,
    onto: Annotated[
        Path | None,
        option(
            "--onto SCENARIO", "Scenario to change: what the files leave open stays as it is there."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "--cluster NAME",
            "System to run on (see 'mpsim show systems'), which no file names; a compiled program is simulated on it.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            max=MOST,
            help="Accelerators of the job, or ranks of the benchmark, where the files do not say.",
        ),
    ] = None,
    trace: Trace = None,
    plots: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Read files of other tools: launch scripts and configurations become a scenario, benchmarks become points, recordings are summed up, programs run."""
    from mpsim.formats.scenarios import written

    try:
        read = _read(
            format, files, onto=onto, cluster=cluster, ranks=ranks, drawn=plots is not None
        )
    except CalibrationError as error:  # measured data that cannot be used is bad input here
        raise FormatError(str(error)) from error
    if isinstance(read, tuple):
        _measured(read, output, onto, trace=trace, plots=plots, as_json=as_json)
        return
    _refuse_pictures(0, trace, plots)
    text = written(read)
    for warning in read.warnings:
        note(f"warning: {warning}")
    if output is not None:
        write_whole(output, text)
    if as_json:
        print_json(_data(read))
    elif output is None:
        print_text(text)
    else:
        print_text("\n".join(_summary(read)))
    if output is not None:
        wrote(output)


def _read(
    name: str,
    files: list[Path],
    *,
    onto: Path | None,
    cluster: str | None,
    ranks: int | None,
    drawn: bool,
) -> Imported | tuple[Points | Recorded, ...]:
    """Contents of the files, all of one format."""
    from mpsim.formats import Imported, Points, Recorded, read
    from mpsim.formats.scenarios import checked, over

    spans = drawn or len(files) > 1  # ranks of one job are laid on one clock
    known = [read(file, format=name, cluster=cluster, ranks=ranks, spans=spans) for file in files]
    recorded = tuple(item for item in known if isinstance(item, Recorded))
    if len(recorded) == len(known) and len({item.format for item in recorded}) == 1:
        return recorded
    scenarios = [item for item in known if isinstance(item, Imported)]
    points = tuple(item for item in known if isinstance(item, Points))
    if len(points) == len(known):
        return points
    if len(known) > 1 or not scenarios:
        words = " and ".join(
            sorted({getattr(item, "format", "") or "measurements" for item in known})
        )
        raise FormatError(
            f"got {len(known)} files ({words}); a scenario is imported from one. Import one, then lay the next over it with --onto"
        )
    imported = scenarios[0] if onto is None else over(scenarios[0], onto)
    return checked(imported)


def _measured(
    read: tuple[Points | Recorded, ...],
    output: Path | None,
    onto: Path | None,
    *,
    trace: Path | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Print points or recordings, and run the programs among them."""
    from mpsim.formats import Points, Recorded
    from mpsim.formats.tables import table_of

    if onto is not None:
        raise typer.BadParameter("measurements make no scenario; leave it out", param_hint="--onto")
    recordings = [item for item in read if isinstance(item, Recorded)]
    executions = [item.program.run() for item in recordings if item.program is not None]
    if any(item.spans for item in recordings):
        _refuse_pictures(0, trace, None)
        _told_step(recordings, output, plots, as_json=as_json)
        return
    _refuse_pictures(len(executions), trace, plots)
    if recordings:
        _told(recordings, output, executions, as_json=as_json)
        for execution in executions:
            _write(execution, trace, plots)
        return
    points = tuple(item for item in read if isinstance(item, Points))
    print_json(_points_data(points)) if as_json else _print_points(points)
    if output is not None:
        write_whole(output, "".join(map(table_of, points)))
        wrote(output)


def _told_step(
    recordings: list[Recorded], output: Path | None, plots: Path | None, *, as_json: bool
) -> None:
    """Print what recordings say, each by itself and all ranks together on one clock, and draw them."""
    from mpsim.formats.recorded_step import recorded_step

    step = recorded_step(recordings)
    together = {
        "step_time_s": step.step_time_s,
        "breakdown_s": step.parts,
        "clock_offsets_s": list(step.offsets_s),
    }
    _told(recordings, output, [], as_json=as_json, more=together)
    if not as_json:
        shares = [
            (
                name.replace("_", " "),
                format_quantity(seconds, Dimension.TIME),
                f"{100 * seconds / step.step_time_s:.1f} %",
            )
            for name, seconds in step.parts.items()
        ]
        whole = ("step", format_quantity(step.step_time_s, Dimension.TIME), "")
        print_table([whole, *shares], title=f"{len(step.ranks)} ranks on one clock", right=(1, 2))
    if plots is not None:
        from mpsim.plot import draw_timeline

        plots.mkdir(parents=True, exist_ok=True)
        wrote(draw_timeline(step.timeline).save(plots / "timeline.png"))


def _refuse_pictures(programs: int, trace: Path | None, plots: Path | None) -> None:
    """Refuse options of a run where nothing, or more than one program, runs."""
    for name, value in (("--trace", trace), ("--plots", plots)):
        if value is not None and programs != 1:
            raise typer.BadParameter(
                f"got {programs} programs that run; give one compiled program or execution trace, and --cluster",
                param_hint=name,
            )


def _write(execution: Execution, trace: Path | None, plots: Path | None) -> None:
    if trace is not None:
        execution.write_trace(trace)
        wrote(trace)
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        wrote(execution.plot().save(plots / "timeline.png"))


def _told(
    read: list[Recorded],
    output: Path | None,
    executions: list[Execution],
    *,
    as_json: bool,
    more: dict[str, Any] | None = None,
) -> None:
    """Print what a recording says and what its program does, and write it as JSON with `more`."""
    waiting = iter(executions)  # one a recording that is a program, in their order
    ran = [None if item.program is None else next(waiting) for item in read]
    each = []
    for item, execution in zip(read, ran, strict=True):
        each.append(
            {
                "format": item.format,
                "tool": item.tool,
                "version": item.version,
                "files": list(item.files),
                **item.facts,
                **({} if execution is None else execution.summary),
                "warnings": list(item.warnings),
            }
        )
    data = each[0] if len(each) == 1 else {"format": read[0].format, "recordings": each}
    data |= more or {}
    for item in read:
        for warning in item.warnings:
            note(f"warning: {' '.join(item.files)}: {warning}")
    if output is not None:
        write_whole(output, json.dumps(data, indent=1) + "\n")
    if as_json:
        print_json(data)
    else:
        for item, execution in zip(read, ran, strict=True):
            lines = [f"{key:<16}{_short(value)}" for key, value in item.facts.items()]
            print_text("\n".join([f"{' '.join(item.files)}: {item.tool}", *lines]))
            if execution is not None:
                _print_execution(execution)
    if output is not None:
        wrote(output)


def _print_execution(execution: Execution) -> None:
    """Print what a program did, as ``mpsim run`` prints a scenario."""
    from mpsim.result.words import execution_rows

    print_table(execution_rows(execution.summary), title=execution.summary["scenario"])


def _short(value: object) -> str:
    if isinstance(value, dict):
        return " x ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        words = [
            str(item.get("kind", item)) if isinstance(item, dict) else str(item)
            for item in value[:8]
        ]
        return f"{len(value)}: {' '.join(words)}{' ...' if len(value) > len(words) else ''}"
    return _cell(value)


def _data(read: Imported) -> dict[str, Any]:
    data: dict[str, Any] = {
        "format": read.format,
        "tool": read.tool,
        "version": read.version,
        "files": list(read.files),
        "scenario": {"schema": 1, **read.scenario},
    }
    if read.model_parameters is not None:
        data["model_parameters"] = read.model_parameters
    return data | {
        "mapped": [
            {"from": item.source, "to": item.to, "value": item.value} for item in read.mapped
        ],
        "assumed": [{"to": item.to, "value": item.value, "why": item.why} for item in read.assumed],
        "ignored": [{"from": key, "why": "not mapped"} for key in read.ignored],
        "missing": list(read.missing),
        "warnings": list(read.warnings),
    }


def _summary(read: Imported) -> Iterator[str]:
    """A few lines on what was read and left out; the file that was written has it key by key."""
    yield (
        f"{' '.join(read.files)}: {read.tool}, {read.version}"
        if read.version
        else f"{' '.join(read.files)}: {read.tool}"
    )
    if read.model_parameters is not None:
        yield f"parameters  {read.model_parameters:,}"
    keys = len({item.source for item in read.mapped})
    yield f"mapped      {keys} keys"
    yield f"assumed     {len(read.assumed)}: {', '.join(dict.fromkeys(item.to for item in read.assumed)) or 'nothing'}"
    yield f"ignored     {len(read.ignored)} keys"
    yield f"missing     {', '.join(read.missing) or 'nothing'}"


def _points_data(files: tuple[Points, ...]) -> dict[str, Any]:
    first = files[0]
    return {
        "format": first.format,
        "tool": first.tool,
        "version": first.version,
        "files": [points.file for points in files],
        "points": [dict(row) for points in files for row in points.rows],
        "warnings": [warning for points in files for warning in points.warnings],
    }


def _print_points(files: tuple[Points, ...]) -> None:
    for points in files:
        columns = list(dict.fromkeys(key for row in points.rows for key in row))
        rows = [[_cell(row.get(key)) for key in columns] for row in points.rows]
        print_table(
            rows,
            header=columns,
            title=f"{points.file}: {points.tool}",
            right=range(1, len(columns)),
        )
        for warning in points.warnings:
            note(f"warning: {warning}")


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
