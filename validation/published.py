"""Published tables of measured runs, collectives, kernels, schedules, services and trainings, predicted row by row and scored.

Covers: validation/data/*.csv, and any table with the same columns. Question: how far are predictions off, family by family?

Run from any folder, with mpsim installed: python validation/published.py FILE.csv ... [--json] [--plots FOLDER] [--machine FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import validate_files
from mpsim.cli.console import note, print_json, print_sheet, progress_bar
from mpsim.cli.validate import draw
from mpsim.errors import MpsimError
from mpsim.hardware.machine import read_machine
from mpsim.validate import Validation

BAD_INPUT, INTERRUPTED = 2, 130


def main(words: list[str] | None = None) -> int:
    """Print the report; return the exit code."""
    parser = argparse.ArgumentParser(prog="published.py", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object, SI units")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw pictures into it")
    parser.add_argument(
        "--machine",
        type=Path,
        help="machine file whose constants of serving count for measured services on its accelerator",
    )
    options = parser.parse_args(words)
    try:
        machine = read_machine(options.machine) if options.machine else None
        with progress_bar("rows") as progress:
            validation = validate_files(options.files, machine=machine, progress=progress)
    except MpsimError as error:
        print(f"published.py: {error}", file=sys.stderr)
        return BAD_INPUT
    _warn_of_bugs(validation)
    if options.plots:
        draw(validation, options.plots)
    if options.json:
        print_json(validation.to_json())
    else:
        print_sheet(validation.sheet())
    return INTERRUPTED if validation.interrupted else 0


def _warn_of_bugs(validation: Validation) -> None:
    """Say on stderr when rows were skipped by no fault of theirs."""
    bugs = [r for r in validation.records if (r.skipped_because or "").startswith("internal")]
    if bugs:
        note(
            f"{len(bugs)} rows met a bug of mpsim, such as {bugs[0].id}: {bugs[0].skipped_because}"
        )


if __name__ == "__main__":
    sys.exit(main())
