"""``mpsim scale``: one scenario on more and more accelerators."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AllowInclude, AsJson, Overrides, Plot, Sets, Yes, load_scenario

if TYPE_CHECKING:
    from mpsim.study.scaling import Scale

__all__ = ["scale"]

_EATERS = 3  # parts named in a row


class Mode(enum.StrEnum):
    """Whether the global batch or that of a replica stays as the cluster grows."""

    STRONG = "strong"
    WEAK = "weak"
    BOTH = "both"


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
        raise typer.BadParameter(
            f"got {text!r}; needed numbers such as 64..16384 or 64,96,128", param_hint="--gpus"
        )
    return doublings(*numbers) if dots else numbers


def scale(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario file.")],
    gpus: Annotated[
        str,
        typer.Option("--gpus", metavar="A..B", help="Every doubling from A to B, or A,B,C."),
    ],
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="Keep the global batch (strong), or that of a replica (weak)."),
    ] = Mode.BOTH,
    plot: Plot = None,
    sets: Sets = None,
    overrides: Overrides = None,
    allow_include: AllowInclude = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what throughput, MFU and the parts of the step become on more accelerators."""
    from mpsim.cli.console import end_early, note, print_json, wrote
    from mpsim.cli.progress import progress_bar
    from mpsim.limits import set_unlimited
    from mpsim.study.scaling import MODES
    from mpsim.study.scaling import scale as run_scale

    set_unlimited(yes)
    scenario = load_scenario(file, sets=sets, overrides=overrides, allow_include=allow_include)
    with progress_bar(scenario.name) as report:
        scaled = run_scale(
            scenario,
            _sizes(gpus),
            modes=MODES if mode is Mode.BOTH else (mode.value,),
            progress=report,
        )
    if plot is not None:
        scaled.display().save(plot)
        wrote(plot)
    if as_json:
        print_json(scaled.to_json())
    else:
        _print(scaled)
    for row in scaled.rows:
        if row.summary is None:
            note(f"{row.mode}, {row.accelerators:,} accelerators: {row.reason}")
    end_early(scaled.interrupted)


def _print(scaled: Scale) -> None:
    from mpsim.cli.console import print_table
    from mpsim.study.scaling import MODES
    from mpsim.units import percent

    for mode in MODES:
        rows = scaled.of(mode)
        if not rows:
            continue
        print_table(
            (
                (
                    f"{row.accelerators:,}",
                    f"{row.figure('step_time_s'):.4g}",
                    f"{row.figure('tokens_per_s'):,.0f}",
                    f"{row.figure('tokens_per_s_per_accelerator'):,.1f}",
                    percent(row.figure("mfu")),
                    percent(scaled.efficiency(row)),
                    ", ".join(
                        f"{name.replace('_', ' ')} +{100 * more:.1f} points"
                        for name, more in scaled.eaters(row)[:_EATERS]
                        if more > 0.0005
                    ),
                )
                for row in rows
            ),
            header=(
                *("accelerators", "step (s)", "tokens/s", "tokens/s/acc."),
                *("MFU", "efficiency", "grown since the smallest"),
            ),
            title=f"\n{scaled.scenario}, {mode} scaling",
            right=range(6),
        )
