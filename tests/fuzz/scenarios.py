"""Random scenarios: whole files as a person could write them, over every section, most of them sound.

`draw_scenario` takes a generator of the standard library, so that a seed names a scenario for ever. Degrees multiply to the accelerators there are, heads and layers mostly divide, and one scenario in eight gets one thing wrong on
purpose, because what `mpsim check` says of those has to be what `mpsim run` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
from collections.abc import Iterator
from random import Random
from typing import Any

from mpsim.errors import HardwareError
from mpsim.framework import framework, framework_names
from mpsim.hardware import (
    Accelerator,
    LinkShape,
    accelerator,
    accelerator_names,
    link,
    link_names,
    system,
    system_names,
)
from mpsim.schedule import schedule_names
from mpsim.serving.engines import engine_names
from mpsim.workload import model_names

__all__ = ["draw_scenario"]

Data = dict[str, Any]

_MOST_RANKS = 512
_MOST_ACTIONS = 1500  # forwards of one pipeline: what keeps a law about a second
_WRONG = 1 / 8
_PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4")
_MODULES = ("core_attn", "layernorm", "mlp", "moe_act", "moe", "shared_experts", "mla_up_proj")
_FABRICS = ("rail-optimized", "rail-only", "dual-plane", "fat-tree", "dragonfly+", "torus")
_SPLIT = ("zb-h1", "zb-1p", "zb-h2", "zb-2p", "zb-v", "v-half", "v-min", "interleaved-zb")


def draw_scenario(rng: Random, *, services: float = 0.12) -> Data:
    """A scenario as plain data, with this probability a service."""
    data = _service(rng) if rng.random() < services else _step(rng)
    if rng.random() < _WRONG:
        _spoil(data, rng)
    return data


def _chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def _step(rng: Random) -> Data:
    """A training step."""
    cluster, world, formats = _cluster(rng)
    stack = _framework(rng)
    has_experts = _chance(rng, 0.3)
    degrees = _degrees(rng, world, stack["preset"])
    schedule, chunks = _schedule(rng, degrees["pp"])
    if degrees["pp"] > 1 and not framework(stack["preset"]).pipeline.has_chunks:
        schedule, chunks = "1f1b", 1
    model = _model(rng, degrees, degrees["pp"] * chunks, has_experts=has_experts)
    parallelism: Data = {key: degrees[key] for key in ("tp", "pp", "cp") if degrees[key] > 1}
    if _chance(rng, 0.3):
        parallelism["dp"] = degrees["dp"]
    if has_experts and (rooms := _divisors(degrees["dp"] * degrees["cp"] * degrees["tp"])):
        parallelism["ep"] = rng.choice([each for each in rooms if each <= 8])
        if parallelism["ep"] % degrees["tp"] == 0 and degrees["tp"] > 1:
            parallelism["etp"] = 1
    parallelism["sequence_parallel"] = degrees["tp"] > 1 and (has_experts or _chance(rng, 0.7))
    data_habits = framework(stack["preset"]).data
    most = data_habits.zero_limit if degrees["pp"] == 1 else data_habits.pipeline_zero_limit
    parallelism["zero"] = min(rng.choice([0, 0, 1, 1, 2, 3, 3]), most)
    if degrees["cp"] > 1:
        stack["fused_attention"] = True
        stack["context_exchange"] = rng.choice(["ring", "all-gather", "ulysses"])
    replicas = degrees["dp"] * degrees["cp"]
    if parallelism["zero"] and _chance(rng, 0.2):
        parallelism["shard"] = rng.choice(_divisors(replicas))
    if parallelism["zero"] and _chance(rng, 0.15):
        whole = parallelism["zero"] == 3
        parallelism["offload"] = rng.choice(["optimizer", "parameters"] if whole else ["optimizer"])
        if whole and _chance(rng, 0.3):
            parallelism["offload_to"] = "nvme"
    if _chance(rng, 0.15):
        axes = ["tp", "cp", "ep", "dp", "pp"]
        rng.shuffle(axes)
        parallelism["order"] = "-".join(axes)
    if degrees["pp"] > 1 and _chance(rng, 0.1):
        parallelism["layers_per_stage"] = "auto"
    data: Data = {
        "schema": 1,
        "name": f"random-{rng.randrange(10**6)}",
        "model": model,
        "cluster": cluster,
        "parallelism": parallelism,
        "schedule": schedule,
        "training": _training(rng, degrees, formats),
        "framework": stack,
        "simulation": _simulation(rng, world),
    }
    if _chance(rng, 0.15):
        data["variation"] = _variation(rng, world)
    if _chance(rng, 0.1):
        _mix(data, degrees, rng)
    return data


def _cluster(rng: Random) -> tuple[Data, int, tuple[str, ...]]:
    """A system or parts of one, how many accelerators it has, and formats these compute in."""
    if _chance(rng, 0.7):
        name = rng.choice(system_names())
        node = system(name, nodes=1)
        per_node, chip = node.accelerators, node.accelerator
        nodes = rng.choice(
            [n for n in (1, 1, 2, 2, 4, 4, 8, 16, 64) if n * per_node <= _MOST_RANKS] or [1]
        )
        data: Data = {"preset": name, "nodes": nodes}
        if _chance(rng, 0.15):
            data["nic"] = rng.choice(["25 Gb/s", "100 Gb/s", "400 Gb/s", "roce-100", "ib-ndr"])
            data["nics_per_node"] = rng.choice(_divisors(per_node))
    else:
        per_node, nodes = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4, 8, 16])
        chip = accelerator(rng.choice(accelerator_names()))
        data = {
            "accelerator": chip.name,
            "accelerators_per_node": per_node,
            "nodes": nodes,
            "nics_per_node": rng.choice(_divisors(per_node)),
            "nic": rng.choice(["1 Gb/s", "10 Gb/s", "100 Gb/s", "200 Gb/s", "800 Gb/s"]),
        }
        if _chance(rng, 0.5):
            data["scale_up"] = rng.choice(
                [name for name in link_names() if link(name).shape is not LinkShape.NETWORK]
            )
    if _chance(rng, 0.15):
        data["fabric"] = {
            "kind": rng.choice(_FABRICS),
            "oversubscription": rng.choice([1, 1, 2, 4]),
            "routing": rng.choice(["ecmp", "static"]),
        }
    if _chance(rng, 0.1):
        data["placement"] = rng.choice(["packed", "strided", "by-rail", "by-rack"])
    if _chance(rng, 0.05):
        data["library"] = rng.choice(["gloo", "openmpi", "mpich", "nccl"])
    return data, per_node * nodes, tuple(_formats(chip))


def _formats(chip: Accelerator) -> Iterator[str]:
    for name in _PRECISIONS:
        with contextlib.suppress(HardwareError):
            chip.peak(name)
            yield name


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _degrees(rng: Random, world: int, stack: str) -> dict[str, int]:
    """Degrees that multiply to the accelerators: each prime factor goes to an axis by chance."""
    weights = {"dp": 4, "tp": 3, "pp": 3, "cp": 1}
    if any(word in stack for word in ("fsdp", "ddp", "zero", "horovod", "fairscale", "mirrored")):
        weights |= {"tp": 1, "pp": 1, "dp": 8}
    if not framework(stack).pipeline.has_pipeline:
        weights["pp"] = 0
    degrees = dict.fromkeys(weights, 1)
    left = world
    while left > 1:
        prime = next(each for each in range(2, left + 1) if left % each == 0)
        axis = rng.choices(list(weights), list(weights.values()))[0]
        if axis != "dp" and degrees[axis] * prime > (8 if axis == "cp" else 16):
            axis = "dp"
        degrees[axis] *= prime
        left //= prime
    return degrees


def _schedule(rng: Random, pp: int) -> tuple[Data | str, int]:
    """A schedule and the chunks of a rank; schedules made for pipelines are rare without one."""
    if pp == 1 and _chance(rng, 0.8):
        return "1f1b", 1
    name = rng.choice(
        [
            *(each for each in schedule_names() if each not in ("auto", "forward-only")),
            "1f1b",
            *_SPLIT[:2],
        ]
    )
    if name in ("interleaved-1f1b", "looped-bfs", "interleaved-zb"):
        chunks = rng.choice([2, 2, 3, 4])
        return {"name": name, "virtual_stages": chunks}, chunks
    return name, 2 if name in ("zb-v", "v-half", "v-min", "dualpipe-v") else 1


def _model(rng: Random, degrees: dict[str, int], stages: int, *, has_experts: bool) -> Data:
    """A published model with its layers made to fit, or one of random widths."""
    tp = degrees["tp"]
    layers = stages * rng.choice(
        [each for each in (1, 1, 2, 3, 4, 8) if stages * each <= 96] or [1]
    )
    if _chance(rng, 0.25):
        name = rng.choice([each for each in model_names() if not each.startswith("t5")])
        return {"preset": name, "layers": max(layers, 2)}
    head = rng.choice([64, 128])
    heads = tp * math.ceil(rng.choice([4, 8, 16, 32]) / tp)
    heads *= degrees["cp"] if _chance(rng, 0.3) else 1
    model: Data = {
        "layers": layers,
        "hidden": heads * head,
        "heads": heads,
        "vocab": rng.choice([1024, 32000, 50257, 128256]),
    }
    if _chance(rng, 0.4):
        model["kv_heads"] = rng.choice(
            [each for each in _divisors(heads) if each % tp == 0 or tp % each == 0]
        )
    if _chance(rng, 0.5):
        model |= {"gated_mlp": True, "ffn_hidden": 64 * tp * rng.choice([8, 22, 43])}
    if _chance(rng, 0.15):
        model |= {
            "attention": "sliding",
            "window": rng.choice([16, 512]),
            "full_every": rng.choice([0, 2]),
        }
    elif _chance(rng, 0.2):
        model["attention"] = "full"
    for key, choices in (
        ("norm", ["layernorm", "rmsnorm"]),
        ("positions", ["learned", "rotary", "alibi", "none"]),
        ("tied_embeddings", [True, False]),
        ("bias", [True, False]),
        ("dropout", [0.0, 0.1]),
        ("parallel_block", [True, False]),
        ("qk_norm", [True, False]),
        ("post_norm", [True, False]),
    ):
        if _chance(rng, 0.2):
            model[key] = rng.choice(choices)
    if has_experts:
        model.pop("parallel_block", None)
        model["moe"] = {
            "experts": rng.choice([8, 16, 64]),
            "top_k": rng.choice([1, 2, 6]),
            "ffn_hidden": 64 * tp * rng.choice([4, 16]),
            **({"shared_experts": 1} if _chance(rng, 0.3) else {}),
            **({"imbalance": rng.choice([1.0, 1.3])} if _chance(rng, 0.3) else {}),
            **({"spread": 0.5} if _chance(rng, 0.2) else {}),
            **({"capacity_factor": 1.25} if _chance(rng, 0.2) else {}),
            **({"dense_layers": 1} if layers > 1 and _chance(rng, 0.2) else {}),
        }
    return model


def _training(rng: Random, degrees: dict[str, int], formats: tuple[str, ...]) -> Data:
    """Batches that divide, in any format and with any recomputation."""
    micro = rng.choice([1, 1, 1, 2, 4])
    fewest = 2 * degrees["pp"]
    count = rng.choice([1, 2, 4, 8, 16, fewest, 2 * fewest])
    count = max(1, min(count, _MOST_ACTIONS // degrees["pp"]))
    if _chance(rng, 0.8):  # most schedules want a multiple of their ranks
        count = math.ceil(count / fewest) * fewest
    training: Data = {
        "global_batch": degrees["dp"] * micro * count,
        "micro_batch": micro,
        "sequence_length": 2 * degrees["cp"] * degrees["tp"] * rng.choice([16, 64, 256, 512]),
        "recompute": rng.choice(["none", "none", "selective", "full", "full"]),
    }
    if "bf16" not in formats or _chance(rng, 0.4):
        training["precision"] = rng.choice(formats or _PRECISIONS)
    if training["recompute"] == "selective" and _chance(rng, 0.4):
        training["recompute_modules"] = rng.sample(_MODULES, rng.choice([1, 2]))
    if training["recompute"] == "full" and _chance(rng, 0.3):
        training["recompute_method"] = rng.choice(["uniform", "block"])
        training["recompute_layers"] = 1
    return training


def _framework(rng: Random) -> Data:
    """A stack, at times with some of its habits changed."""
    preset = rng.choice(framework_names())
    stack: Data = {"preset": preset}
    if not _chance(rng, 0.35):
        return stack
    habits = framework(preset)
    groups = [getattr(habits, area) for area in habits.groups()]
    # whether there is a pipeline at all is drawn with the degrees
    fields = [
        (group, field.name)
        for group in groups
        for field in dataclasses.fields(group)
        if field.name not in ("has_pipeline", "has_chunks", "whole_groups")
    ]
    for group, name in rng.sample(fields, rng.choice([1, 2, 4])):
        value = getattr(group, name)
        if isinstance(value, enum.Enum):
            stack[name] = rng.choice([each.value for each in type(value)])
        elif isinstance(value, bool):
            stack[name] = not value
        elif isinstance(value, int) and name not in (
            "activation_bytes",
            "zero_limit",
            "pipeline_zero_limit",
        ):
            stack[name] = rng.choice([value, value + 1, 2 * value])
    return stack


def _simulation(rng: Random, world: int) -> Data:
    simulation: Data = {"seed": rng.randrange(100)}
    if _chance(rng, 0.15):
        simulation["engine"] = rng.choice(["simpy", "replay"])
    if _chance(rng, 0.15):
        simulation["network"] = "flow"
    if world <= 64 and _chance(rng, 0.08):
        simulation["interference"] = True
    if _chance(rng, 0.2):
        simulation["straggling"] = False
    return simulation


def _variation(rng: Random, world: int) -> Data:
    """What differs, now and then of a rank or node that is not there."""
    there = max(1, world if _chance(rng, 0.8) else 2 * world)
    variation: Data = {"samples": rng.choice([1, 3])}
    for key in ("speed", "jitter", "network_jitter", "experts"):
        if _chance(rng, 0.3):
            variation[key] = rng.choice([0.0, 0.02, 0.1])
    if _chance(rng, 0.4):
        variation["slow"] = [
            {"ranks": sorted({rng.randrange(there) for _ in range(2)}), "speed": 0.7}
        ]
    if _chance(rng, 0.2):
        variation["slow"] = [{"node": rng.randrange(max(1, there // 4)), "speed": 0.5}]
    if _chance(rng, 0.3):
        node = rng.randrange(max(1, there // 8))
        variation["links"] = [{"node": node, "bandwidth": 0.5, "time": rng.choice([1.0, 0.3])}]
    return variation


def _mix(data: Data, degrees: dict[str, int], rng: Random) -> None:
    """Nodes of two kinds, or replicas with batches of their own."""
    axis, key = rng.choice([("pp", "stages"), ("dp", "replicas")])
    if degrees[axis] > 1:
        first = rng.randrange(1, degrees[axis])
        other = rng.choice(["a100-sxm-80", "h100-sxm", "mi300x"])
        parts = [{"count": first}, {"count": degrees[axis] - first, "accelerator": other}]
        data["cluster"][key] = parts
    if axis == "dp" and degrees["dp"] == 2 and _chance(rng, 0.5):
        training = data["training"]
        half, micro = training["global_batch"] // 2, training["micro_batch"]
        if half > micro:
            training["batch_per_replica"] = [half + micro, half - micro]


def _modernise(data: Data, rng: Random) -> None:
    """Give a service what came later: hybrids, autoscaling, options in the engine's words, placed experts."""
    serving = data["serving"]
    if _chance(rng, 0.12) and data.get("model") in ("llama3-8b", "llama2-7b"):
        data["model"] = rng.choice(["nemotron-h-8b", "qwen3-next-80b-a3b"])
    if _chance(rng, 0.15) and "disaggregated" not in serving:
        serving["autoscale"] = {
            "load": rng.choice([1, 5, 30]),
            "startup": rng.choice(["0 s", "2 s"]),
            "interval": rng.choice(["0.1 s", "3 s"]),
            "patience": rng.choice(["0 s", "5 s"]),
        }
    if _chance(rng, 0.1) and serving["engine"] == "vllm-v1":
        data["server"] = {"max-num-seqs": rng.choice([4, 64]), "gpu-memory-utilization": 0.8}
    if _chance(rng, 0.2) and "speculation" in serving:
        serving["speculation"]["by_position"] = [0.9]
    if _chance(rng, 0.5) and "mixtral" in str(data["model"]):
        data["model"] = {"preset": data["model"], "moe": {"imbalance": 1.4}}
        serving["engine"] = {"preset": serving["engine"], "eplb": True}


def _service(rng: Random) -> Data:
    """A stream of requests."""
    cluster, world, _ = _cluster(rng)
    data: Data = {
        "schema": 1,
        "name": f"service-{rng.randrange(10**6)}",
        "model": rng.choice(
            [
                "llama3-8b",
                "llama2-7b",
                "qwen2.5-7b",
                "mistral-7b",
                "mixtral-8x7b",
                "gemma2-9b",
                "llama3-70b",
                "gpt-oss-20b",
                "deepseek-v2-lite",
            ]
        ),
        "cluster": cluster,
    }
    lengths = [
        {"kind": "fixed", "tokens": rng.choice([16, 512, 2000])},
        {"kind": "uniform", "tokens": 600, "shortest": 0.3},
        {"kind": "lognormal", "tokens": 500, "spread": 0.8},
    ]
    arrival = rng.choice(["poisson", "gamma", "closed", "all-at-once"])
    load: Data = {
        "arrival": arrival,
        "requests": rng.choice([3, 20, 60]),
        "prompt": rng.choice(lengths),
        "output": rng.choice(
            [{"kind": "fixed", "tokens": 32}, {"kind": "lognormal", "tokens": 60, "spread": 0.5}]
        ),
    }
    if arrival in ("poisson", "gamma"):
        load["rate"] = rng.choice([0.5, 5.0, 100.0])
    if arrival == "closed":
        load["concurrency"] = rng.choice([1, 8, 40])
    tp = rng.choice([each for each in _divisors(world) if each <= 8])
    pp = rng.choice([each for each in _divisors(world // tp) if each <= 4])
    serving: Data = {
        "engine": rng.choice(engine_names()),
        "weights": rng.choice(["bf16", "bf16", "fp8", "w4a16"]),
        "kv": rng.choice(["bf16", "bf16", "fp8"]),
        "routing": rng.choice(["round-robin", "least-load", "prefix-aware"]),
        "workload": load,
        "slo": {"ttft": "1 s", "tpot": "50 ms"},
    }
    if _chance(rng, 0.2):
        serving["speculation"] = {
            "tokens": rng.choice([1, 3]),
            "acceptance": 0.7,
            "draft": "n-gram",
        }
    if _chance(rng, 0.2) and world >= 2:
        serving["disaggregated"] = {
            "prefill": {"tp": 1},
            "decode": {"tp": rng.choice([1, max(1, world // 2)])},
        }
    else:
        data["parallelism"] = {"tp": tp, "pp": pp}
        if _chance(rng, 0.4):
            serving["replicas"] = rng.randrange(1, world // (tp * pp) + 1)
    if _chance(rng, 0.15):
        data["variation"] = {"slow": [{"node": rng.randrange(2), "speed": 0.6}]}
    data["serving"] = serving
    data["simulation"] = {"seed": rng.randrange(100)}
    _modernise(data, Random(data["name"]))  # of its own, so that seeds keep their scenarios
    return data


def _spoil(data: Data, rng: Random) -> None:
    """Make one thing wrong, or at least strange."""
    parallelism, training = data.get("parallelism", {}), data.get("training", {})
    changes: list[tuple[Data, str, object]] = [
        (parallelism, "tp", rng.choice([3, 5, 32])),
        (parallelism, "pp", rng.choice([3, 7])),
        (parallelism, "ep", rng.choice([2, 3])),
        (parallelism, "zero", 3),
        (parallelism, "shard", 2),
        (parallelism, "offload", "parameters"),
        (training, "global_batch", rng.randrange(1, 100)),
        (training, "sequence_length", rng.randrange(1, 3000)),
        (training, "recompute_layers", 5),
        (data, "simulation", {"engine": "replay", "network": "flow"}),
        (data, "schedule", rng.choice(schedule_names())),
        (data, "variation", {"slow": [{"ranks": [10_000], "speed": 0.5}], "samples": 1}),
        (
            data,
            "variation",
            {"links": [{"node": 0, "bandwidth": 0.5}], "experts": 0.1, "samples": 1},
        ),
        (data["cluster"], "nics_per_node", rng.choice([3, 16])),
    ]
    section, key, value = rng.choice(changes)
    section[key] = value
    data.setdefault("parallelism", parallelism)
    if "serving" not in data:
        data.setdefault("training", training)
