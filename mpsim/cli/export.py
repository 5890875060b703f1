"""``mpsim export``: a scenario as another tool's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from mpsim.cli.console import print_json
from mpsim.cli.emit import target
from mpsim.cli.options import AsJson, Reading


def export(
    format: Annotated[str, Argument(metavar="FORMAT")],  # noqa: A002 - a word of the command line
    file: Annotated[Path, Argument(metavar="SCENARIO")],
    output: Path | None = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Write a scenario as another tool's configuration, and list what the format cannot hold.

    FORMAT: Format to write (see 'mpsim show formats').
    SCENARIO: Scenario file.
    --output -o: Write it here instead of on stdout; for chakra a folder, made if need be.
    """
    wanted = target(format, output)  # refused before the file is read
    emitted = wanted.of(reading.load(file))
    emitted.write(as_json=as_json)
    if as_json:
        print_json(emitted.to_json())
