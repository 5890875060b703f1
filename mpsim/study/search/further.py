"""Further keys of a search, varied when asked for by words; pipelines over unlike nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.framework import SelectiveRecompute
from mpsim.scenario import Scenario
from mpsim.scenario.checks.memory import legal_modules
from mpsim.study.search.given import defaults
from mpsim.study.search.layouts import Layouts

FURTHER: Final[Mapping[str, str]] = {
    "order": "parallelism.order",
    "recompute-modules": "training.recompute_modules",
    "offload": "parallelism.offload",
    "schedules": "schedule.name",
    "placement": "cluster.placement",
    "expert-overlap": "framework.expert_overlap",
}
"""Words, and the key that each adds to a search, with the values of ``search.yaml``."""
_ALL = "all"


def further(scenario: Scenario, words: Sequence[str]) -> dict[str, list[object]]:
    """Values by key that words add to a search, as far as the scenario can have them; its own
    values come first. `words`: of `FURTHER`, or ``all``. ScenarioError for another word.
    """
    for word in words:
        if word not in FURTHER and word != _ALL:
            raise ScenarioError(
                f"got {word!r} to search as well; {nearest(word, [*FURTHER, _ALL])}"
            )
    chosen = [word for word in FURTHER if word in words or _ALL in words]
    values = {FURTHER[word]: _values(scenario, word) for word in chosen}
    return {key: choices for key, choices in values.items() if len(choices) > 1}


def _values(scenario: Scenario, word: str) -> list[object]:
    """The scenario's own value, and the others that it can have."""
    usual = list(defaults("further")[word])
    if word == "recompute-modules":
        if scenario.software.kernels.recompute_selective is SelectiveRecompute.PER_OP:
            return []  # the stack has no words for modules
        legal = legal_modules(scenario)
        sets = (tuple(name for name in modules if name in legal) for modules in usual)
        return [None, *dict.fromkeys(modules for modules in sets if modules)]
    if word == "schedules":
        own = scenario.schedule.name
        return list(
            dict.fromkeys((*defaults("axes")["schedules"], *([own] if own else ()), *usual))
        )
    if word == "expert-overlap":
        if scenario.transformer.moe is None:
            return []
        return list(dict.fromkeys((scenario.software.experts.expert_overlap.value, *usual)))
    if word == "placement":
        own_place: Any = scenario.cluster.placement or usual[0]
        if scenario.hardware.nodes == 1:
            return []
        return [value for value in dict.fromkeys((own_place, *usual)) if _places(scenario, value)]
    key = FURTHER[word].rpartition(".")[2]
    return list(dict.fromkeys((getattr(scenario.parallelism, key), *usual)))


def _places(scenario: Scenario, value: object) -> bool:
    """Whether ranks can be placed so on the nodes."""
    try:
        cluster = scenario.with_values({"cluster.placement": value}, checked=False).hardware
        return bool(cluster.domains)
    except MpsimError:
        return False


def pipelines(
    scenario: Scenario, given: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[dict[str, object], Mapping[str, Sequence[Any]]]]:
    """Parts of a mixed cluster for every length of the pipeline that has the same shares of each,
    and the axes with that length alone.

    Nodes that are alike have no parts, and all lengths at once. A part of n of the scenario's pp
    ranks is one of ``n pp' / pp`` ranks of a pipeline of pp', if that is a whole number.
    """
    stages = scenario.cluster.stages
    if stages is None:
        yield {}, given
        return
    written: Any = scenario.ground.data["cluster"]["stages"]
    counts = [part.count for part in stages]
    shares = math.gcd(*counts)
    unit = sum(counts) // shares
    for pp in Layouts(scenario, given).choices["pp"]:
        if pp % unit:
            continue
        parts = [
            {**part, "count": count // shares * (pp // unit)}
            for part, count in zip(written, counts, strict=True)
        ]
        yield {"cluster.stages": parts}, {**given, "pp": (pp,)}
