"""Keys of a scenario that change no figure of its run: a table of keys, when that is so, and why; `check` and `run` tell them."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pydantic

from mpsim.errors import MpsimError
from mpsim.hardware import LinkShape, system_names
from mpsim.memo import remembered
from mpsim.scenario.paths import expand_shorthand, join
from mpsim.scenario.resolved import resolved_data
from mpsim.shipped import read_shipped
from mpsim.workload import model_names

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

__all__ = ["unused"]


_KEYS = 1024  # of scenarios, whose rules stay ready


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """Keys, or sections with all their keys, that change nothing where `when` holds."""

    keys: str
    when: Callable[[Written], bool]
    why: str


def _shapes(scenario: Written) -> set[LinkShape]:
    return {cluster.node.scale_up.shape for cluster in scenario.clusters}


def _stays_inside(scenario: Written) -> bool:
    return scenario.hardware.domains == 1


def _varies(scenario: Written) -> bool:
    """Whether many steps are drawn."""
    random = scenario.variation is not None and scenario.variation.is_random
    return random and not scenario.serves


_RULES: Final = (
    _Rule(
        "framework schedule simulation.engine simulation.network simulation.interference simulation.straggling",
        lambda s: s.serves,
        "they are of training steps, and the scenario serves",
    ),
    _Rule(
        "model.norm model.bias model.qkv_bias model.dropout model.positions model.max_positions model.qk_norm "
        "model.post_norm model.embedding_norm",
        lambda s: s.serves and s.transformer.name in model_names(),  # else they describe a model
        "a service counts the products, attention and cache of a layer, and its small kernels by their number in serving.engine",
    ),
    _Rule(
        "model.attention",
        lambda s: s.serves and s.transformer.attention == "full",
        "a service computes prompts under a causal mask",
    ),
    _Rule(
        "model.moe.capacity_factor model.moe.spread",
        lambda s: s.serves,
        "a service spreads tokens evenly over experts, and drops none",
    ),
    _Rule("model.qkv_bias", lambda s: s.transformer.bias, "model.bias gives every projection one"),
    _Rule(
        "model.window model.full_every",
        lambda s: s.transformer.attention != "sliding",
        "model.attention is not sliding",
    ),
    _Rule(
        "model.max_positions",
        lambda s: s.transformer.positions not in ("learned", "relative"),
        "positions have no table: model.positions is neither learned nor relative",
    ),
    _Rule(
        "model.moe.shared_ffn_hidden",
        lambda s: s.transformer.moe is not None and not s.transformer.moe.shared_experts,
        "there are no shared experts; give model.moe.shared_experts",
    ),
    _Rule(
        "parallelism.embedding_counts_as_layer parallelism.loss_counts_as_layer",
        lambda s: (
            s.parallelism.pp * s.virtual_stages == 1 or s.parallelism.layers_per_stage is not None
        ),
        "layers are not divided evenly among several stages",
    ),
    _Rule(
        "cluster.node_power",
        lambda s: True,
        "a run draws what its parts draw; the limit counts for 'mpsim search --max-power'",
    ),
    _Rule(
        "cluster.fabric.switch_price cluster.fabric.cable_price",
        lambda s: True,
        "a run is priced by the hour of an accelerator; 'mpsim show fabric' counts switches and cables",
    ),
    _Rule(
        "cluster.fabric.switch_power",
        lambda s: s.serves,
        "the energy of a service is that of its accelerators",
    ),
    _Rule(
        "cluster.accelerator.compute_units",
        lambda s: s.serves or not s.simulation.interference,
        "they count where kernels share them with collectives; set simulation.interference",
    ),
    _Rule(
        "cluster.accelerator.boost_clock",
        lambda s: all(cluster.accelerator.clock_hz is None for cluster in s.clusters),
        "nothing locks the clock; give cluster.accelerator.clock",
    ),
    _Rule(
        "cluster.scale_up.switch_latency",
        lambda s: LinkShape.SWITCH not in _shapes(s),
        "the accelerators of a domain are joined without switches",
    ),
    _Rule(
        "cluster.scale_up.links",
        lambda s: LinkShape.TORUS not in _shapes(s),
        "cluster.scale_up.bandwidth is the sum of the links, which only a torus divides",
    ),
    _Rule(
        "cluster.scale_up.switch_ports cluster.nic.links cluster.nic.in_network_reduction",
        lambda s: True,
        "a domain is as large as cluster.domain says, and NICs neither divide into links nor sum",
    ),
    _Rule(
        "cluster.nic.switch_latency cluster.nic.switch_ports cluster.nic.latency cluster.nic.efficiency "
        "cluster.fabric.kind cluster.fabric.oversubscription cluster.fabric.hop_latency",
        _stays_inside,
        "nothing leaves the one scale-up domain",
    ),
    _Rule(
        "cluster.nic cluster.nics_per_node cluster.fabric",
        lambda s: s.serves and _stays_inside(s),
        "nothing leaves the one scale-up domain",
    ),
    _Rule(
        "serving.workload.prefix_groups",
        lambda s: s.serves and not s.service.workload.shared_prefix,
        "requests share no prefix; give serving.workload.shared_prefix",
    ),
    _Rule(
        "serving.engine.prompt_layer_time serving.engine.two_batch_overlap serving.engine.eplb "
        "serving.engine.expert_kernel",
        lambda s: s.transformer.moe is None,
        "the model has no experts",
    ),
    _Rule(
        "serving.engine.window_cache",
        lambda s: s.serves and len({kind.window for kind in s.transformer.kinds}) == 1,
        "all layers of the model see as many tokens",
    ),
    _Rule(
        "serving.engine.redundant_experts",
        lambda s: s.serves and not s.service.engine.overrides.get("eplb"),
        "nothing places them; give serving.engine.eplb: true",
    ),
    _Rule(
        "serving.engine.cast_time",
        lambda s: s.serves and s.service.weights != "fp8_block",
        "serving.weights is not fp8_block",
    ),
    _Rule(
        "serving.engine.attention_ranks",
        lambda s: s.serves and s.service.attention_dp == 1,
        "serving.attention_dp is 1",
    ),
    _Rule(
        "serving.engine.prefix_cache",
        lambda s: (
            s.serves and not s.service.workload.shared_prefix and s.service.workload.trace is None
        ),
        "prompts share nothing; give serving.workload.shared_prefix",
    ),
    _Rule(
        "serving.slo.share",
        lambda s: s.serves and s.service.slo.ttft is None and s.service.slo.tpot is None,
        "there is no limit to keep; give serving.slo.ttft or serving.slo.tpot",
    ),
    _Rule(
        "simulation.straggling",
        lambda s: s.variation is not None,
        "the variation section draws its own stragglers",
    ),
    _Rule(
        "variation.samples",
        lambda s: not _varies(s),
        "no steps are drawn: the scenario serves, or gives variation neither speed nor jitter",
    ),
    _Rule(
        "simulation.seed",
        lambda s: not (s.serves or _varies(s)),
        "nothing is drawn; give variation.speed or variation.jitter",
    ),
)


_WITHOUT: Final[Mapping[str, Callable[[Written], bool]]] = {
    "experts": lambda s: s.transformer.moe is None,
    "tensors": lambda s: s.parallelism.tp == 1,
    "contexts": lambda s: s.parallelism.cp == 1,
    "stages": lambda s: s.parallelism.pp == 1,
    "shards": lambda s: s.parallelism.zero == 0,
    "sharded parameters": lambda s: s.parallelism.zero < 3,
    "buckets": lambda s: (
        s.parallelism.zero == 3 and s.parallelism.pp == 1 and not s.software.data.bucket_copies
    ),
    "narrow formats": lambda s: s.training_step.precision in ("bf16", "fp16", "fp32", "tf32"),
    "recomputation": lambda s: s.training_step.recompute == "none",
    "scores": lambda s: s.software.lowering.fused_attention,
    "divided sequences": lambda s: not s.parallelism.sequence_parallel,
    "balance": lambda s: s.parallelism.layers_per_stage != "auto",
    "one device": lambda s: s.replicas * s.parallelism.pp > 1,
    "groups of heads": lambda s: s.transformer.kv_heads == s.transformer.heads,
    "rms norms": lambda s: s.transformer.norm != "rmsnorm",
    "adapters": lambda s: s.training_step.method == "full",
    "narrow weights": lambda s: not s.training_step.tuning.widens,
    "host states": lambda s: s.parallelism.offload == "none",
    "orthogonal updates": lambda s: not s.software.optimizer.orthogonal_iterations,
}
"""What a training step may be without, by the words of data/unused.yaml, which lists fields of a framework that are of nothing else."""


@remembered(1)
def _rules() -> tuple[_Rule, ...]:
    """Every rule; a key takes the first that applies."""
    fields = read_shipped("mpsim.scenario.data", "unused.yaml")
    return _RULES + tuple(
        _Rule(" ".join(f"framework.{field}" for field in row["fields"]), _WITHOUT[what], row["why"])
        for what, row in fields.items()
    )


@remembered(_KEYS)
def _rules_of(key: str) -> tuple[_Rule, ...]:
    """Rules of a dotted key, or of a section that it stands in."""
    heads = _heads(key)
    return tuple(rule for rule in _rules() if not heads.isdisjoint(rule.keys.split()))


def unused(scenario: Written) -> list[str]:
    """A sentence for each reason for which keys that the scenario gives change nothing.

    A key counts as given where the scenario would be another one without it; one that was resolved has the catalog's entries in its place.
    """
    reasons: dict[str, str] = {}
    for key in sorted(_leaves(scenario.source.data)):  # whatever the order of the file
        rule = next((rule for rule in _rules_of(key) if rule.when(scenario)), None)
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
    """Dotted keys of the values of a file, without those of its variants; a schedule is one, whose keys take each other's place."""
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
    """A dotted key and every section that it stands in; parts of a mixed cluster count as the cluster."""
    parts = re.sub(r"^cluster\.(stages|replicas)\.\d+\.", "cluster.", key).split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _matter(scenario: Written, resolved: dict[str, object], keys: list[str]) -> bool:
    """Whether the scenario, which resolves to `resolved`, would be another one, or none, without some keys."""
    try:
        return resolved_data(_without(scenario, keys)) != resolved
    except (pydantic.ValidationError, MpsimError):
        return True


def _without(scenario: Written, cuts: list[str]) -> Written:
    """The scenario without some keys; of what was resolved, with the catalog's entries in its place."""
    data = copy.deepcopy(scenario.source.data)
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
    return type(scenario).of(dataclasses.replace(scenario.source, data=data))
