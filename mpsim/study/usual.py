"""Settings left open, settled as those who train do: the fastest that fits, or the nearest."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from mpsim.errors import MpsimError
from mpsim.scenario import Scenario
from mpsim.shipped import read_shipped
from mpsim.simulate import resolve, simulate_step
from mpsim.training.memory.account import account_memory

Values: TypeAlias = dict[str, object]
_AGAIN, _BATCH, _STATES = "training.recompute", "training.micro_batch", "parallelism.zero"
_EXPERTS, _REPLICAS, _SPREAD = "parallelism.etp", "parallelism.dp", "parallelism.ep"
_TENSOR, _STAGES, _PARTS = "parallelism.tp", "parallelism.pp", "parallelism.layers_per_stage"
GUESSED = {_TENSOR, _STAGES, _AGAIN, _BATCH, _STATES}
"""Keys each of which makes a prediction less certain that nobody states."""
_OPEN = {*GUESSED, _EXPERTS, _SPREAD, "parallelism.sequence_parallel"}
_SHARDED = 3  # ZeRO stage of parameters
_NEARNESS = operator.itemgetter(0, 1)  # of a choice: what fits is ranked by its seconds


class Tried(NamedTuple):
    """Answers to values: share of its memory that the fullest rank takes, and seconds of a step,
    asked where the memory lets it count; MpsimError where they do not go together.
    """

    filled: Callable[[Values], float]
    seconds: Callable[[Values], float]

    def over(self, values: Values) -> Tried:
        """The same on top of other values."""
        return Tried(*(lambda more, asked=asked: asked({**values, **more}) for asked in self))


def usual(scenario: Scenario) -> Values:
    """Values of settings that the file of a scenario leaves open."""

    def filled(values: Values) -> float:
        return account_memory(resolve(scenario.with_values(values))).filled

    def seconds(values: Values) -> float:
        return simulate_step(scenario.with_values(values)).timeline.step_time_s

    data = scenario.source.data
    parts = ((key, key.partition(".")) for key in _OPEN)
    opened = {key for key, (part, _, name) in parts if (data.get(part) or {}).get(name) is None}
    return settled(scenario, opened | {"schedule"} - data.keys(), Tried(filled, seconds))


def settled(
    scenario: Scenario, opened: Collection[str], tried: Tried, further: Iterable[Values] = ()
) -> Values:
    """Values of open settings.

    `scenario`: may be unchecked. `opened`: dotted keys that may change, and ``schedule`` where no
    pipeline is meant. `further`: values tried in turn while nothing fits.

    Raises MpsimError: that of the scenario itself, where its layout is not open.
    """
    own = _fastest(scenario, opened, tried, further)
    memory = read_shipped("mpsim.study.data", "usual.yaml")["memory"]
    nearest = own.values if own.filled <= memory["withdrawn"] else {}
    if own.filled <= 1.0 or _TENSOR not in opened:
        return nearest
    choices = [own]
    for division in _divisions(scenario, opened):
        with contextlib.suppress(MpsimError):  # heads or replicas do not divide so
            base = scenario.with_values({**division, _REPLICAS: None}, checked=False)
            laid = {**division, _REPLICAS: base.dp}
            inner = _fastest(base, opened, tried.over(laid))
            choices.append(inner._replace(values={**laid, **inner.values}))
    best = min(choices, key=_NEARNESS)
    return nearest if best.filled > 1.0 and own.filled <= memory["believed"] else best.values


class _Choice(NamedTuple):
    """Values with the share of memory that they take, 1 if they fit, and seconds of a step."""

    filled: float
    seconds: float
    values: Values


def _fastest(
    scenario: Scenario, opened: Collection[str], tried: Tried, further: Iterable[Values] = ()
) -> _Choice:
    """The fastest values that fit, or those that come nearest to it."""
    own, choices = list(_instead(scenario, opened)), list[_Choice]()
    nearest = math.inf
    for number, values in enumerate(itertools.chain(own, further)):
        if number >= len(own) and nearest <= 1.0:
            break
        try:
            filled = max(tried.filled(values), 1.0)
            # a step is simulated only of what may still be chosen
            seconds = tried.seconds(values) if filled <= nearest else math.inf
        except MpsimError:
            if not values and _TENSOR not in opened:
                raise
            continue  # experts do not divide so, or replicas have fewer sequences
        nearest = min(nearest, filled)
        choices.append(_Choice(filled, seconds, values))
    return min(choices, key=_NEARNESS, default=_Choice(math.inf, math.inf, {}))


def _instead(scenario: Scenario, opened: Collection[str]) -> Iterator[Values]:
    """Nothing changed, then more recomputation, other micro batches, experts and states divided."""
    data = read_shipped("mpsim.study.data", "usual.yaml")
    training, mesh = scenario.training_step, scenario.parallelism
    ladder: list[Mapping[str, Any]] = data["recompute"]
    kinds, sizes, divided, stages = ([Values()] for _ in range(4))
    if _AGAIN in opened:
        known, own = [rung[_AGAIN] for rung in ladder], training.recompute
        start = known.index(own if own in known else "selective")  # as a policy of kept values is
        dropped = {} if own in known else {"training.recompute_keeps": None}
        more = ladder[start + 1 : None if mesh.zero >= _SHARDED else -1]
        kinds += ({**rung, **dropped} for rung in more)
    if _BATCH in opened:
        most = min(data["largest_micro_batch"], training.global_batch // max(1, scenario.dp))
        each = (size for size in range(1, most + 1) if most % size == 0)
        sizes += [{_BATCH: size} for size in each if size != training.micro_batch]
    if _EXPERTS in opened and mesh.etp not in (None, mesh.tp):
        divided.append({_EXPERTS: mesh.tp})
    if _STATES in opened and not mesh.zero:
        stages.append({_STATES: 1})
    for choice in itertools.product(stages, divided, sizes, kinds):
        yield {key: value for part in choice for key, value in part.items()}


def _divisions(scenario: Scenario, opened: Collection[str]) -> Iterator[Values]:
    """Divisions for such a model on such accelerators, without what is not open."""
    moe, chip = scenario.transformer.moe, scenario.hardware.accelerator
    staged = _STAGES in opened and "schedule" not in opened
    facts = {"experts": bool(moe), "tpu": chip.family == "tpu", "staged": staged}
    for entry in read_shipped("mpsim.study.data", "usual.yaml")["divisions"]:
        values = {key: value for key, value in entry["values"].items() if key in opened}
        if moe is not None and values.get(_SPREAD) == "all":
            values[_SPREAD] = moe.experts
        if scenario.transformer.layers % values.get(_STAGES, 1):
            values[_PARTS] = "auto"
        if values and all(entry.get(name, fact) == fact for name, fact in facts.items()):
            yield values
