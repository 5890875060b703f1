"""``mpsim watch``: a training log as it grows, beside the step that it should take."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mpsim.cli.console import end_early, note, print_json, print_table
from mpsim.cli.options import AsJson, Reading, check_file, wrong
from mpsim.errors import FormatError, ScenarioError

_EVERY_S = 2.0
_SHARES = ("slower", "memory_grows")


def watch(
    log: Annotated[Path, Argument(metavar="LOG")],
    file: Annotated[Path, Option("--scenario")],
    steps: Annotated[int | None, Option(min=1)] = None,
    state: Annotated[Path | None, Option(callback=check_file)] = None,
    keep_on: Annotated[bool, Option("--follow")] = False,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Watch a training log: is the run as it should be, when did it change, how long is left.

    LOG: Log of Megatron-LM, NeMo, torchtitan, DeepSpeed or Hugging Face, or JSON lines; only read.
    --scenario FILE: Scenario of the run.
    --steps: Steps of the whole run: tells how long the rest takes.
    --state FILE: Keep what was read here, and go on from there.
    --follow: Keep reading as the log grows, until Ctrl-C.
    """
    from mpsim.explain.watch import Watch, follow
    from mpsim.simulate import simulate_step

    scenario = reading.load(file)
    if scenario.serves:
        raise ScenarioError(f"{file}: serves; a log of a training run is watched")
    summary = simulate_step(scenario).summary
    predicted, cost = float(summary["step_time_s"]), summary.get("cost_per_step")
    try:
        known = Watch.load(state) if state is not None and state.exists() else Watch(predicted)
        known.predicted = predicted
        stopped = interrupted = False
        while not stopped:
            try:
                for change in follow(known, log, scenario):
                    note(
                        f"step {change.step}: {change.share:+.1%}, {change.before_s:.4g} s before,"
                        f" {change.after_s:.4g} s since"
                    )
                stopped = not keep_on
                time.sleep(_EVERY_S if keep_on else 0.0)
            except KeyboardInterrupt:  # with what was read so far
                stopped = interrupted = True
            if state is not None:
                known.save(state)
        told = known.told(steps, None if cost is None else float(cost) / predicted)
    except FormatError as error:
        raise wrong(str(error), "LOG") from error
    if as_json:
        print_json(told)
    else:
        print_table([(name.replace("_", " "), _text(value, name)) for name, value in told.items()])
    end_early(interrupted)


def _text(value: object, name: str = "") -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, dict):
        return f"step {value['step']} {value['share']:+.1%}"
    if name in _SHARES:
        return f"{value:+.1%}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
