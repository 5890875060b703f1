"""``mpsim export``: a scenario or measured points in the words of another tool."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli.options import AllowInclude, AsJson, Overrides, Sets, Yes, load_scenario
from mpsim.cli.paths import check_file, check_folder
from mpsim.output import write_whole

if TYPE_CHECKING:
    from mpsim.exporters import Exported
    from mpsim.scenario import Scenario

__all__ = ["export"]

POINTS = "nccl-tests"
TRACE = "chakra"
"""Execution traces: a folder with a file a rank."""


def export(
    format: Annotated[  # noqa: A002 - the word of the command line
        str, typer.Argument(metavar="FORMAT", help="Format to write (see 'mpsim show formats').")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO",
            help="Scenario file; for nccl-tests a file of measured collectives.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it here instead of on stdout; for chakra a folder, made if need be.",
        ),
    ] = None,
    sets: Sets = None,
    overrides: Overrides = None,
    allow_include: AllowInclude = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a scenario as another tool's configuration, and list every value that the format cannot hold."""
    from mpsim.cli.console import note, print_json, print_text, wrote
    from mpsim.limits import set_unlimited

    set_unlimited(yes)
    read = functools.partial(
        load_scenario, sets=sets, overrides=overrides, allow_include=allow_include
    )
    if format.lower() == TRACE:
        _trace(file, check_folder(output), read, as_json=as_json)
        return
    check_file(output)
    exported = _points(file) if format.lower() == POINTS else _scenario(format, file, read)
    if output is not None:
        write_whole(output, exported.text)
    if as_json:
        print_json(_data(exported, output))
    else:
        if output is None:
            print_text(exported.text)
        for loss in exported.lost:
            note(f"lost: {loss}")
        for text in exported.notes:
            note(f"note: {text}")
    if output is not None:
        wrote(output)


def _trace(
    file: Path,
    folder: Path | None,
    read: Callable[[Path], Scenario],
    *,
    as_json: bool,
) -> None:
    """Execution traces of every rank of a scenario's step."""
    from mpsim.cli.console import note, print_json, print_text, wrote
    from mpsim.errors import ScenarioError
    from mpsim.exporters.chakra import write_chakra
    from mpsim.simulate import prepare

    if folder is None:
        raise typer.BadParameter(
            "chakra has a file a rank; needed a folder to write them into", param_hint="--output"
        )
    scenario = read(file)
    if scenario.serves:
        raise ScenarioError(f"{file}: serves; an execution trace is written of a training step")
    written = write_chakra(prepare(scenario), folder)
    if as_json:
        print_json(
            {
                "format": TRACE,
                "tool": "Chakra execution trace",
                "files": [str(path) for path in written.files],
                "nodes": written.nodes,
                "lost": [{"key": "", "value": "", "why": loss} for loss in written.losses],
            }
        )
    else:
        print_text(f"{len(written.files) - 1} ranks, {written.nodes:,} nodes")
        for loss in written.losses:
            note(f"lost: {loss}")
    wrote(folder)


def _scenario(name: str, file: Path, read: Callable[[Path], Scenario]) -> Exported:
    from mpsim.exporters import export as exported
    from mpsim.exporters import writer

    writer(name)  # an unknown format is refused before the file is read
    return exported(read(file), name)


def _points(file: Path) -> Exported:
    """Measured collectives of one file as a report of nccl-tests."""
    from mpsim.errors import CalibrationError, FormatError
    from mpsim.exporters import Exported, nccl_tests_text
    from mpsim.importers import Points, read

    try:
        points = read(file)
    except CalibrationError as error:
        raise FormatError(str(error)) from error
    if not isinstance(points, Points):
        raise FormatError(f"{file}: holds no measured points; {POINTS} writes collectives")
    collectives = [point for point in points.points if point.family == "collectives"]
    rows: list[dict[str, Any]] = [dict(row) for row in points.rows] or [
        {
            "collective": point.op,
            "bytes": point.shape["bytes"],
            "ranks": point.ranks,
            "time_s": point.seconds[0],
        }
        for point in collectives
    ]
    nodes = {point.domains for point in collectives}
    text = nccl_tests_text(rows, nodes=nodes.pop() if len(nodes) == 1 else 1)
    return Exported(format=POINTS, tool="nccl-tests", text=text)


def _data(exported: Exported, output: Path | None) -> dict[str, Any]:
    from mpsim.cli.emit import losses

    data: dict[str, Any] = {"format": exported.format, "tool": exported.tool}
    data |= {"text": exported.text} if output is None else {"file": str(output)}
    held = [{"from": item.source, "to": item.to} for item in exported.held]
    return data | {"held": held, "lost": losses(exported), "notes": list(exported.notes)}
