"""Keys that a search varies only when asked to, by words or along unlike nodes; the worth of each
switch that it leaves as it is, and of each choice of the best layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.framework import SelectiveRecompute, framework_line
from mpsim.scenario import Scenario
from mpsim.scenario.checks.layer import legal_modules
from mpsim.shipped import read_shipped
from mpsim.study.search.found import Found
from mpsim.study.search.given import defaults
from mpsim.study.search.layouts import AXES, Layouts

FURTHER: Final[Mapping[str, str]] = read_shipped("mpsim.study.data", "search.yaml")["further_keys"]
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


_MODULES = AXES["modules"]
_LEAST = 1e-3  # gain below which a switch does nothing


@structs.dataclass(frozen=True, slots=True)
class Switched:
    """A layout with switches turned."""

    turned: Mapping[str, object]  # values by dotted key that the search did not vary
    values: Mapping[str, object]  # the layout, these included
    step_time_s: float  # simulated [s]
    gain: float  # share of the best layout's step that it saves


@structs.dataclass(frozen=True, slots=True)
class Switches:
    """Gains of what turning switches would give: each alone on the best layout, the largest gain
    first, and those that help together on the best or one of its ties.
    """

    alone: tuple[Switched, ...] = ()
    together: Switched | None = None

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        both = None if self.together is None else structs.asdict(self.together)
        return {"alone": [structs.asdict(each) for each in self.alone], "together": both}


def switches_of(
    scenario: Scenario,
    rows: Sequence[Found],
    *,
    searched: Sequence[str],
    seconds: Callable[[Scenario], float | None],
    spent: Callable[[], bool],
) -> Switches:
    """Turn one switch at a time on the best layout, then those that help together, there and on its
    ties.

    `rows`: the best layout and those of its ties that are to be tried. `searched`: keys that the
    search varied already. `seconds`: step time of a scenario that fits [s]; None where it does not.
    `spent`: whether no time is left to try more.
    """
    if not rows:
        return Switches()
    best = rows[0]

    def switched(row: Found, turned: Mapping[str, object]) -> Switched | None:
        values = {**row.values, **turned}
        try:
            took = seconds(scenario.with_values(values))
        except MpsimError:  # a switch that this layout cannot have
            return None
        if took is None:
            return None
        return Switched(turned, values, took, 1.0 - took / best.step_time_s)

    alone: list[Switched] = []
    elsewhere: list[Mapping[str, object]] = []  # what the best layout cannot have
    for turned in _others(scenario.with_values(best.values), searched):
        if not spent():
            tried = switched(best, turned)
            alone += [tried] if tried else []
            elsewhere += [] if tried else [turned]
    alone = sorted((each for each in alone if each.gain > _LEAST), key=lambda each: -each.gain)
    together = _together(rows, alone, elsewhere, lambda *args: None if spent() else switched(*args))
    return Switches(tuple(alone), together)


def _together(
    rows: Sequence[Found],
    alone: Sequence[Switched],
    elsewhere: Sequence[Mapping[str, object]],
    switched: Callable[[Found, Mapping[str, object]], Switched | None],
) -> Switched | None:
    """The switches that help together: on the best layout by turns, then on its ties."""
    tried = [*alone[:1]]
    for each in alone[1:]:
        if not {*each.turned} & {*tried[0].turned}:
            both = switched(rows[0], {**tried[0].turned, **each.turned})
            tried = [both] if both and both.step_time_s < tried[0].step_time_s else tried
    shared = tried[0].turned if tried else {}
    for row, more in itertools.product(rows[1:], ({}, *elsewhere)):
        turned = {**shared, **more}
        there = switched(row, turned) if turned else None
        tried += [there] if there else []
    best = min(tried, key=lambda found: found.step_time_s, default=None)
    return best if best is not None and best.gain > _LEAST else None


def _others(scenario: Scenario, searched: Sequence[str]) -> Iterator[dict[str, object]]:
    """Switches that the stack has, in the positions that the scenario has not."""
    preset, _ = framework_line(scenario.software.name)
    fields = scenario.software.fields()
    for entry in defaults("switches")["flags"]:
        key, name = entry["key"], entry["key"].rpartition(".")[2]
        if preset not in entry["presets"] or key in searched:
            continue
        if entry.get("experts") and scenario.transformer.moe is None:
            continue
        if str(entry["reads"]) != str(fields[name]):
            yield {key: entry["value"]}
    if preset in defaults("switches")["modules"] and _MODULES not in searched:
        legal = legal_modules(scenario)
        for modules in defaults("further")["recompute-modules"]:
            if chosen := tuple(module for module in modules if module in legal):
                yield {AXES["recompute"]: "selective", _MODULES: chosen}


_SPLIT: Final = AXES["layers_per_stage"]
_OF_PIPELINES: Final = (AXES["schedule"], AXES["virtual_stages"], _SPLIT)
_OF_OTHERS: Final = (AXES["virtual_stages"], AXES["modules"])
"""Choices that only some values of another one have: a layout without them did not choose them."""
_KEYS: Final = tuple(dict.fromkeys((*AXES.values(), *FURTHER.values())))


@structs.dataclass(frozen=True, slots=True)
class Decision:
    """One choice of the best layout, and the best layout that chooses otherwise."""

    key: str  # dotted key of a scenario
    value: str  # chosen; of ``parallelism.layers_per_stage`` *balanced*
    without: Found | None  # the best layout with another value, all else free; None where none fits
    cost_s: float | None  # time by which its step is longer, launches that die counted [s]
    proved: bool  # whether everything that could cost less was simulated or ruled out

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            **structs.named(self, "key", "value", "cost_s", "proved"),
            "without": None if self.without is None else self.without.to_json(),
        }


def choices(values: Mapping[str, object]) -> dict[str, str]:
    """Choices of a layout by key; keys that say nothing of it are left out."""
    left = _OF_PIPELINES if values[AXES["pp"]] == 1 else ()
    chosen: dict[str, str] = {}
    for key in _KEYS:
        value = values.get(key)
        if key in left or (value is None and key in _OF_OTHERS):
            continue
        if key == _SPLIT:
            # who divides layers evenly has decided nothing
            chosen |= {} if value is None else {key: "balanced"}
        elif value is not None:
            chosen[key] = str(value)
    return chosen


def turned(best: Mapping[str, str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Keys of the choices of the best layout that another one does not share."""
    other = choices(values)
    return tuple(key for key, value in best.items() if other.get(key) != value)


def decisions_of(
    rows: Sequence[Found], legal: Mapping[str, set[str]], *, keys: Sequence[str], proved: bool
) -> tuple[Decision, ...]:
    """Decisions of the best layout, those without an alternative that fits first, then by their
    cost.

    `rows`: simulated layouts, the best first. `legal`: values of each key that legal layouts have,
    whether they fit or not. `keys`: further keys of a scenario that were searched; alternatives
    share their values. `proved`: whether no layout that was not simulated may cost less.
    """
    if not rows:
        return ()
    best, chosen = rows[0], choices(rows[0].values)
    found: dict[str, Found] = {}
    for row in rows[1:]:
        if all(row.values[key] == best.values[key] for key in keys):
            for key in turned(chosen, row.values):
                found.setdefault(key, row)
    decisions = []
    for key, value in chosen.items():
        if key in found:
            cost = found[key].ranked_by_s - best.ranked_by_s
            decisions.append(Decision(key, value, found[key], cost, proved))
        elif legal.get(key, set()) - {value}:
            decisions.append(Decision(key, value, None, None, proved))
    return tuple(sorted(decisions, key=lambda own: (own.cost_s is not None, -(own.cost_s or 0.0))))
