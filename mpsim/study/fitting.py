"""Changes after which a scenario fits into memory: the nearest ones, one at a time and in pairs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from mpsim.errors import MpsimError
from mpsim.scenario import Scenario
from mpsim.simulate import resolve
from mpsim.training.memory import account_memory

__all__ = ["Change", "changes_that_fit"]

_MOST = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change after which the scenario fits.

    Parameters
    ----------
    values : mapping of str to object
        New value by dotted key.
    total : float
        What the fullest rank then needs [B].
    """

    values: Mapping[str, object]
    total: float

    def __str__(self) -> str:
        spelled = ", ".join(f"{key} {_spelled(value)}" for key, value in self.values.items())
        return f"{spelled} ({self.total / 1e9:.1f} GB)"


def changes_that_fit(scenario: Scenario, *, most: int = _MOST) -> list[Change]:
    """Find changes of a scenario that does not fit after which it does.

    Returns
    -------
    list of Change
        Single changes first, those that cost least time first; pairs only where no single one is enough; empty where not even
        pairs are.

    Notes
    -----
    Only what the checks accept is tried; the number of accelerators and the global batch stay as they are.
    """
    steps = list(_steps(scenario))
    for size in (1, 2):
        changes = []
        for chosen in itertools.combinations(steps, size):
            values = {key: value for item in chosen for key, value in item.items()}
            if len(values) == sum(map(len, chosen)) and (total := _fitting(scenario, values)):
                changes.append(Change(values, total))
            if len(changes) == most:
                break
        if changes:
            return changes
    return []


def _steps(scenario: Scenario) -> Iterator[dict[str, object]]:
    """Single steps towards less memory, cheapest in time first."""
    parallelism, training = scenario.parallelism, scenario.training_step
    if scenario.replicas > 1 and parallelism.zero == 0:
        yield {"parallelism.zero": 1}
    if parallelism.tp > 1 and not parallelism.sequence_parallel:
        yield {"parallelism.sequence_parallel": True}
    if training.recompute == "none":
        yield {"training.recompute": "selective"}
    if training.recompute == "full" and training.recompute_method == "block":
        yield {"training.recompute_method": "uniform", "training.recompute_layers": 1}
    if training.micro_batch % 2 == 0:
        yield {"training.micro_batch": training.micro_batch // 2}
    if training.recompute != "full":
        modules = {"training.recompute_modules": None} if training.recompute_modules else {}
        yield {"training.recompute": "full", **modules}
    for axis, degree in parallelism.dividing.items():
        for factor in (2, 4):
            if scenario.dp % factor == 0:
                values: dict[str, object] = {f"parallelism.{axis}": degree * factor}
                given = parallelism.dp
                yield values if given is None else {**values, "parallelism.dp": given // factor}
    if scenario.replicas > 1 and parallelism.zero < 3:
        yield {"parallelism.zero": 3}


def _fitting(scenario: Scenario, values: Mapping[str, object]) -> float | None:
    """Memory of the fullest rank after the change, if that is legal and fits [B]."""
    try:
        memory = account_memory(resolve(scenario.with_values(values)))
    except MpsimError:
        return None
    return float(memory.total.max()) if memory.fits else None


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
