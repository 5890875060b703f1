"""``mpsim goodput``: how much of days of training is progress, with failures and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpsim.cli.options import (
    AsJson,
    Background,
    Failures,
    Interval,
    Plot,
    Reading,
    Restart,
    Storage,
    finite,
    quantity,
)

__all__ = ["goodput"]


def goodput(
    file: Annotated[Path, typer.Argument(help="Scenario file.")],
    days: Annotated[
        float, typer.Option("--days", callback=finite, help="Days that each trial lasts.")
    ] = 30.0,
    interval: Interval = None,
    storage: Storage = None,
    size: Annotated[
        float | None,
        typer.Option(
            "--size",
            metavar="BYTES",
            parser=quantity("BYTES"),
            help="Size of a checkpoint, e.g. '2 TB'; left out: parameters and optimizer.",
        ),
    ] = None,
    background: Background = True,
    restart: Restart = None,
    repair: Annotated[
        float | None,
        typer.Option(
            "--repair",
            metavar="TIME",
            parser=quantity("TIME"),
            help="Time until a failed node is back, e.g. '24 h'; left out: a day.",
        ),
    ] = None,
    spares: Annotated[
        int | None,
        typer.Option("--spares", min=0, help="Spare nodes; left out: one in a hundred."),
    ] = None,
    failures: Failures = 1.0,
    trials: Annotated[
        int,
        typer.Option("--trials", min=1, max=100_000, help="Number of trials."),
    ] = 200,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, help="Seed of the failures; equal seeds give equal results."),
    ] = 0,
    plot: Plot = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Simulate days of training with failures and checkpoints: which share of them is progress."""
    from mpsim.cli.console import print_json, print_sheet, wrote
    from mpsim.simulate import simulate_step
    from mpsim.study.goodput import simulate_goodput
    from mpsim.study.reliability import Checkpoint, Reliability

    result = simulate_step(reading.load(file))
    cluster = result.plan.layout.cluster
    reliability = Reliability.of(
        cluster,
        scale=failures,
        restart=restart,
        repair=repair,
        spares=spares,
    )
    checkpoint = Checkpoint.of(
        result.plan.checkpoint_bytes if size is None else size,
        cluster.accelerators,
        storage=storage,
        in_background=background,
    )
    outcome = simulate_goodput(
        reliability,
        checkpoint,
        interval=interval,
        days=days,
        trials=trials,
        seed=seed,
    )
    if plot is not None:
        low, high = outcome.confidence
        title = f"{result.scenario.name}: {outcome.effective:.2%} of {days:g} days is progress ({low:.2%} to {high:.2%})"
        outcome.display().titled(title).save(plot)
        wrote(plot)
    tokens = float(result.summary["tokens_per_s"])
    if as_json:
        print_json(
            {
                "scenario": result.scenario.name,
                **outcome.to_json(),
                "step_time_s": result.summary["step_time_s"],
                "effective_tokens_per_s": tokens * outcome.effective,
            }
        )
    else:
        print_sheet(outcome.sheet(name=result.scenario.name, tokens_per_s=tokens))
