"""Arguments of a search: values of keys, limits of what layouts take, and how long it may look."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster
from mpsim.memo import remembered
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.shipped import read_shipped, say


@remembered(8)
def defaults(section: str) -> Figures:
    """Values of a section of ``search.yaml``."""
    data: Figures = read_shipped("mpsim.study.data", "search.yaml")
    values: Figures = data[section]["values"]
    return values


def ranked_by(seconds: float, odds: float | None) -> float:
    """Seconds that layouts are ranked by: those of a step, and its part of the launches that die
    before one runs [s]. `odds`: of fitting into memory, P; None counts as sure.

    Notes
    -----
    Launches until one fits are geometric, so (1 - P) / P of them die on average. One that dies
    costs a share c of the training, the job booked for it (`lost_launch`); tries in the order of
    t (1 + c (1 - P) / P) take least: low odds lead only where they are worth their failures.
    """
    if odds is None:
        return seconds
    lost = float(defaults("search")["lost_launch"])
    return seconds * (1.0 + lost * (1.0 - odds) / max(odds, 1e-9))


class Split(NamedTuple):
    """Values to search over: of the axes of a search, by axis, and of other keys of a scenario."""

    axes: dict[str, tuple[object, ...]]
    others: dict[str, tuple[object, ...]]


# axes that a scenario may leave out for mpsim to fill in
_OPEN = ("virtual_stages", "layers_per_stage", "modules", "replicas", "max_tokens")


def split_axes(over: Mapping[str, Sequence[object]], axes: Mapping[str, str]) -> Split:
    """Values of axes by name, and the others. ScenarioError for a key without values, or with null
    for an axis that mpsim does not fill in.
    """
    names = {key: axis for axis, key in axes.items()}
    split = Split({}, {})
    for key, values in over.items():
        if not values:
            raise ScenarioError(f"no values to search over for {key}; give at least one")
        if None in values and key in names and names[key] not in _OPEN:
            raise ScenarioError(f"got null for {key}, which a search varies; name each value")
        if key in names:
            split.axes[names[key]] = tuple(dict.fromkeys(values))
        else:
            split.others[key] = tuple(values)
    return split


def variants(
    scenario: Scenario, others: Mapping[str, Sequence[object]]
) -> Iterator[tuple[dict[str, object], Scenario]]:
    """Every combination of values of other keys, and the scenario with them, unchecked."""
    for chosen in itertools.product(*others.values()):
        values = dict(zip(others, chosen, strict=True))
        yield values, scenario.with_values(values, checked=False) if values else scenario


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits; None where there is none."""

    max_memory: float | None = None
    max_price: float | None = None
    max_power: float | None = None

    def __post_init__(self) -> None:
        for field in structs.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ScenarioError(f"{field.name} is {value!r}; needed a number above 0")

    def room(self, cluster: Cluster, count: int = 0, *, beside: Cluster | None = None) -> int:
        """Accelerators of a cluster within the limits of price and power, `count` of others beside.
        ScenarioError where a limit of price meets an accelerator without one.
        """
        most = cluster.accelerators - count
        for _, limit, each in self._rates:
            if limit is not None:
                most = min(most, int((limit - count * each(beside or cluster)) / each(cluster)))
        return max(0, most)

    def refuses(self, scenario: Scenario) -> str | None:
        """The limit that refuses all layouts of this scenario, as `REASONS` names it."""
        over = (
            name
            for name, limit, each in self._rates
            if limit is not None and _of_all(scenario, each) > limit
        )
        return next(over, None)

    @property
    def _rates(self) -> Sequence[tuple[str, float | None, Callable[[Cluster], float]]]:
        """Limits beside memory, and what an accelerator takes of each."""
        return ("price", self.max_price, price_each), ("power", self.max_power, power_each)


class Clock:
    """Says whether a budget of time is spent, wall-clock time unless another is given."""

    def __init__(self, budget: float | None, *, now: Callable[[], float] = time.monotonic) -> None:
        if budget is not None and not budget > 0:
            raise ScenarioError(f"budget is {budget!r}; needed a number of seconds above 0")
        self._budget = budget
        self._now, self._begin = now, now()

    def spent(self, share: float = 1.0) -> bool:
        """Whether more than a share of the budget has gone."""
        if self._budget is None:
            return False
        return self._now() - self._begin > share * self._budget


def price_of(scenario: Scenario) -> float | None:
    """Price of all accelerators [USD/h]; None where that of any is not known."""
    with contextlib.suppress(ScenarioError):
        return _of_all(scenario, price_each)
    return None


def price_each(cluster: Cluster) -> float:
    """Price of an accelerator [USD/h]; ScenarioError without one."""
    chip = cluster.accelerator
    if chip.price_per_hour is None:
        raise ScenarioError(say("study.service_price", name=chip.name))
    return chip.price_per_hour


def power_each(cluster: Cluster) -> float:
    """Share of an accelerator in the most that its node takes, or else its own limit [W]."""
    node = cluster.node
    return cluster.accelerator.tdp_w if node.power_w is None else node.power_w / node.accelerators


def _of_all(scenario: Scenario, each: Callable[[Cluster], float]) -> float:
    """Sum of a figure over all accelerators, other nodes' along the pipeline too."""
    clusters = scenario.stage_clusters or (scenario.hardware,)  # of as many nodes each
    return math.fsum(each(cluster) * cluster.accelerators for cluster in clusters) / len(clusters)
