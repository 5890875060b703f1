"""``mpsim scale``: one scenario on more and more accelerators."""

from __future__ import annotations

import enum
from pathlib import Path

from mpsim.cli.console import draw, end_early, note, print_answer, progress_bar
from mpsim.cli.options import AsJson, Plot, Reading, wrong

Mode = enum.StrEnum("Mode", ["STRONG", "WEAK", "BOTH"])
"""Whether the global batch or that of a replica stays as the cluster grows."""


def _sizes(text: str) -> list[int]:
    """Read ``64..16384``, every doubling, or ``64,96,128``."""
    from mpsim.study.scaling import doublings

    first, dots, last = text.partition("..")
    words = [first, last] if dots else text.split(",")
    try:
        numbers = [int(word.strip().replace("_", "")) for word in words]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1 or (dots and numbers[0] > numbers[1]) or max(numbers) > 10_000_000:
        raise wrong(f"got {text!r}; needed numbers such as 64..16384 or 64,96,128", "--gpus")
    return doublings(*numbers) if dots else numbers


def scale(
    file: Path,
    gpus: str,
    mode: Mode = Mode.BOTH,
    plot: Plot = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Show how throughput, MFU and the parts of the step change on more accelerators.

    FILE: Scenario file.
    --gpus A..B: Every doubling from A to B, or A,B,C.
    --mode: Keep the global batch (strong), or that of a replica (weak).
    """
    from mpsim.study.scaling import MODES
    from mpsim.study.scaling import scale as run_scale

    scenario = reading.load(file)
    with progress_bar(scenario.name) as report:
        scaled = run_scale(
            scenario,
            _sizes(gpus),
            modes=MODES if mode is Mode.BOTH else (mode.value,),
            progress=report,
        )
    if plot is not None and not scaled.interrupted:
        title = f"{scenario.name}: throughput and parts of the step from {gpus} accelerators"
        draw(scaled.display().titled(title), plot)
    print_answer(scaled, as_json=as_json)
    for row in scaled.rows:
        if row.summary is None:
            note(f"{row.mode}, {row.accelerators:,} accelerators: {row.reason}")
    end_early(scaled.interrupted)
