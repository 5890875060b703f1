"""Keys of a scenario that change no figure of its run, when, and why; `check` tells them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import ValidationError

from mpsim import structs
from mpsim.errors import MpsimError
from mpsim.hardware import LinkShape, system_names
from mpsim.memo import remembered
from mpsim.scenario.layers import copied, expand_shorthand, join
from mpsim.scenario.resolved import resolved_data
from mpsim.shipped import read_shipped
from mpsim.workload import model_names

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_KEYS: Final = 1024  # of scenarios, whose rules stay ready


@structs.dataclass(frozen=True, slots=True)
class _Rule:
    """Keys, or sections with all their keys, that change nothing where every condition holds."""

    keys: frozenset[str]
    when: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Rule:
        """A row of data/unused.yaml."""
        keys = row["keys"] if "keys" in row else [f"framework.{field}" for field in row["fields"]]
        when = row["when"] if isinstance(row["when"], list) else [row["when"]]
        return cls(frozenset(keys), tuple(when), row["why"])

    def applies(self, scenario: Written) -> bool:
        """Whether every condition holds; the first that does not ends the question."""
        return all(_IS[name](scenario) for name in self.when)


def _shapes(scenario: Written) -> set[LinkShape]:
    return {cluster.node.scale_up.shape for cluster in scenario.clusters}


def _varies(scenario: Written) -> bool:
    """Whether many steps are drawn."""
    random = scenario.variation is not None and scenario.variation.is_random
    return random and not scenario.serves


_IS: Final[Mapping[str, Callable[[Written], bool]]] = {
    "always": lambda s: True,
    "serving": lambda s: s.serves,
    # of the model
    "a model of the catalog": lambda s: s.transformer.name in model_names(),
    "full attention": lambda s: s.transformer.attention == "full",
    "biases": lambda s: s.transformer.bias,
    "no window": lambda s: s.transformer.attention != "sliding",
    "one window": lambda s: len({kind.window for kind in s.transformer.kinds}) == 1,
    "no table of positions": lambda s: s.transformer.positions not in ("learned", "relative"),
    "no experts": lambda s: s.transformer.moe is None,
    "no shared experts": lambda s: not getattr(s.transformer.moe, "shared_experts", True),
    "no groups of heads": lambda s: s.transformer.kv_heads == s.transformer.heads,
    "no rms norms": lambda s: s.transformer.norm != "rmsnorm",
    # of the cluster
    "one domain": lambda s: s.hardware.domains == 1,
    "no locked clock": lambda s: all(c.accelerator.clock_hz is None for c in s.clusters),
    "no switches": lambda s: LinkShape.SWITCH not in _shapes(s),
    "no torus": lambda s: LinkShape.TORUS not in _shapes(s),
    # of the layout
    "no tensors": lambda s: s.parallelism.tp == 1,
    "no contexts": lambda s: s.parallelism.cp == 1,
    "one stage": lambda s: s.parallelism.pp == 1,
    "no even stages": lambda s: (
        s.parallelism.pp * s.virtual_stages == 1 or s.parallelism.layers_per_stage is not None
    ),
    "no balance": lambda s: s.parallelism.layers_per_stage != "auto",
    "no shards": lambda s: s.parallelism.zero == 0,
    "no sharded parameters": lambda s: s.parallelism.zero < 3,
    "no buckets": lambda s: (
        s.parallelism.zero == 3 and s.parallelism.pp == 1 and not s.software.data.bucket_copies
    ),
    "whole sequences": lambda s: not s.parallelism.sequence_parallel,
    "no host states": lambda s: s.parallelism.offload == "none",
    # of the step
    "no narrow formats": lambda s: s.training_step.precision in ("bf16", "fp16", "fp32", "tf32"),
    "no scale of tensors": lambda s: s.training_step.precision != "fp8",
    "no recomputation": lambda s: s.training_step.recompute == "none",
    "no scores": lambda s: s.software.lowering.fused_attention,
    "no adapters": lambda s: s.training_step.method == "full",
    "no narrow weights": lambda s: not s.training_step.tuning.widens,
    "no orthogonal updates": lambda s: not s.software.optimizer.orthogonal_iterations,
    # of a service
    "no shared prefix": lambda s: not s.service.workload.shared_prefix,
    "no placed experts": lambda s: not s.service.engine.overrides.get("eplb"),
    "no blocks": lambda s: s.service.weights != "fp8_block",
    "wide cache": lambda s: s.service.kv not in ("fp8", "int8"),
    "one attention rank": lambda s: s.service.attention_dp == 1,
    "no limits": lambda s: s.service.slo.ttft is None and s.service.slo.tpot is None,
    # of the simulation
    "no interference": lambda s: s.serves or not s.simulation.interference,
    "variation": lambda s: s.variation is not None,
    "no drawn steps": lambda s: not _varies(s),
    "nothing drawn": lambda s: not (s.serves or _varies(s)),
}
"""Conditions by the words of data/unused.yaml."""


@remembered(1)
def _rules() -> tuple[_Rule, ...]:
    """Every rule; a key takes the first that applies."""
    return tuple(map(_Rule.of, read_shipped("mpsim.scenario.data", "unused.yaml")["rows"]))


@remembered(_KEYS)
def _rules_of(key: str) -> tuple[_Rule, ...]:
    """Rules of a dotted key, or of a section that it stands in."""
    heads = _heads(key)
    return tuple(rule for rule in _rules() if not heads.isdisjoint(rule.keys))


def unused(scenario: Written) -> list[str]:
    """A sentence for each reason for which keys that the scenario gives change nothing.

    A key counts as given where the scenario would be another one without it; one that was resolved
    has the catalog's entries in its place.
    """
    reasons: dict[str, str] = {}
    for key in sorted(_leaves(scenario.source.data)):  # whatever the order of the file
        rule = next((rule for rule in _rules_of(key) if rule.applies(scenario)), None)
        if rule is not None:
            reasons[key] = rule.why
    # one look for what is spelled out
    if not reasons or not _matter(scenario, whole := resolved_data(scenario), list(reasons)):
        return []
    sentences: dict[str, list[str]] = {}
    for key, why in reasons.items():
        if len(reasons) == 1 or _matter(scenario, whole, [key]):
            sentences.setdefault(why, []).append(key)
    return [f"not used: {', '.join(keys)}: {why}" for why, keys in sentences.items()]


def _leaves(data: object, head: str = "") -> Iterator[str]:
    """Dotted keys of a file's values, without variants; a schedule counts as one."""
    inner = expand_shorthand(head, data)
    if isinstance(inner, dict) and head != "schedule":
        for key, value in inner.items():
            if head or key not in ("sweep", "design", "overrides"):
                yield from _leaves(value, join(head, key))
    elif isinstance(inner, list) and inner and all(isinstance(part, dict) for part in inner):
        for number, part in enumerate(inner):
            yield from _leaves(part, join(head, number))
    else:
        yield head


def _heads(key: str) -> set[str]:
    """A dotted key and its sections; parts of a mixed cluster count as the cluster."""
    parts = re.sub(r"^cluster\.(stages|replicas)\.\d+\.", "cluster.", key).split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _matter(scenario: Written, resolved: dict[str, object], keys: list[str]) -> bool:
    """Whether the scenario, `resolved` as it is, would be another or none without some keys."""
    try:
        return resolved_data(_without(scenario, keys)) != resolved
    except (ValidationError, MpsimError):
        return True


def _without(scenario: Written, cuts: list[str]) -> Written:
    """The scenario without some keys; of what was resolved, with entries of the catalog."""
    data = copied(scenario.source.data)
    for section, names in (("model", model_names()), ("cluster", system_names())):
        part: Any = expand_shorthand(section, data[section])
        if "preset" not in part and part.get("name") in names:
            data[section] = {**part, "preset": part["name"]}
    for cut in cuts:
        node: Any = data
        *place, last = cut.split(".")
        for depth, part in enumerate(place):
            at = int(part) if isinstance(node, list) else part
            node[at] = node = expand_shorthand(join(*place[: depth + 1]), node[at])
        node.pop(last, None)
    return type(scenario).of(structs.replace(scenario.source, data=data))
