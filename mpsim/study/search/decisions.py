"""Decisions: what each choice of the best layout is worth, against the best without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from mpsim.frame import named
from mpsim.study.search.found import Found
from mpsim.study.search.further import FURTHER
from mpsim.study.search.layouts import AXES

_SPLIT: Final = AXES["layers_per_stage"]
_OF_PIPELINES: Final = (AXES["schedule"], AXES["virtual_stages"], _SPLIT)
_OF_OTHERS: Final = (AXES["virtual_stages"], AXES["modules"])
"""Choices that only some values of another one have: a layout without them did not choose them."""
_KEYS: Final = tuple(dict.fromkeys((*AXES.values(), *FURTHER.values())))


@dataclasses.dataclass(frozen=True, slots=True)
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
    return tuple(
        sorted(decisions, key=lambda item: (item.cost_s is not None, -(item.cost_s or 0.0)))
    )
