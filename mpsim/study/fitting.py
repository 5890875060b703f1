"""Changes after which a scenario fits into memory: the nearest ones, one at a time and in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from mpsim import structs
from mpsim.errors import MpsimError
from mpsim.result.residuals import LEVEL
from mpsim.scenario import Scenario
from mpsim.scenario.sections import Training
from mpsim.simulate import resolve, simulate_step
from mpsim.study.search.given import ranked_by
from mpsim.training.intervals import fits_probability, setting_of
from mpsim.training.memory.account import account_memory
from mpsim.units import Dimension, format_quantity, percent

_MOST = 3
Values: TypeAlias = Mapping[str, object]  # new values by dotted key


@structs.dataclass(frozen=True, slots=True)
class Change:
    """A change after which the scenario fits."""

    values: Values
    # total, odds: what the fullest rank then needs [B], and the odds that a measured peak would fit
    total: float
    odds: float
    step_time_s: float  # of the changed scenario [s]

    def __str__(self) -> str:
        spelled = ", ".join(f"{key} {str(value).lower()}" for key, value in self.values.items())
        step = format_quantity(self.step_time_s, Dimension.TIME)
        return (
            f"{spelled} ({self.total / 1e9:.1f} GB, {percent(self.odds)} likely to fit, {step} a"
            " step)"
        )


def changes_that_fit(scenario: Scenario, *, most: int = _MOST) -> list[Change]:
    """Find changes of a scenario that does not fit after which it does.

    Returns: the fastest first, launches that die counted as a search counts them; those that fit
    with odds of `LEVEL`, or the others where they are too few, pairs of changes likewise, and none
    that holds a likely one; empty where not even pairs are enough.

    Notes
    -----
    Only what checks accept is tried; the number of accelerators and the batch stay.
    """
    steps, likely, others = list(_steps(scenario)), list[Values](), list[Values]()
    for chosen in itertools.chain(*(itertools.combinations(steps, size) for size in (1, 2))):
        values = {key: value for item in chosen for key, value in item.items()}
        apart = len(values) == sum(map(len, chosen))
        more = any(before.items() <= values.items() for before in likely)
        if apart and not more and (odds := _odds(scenario, values)):
            (likely if odds >= LEVEL else others).append(values)
        if len(likely) == most:
            break
    changes = [_changed(scenario, values) for values in (*likely, *others)[:most]]
    return sorted(changes, key=lambda change: ranked_by(change.step_time_s, change.odds))


def _steps(scenario: Scenario) -> Iterator[dict[str, object]]:
    """Single steps towards less memory, cheapest in time first."""
    parallelism = scenario.parallelism
    if scenario.replicas > 1 and parallelism.zero == 0:
        yield {"parallelism.zero": 1}
    if parallelism.tp > 1 and not parallelism.sequence_parallel:
        yield {"parallelism.sequence_parallel": True}
    yield from _of_training(scenario.training_step)
    for axis, degree in parallelism.dividing.items():
        for factor in (2, 4):
            if scenario.dp % factor == 0:
                values: dict[str, object] = {f"parallelism.{axis}": degree * factor}
                given = parallelism.dp
                yield values if given is None else {**values, "parallelism.dp": given // factor}
    if scenario.replicas > 1 and parallelism.zero < 3:
        yield {"parallelism.zero": 3}
    if scenario.training_step.micro_batch > 2:
        yield {"training.micro_batch": 1}
    if parallelism.offload == "none":
        yield {"parallelism.offload": "optimizer"}


def _of_training(training: Training) -> Iterator[dict[str, object]]:
    """Steps that leave the layout as it is."""
    if training.recompute == "none":
        yield {"training.recompute": "selective"}
    if training.recompute == "full" and training.recompute_method == "block":
        yield {"training.recompute_method": "uniform", "training.recompute_layers": 1}
    if training.micro_batch % 2 == 0:
        yield {"training.micro_batch": training.micro_batch // 2}
    if training.recompute != "full":
        modules = {"training.recompute_modules": None} if training.recompute_modules else {}
        yield {"training.recompute": "full", **modules}
    if training.method == "lora":  # a full training is another question
        yield {"training.method": "qlora"}


def _odds(scenario: Scenario, values: Values) -> float:
    """Odds of fitting after a change; 0 where it is not legal or predicted not to."""
    try:
        plan = resolve(scenario.with_values(values))
    except MpsimError:
        return 0.0
    memory = account_memory(plan)
    return fits_probability(memory, setting_of(plan)) if memory.fits else 0.0


def _changed(scenario: Scenario, values: Values) -> Change:
    summary = simulate_step(scenario.with_values(values)).summary
    figures = (summary[name] for name in ("peak_memory_bytes", "fits_probability", "step_time_s"))
    return Change(values, *(float(str(figure)) for figure in figures))
