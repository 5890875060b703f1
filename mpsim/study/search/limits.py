"""Limits of a search: what layouts may cost and take, and how long it may look."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster
from mpsim.scenario import Scenario

__all__ = ["Clock", "Limits", "nameplate_power", "power_of", "price_of", "price_per_hour"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits; None where there is none."""

    max_memory: float | None
    max_price: float | None
    max_power: float | None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ScenarioError(f"{field.name} is {value!r}; needed a number above 0")

    def refuses(self, scenario: Scenario) -> str | None:
        """The limit that refuses all layouts of this scenario, as `REASONS` names it."""
        price = price_of(scenario)
        if self.max_price is not None:
            if price is None:
                raise ScenarioError(
                    f"{scenario.hardware.accelerator.name} has no price; give cluster.price_per_hour, or leave max_price out"
                )
            if price > self.max_price:
                return "price"
        if self.max_power is not None and power_of(scenario) > self.max_power:
            return "power"
        return None


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
    """Price of all accelerators, those of other nodes along the pipeline included [USD/h]; None where one has none."""
    prices = [price_per_hour(cluster) for cluster in _clusters(scenario)]
    known = [price for price in prices if price is not None]
    return sum(known) / len(prices) if len(known) == len(prices) else None


def power_of(scenario: Scenario) -> float:
    """Most that the nodes take, those of other nodes along the pipeline included [W]."""
    powers = [nameplate_power(cluster) for cluster in _clusters(scenario)]
    return sum(powers) / len(powers)


def _clusters(scenario: Scenario) -> tuple[Cluster, ...]:
    """The cluster as each pipeline rank has it, all of which have as many nodes."""
    return scenario.stage_clusters or (scenario.hardware,)


def price_per_hour(cluster: Cluster) -> float | None:
    """Price of all accelerators [USD/h]; None where the catalog has none."""
    each = cluster.accelerator.price_per_hour
    return None if each is None else each * cluster.accelerators


def nameplate_power(cluster: Cluster) -> float:
    """Most that the nodes take: their own figure, or else that of their accelerators alone [W]."""
    node = cluster.node
    return cluster.nodes * (node.power_w or node.accelerators * cluster.accelerator.tdp_w)
