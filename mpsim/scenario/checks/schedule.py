"""Checks of the schedule and of the stages it works on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mpsim.errors import Problem, ScenarioError
from mpsim.scenario.balance import balanced_stages
from mpsim.scenario.described import Described
from mpsim.schedule import schedule

__all__ = ["check_schedule_file", "check_size", "check_stages", "check_virtual_stages"]

MAX_ACTIONS: Final = 20_000_000  # forwards and backwards of one pipeline: what arrays here can hold


def check_virtual_stages(scenario: Described) -> list[Problem]:
    """The schedule has as many virtual stages as it can use."""
    name, given = scenario.schedule.name, scenario.schedule.virtual_stages
    key = "schedule.virtual_stages"
    if name is None:
        return []
    facts = schedule(name)
    if given is None:
        if facts.chunks is not None:
            return []
        message = f"missing; {name} needs it, such as {{name: {name}, virtual_stages: 2}}"
    elif facts.interleaves or given == facts.chunks:
        return []
    elif facts.chunks == 1:
        message = (
            f"got {given}, but {name} has one chunk a rank; take interleaved-1f1b, or leave it out"
        )
    else:
        message = f"got {given}; {name} has {facts.chunks}: leave it out"
    return [Problem(message, key=key)]


def check_schedule_file(scenario: Described) -> list[Problem]:
    """The file of a schedule exists."""
    file = scenario.schedule.file
    if file is None or Path(file).is_file():
        return []
    return [Problem(f"no file {file!r}; give the path of a CSV file", key="schedule.file")]


def check_stages(scenario: Described) -> list[Problem]:
    """Layers can be divided among the (virtual) pipeline stages."""
    p, layers = scenario.parallelism, scenario.transformer.layers
    stages = p.pp * scenario.virtual_stages
    spelled = f"pp {p.pp} x virtual_stages {scenario.virtual_stages} = {stages} stages"
    if p.layers_per_stage == "auto":
        if scenario.stage_layers is not None:
            return []
        split = scenario.software.pipeline.stage_split
        message = f"{layers} layers cannot be split among {spelled} as {scenario.framework.preset} splits them ({split}); set pp or virtual_stages lower"
        return [Problem(message, key="parallelism.layers_per_stage")]
    if p.layers_per_stage is not None:
        return _check_given_stages(p.layers_per_stage, stages, spelled, layers)
    counted = p.embedding_counts_as_layer + p.loss_counts_as_layer
    each, left = divmod(layers + counted, stages)
    if not left and each >= 1 and (stages > 1 or each > counted):
        return []
    extra = f" and {counted} counted as layers" if counted else ""
    even = [n for n in range(1, layers + 1) if layers % (n * scenario.virtual_stages) == 0]
    near = sorted(sorted(even, key=lambda n: abs(n - p.pp))[:2])
    sizes = " or ".join(map(str, near)) or "a divisor"
    try:
        balanced = balanced_stages(scenario)
    except (
        ScenarioError
    ):  # of an unknown framework nobody knows which splits it runs; another check names it
        balanced = None
    if balanced is None:
        mend = f"{scenario.framework.preset} runs no uneven split that holds them"
    else:
        listed = ", ".join(map(str, balanced))
        mend = f"or let mpsim balance them: layers_per_stage: auto, which is [{listed}]"
    message = f"{layers} layers{extra} do not divide among {spelled}; set pp to {sizes}, {mend}"
    return [Problem(message, key="parallelism.pp")]


def _check_given_stages(
    given: tuple[int, ...], stages: int, spelled: str, layers: int
) -> list[Problem]:
    wrong = []
    if len(given) != stages:
        wrong.append(f"got {len(given)} entries, needed one for each of {spelled}")
    if sum(given) != layers:
        wrong.append(f"got {sum(given)} layers in all, needed the model's {layers}")
    empty = [str(i) for i, count in enumerate(given) if not count and 0 < i < len(given) - 1]
    if empty and not wrong:
        wrong.append(
            f"got no layer for stage {', '.join(empty)}, which has neither embedding nor head"
        )
    if not wrong:
        return []
    message = f"{'; '.join(wrong)}; correct the list, or leave it out for an even division"
    return [Problem(message, key="parallelism.layers_per_stage")]


def check_size(scenario: Described) -> list[Problem]:
    """The step has no more actions than can be held."""
    if scenario.dp < 1:
        return []
    stages = scenario.parallelism.pp * scenario.virtual_stages
    actions = 2 * scenario.microbatches * stages
    if actions <= MAX_ACTIONS:
        return []
    message = (
        f"makes {scenario.microbatches} microbatches on {stages} stages; needed at most "
        f"{MAX_ACTIONS // (2 * stages)}; raise micro_batch or dp, or lower global_batch"
    )
    return [Problem(message, key="training.global_batch")]
