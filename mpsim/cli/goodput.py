"""``mpsim goodput``: how much of days of training is progress, with failures and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from mpsim.cli.console import draw, end_early, print_json, print_sheet
from mpsim.cli.options import AsJson, Checkpoints, Plot, Reading, finite, quantity


def goodput(
    file: Path,
    days: Annotated[float, Option(callback=finite)] = 30.0,
    size: Annotated[float | None, Option(parser=quantity("BYTES"))] = None,
    repair: Annotated[float | None, Option(parser=quantity("TIME"))] = None,
    spares: Annotated[int | None, Option(min=0)] = None,
    trials: Annotated[int, Option(min=1, max=100_000)] = 200,
    seed: Annotated[int, Option(min=0)] = 0,
    plot: Plot = None,
    *,
    checkpoints: Checkpoints,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Simulate days of training with failures and checkpoints: which share of them is progress.

    FILE: Scenario file.
    --days: Days that each trial lasts.
    --size BYTES: Size of a checkpoint, e.g. '2 TB'; left out: parameters and optimizer.
    --repair TIME: Time until a failed node is back, e.g. '24 h'; left out: a day.
    --spares: Spare nodes; left out: one in a hundred.
    --trials: Number of trials.
    --seed: Seed of the failures; equal seeds give equal results.
    """
    from mpsim.simulate import simulate_step
    from mpsim.study.goodput import simulate_goodput
    from mpsim.study.reliability import Checkpoint, Reliability

    checkpoints.refuse_idle(repair=repair, spares=spares)
    result = simulate_step(reading.load(file))
    name, summary, cluster = result.scenario.name, result.summary, result.plan.layout.cluster
    reliability = Reliability.of(
        cluster,
        scale=checkpoints.failures,
        restart=checkpoints.restart,
        repair=repair,
        spares=spares,
    )
    checkpoint = Checkpoint.of(
        result.plan.checkpoint_bytes if size is None else size,
        cluster.accelerators,
        storage=checkpoints.storage,
        in_background=checkpoints.background,
    )
    outcome = simulate_goodput(
        reliability, checkpoint, interval=checkpoints.interval, days=days, trials=trials, seed=seed
    )
    if plot is not None and not outcome.interrupted:
        title = f"{name}: {outcome.effective:.2%} of {days:g} days is progress"
        if outcome.confidence is not None:
            title += " ({:.2%} to {:.2%})".format(*outcome.confidence)
        draw(outcome.display().titled(title), plot)
    tokens = float(summary["tokens_per_s"])
    if as_json:
        more = {"effective_tokens_per_s": tokens * outcome.effective}
        step = {"step_time_s": summary["step_time_s"]}
        print_json({"scenario": name, **outcome.to_json(), **step, **more})
    else:
        print_sheet(outcome.sheet(name=name, tokens_per_s=tokens))
    end_early(outcome.interrupted)
