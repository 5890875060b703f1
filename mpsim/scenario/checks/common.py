"""Checks of what both jobs have: presets, variants that fit; and the nearest legal values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic_core import ValidationError

from mpsim import structs
from mpsim.document import Document
from mpsim.errors import Problem, ScenarioError
from mpsim.framework import framework
from mpsim.scenario.layers import Layers, lay_values
from mpsim.shipped import say

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

MAX_MESSAGE: Final = 400  # characters; a value quoted in it can be of any length
MAX_POINTS: Final = 100_000
FIXED_KEYS: Final = ("schema", "name", "sweep", "design", "include", "overrides")


def mistake(name: str, scenario: Written, /, **figures: object) -> Problem:
    """A mistake in the words of data/said.yaml, with `figures` beside those of the scenario."""
    says, key = (say(f"scenario.{name}", part, s=scenario, **figures) for part in ("says", "key"))
    return Problem(says, key)


def check_model(scenario: Written) -> Iterator[Problem]:
    """The model's preset exists, and its fields agree."""
    yield from _raised(lambda: scenario.transformer)


def check_cluster(scenario: Written) -> Iterator[Problem]:
    """The cluster's presets exist, and its parts make a cluster."""
    yield from _raised(lambda: scenario.hardware) or _raised(lambda: scenario.clusters)


def check_framework(scenario: Written) -> Iterator[Problem]:
    """The framework's preset exists, and has the fields that are replaced."""
    if _raised(lambda: scenario.hardware):  # no machine, no habits of its host
        chosen = scenario.framework
        yield from _raised(lambda: framework(chosen.preset, chosen.overrides))
    else:
        yield from _raised(lambda: scenario.software)


def _raised(look_up: Callable[[], object]) -> list[Problem]:
    try:
        look_up()
    except ScenarioError as error:
        return [
            structs.replace(problem, message=problem.message[:MAX_MESSAGE])
            for problem in error.problems
        ]
    return []


_PRESETS: Final[Mapping[str, Callable[[Written], Iterator[Problem]]]] = {
    "model": check_model,
    "cluster": check_cluster,
    "framework": check_framework,
}


def check_sweep(scenario: Written) -> Iterator[Problem]:
    """Every value of the sweep fits the key it is for."""
    yield from _wrong_grid(scenario, scenario.sweep, "sweep")


def check_design(scenario: Written) -> Iterator[Problem]:
    """Every choice of the design is of the cluster, and its values fit the key it is for."""
    if (design := scenario.design) is None:
        return
    yield from _wrong_grid(scenario, design.choices, "design.choices")
    for choice, values in design.choices.items():
        for value in (each for each in values if isinstance(each, Mapping) and each):
            yield mistake("unpriced_choice", scenario, choice=choice, part=next(iter(value)))
        if choice.partition(".")[0] != "cluster":
            yield mistake("foreign_choice", scenario, choice=choice)
    bought = design.money.basis == "purchase"
    other, own = ("rent", "purchase") if bought else ("purchase", "rent")
    for idle, is_idle in {
        "design.money.offer": bought and design.money.offer,
        "design.money.life": not bought and design.money.life,
        "design.money.tariff": not bought and design.money.tariff,
        "design.bounds.capital": not bought and design.bounds.capital,
    }.items():
        if is_idle:
            yield mistake("idle_money", scenario, idle=idle, other=other, own=own)
    if (total := math.fsum(job.share for job in design.jobs.values())) > 1.0 + 1e-9:
        shares = ", ".join(f"{name} {job.share:g}" for name, job in design.jobs.items())
        yield mistake("shares", scenario, shares=shares, total=total)


def _wrong_grid(
    scenario: Written, values: Mapping[str, Sequence[object]], section: str
) -> Iterator[Problem]:
    total = math.prod(map(len, values.values()))
    if total > MAX_POINTS:
        yield mistake("points", scenario, section=section, total=total, most=MAX_POINTS)
        return
    for problem in wrong_values(scenario, values):
        yield structs.replace(problem, key=f"{section}.{problem.key}")


def wrong_values(
    scenario: Written, values: Mapping[str, Sequence[object]], *, indexed: bool = True
) -> list[Problem]:
    """Say which values do not fit the key they are for, or name a preset that does not exist.

    `scenario`: that is varied. `values`: values by dotted key. `indexed`: whether the key of a
    problem ends in the number of the value, as in a file.
    """
    # most scenarios vary nothing, and validating one again takes as long as all other checks
    known = set(_misfits(scenario.source, type(scenario))) if values else set()
    problems: list[Problem] = []
    for key, choices in values.items():
        if key.partition(".")[0] in FIXED_KEYS:
            problems.append(Problem(f"{key} cannot be swept; take another key", key=key))
            continue
        for index, value in enumerate(choices):
            wrong = [text for text in _wrong_value(scenario, key, value) if text not in known]
            if wrong:
                unknown = "unknown key" in wrong[0] or "unknown field" in wrong[0]
                at = f"{key}.{index}" if indexed and not unknown else key
                problems.append(Problem(wrong[0], key=at))
                if unknown:
                    break
    return problems


def _wrong_value(scenario: Written, key: str, value: object) -> list[str]:
    """Mistakes of one value of a key, whatever the other keys are."""
    document, kind = lay_values(scenario.ground, {key: value}), type(scenario)
    wrong = _misfits(document, kind)
    section = key.partition(".")[0]
    if wrong or section not in _PRESETS:
        return wrong
    own = (key, f"{key}.preset")
    return [
        f"{problem.key}: {problem.message}"
        for problem in _PRESETS[section](kind.of(document, like=scenario))
        if problem.key in own and (problem.message.startswith("unknown ") or section == "framework")
    ]


def check_overrides(scenario: Written) -> Iterator[Problem]:
    """Every named override fits the scenario it changes, chosen or not."""
    known = set(_misfits(scenario.source, type(scenario))) if scenario.overrides else set()
    for name in scenario.overrides:
        layers = Layers(scenario.source.file)
        layers.lay(scenario.source)
        layers.lay_override(name, scenario.source)
        for message in _misfits(layers.document(), type(scenario)):
            if message not in known:
                yield Problem(message, f"overrides.{name}")


def _misfits(document: Document, kind: type[Written]) -> list[str]:
    """Mistakes of `document` that the schema finds, key first."""
    problems: list[Problem] = list(document.problems)
    try:
        kind.model_validate(document.data)
    except ValidationError as error:
        # the words for mistakes, which most scenarios do without
        from mpsim.scenario.translate import translate

        problems += translate(error, kind)
    return [f"{problem.key}: {problem.message}" for problem in problems]


def multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` around `value`, without zero."""
    below = value // step * step
    return [below, below + step] if below else [step]


def multiples_near(value: int, step: int) -> str:
    """The multiples of `step` around `value`."""
    return " or ".join(map(str, multiples(value, step)))


def divisors_near(value: int, wanted: int) -> str:
    """The two divisors of `value` nearest to `wanted`."""
    divisors = [n for n in range(1, min(value, 2 * wanted) + 1) if value % n == 0]
    return nearest_two(divisors, wanted)


def nearest_two(legal: Iterable[int], wanted: int, otherwise: str = "1") -> str:
    """The two of `legal` nearest to `wanted`."""
    near = sorted(sorted(legal, key=lambda n: abs(n - wanted))[:2])
    return " or ".join(map(str, near)) or otherwise
