"""``mpsim measure``: benchmarks of this machine, to calibrate on."""

from __future__ import annotations

import enum
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mpsim.cli.console import note, print_json, print_table, print_text
from mpsim.cli.options import AsJson, check_file_and_folder, wrong
from mpsim.errors import nearest

if TYPE_CHECKING:
    from mpsim.measured.records import Measured

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


Device = enum.StrEnum("Device", ["AUTO", "CPU", "CUDA"])
"""Where to measure."""


def measure(
    out: Annotated[Path, Option(callback=check_file_and_folder)] = Path("measured.jsonl"),
    budget: str = "5m",
    only: str = "",
    resume: bool = False,
    device: Device = Device.AUTO,
    seed: Annotated[int, Option(min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure kernels, collectives, layers and steps here; alone, by torchrun, or under Slurm.

    --out -o: The file to write.
    --budget TIME: Longest time to measure: 90s, 5m, 1h.
    --only LIST: Measure only these of kernels,collectives,blocks,steps.
    --resume: Keep what an earlier run left in FILE, and measure the rest.
    --device: Device to measure.
    --seed: Seed of the random data.
    """
    from mpsim.measure import Settings
    from mpsim.measure import measure as run

    settings = Settings(
        out=out,
        budget=_seconds(budget),
        families=_families(only),
        resume=resume,
        device=device.value,
        seed=seed,
    )
    measured = run(settings, say=lambda text: note(f"mpsim measure: {text}"))
    if measured is None:
        return
    for warning in measured.warnings:
        note(warning)
    if as_json:
        print_json(_summary(measured))
    else:
        _print(measured)


def _seconds(text: str) -> float:
    """'90s', '5m', '1.5h' or a number of seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise wrong(f"got {text!r}; needed a time such as 90s, 5m or 1h", "--budget")
    return float(match[1]) * _SECONDS[match[2]]


def _families(text: str) -> tuple[str, ...]:
    from mpsim.measured.records import FAMILIES

    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for family in wanted:
        if family not in FAMILIES:
            raise wrong(f"got {family!r}; {nearest(family, FAMILIES)}", "--only")
    return tuple(family for family in FAMILIES if family in wanted) or FAMILIES


def _counts(measured: Measured) -> dict[str, int]:
    counts = Counter(measurement.family for measurement in measured.measurements)
    return dict(counts)


def _summary(measured: Measured) -> dict[str, object]:
    end = measured.end
    return {
        "file": measured.file,
        "device": measured.header.device_name,
        "ranks": measured.header.world_size,
        "backend": measured.header.backend,
        "measurements": _counts(measured),
        "skipped": [{"id": skipped.id, "reason": skipped.reason} for skipped in measured.skipped],
        "complete": end is not None and end.complete,
        "elapsed_s": None if end is None else end.elapsed,
        "warnings": list(measured.warnings),
    }


def _print(measured: Measured) -> None:
    header, end = measured.header, measured.end
    ranks = f"{header.world_size} rank{'s' if header.world_size > 1 else ''}"
    print_text(f"{measured.file}: {header.device_name}, {ranks}, torch {header.torch}")
    families: dict[str, list[str]] = {}
    for measurement in measured.measurements:
        families.setdefault(measurement.family, []).append(measurement.op)
    rows = [(name, str(len(ops)), ", ".join(dict.fromkeys(ops))) for name, ops in families.items()]
    print_table(rows, header=("family", "measured", "of"), right=[1])
    for reason, count in Counter(skipped.reason for skipped in measured.skipped).most_common():
        print_text(f"  {count} x skipped: {reason}")
    if end is not None and not end.complete:
        print_text("the budget ran out before everything was measured; --resume goes on")
