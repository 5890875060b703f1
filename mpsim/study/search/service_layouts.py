"""The layouts that a search of services looks at: instances of one kind, or two pools."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mpsim.errors import MpsimError
from mpsim.scenario import Scenario
from mpsim.scenario.serving import Disaggregated, PoolChoice
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import engine_of, make_service
from mpsim.study.search.given import defaults

AXES: Final[Mapping[str, str]] = {
    "tp": "parallelism.tp",
    "pp": "parallelism.pp",
    "ep": "parallelism.ep",
    "attention_dp": "serving.attention_dp",
    "replicas": "serving.replicas",
    "max_tokens": "serving.engine.max_tokens",
}
"""What a search of services varies by itself: name of each axis, and its key in a scenario."""
_SHARED: Final = ("weights", "kv", "routing", "speculation", "workload", "slo")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ServiceLayout:
    """A service that could be run."""

    values: Mapping[str, object]  # by dotted key
    scenario: Scenario
    plan: ServicePlan


class ServiceLayouts:
    """Layouts of one service.

    `scenario`: its model, cluster, engine and workload; its own layout counts for nothing. `given`:
    values of axes, instead of the usual ones. `accelerators`: how many a layout may use. `pools`:
    whether to look at prefill and decode on pools of their own, too.
    """

    def __init__(
        self,
        scenario: Scenario,
        given: Mapping[str, Sequence[Any]],
        accelerators: int,
        *,
        pools: bool,
    ) -> None:
        self._base, self._given, self._most = scenario, given, accelerators
        self._pools = pools
        self.refused = 0
        """Combinations that the checks of a scenario refused, or that leave no cache."""

    def layouts(self) -> Iterator[ServiceLayout]:
        """Every layout that the checks accept and that has room for a cache."""
        for budget in self._budgets():
            for values in itertools.chain(self._alike(), self._splits() if self._pools else ()):
                chosen = {**values, "max_tokens": budget}
                try:
                    scenario = self._scenario(chosen)
                    keys = (AXES.get(axis, f"serving.disaggregated.{axis}") for axis in chosen)
                    named = dict(zip(keys, chosen.values(), strict=True))
                    yield ServiceLayout(named, scenario, make_service(scenario))
                except MpsimError:
                    self.refused += 1

    def _alike(self) -> Iterator[dict[str, Any]]:
        """Instances of one kind."""
        for shape in self._shapes():
            for replicas in self._replicas(shape):
                yield {**shape, "replicas": replicas}

    def _shapes(self) -> Iterator[dict[str, int]]:
        """Layouts of an instance."""
        for tp, pp in itertools.product(self._choose("tp"), self._choose("pp")):
            if tp * pp > self._most:
                continue
            yield from self._of_ranks(tp, pp)

    def _of_ranks(self, tp: int, pp: int) -> Iterator[dict[str, int]]:
        """Ways to use the ranks of a stage."""
        model = self._base.transformer
        usual_ep = dict.fromkeys((1, tp)) if model.moe else (1,)
        usual_dp = dict.fromkeys((1, tp)) if model.moe or model.mla else (1,)
        for ep in self._given.get("ep", tuple(usual_ep)):
            for attention_dp in self._given.get("attention_dp", tuple(usual_dp)):
                yield {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}

    def _replicas(self, shape: Mapping[str, int]) -> Sequence[int]:
        """Numbers of instances: what there is room for, or what was given."""
        most = self._most // (shape["tp"] * shape["pp"])
        return tuple(n for n in self._given.get("replicas", (most,)) if n <= most)

    def _splits(self) -> Iterator[dict[str, Any]]:
        """Layouts of both pools with a few numbers of instances each."""
        shapes = [shape for shape in self._shapes() if shape["pp"] == 1]
        count = int(defaults("serving")["splits"])
        for prefill, decode in itertools.product(shapes, repeat=2):
            most = (self._most - decode["tp"]) // prefill["tp"]
            numbers = {round(1 + (most - 1) * step / max(1, count - 1)) for step in range(count)}
            for x in sorted(number for number in numbers if 1 <= number <= most):
                y = (self._most - x * prefill["tp"]) // decode["tp"]
                yield {"prefill": {**prefill, "replicas": x}, "decode": {**decode, "replicas": y}}

    def _scenario(self, values: Mapping[str, Any]) -> Scenario:
        base, serving = self._base, self._base.service
        choice = serving.engine
        overrides = {**choice.overrides, "max_tokens": values["max_tokens"]}
        changed: dict[str, Any] = {"engine": choice.model_copy(update={"overrides": overrides})}
        if "prefill" in values:
            # what belongs to instances of one kind (their number, blocks of cache) is left out
            shared = {name: getattr(serving, name) for name in _SHARED}
            pools = {name: PoolChoice(**values[name]) for name in ("prefill", "decode")}
            serving = type(serving)(**shared, disaggregated=Disaggregated.model_validate(pools))
        else:
            changed |= {name: values[name] for name in ("attention_dp", "replicas")}
            changed["disaggregated"] = None
        layout = {axis: values[axis] for axis in ("tp", "pp", "ep") if axis in values}
        return base.model_copy(
            update={
                "parallelism": type(base.parallelism)(**layout),
                "serving": serving.model_copy(update=changed),
            }
        )

    def _budgets(self) -> Sequence[int]:
        """Token budgets: the engine's own and usual ones; its own where prompts are not cut."""
        if "max_tokens" in self._given:
            return self._given["max_tokens"]
        preset = engine_of(self._base, self._base.hardware, own={})
        usual = defaults("serving")["max_tokens"] if preset.chunked else ()
        return tuple(dict.fromkeys((preset.max_tokens, *usual)))

    def _choose(self, axis: str) -> Sequence[int]:
        if axis in self._given:
            return self._given[axis]
        base = self._base
        model, most = base.transformer, self._most
        if axis == "pp":
            limit = min(most, model.layers, int(defaults("serving")["pp_at_most"]))
            return tuple(n for n in _powers(limit) if most % n == 0)
        wide = model.moe is not None or model.mla is not None
        limit = most if wide else min(most, base.hardware.domain_size)
        return tuple(n for n in _powers(limit) if model.heads % n == 0 or wide)


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
