"""Checks of a scenario that serves: the layout of an instance, formats that the chip has, what training alone knows."""

from __future__ import annotations

from typing import Final

from mpsim.errors import Problem
from mpsim.scenario.described import Described

__all__ = [
    "check_instances",
    "check_job",
    "check_service_experts",
    "check_service_heads",
    "check_service_precision",
    "check_training_keys",
]

_COMPUTE: Final = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int8": "int8"}
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


def check_instances(scenario: Described) -> list[Problem]:
    """Refuse instances that the cluster has no room for."""
    p, serving, world = scenario.parallelism, scenario.service, scenario.world_size
    each = p.tp * p.pp
    problems = []
    if p.pp > scenario.transformer.layers:
        problems.append(
            Problem(
                f"got {p.pp} stages for {scenario.transformer.layers} layers; needed at most as many",
                key="parallelism.pp",
            )
        )
    if each * (serving.replicas or 1) > world:
        most = world // each
        what = f"set replicas to at most {most}" if most else "lower tp or pp, or add nodes"
        key = "serving.replicas" if serving.replicas and most else "parallelism.tp"
        problems.append(
            Problem(
                f"got {serving.replicas or 1} replicas of tp {p.tp} x pp {p.pp} on {world} accelerators; {what}",
                key=key,
            )
        )
    if p.tp % serving.attention_dp:
        problems.append(
            Problem(
                f"got {serving.attention_dp}, not a divisor of tp {p.tp}; needed one",
                key="serving.attention_dp",
            )
        )
    if serving.kv_blocks is not None and serving.kv_blocks < p.pp:
        problems.append(
            Problem(
                f"got {serving.kv_blocks} blocks for {p.pp} stages; needed at least one each",
                key="serving.kv_blocks",
            )
        )
    return problems


def check_service_heads(scenario: Described) -> list[Problem]:
    """Refuse tensor parallelism that does not divide the heads."""
    model, p = scenario.transformer, scenario.parallelism
    inside = max(1, p.tp // scenario.service.attention_dp)
    if model.heads % inside:
        return [
            Problem(
                f"got {p.tp}, which does not divide {model.heads} heads; needed a divisor",
                key="parallelism.tp",
            )
        ]
    if model.mla is None and model.kv_heads % inside and inside % model.kv_heads:
        return [
            Problem(
                f"got {p.tp} with {model.kv_heads} key-value heads; needed a divisor or a multiple of them",
                key="parallelism.tp",
            )
        ]
    if model.encoder_layers:
        return [
            Problem(
                "got an encoder and a decoder; needed one stack: serving them is not simulated",
                key="model",
            )
        ]
    return []


def check_service_experts(scenario: Described) -> list[Problem]:
    """Refuse expert parallelism that does not divide experts or ranks."""
    moe, p = scenario.transformer.moe, scenario.parallelism
    if p.ep == 1:
        return []
    if moe is None:
        return [Problem(f"got {p.ep} for a dense model; needed 1", key="parallelism.ep")]
    problems = []
    if moe.experts % p.ep:
        problems.append(
            Problem(
                f"got {p.ep}, which does not divide {moe.experts} experts; needed a divisor",
                key="parallelism.ep",
            )
        )
    if p.tp % p.ep:
        problems.append(
            Problem(
                f"got {p.ep}, not a divisor of the {p.tp} ranks of an instance's stage; needed one",
                key="parallelism.ep",
            )
        )
    return problems


def check_service_precision(scenario: Described) -> list[Problem]:
    """Refuse weights in a format that the accelerator cannot multiply."""
    weights, chip = scenario.service.weights, scenario.hardware.accelerator
    need = _COMPUTE.get(weights)
    if need is None or need in chip.peak_flops:
        return []
    has = [name for name, compute in _COMPUTE.items() if compute in chip.peak_flops]
    usable = ", ".join(["bf16", *has, "w4a16 or mxfp4 (weights alone are narrow)"])
    return [
        Problem(
            f"got {weights}, but {chip.name} has no {need}; needed one of {usable}",
            key="serving.weights",
        )
    ]
