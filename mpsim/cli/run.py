"""``mpsim run``: simulate scenarios and print their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.cli.console import draw, print_json, print_sheet, print_text, progress_bar, wrote
from mpsim.cli.options import AsJson, Emit, Engine, MemorySnapshot, Plots, Reading, Trace, refuse
from mpsim.errors import ScenarioError
from mpsim.inputs import shown
from mpsim.output import safe_name

if TYPE_CHECKING:
    from mpsim.cli.emit import Target
    from mpsim.result import Result
    from mpsim.scenario import Scenario
    from mpsim.serving import ServiceResult
    from mpsim.study import Sensitivity


def run(
    files: list[Path],
    plots: Plots = None,
    trace: Trace = None,
    memory_snapshot: MemorySnapshot = None,
    *,
    reading: Reading,
    engine: Engine | None = None,
    sensitivity: bool = False,
    emit: Emit = None,
    long: bool = False,
    as_json: AsJson = False,
) -> None:
    """Simulate each scenario, a training step or a service, and say where the time goes.

    FILES: One or more scenario files.
    --engine: Engine that runs the program; left out: the scenario's, or auto: the fast one wherever
        it is exact.
    --sensitivity: Show how the step time depends on each parameter of hardware and software.
    --long: Print every result of a training step, not seven lines.
    """
    from mpsim.result import Result
    from mpsim.result.words import summary_sheet
    from mpsim.simulate import simulate

    if len(files) > 1:
        alone = {"--trace": trace, "--memory-snapshot": memory_snapshot}
        refuse(alone, f"one file holds one scenario, got {len(files)}")
    changes = [] if engine is None else [f"simulation.engine={engine.value}"]
    scenarios = reading.load_all(files, *changes)
    emitting = _emitting(emit, scenarios)
    folders = _folders(scenarios, plots)
    for scenario, folder, wanted in zip(scenarios, folders, emitting, strict=True):
        if scenario.serves:
            why = "studies a training step, and the scenario serves; leave it out"
            training = {"--sensitivity": sensitivity, "--memory-snapshot": memory_snapshot}
            refuse({**training, "--engine": engine}, why)
            with progress_bar(scenario.name) as progress:
                result = simulate(scenario, progress=progress)
        else:
            result = simulate(scenario)
        configurations = [item.of(scenario) for item in wanted]
        answer = result.sensitivity() if sensitivity and isinstance(result, Result) else None
        if as_json:
            studies = {} if answer is None else {"sensitivity": answer.to_json()}
            told = [item.to_json() for item in configurations]
            print_json({**result.summary, **studies, **({"emitted": told} if told else {})})
        else:
            whole = long or scenario.serves
            print_sheet(result.sheet() if whole else summary_sheet(result.summary, long=False))
            if answer is not None:
                print_text("")
                print_sheet(answer.sheet())
        _write(result, answer, folder, trace)
        if memory_snapshot is not None:
            _write_snapshot(result, memory_snapshot, as_json=as_json)
        for item in configurations:
            item.write(as_json=as_json)


def _emitting(words: list[str] | None, scenarios: list[Scenario]) -> list[list[Target]]:
    """Targets of every scenario; what writes them is imported for who asks for some."""
    if not words:
        return [[] for _ in scenarios]
    from mpsim.cli.emit import targets

    return targets(words, scenarios)


def _folders(scenarios: list[Scenario], plots: Path | None) -> list[Path | None]:
    """The folder that a scenario is drawn into: `plots`, or one in it for each of several."""
    if plots is None or len(scenarios) == 1:
        return [plots] * len(scenarios)
    names: dict[str, str] = {}
    for scenario in scenarios:
        folder = safe_name(scenario.name)
        if folder in names:
            both = f"names {shown(names[folder])} and {shown(scenario.name)}"
            raise ScenarioError(f"{both} both become the folder {folder!r}; change one of them")
        names[folder] = scenario.name
    return [plots / folder for folder in names]


def _write(
    result: Result | ServiceResult,
    sensitivity: Sensitivity | None,
    plots: Path | None,
    trace: Path | None,
) -> None:
    if plots is not None:
        for path in result.save_plots(plots):
            wrote(path)
        if sensitivity is not None:
            draw(sensitivity.plot(), plots / "sensitivity.png")
    if trace is not None:
        result.write_trace(trace)
        wrote(trace)


def _write_snapshot(result: Result | ServiceResult, path: Path, *, as_json: bool) -> None:
    """Write what torch's memory_viz opens, and say what the allocator would have reserved."""
    from mpsim.training.result import TrainingResult
    from mpsim.units import Dimension, format_quantity

    assert isinstance(result, TrainingResult), "refused before"
    played = result.write_memory_snapshot(path)
    wrote(path)
    if as_json:
        return
    allocated, reserved, joined = (
        format_quantity(float(size), Dimension.BYTES, digits=3)
        for size in (
            played.allocated,
            played.reserved,
            result.allocations(expandable=True).reserved,
        )
    )
    print_text(
        f"torch's allocator, rank {result.memory.fullest}: {allocated} allocated at"
        f" {played.moment}, {reserved} reserved, {joined} with expandable segments"
    )
