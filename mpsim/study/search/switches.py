"""Worth of each choice of the best layout, and of each switch that a search leaves as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from mpsim import structs
from mpsim.errors import MpsimError
from mpsim.frame import named
from mpsim.framework import framework_line
from mpsim.scenario import Scenario
from mpsim.scenario.checks.memory import legal_modules
from mpsim.study.search.found import Found
from mpsim.study.search.further import FURTHER
from mpsim.study.search.given import defaults
from mpsim.study.search.layouts import AXES

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
            **named(self, "key", "value", "cost_s", "proved"),
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
