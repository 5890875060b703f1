"""``mpsim import``: files of other tools as scenarios, measured points or timelines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mpsim import structs
from mpsim.accessors import Drawn
from mpsim.cli.console import draw, note, print_json, print_table, print_text, wrote
from mpsim.cli.options import AsJson, Plots, Trace, check_file, refuse
from mpsim.errors import CalibrationError, FormatError
from mpsim.output import write_whole
from mpsim.units import Dimension, format_quantity, percent

if TYPE_CHECKING:
    from mpsim.formats import Imported, Points, Recorded
    from mpsim.formats.execution import Execution

MOST = 10_000_000  # ranks: more is a slip of the keyboard


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Files that what was read is written to.

    --output -o: Write the scenario here instead of on stdout, or points as CSV.
    """

    output: Annotated[Path | None, Option(callback=check_file)] = None
    trace: Trace = None
    plots: Plots = None

    def write(self, text: str) -> None:
        """Write the text of what was read, where it has a file."""
        if self.output is not None:
            write_whole(self.output, text)

    def tell(self) -> None:
        """Say that it was written."""
        if self.output is not None:
            wrote(self.output)

    def draw(self, timeline: Drawn) -> None:
        """Draw a timeline, where pictures are asked for."""
        if self.plots is not None:
            draw(timeline, self.plots / "timeline.png")

    def refuse_pictures(self, programs: int, *, drawn: bool = False) -> None:
        """Refuse what only a program that runs has; pictures unless something else is `drawn`."""
        if programs != 1:
            given = {"--trace": self.trace, "--plots": None if drawn else self.plots}
            mend = "give one compiled program or execution trace, and --cluster"
            refuse(given, f"got {programs} programs that run; {mend}")


def import_(
    format: Annotated[str, Argument(metavar="FORMAT")],  # noqa: A002 - a word of the command line
    files: list[Path],
    onto: Path | None = None,
    cluster: str | None = None,
    ranks: Annotated[int | None, Option(min=1, max=MOST)] = None,
    *,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Read other tools' files: scripts, configurations, benchmarks, recordings, programs.

    FORMAT: Format of the files (see 'mpsim show formats'); auto: recognise it by its content.
    FILES: Files to read: one configuration, or those of one benchmark or recording.
    --onto SCENARIO: Scenario to change: what the files leave open stays as it is there.
    --cluster NAME: System to run on (see 'mpsim show systems'), which no file names; a compiled
        program is simulated on it.
    --ranks: Accelerators of the job, or ranks of the benchmark, where the files do not say.
    """
    from mpsim.formats import Imported
    from mpsim.formats import read as read_file
    from mpsim.formats.scenarios import checked, over, written

    spans = target.plots is not None or len(files) > 1  # ranks of one job are laid on one clock
    try:
        known = _one_kind(
            [
                read_file(file, format=format, cluster=cluster, ranks=ranks, spans=spans)
                for file in files
            ]
        )
        if not isinstance(known, Imported):
            refuse({"--onto": onto}, "measurements make no scenario; leave it out")
            _measured(known, target, as_json=as_json)
            return
        read = checked(known if onto is None else over(known, onto))
    except CalibrationError as error:  # measured data that cannot be used is bad input here
        raise FormatError(str(error)) from error
    target.refuse_pictures(0)
    text = written(read)
    for warning in read.warnings:
        note(f"warning: {warning}")
    target.write(text)
    if as_json:
        print_json(_data(read))
    elif target.output is None:
        print_text(text)
    else:
        print_text("\n".join(_summary(read)))
    target.tell()


def _one_kind(
    known: Sequence[Imported | Points | Recorded],
) -> Imported | list[Points] | list[Recorded]:
    """Contents of the files, all of one format."""
    from mpsim.formats import Imported, Points, Recorded

    recorded = [item for item in known if isinstance(item, Recorded)]
    if len(recorded) == len(known) and len({item.format for item in recorded}) == 1:
        return recorded
    points = [item for item in known if isinstance(item, Points)]
    if len(points) == len(known):
        return points
    first, *others = known
    if others or not isinstance(first, Imported):
        words = {getattr(item, "format", "") or "measurements" for item in known}
        raise FormatError(
            f"got {len(known)} files ({' and '.join(sorted(words))}); a scenario is imported from"
            " one. Import one, then lay the next over it with --onto"
        )
    return first


def _measured(read: list[Points] | list[Recorded], target: Target, *, as_json: bool) -> None:
    """Print points or recordings, and run the programs among them."""
    from mpsim.formats import Points, Recorded
    from mpsim.formats.tables import table_of

    recordings = [item for item in read if isinstance(item, Recorded)]
    if any(item.spans for item in recordings):
        target.refuse_pictures(0, drawn=True)
        _told_step(recordings, target, as_json=as_json)
        return
    programs = enumerate(item.program for item in recordings)
    runs = {place: program.run() for place, program in programs if program is not None}
    target.refuse_pictures(len(runs))
    if recordings:
        _told(recordings, target, runs, as_json=as_json)
        for execution in runs.values():
            if target.trace is not None:
                execution.write_trace(target.trace)
                wrote(target.trace)
            if target.plots is not None:
                target.draw(execution.plot())
        return
    points = [item for item in read if isinstance(item, Points)]
    print_json(_points_data(points)) if as_json else _print_points(points)
    target.write("".join(map(table_of, points)))
    target.tell()


def _told_step(recordings: list[Recorded], target: Target, *, as_json: bool) -> None:
    """Print what recordings say, each alone and all ranks on one clock, and draw them."""
    from mpsim.formats.recorded_step import recorded_step

    step = recorded_step(recordings)
    together = {
        "step_time_s": step.step_time_s,
        "breakdown_s": step.parts,
        "clock_offsets_s": list(step.offsets_s),
    }
    _told(recordings, target, {}, as_json=as_json, more=together)
    if not as_json:
        rows = [("step", format_quantity(step.step_time_s, Dimension.TIME), "")]
        for name, seconds in step.parts.items():
            share = percent(seconds / step.step_time_s)
            rows.append((name.replace("_", " "), format_quantity(seconds, Dimension.TIME), share))
        print_table(rows, title=f"{len(step.ranks)} ranks on one clock", right=(1, 2))
    if target.plots is not None:
        from mpsim.plot import draw_timeline

        target.draw(draw_timeline(step.timeline))


def _told(
    read: list[Recorded],
    target: Target,
    runs: Mapping[int, Execution],
    *,
    as_json: bool,
    more: Mapping[str, object] | None = None,
) -> None:
    """Print what recordings say and what their programs do, and write it as JSON with `more`."""
    from mpsim.result.words import execution_rows

    each = [
        {
            **structs.named(item, "format", "tool", "version"),
            "files": list(item.files),
            **item.facts,
            **(runs[place].summary if place in runs else {}),
            "warnings": list(item.warnings),
        }
        for place, item in enumerate(read)
    ]
    whole = each[0] if len(each) == 1 else {"format": read[0].format, "recordings": each}
    data: dict[str, object] = {**whole, **(more or {})}
    for item in read:
        for warning in item.warnings:
            note(f"warning: {' '.join(item.files)}: {warning}")
    target.write(json.dumps(data, indent=1) + "\n")
    if as_json:
        print_json(data)
    for place, item in enumerate(() if as_json else read):
        lines = [f"{key:<16}{_short(value)}" for key, value in item.facts.items()]
        print_text("\n".join([f"{' '.join(item.files)}: {item.tool}", *lines]))
        if place in runs:  # as 'mpsim run' prints a scenario
            summary = runs[place].summary
            print_table(execution_rows(summary), title=summary["scenario"])
    target.tell()


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


def _data(read: Imported) -> dict[str, object]:
    data: dict[str, object] = {
        **structs.named(read, "format", "tool", "version"),
        "files": list(read.files),
        "scenario": {"schema": 1, **read.scenario},
    }
    if read.model_parameters is not None:
        data["model_parameters"] = read.model_parameters
    return data | {
        "mapped": [{"from": key.source, "to": key.to, "value": key.value} for key in read.mapped],
        "assumed": [{"to": item.to, "value": item.value, "why": item.why} for item in read.assumed],
        "ignored": [{"from": key, "why": "not mapped"} for key in read.ignored],
        "missing": list(read.missing),
        "warnings": list(read.warnings),
    }


def _summary(read: Imported) -> Iterator[str]:
    """A few lines on what was read and left out; the file that was written has it key by key."""
    version = f", {read.version}" if read.version else ""
    yield f"{' '.join(read.files)}: {read.tool}{version}"
    if read.model_parameters is not None:
        yield f"parameters  {read.model_parameters:,}"
    keys = len({item.source for item in read.mapped})
    yield f"mapped      {keys} keys"
    assumed = ", ".join(dict.fromkeys(item.to for item in read.assumed)) or "nothing"
    yield f"assumed     {len(read.assumed)}: {assumed}"
    yield f"ignored     {len(read.ignored)} keys"
    yield f"missing     {', '.join(read.missing) or 'nothing'}"


def _points_data(files: Sequence[Points]) -> dict[str, object]:
    first = files[0]
    return {
        **structs.named(first, "format", "tool", "version"),
        "files": [points.file for points in files],
        "points": [dict(row) for points in files for row in points.rows],
        "warnings": [warning for points in files for warning in points.warnings],
    }


def _print_points(files: Sequence[Points]) -> None:
    for points in files:
        columns = list(dict.fromkeys(key for row in points.rows for key in row))
        rows = [[_cell(row.get(key)) for key in columns] for row in points.rows]
        title = f"{points.file}: {points.tool}"
        print_table(rows, header=columns, title=title, right=range(1, len(columns)))
        for warning in points.warnings:
            note(f"warning: {warning}")


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
