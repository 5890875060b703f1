"""The points of a sweep: which there are, which are the same scenario in other words, and in which order they are computed."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import overload

from mpsim.errors import MpsimError, ScenarioError
from mpsim.limits import refuse_large
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.shipped import read_shipped
from mpsim.study.journal import Journal, name_of
from mpsim.study.rows import reason_of

__all__ = ["Points", "Product", "combinations", "named"]

_QUANTITY = re.compile(r"[0-9][0-9.eE+-]* [^ .]+")


class Product(Sequence[Mapping[str, object]]):
    """Every combination of some values, the last key fastest, each made when it is asked for.

    Examples
    --------
    >>> grid = Product({"parallelism.tp": [1, 2], "parallelism.pp": [4, 8]})
    >>> len(grid), grid[2]
    (4, {'parallelism.tp': 2, 'parallelism.pp': 4})
    """

    def __init__(self, values: Mapping[str, Sequence[object]]) -> None:
        self._values = {key: tuple(choices) for key, choices in values.items()}
        self._length = math.prod(len(choices) for choices in self._values.values())

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Mapping[str, object]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, object]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, object] | list[Mapping[str, object]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._length))]
        left = range(self._length)[index]  # which refuses what is outside
        chosen: list[tuple[str, object]] = []
        for key, choices in reversed(self._values.items()):
            left, place = divmod(left, len(choices))
            chosen.append((key, choices[place]))
        return dict(reversed(chosen))


def combinations(values: Mapping[str, Sequence[object]]) -> Product:
    """Every combination of `values`, the last key fastest.

    Raises
    ------
    ScenarioError
        If there is no key, or a key without values.
    TooLargeError
        If there are more than anybody computes by accident.

    Examples
    --------
    >>> list(combinations({"parallelism.tp": [1, 2], "parallelism.pp": [4]}))
    [{'parallelism.tp': 1, 'parallelism.pp': 4}, {'parallelism.tp': 2, 'parallelism.pp': 4}]
    """
    if not values:
        raise ScenarioError("nothing to sweep over: give a sweep: block or keys with values")
    empty = [key for key, choices in values.items() if not choices]
    if empty:
        raise ScenarioError(f"no values to sweep over for {', '.join(empty)}; give at least one")
    grid, each = Product(values), read_shipped("mpsim.scenario.data", "extent.yaml")["point"]
    sizes = " x ".join(f"{len(choices)} of {key}" for key, choices in values.items())
    refuse_large(
        f"sweep over {sizes}: {len(grid):,} points",
        memory_bytes=len(grid) * each["memory"],
        seconds=len(grid) * each["time"],
        points=len(grid),
        smaller=("fewer values", "mpsim search, which prices only what is promising"),
    )
    return grid


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of a sweep.

    Parameters
    ----------
    scenario : Scenario
        That is varied.
    values : sequence of mapping
        Of each point.
    names : list of str
        The same for points that are the same scenario.
    wrong : mapping of int to str
        Why points are none.
    order : list of int
        First point of each name, those of like structure next to each other.
    """

    scenario: Scenario
    values: Sequence[Mapping[str, object]]
    names: list[str]
    wrong: Mapping[int, str]
    order: list[int]

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        values: Sequence[Mapping[str, object]],
        shard: tuple[int, int] | None,
        known: Mapping[str, str],
    ) -> Points:
        """Name and order the points.

        Parameters
        ----------
        values : sequence of mapping
            Of each point.
        shard : (int, int), optional
            Which part of how many is asked for.
        known : mapping of str to str
            Names that are known already, see `named`.

        Raises
        ------
        ScenarioError
            If there is no such part.
        """
        names: list[str] = []
        wrong: dict[int, str] = {}
        first: dict[str, tuple[tuple[object, ...], int]] = {}
        base = scenario.digest
        for place, assignment in enumerate(values):
            likeness: tuple[object, ...] = ()
            if known and (known_name := known.get(_words(assignment))) is not None:
                names.append(known_name)
                first.setdefault(known_name, (likeness, place))
                continue
            try:
                point = scenario.with_values(assignment)
                refuse_large_scenario(point)
            except MpsimError as error:
                wrong[place] = reason_of(error)
                name = name_of("wrong", base, list(assignment.items()))
            else:
                name, likeness = name_of(point.digest), _likeness(point)
            names.append(name)
            first.setdefault(name, (likeness, place))
        order = [place for _, place in sorted(first.values())]
        if shard is not None:
            chosen = _part(order, shard)
            own = {names[place] for place in chosen}
            inside = [place for place, name in enumerate(names) if name in own]
            moved = {place: at for at, place in enumerate(inside)}
            return cls(
                scenario,
                [values[place] for place in inside],
                [names[place] for place in inside],
                {moved[place]: text for place, text in wrong.items() if place in moved},
                [moved[place] for place in chosen],
            )
        return cls(scenario, values, names, wrong, order)


def named(journal: Journal, base: str) -> dict[str, str]:
    """Names of points of the scenario `base` that were simulated, by their values: numbers and quantities, which mean the same whatever files and catalogs hold."""
    return {
        _words(entry["values"]): name
        for name, entry in journal.items()
        if entry.get("base") == base
        and entry["summary"] is not None  # what was too large before may be meant now
        and all(map(_is_number, entry["values"].values()))
    }


def _words(values: Mapping[str, object]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and _QUANTITY.fullmatch(value) is not None
    )


def _likeness(scenario: Scenario) -> tuple[object, ...]:
    """Settings that mostly decide the structure of a program, comparable; structures that differ all the same are not mixed up."""
    if scenario.serves:
        return ("", 0)
    parallelism, schedule = scenario.parallelism, scenario.schedule
    return (
        str(schedule.name or schedule.file),
        *(parallelism.pp, scenario.virtual_stages, scenario.microbatches, parallelism.zero),
        *(scenario.replicas > 1, parallelism.tp > 1),
    )


def _part(order: list[int], shard: tuple[int, int]) -> list[int]:
    """The i-th of n parts, of neighbours."""
    part, parts = shard
    if not 1 <= part <= parts:
        raise ScenarioError(f"got shard {part}/{parts}; needed i/n with 1 <= i <= n, such as 1/4")
    ends = [len(order) * k // parts for k in range(parts + 1)]
    return order[ends[part - 1] : ends[part]]
