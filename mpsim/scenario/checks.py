"""Checks across sections: one function for each mistake, usable alone, run together by `check`.

Each takes a scenario whose sections are well-formed and returns the problems it finds, keyed so that
`Scenario.locate` can say on which line they were written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pydantic

from mpsim.errors import HardwareError, MpsimError, Problem, ScenarioError
from mpsim.scenario.layers import Layers, lay_values
from mpsim.scenario.sections import FIXED_VIRTUAL_STAGES, INTERLEAVED
from mpsim.scenario.translate import translate

if TYPE_CHECKING:
    from mpsim.document import Document
    from mpsim.scenario.scenario import Scenario

__all__ = [
    "CHECKS",
    "check",
    "check_batch",
    "check_cluster",
    "check_context",
    "check_experts",
    "check_framework",
    "check_heads",
    "check_mlp",
    "check_model",
    "check_network",
    "check_overrides",
    "check_precision",
    "check_schedule_file",
    "check_sequence",
    "check_size",
    "check_stages",
    "check_sweep",
    "check_virtual_stages",
    "check_world",
    "check_zero",
]

MAX_ACTIONS: Final = 20_000_000  # forwards and backwards of one pipeline: what arrays here can hold
MAX_POINTS: Final = 100_000
MAX_MESSAGE: Final = 400  # characters; a value quoted in it can be of any length
FIXED_KEYS: Final = ("schema", "name", "sweep", "include", "overrides")


def check(scenario: Scenario) -> list[Problem]:
    """Run every check.

    Returns
    -------
    list of Problem
        All that were found, with their places; empty for a scenario that can be simulated as far as
        it can be said without planning it.
    """
    problems: list[Problem] = []
    for one in CHECKS:
        try:
            problems += one(scenario)
        except MpsimError:  # a preset that check_model, check_cluster or check_framework reports
            continue
    return scenario.locate(problems)


def check_model(scenario: Scenario) -> list[Problem]:
    """The model's preset exists, and its fields agree."""
    return _raised(lambda: scenario.transformer)


def check_cluster(scenario: Scenario) -> list[Problem]:
    """The cluster's presets exist, and its parts make a cluster."""
    return _raised(lambda: scenario.hardware)


def check_framework(scenario: Scenario) -> list[Problem]:
    """The framework's preset exists, and has the fields that are replaced."""
    return _raised(lambda: scenario.software)


def check_world(scenario: Scenario) -> list[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    world = cluster.accelerators
    each = p.tp * p.pp * p.cp
    have = f"the cluster has {cluster.nodes} nodes x {cluster.node.accelerators} = {world} accelerators"
    factors = f"tp {p.tp} x pp {p.pp} x cp {p.cp}"
    per_node = cluster.node.accelerators
    if p.dp is None:
        if world % each == 0:
            return []
        whole = _multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        message = f"{factors} = {each}, but {have}, not a multiple; set cluster.nodes to {nodes}"
        return [Problem(f"{message}, or change a degree", key=_blamed(p.tp, p.pp, p.cp))]
    need = each * p.dp
    if need == world:
        return []
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    return [Problem(f"{factors} x dp {p.dp} = {need}, but {have}; {mend}", key="parallelism.dp")]


def check_batch(scenario: Scenario) -> list[Problem]:
    """The global batch is a whole number of microbatches on every replica."""
    batch, dp = scenario.training.global_batch, scenario.dp
    micro = scenario.training.micro_batch
    if dp < 1 or batch % (dp * micro) == 0:
        return []
    near = " or ".join(map(str, _multiples(batch, dp * micro)))
    message = f"got {batch}, not a multiple of dp {dp} x micro_batch {micro} = {dp * micro}; set it to {near}"
    return [Problem(message, key="training.global_batch")]


def check_precision(scenario: Scenario) -> list[Problem]:
    """The accelerator computes in the precision of the training."""
    try:
        scenario.hardware.accelerator.peak(scenario.training.precision)
    except HardwareError as error:
        return [Problem(str(error), key="training.precision")]
    return []


def check_virtual_stages(scenario: Scenario) -> list[Problem]:
    """The schedule has as many virtual stages as it can use."""
    name, given = scenario.schedule.name, scenario.schedule.virtual_stages
    key = "schedule.virtual_stages"
    if name is None:
        return []
    if name in FIXED_VIRTUAL_STAGES:
        needed = FIXED_VIRTUAL_STAGES[name]
        if given in (None, needed):
            return []
        return [Problem(f"got {given}; {name} has {needed}: leave it out", key=key)]
    if name in INTERLEAVED:
        if given is not None or name == "auto":
            return []
        message = f"missing; {name} needs it, such as {{name: {name}, virtual_stages: 2}}"
        return [Problem(message, key=key)]
    if given in (None, 1):
        return []
    message = (
        f"got {given}, but {name} has one chunk a rank; take interleaved-1f1b, or leave it out"
    )
    return [Problem(message, key=key)]


def check_schedule_file(scenario: Scenario) -> list[Problem]:
    """The file of a schedule exists."""
    file = scenario.schedule.file
    if file is None or Path(file).is_file():
        return []
    return [Problem(f"no file {file!r}; give the path of a CSV file", key="schedule.file")]


def check_stages(scenario: Scenario) -> list[Problem]:
    """Layers can be divided among the (virtual) pipeline stages."""
    p, layers = scenario.parallelism, scenario.transformer.layers
    stages = p.pp * scenario.virtual_stages
    spelled = f"pp {p.pp} x virtual_stages {scenario.virtual_stages} = {stages} stages"
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
    message = (
        f"{layers} layers{extra} do not divide among {spelled}; set pp to {sizes}, give "
        "layers_per_stage, or count embedding and loss as layers where that divides"
    )
    return [Problem(message, key="parallelism.pp")]


def _check_given_stages(
    given: tuple[int, ...], stages: int, spelled: str, layers: int
) -> list[Problem]:
    wrong = []
    if len(given) != stages:
        wrong.append(f"got {len(given)} entries, needed one for each of {spelled}")
    if sum(given) != layers:
        wrong.append(f"got {sum(given)} layers in all, needed the model's {layers}")
    if not wrong:
        return []
    message = f"{'; '.join(wrong)}; correct the list, or leave it out for an even division"
    return [Problem(message, key="parallelism.layers_per_stage")]


def check_heads(scenario: Scenario) -> list[Problem]:
    """Attention heads divide among tensor-parallel ranks."""
    tp, model = scenario.parallelism.tp, scenario.transformer
    shared = model.kv_heads < tp and tp % model.kv_heads == 0
    problems = []
    if model.heads % tp:
        problems.append(f"{model.heads} heads do not divide by tp {tp}")
    elif model.kv_heads % tp and not shared:
        problems.append(f"{model.kv_heads} kv_heads neither divide by tp {tp} nor divide it")
    mend = _divisors_near(model.heads, tp)
    return [Problem(f"{one}; set tp to {mend}", key="parallelism.tp") for one in problems]


def check_mlp(scenario: Scenario) -> list[Problem]:
    """The MLP divides among tensor-parallel ranks."""
    tp, ffn = scenario.parallelism.tp, scenario.transformer.ffn_hidden
    if ffn % tp == 0:
        return []
    message = f"ffn_hidden {ffn} does not divide by tp {tp}; set tp to {_divisors_near(ffn, tp)}"
    return [Problem(message, key="parallelism.tp")]


def check_context(scenario: Scenario) -> list[Problem]:
    """Sequences divide into two chunks for each context-parallel rank (causal balance)."""
    cp, length = scenario.parallelism.cp, scenario.training.sequence_length
    if cp == 1 or length % (2 * cp) == 0:
        return []
    near = " or ".join(map(str, _multiples(length, 2 * cp)))
    message = f"got {length}, not a multiple of 2 x cp = {2 * cp}; set it to {near}, or change cp"
    return [Problem(message, key="training.sequence_length")]


def check_sequence(scenario: Scenario) -> list[Problem]:
    """Sequences divide among tensor-parallel ranks where sequence parallelism asks for it."""
    p, length = scenario.parallelism, scenario.training.sequence_length
    if not p.sequence_parallel or length % (p.tp * p.cp) == 0:
        return []
    near = " or ".join(map(str, _multiples(length, p.tp * p.cp)))
    message = (
        f"got {length}, not a multiple of tp {p.tp} x cp {p.cp} = {p.tp * p.cp} as "
        f"sequence_parallel needs; set it to {near}"
    )
    return [Problem(message, key="training.sequence_length")]


def check_experts(scenario: Scenario) -> list[Problem]:
    """Expert parallelism has experts to divide."""
    if scenario.parallelism.ep == 1 or scenario.model.moe is not None:
        return []
    message = f"got {scenario.parallelism.ep}, but the model is dense; set ep to 1"
    return [Problem(message, key="parallelism.ep")]


def check_zero(scenario: Scenario) -> list[Problem]:
    """Data-parallel sharding is of a kind that is simulated."""
    zero = scenario.parallelism.zero
    if zero <= 1:
        return []
    shared = "gradients" if zero == 2 else "gradients and parameters"
    message = f"got {zero}; sharded {shared} are not simulated by this version; set zero to 0 or 1"
    return [Problem(message, key="parallelism.zero")]


def check_network(scenario: Scenario) -> list[Problem]:
    """The network is modelled the way that is simulated."""
    if scenario.simulation.network == "analytic":
        return []
    message = "flow networks are not simulated by this version; set network to analytic"
    return [Problem(message, key="simulation.network")]


def check_size(scenario: Scenario) -> list[Problem]:
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


def check_sweep(scenario: Scenario) -> list[Problem]:
    """Every value of the sweep fits the key it is for."""
    total = math.prod(map(len, scenario.sweep.values()))
    if total > MAX_POINTS:
        message = f"makes {total} points; needed at most {MAX_POINTS}: try fewer values"
        return [Problem(message, key="sweep")]
    problems: list[Problem] = []
    for key, values in scenario.sweep.items():
        if key.partition(".")[0] in FIXED_KEYS:
            problems.append(Problem(f"{key} cannot be swept; take another key", key=f"sweep.{key}"))
            continue
        for index, value in enumerate(values):
            wrong = _misfits(lay_values(scenario.source, {key: value}), type(scenario))
            if wrong:
                at = f"sweep.{key}" if "unknown key" in wrong[0] else f"sweep.{key}.{index}"
                problems.append(Problem(wrong[0], key=at))
                break
    return problems


def check_overrides(scenario: Scenario) -> list[Problem]:
    """Every named override fits the scenario it changes, chosen or not."""
    problems = []
    for name in scenario.overrides:
        layers = Layers(scenario.source.file)
        layers.lay(scenario.source)
        layers.lay_override(name, scenario.source)
        wrong = _misfits(layers.document(), type(scenario))
        problems += [Problem(message, key=f"overrides.{name}") for message in wrong]
    return problems


CHECKS: Final[tuple[Callable[[Scenario], list[Problem]], ...]] = (
    check_model,
    check_cluster,
    check_framework,
    check_world,
    check_batch,
    check_precision,
    check_virtual_stages,
    check_schedule_file,
    check_stages,
    check_heads,
    check_mlp,
    check_context,
    check_sequence,
    check_experts,
    check_zero,
    check_network,
    check_size,
    check_sweep,
    check_overrides,
)


def _raised(look_up: Callable[[], object]) -> list[Problem]:
    try:
        look_up()
    except ScenarioError as error:
        return [
            dataclasses.replace(problem, message=problem.message[:MAX_MESSAGE])
            for problem in error.problems
        ]
    return []


def _misfits(document: Document, kind: type[Scenario]) -> list[str]:
    """What the schema has against `document`, key first."""
    found: list[Problem] = list(document.problems)
    try:
        kind.model_validate(document.data)
    except pydantic.ValidationError as error:
        found += translate(error, kind)
    return [f"{problem.key}: {problem.message}" for problem in found]


def _multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` around `value`, without zero."""
    below = value // step * step
    return [below, below + step] if below else [step]


def _divisors_near(value: int, wanted: int) -> str:
    divisors = [n for n in range(1, min(value, 2 * wanted) + 1) if value % n == 0]
    near = sorted(sorted(divisors, key=lambda n: abs(n - wanted))[:2])
    return " or ".join(map(str, near))


def _blamed(tp: int, pp: int, cp: int) -> str:
    degrees: Mapping[str, int] = {"pp": pp, "tp": tp, "cp": cp}
    return f"parallelism.{max(degrees, key=lambda axis: degrees[axis])}"
