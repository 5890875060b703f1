"""``mpsim export``: a scenario as another tool's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mpsim.cli.console import print_json
from mpsim.cli.emit import target
from mpsim.cli.options import AsJson, Reading, argument, option


def export(
    format: Annotated[  # noqa: A002 - the word of the command line
        str, argument("Format to write (see 'mpsim show formats').", metavar="FORMAT")
    ],
    file: Annotated[Path, argument("Scenario file.", metavar="SCENARIO")],
    output: Annotated[
        Path | None,
        option(
            "--output -o",
            "Write it here instead of on stdout; for chakra a folder, made if need be.",
        ),
    ] = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Write a scenario as another tool's configuration, and list what the format cannot hold."""
    wanted = target(format, output)  # refused before the file is read
    emitted = wanted.of(reading.load(file))
    emitted.write(as_json=as_json)
    if as_json:
        print_json(emitted.to_json())
