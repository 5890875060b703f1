"""``mpsim explain``: why a recorded step takes longer than the simulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from mpsim.cli.console import draw, print_answer, progress_bar
from mpsim.cli.options import AsJson, Plot, Reading, wrong
from mpsim.errors import CalibrationError, FormatError, ScenarioError


def explain(
    file: Annotated[Path, Argument(metavar="SCENARIO")],
    traces: Annotated[list[Path], Argument(metavar="TRACE...")],
    plot: Plot = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Say why a recorded step is longer than the simulated one: causes, evidence, what to do.

    SCENARIO: Scenario of the run.
    TRACE...: Recordings of one step or more, a file a rank or folders of them: torch.profiler,
        Nsight Systems (SQLite). A log alone gives the difference without causes.
    """
    from mpsim.explain import explain as run_explain
    from mpsim.simulate import simulate_step

    if scenarios := [trace for trace in traces if trace.suffix in (".yaml", ".yml")]:
        raise wrong(f"got {scenarios[0]}; the scenario comes first, recordings behind it", "TRACE")
    scenario = reading.load(file)
    if scenario.serves:
        raise ScenarioError(f"{file}: serves; a recorded step is explained by a training step")
    result = simulate_step(scenario)
    try:
        with progress_bar("recordings") as report:
            told = run_explain(result, traces, progress=report)
    except (CalibrationError, FormatError) as error:
        raise wrong(str(error), "TRACE") from error
    if plot is not None:
        from mpsim.plot import timelines_chart

        if told.recorded is None:
            raise wrong("a log has no timeline; leave it out", "--plot")
        both = {f"simulated: {told.scenario}": result.timeline, "recorded": told.recorded.timeline}
        draw(timelines_chart([*both], [*both.values()], shaded=told.shaded), plot)
    print_answer(told, as_json=as_json)
