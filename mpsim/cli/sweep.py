"""``mpsim sweep``: one scenario at every combination of some values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from mpsim.cli.console import draw, end_early, note, print_answer, progress_bar, write_table
from mpsim.cli.options import AsJson, Computing, Csv, Plot, Reading, keys, values_over
from mpsim.errors import ScenarioError
from mpsim.shipped import say
from mpsim.table import plural

if TYPE_CHECKING:
    from mpsim.scenario import Scenario
    from mpsim.study import Sweep


def sweep(
    file: Path,
    over: Annotated[list[str] | None, Option(autocompletion=keys)] = None,
    csv: Csv = None,
    plot: Plot = None,
    shard: str | None = None,
    *,
    computing: Computing,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario at every combination of values; rows that cannot run say why.

    FILE: Scenario file; its `sweep:` block is the default.
    --over KEY=A,B,C: Values of one dotted key to try; repeatable.
    --shard I/N: Run only the I-th of N parts.
    """
    from mpsim.study import sweep as run_sweep

    scenario = reading.load(file)
    values = values_over(scenario, over) if over else _block(scenario)
    reading.refuse_varied(values)
    part = _shard(shard)
    with progress_bar(scenario.name) as report:
        result = run_sweep(
            scenario,
            values,
            shard=part,
            progress=report,
            **computing.arguments(math.prod(map(len, values.values()))),
        )
    if csv is not None:
        write_table(result, csv)
    if plot is not None and not result.interrupted:
        _draw(result, plot, scenario.name)
    print_answer(result, as_json=as_json)
    for remark in result.remarks:
        note(remark)
    lost = sum(row.summary is None for row in result)
    if lost:
        note(f"{lost:,} of {plural(len(result), 'row')} could not be simulated; see their reasons")
    end_early(result.interrupted)


def _shard(text: str | None) -> tuple[int, int] | None:
    """Read ``i/n``."""
    if text is None:
        return None
    part, slash, parts = text.partition("/")
    if not (slash and part.strip().isdecimal() and parts.strip().isdecimal()):
        raise typer.BadParameter(f"got {text!r}; needed I/N such as 1/4", param_hint="--shard")
    return int(part), int(parts)


def _block(scenario: Scenario) -> dict[str, list[object]]:
    if not scenario.sweep:
        raise ScenarioError(say("cli.no_sweep", name=scenario.name))
    return {key: list(choices) for key, choices in scenario.sweep.items()}


def _draw(result: Sweep, path: Path, name: str) -> None:
    from mpsim.plot import sweep_chart

    serves = any(row.serves for row in result)
    metric = f"{'output_' if serves else ''}tokens_per_s_per_accelerator"
    keys = ", ".join(key.rpartition(".")[2] for key in result.keys)
    title = f"{name}: {plural(len(result), 'point')} over {keys}"
    draw(sweep_chart(result, metric=metric).titled(title), path)
