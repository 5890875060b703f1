"""Checks of a scenario that serves: the layout of an instance, formats that the chip has, what training alone knows."""

from __future__ import annotations

import dataclasses
from typing import Final

from mpsim.errors import Problem
from mpsim.scenario.checks.variation import absent_parts
from mpsim.scenario.described import Described
from mpsim.scenario.serving import PoolChoice

__all__ = [
    "check_instances",
    "check_job",
    "check_pools",
    "check_service_experts",
    "check_service_heads",
    "check_service_precision",
    "check_service_variation",
    "check_training_keys",
]

_COMPUTE: Final = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int8": "int8",
}
_TRAINING_KEYS: Final = (
    *(
        "dp",
        "cp",
        "etp",
        "zero",
        "shard",
        "offload",
        "offload_to",
        "sequence_parallel",
        "layers_per_stage",
    ),
    *("embedding_counts_as_layer", "loss_counts_as_layer"),
)


def check_job(scenario: Described) -> list[Problem]:
    """Refuse a scenario that trains and serves."""
    if scenario.training is not None and scenario.serving is not None:
        return [
            Problem(
                "got both training and serving; needed one of them: leave the other out",
                key="serving",
            )
        ]
    return []


def check_training_keys(scenario: Described) -> list[Problem]:
    """Refuse degrees that only training knows."""
    given = scenario.parallelism.model_fields_set
    return [
        Problem(
            f"got {getattr(scenario.parallelism, key)!r}, which only training knows; needed tp, pp and ep: leave it out"
            + (", and give serving.replicas" if key == "dp" else ""),
            key=f"parallelism.{key}",
        )
        for key in _TRAINING_KEYS
        if key in given
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Instances:
    """Equal instances of a service, and where their layout is written."""

    tp: int
    pp: int
    ep: int
    attention_dp: int
    replicas: int | None
    weights: str
    kv_blocks: int | None
    layout: str
    section: str

    @property
    def accelerators(self) -> int:
        return self.tp * self.pp * (self.replicas or 1)


def _pools(scenario: Described) -> list[_Instances]:
    """The instances of a service, or of each of its pools."""
    p, serving = scenario.parallelism, scenario.service
    if serving.disaggregated is None:
        own = (serving.attention_dp, serving.replicas, serving.weights, serving.kv_blocks)
        return [_Instances(p.tp, p.pp, p.ep, *own, "parallelism", "serving")]
    found = []
    for name in ("prefill", "decode"):
        pool: PoolChoice = getattr(serving.disaggregated, name)
        key = f"serving.disaggregated.{name}"
        weights = pool.weights or serving.weights
        own = (pool.attention_dp, pool.replicas, weights, pool.kv_blocks)
        found.append(_Instances(pool.tp, pool.pp, pool.ep, *own, key, key))
    return found


_DRAWN: Final = ("jitter", "network_jitter", "experts", "links")


def check_service_variation(scenario: Described) -> list[Problem]:
    """Refuse variation that services do not have, and nodes and ranks that are not there."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return []
    problems = [
        Problem(
            "is not simulated for services, which have slow ranks, speed and outages; leave it out",
            key=f"variation.{key}",
        )
        for key in _DRAWN
        if getattr(variation, key)
    ]
    if variation.outages and scenario.service.disaggregated is not None:
        problems.append(
            Problem(
                "got outages with serving.disaggregated; they are simulated for one pool: leave one of them out",
                key="variation.outages",
            )
        )
    problems += absent_parts(variation, cluster.nodes, cluster.accelerators)
    return problems


def check_pools(scenario: Described) -> list[Problem]:
    """Refuse a layout beside those of two pools, pools that the cluster has no room for, and caches that do not agree."""
    serving = scenario.service
    if serving.disaggregated is None:
        return []
    given = [
        *(f"parallelism.{key}" for key in scenario.parallelism.model_fields_set),
        *(
            f"serving.{key}"
            for key in ("replicas", "attention_dp", "kv_blocks")
            if key in serving.model_fields_set
        ),
    ]
    problems = [
        Problem(
            "got a layout beside serving.disaggregated, whose pools have layouts of their own; leave it out",
            key=key,
        )
        for key in given
    ]
    prefill, decode = _pools(scenario)
    need, world = prefill.accelerators + decode.accelerators, scenario.world_size
    if need > world and max(prefill.accelerators, decode.accelerators) <= world:
        problems.append(
            Problem(
                f"got {prefill.accelerators} accelerators to prefill and {decode.accelerators} to decode, {need} of {world}; needed at most {world}: lower replicas or tp, or add nodes",
                key="serving.disaggregated",
            )
        )
    formats = [
        pool.kv or serving.kv
        for pool in (serving.disaggregated.prefill, serving.disaggregated.decode)
    ]
    if formats[0] != formats[1]:
        problems.append(
            Problem(
                f"got {formats[1]}, but prompts come with keys and values in {formats[0]}; needed the same in both pools",
                key="serving.disaggregated.decode.kv",
            )
        )
    return problems


def check_instances(scenario: Described) -> list[Problem]:
    """Refuse instances that the cluster has no room for."""
    world, layers = scenario.world_size, scenario.transformer.layers
    problems = []
    for pool in _pools(scenario):
        each = pool.tp * pool.pp
        if pool.pp > layers:
            problems.append(
                Problem(
                    f"got {pool.pp} stages for {layers} layers; needed at most as many",
                    key=f"{pool.layout}.pp",
                )
            )
        if pool.accelerators > world:
            most = world // each
            what = f"set replicas to at most {most}" if most else "lower tp or pp, or add nodes"
            key = f"{pool.section}.replicas" if pool.replicas and most else f"{pool.layout}.tp"
            problems.append(
                Problem(
                    f"got {pool.replicas or 1} replicas of tp {pool.tp} x pp {pool.pp} on {world} accelerators; {what}",
                    key=key,
                )
            )
        if pool.tp % pool.attention_dp:
            problems.append(
                Problem(
                    f"got {pool.attention_dp}, not a divisor of tp {pool.tp}; needed one",
                    key=f"{pool.section}.attention_dp",
                )
            )
        if pool.kv_blocks is not None and pool.kv_blocks < pool.pp:
            problems.append(
                Problem(
                    f"got {pool.kv_blocks} blocks for {pool.pp} stages; needed at least one each",
                    key=f"{pool.section}.kv_blocks",
                )
            )
    return problems


def check_service_heads(scenario: Described) -> list[Problem]:
    """Refuse tensor parallelism that does not divide the heads."""
    model = scenario.transformer
    problems = []
    for pool in _pools(scenario):
        inside = max(1, pool.tp // pool.attention_dp)
        if model.heads % inside:
            problems.append(
                Problem(
                    f"got {pool.tp}, which does not divide {model.heads} heads; needed a divisor",
                    key=f"{pool.layout}.tp",
                )
            )
        elif model.mla is None and model.kv_heads % inside and inside % model.kv_heads:
            problems.append(
                Problem(
                    f"got {pool.tp} with {model.kv_heads} key-value heads; needed a divisor or a multiple of them",
                    key=f"{pool.layout}.tp",
                )
            )
    if model.encoder_layers and not problems:
        problems.append(
            Problem(
                "got an encoder and a decoder; needed one stack: serving them is not simulated",
                key="model",
            )
        )
    return problems


def check_service_experts(scenario: Described) -> list[Problem]:
    """Refuse expert parallelism that does not divide experts or ranks."""
    moe = scenario.transformer.moe
    problems = []
    for pool in _pools(scenario):
        key = f"{pool.layout}.ep"
        if pool.ep == 1:
            continue
        if moe is None:
            problems.append(Problem(f"got {pool.ep} for a dense model; needed 1", key=key))
            continue
        if moe.experts % pool.ep:
            problems.append(
                Problem(
                    f"got {pool.ep}, which does not divide {moe.experts} experts; needed a divisor",
                    key=key,
                )
            )
        if pool.tp % pool.ep:
            problems.append(
                Problem(
                    f"got {pool.ep}, not a divisor of the {pool.tp} ranks of an instance's stage; needed one",
                    key=key,
                )
            )
    return problems


def check_service_precision(scenario: Described) -> list[Problem]:
    """Refuse weights in a format that the accelerator cannot multiply."""
    chip = scenario.hardware.accelerator
    has = [name for name, compute in _COMPUTE.items() if compute in chip.peak_flops]
    usable = ", ".join([*has, "w4a16 or mxfp4 (weights alone are narrow)"])
    return [
        Problem(
            f"got {pool.weights}, but {chip.name} has no {need}; needed one of {usable}",
            key=f"{pool.section}.weights",
        )
        for pool in _pools(scenario)
        if (need := _COMPUTE.get(pool.weights)) is not None and need not in chip.peak_flops
    ]
