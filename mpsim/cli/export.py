"""``mpsim export``: a scenario in the words of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli.options import AsJson, Reading
from mpsim.cli.paths import check_file, check_folder
from mpsim.output import write_whole

if TYPE_CHECKING:
    from mpsim.formats import Exported

__all__ = ["export"]

TRACE = "chakra"
"""Execution traces: a folder with a file a rank."""


def export(
    format: Annotated[  # noqa: A002 - the word of the command line
        str, typer.Argument(metavar="FORMAT", help="Format to write (see 'mpsim show formats').")
    ],
    file: Annotated[
        Path,
        typer.Argument(metavar="SCENARIO", help="Scenario file."),
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
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Write a scenario as another tool's configuration, and list every value that the format cannot hold."""
    from mpsim.cli.console import note, print_json, print_text, wrote

    if format.lower() == TRACE:
        _trace(file, check_folder(output), reading, as_json=as_json)
        return
    check_file(output)
    exported = _scenario(format, file, reading)
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
    reading: Reading,
    *,
    as_json: bool,
) -> None:
    """Execution traces of every rank of a scenario's step."""
    from mpsim.cli.console import note, print_json, print_text, wrote
    from mpsim.errors import ScenarioError
    from mpsim.formats.chakra.writer import write_chakra
    from mpsim.simulate import prepare

    if folder is None:
        raise typer.BadParameter(
            "chakra has a file a rank; needed a folder to write them into", param_hint="--output"
        )
    scenario = reading.load(file)
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


def _scenario(name: str, file: Path, reading: Reading) -> Exported:
    from mpsim.formats import export as exported
    from mpsim.formats import writer

    writer(name)  # an unknown format is refused before the file is read
    return exported(reading.load(file), name)


def _data(exported: Exported, output: Path | None) -> dict[str, Any]:
    from mpsim.cli.emit import losses

    data: dict[str, Any] = {"format": exported.format, "tool": exported.tool}
    data |= {"text": exported.text} if output is None else {"file": str(output)}
    held = [{"from": item.source, "to": item.to} for item in exported.held]
    return data | {"held": held, "lost": losses(exported), "notes": list(exported.notes)}
