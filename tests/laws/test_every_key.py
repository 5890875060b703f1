"""No key without effect: what a scenario says changes a figure, is refused with the reason, or is told as not used.

``python -m tests.laws.test_every_key`` prints how many keys do which.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import mpsim
from mpsim.errors import MpsimError
from mpsim.scenario import Scenario
from mpsim.scenario.fields import Key
from mpsim.scenario.layers import assign
from mpsim.scenario.schema import known_keys, section_at
from mpsim.units import Dimension, format_exact, parse_quantity
from tests.nightly import some

ECHO = ("scenario", "warnings", "calibration", "validated", "interval")
"""Entries of a summary that repeat the scenario, or look up measured runs that resemble it."""
NO_FIGURES = (
    *("schema", "name", "model.name", "cluster.name", "sweep", "design", "include", "overrides"),
    *("machine", "framework.overrides", "serving.engine.overrides"),
)
"""Keys that call something by a name, say what else to read or to run, or stand for what is written beside them."""
MOST = 8
"""Values that are tried of a key."""

SCENARIOS: dict[str, dict[str, Any]] = {
    "training": {
        "schema": 1,
        "model": {"preset": "gpt2-medium"},
        "cluster": {"preset": "dgx-h100", "nodes": 2},
        "parallelism": {"tp": 2, "pp": 2},
        "training": {"global_batch": 16, "sequence_length": 1024},
    },
    "serving": {
        "schema": 1,
        "model": {"preset": "llama3-8b"},
        "cluster": {"preset": "dgx-h100", "nodes": 2},
        "parallelism": {"tp": 2},
        "serving": {"workload": {"rate": 100, "requests": 16, "output": {"tokens": 16}}},
    },
}
EXPERTS = {
    "model.moe": {"experts": 8, "top_k": 2, "ffn_hidden": 512, "shared_experts": 1},
    "parallelism": {"tp": 1, "ep": 2},
}
LATENT = {
    "model.mla.kv_lora_rank": 128,
    "model.mla.q_lora_rank": 64,
    "model.mla.qk_nope_head_dim": 32,
    "model.mla.qk_rope_head_dim": 32,
    "model.mla.v_head_dim": 32,
}
SLIDING = {"model.attention": "sliding", "model.window": 128}
ENCODER = {"model.preset": "t5-large", "parallelism.pp": 1}
PART = {
    "count": 1,
    "accelerator": {"preset": "h100-sxm", "clock": "1500 MHz"},
    "scale_up": {"preset": "nvlink4"},
    "nic": {"preset": "ib-ndr"},
}
PARTS = [PART, {"count": 1}]
ONE_STAGE = {"parallelism.pp": 1}
WIDE = {"parallelism": {"tp": 8}, "training.global_batch": 32}
SHARED = {**ONE_STAGE, "parallelism.zero": 3}
PODS = {"cluster.nodes": 8, "cluster.fabric.radix": 8, "training.global_batch": 64}
MANY = {"cluster.nodes": 128, "training.global_batch": 512, "parallelism": {"tp": 8}}
TORUS = {**PODS, "cluster.fabric.kind": "torus", "cluster.fabric.shape": [4, 2]}
STAR = {"kind": "graph", "links": [[f"node {node}", "switch", "3200 Gb/s"] for node in (0, 1)]}
FEW_STEPS = {"variation.jitter": 0.1, "variation.samples": 20}
ACROSS = {"parallelism.tp": 16}
ACROSS_ALL = {"parallelism.tp": 64, "cluster.nodes": 8, "model.heads": 64, "model.head_dim": 128}
ACROSS_PODS = {"parallelism.tp": 32, "cluster.nodes": 8, "cluster.fabric.radix": 4}
EXPERT_INSTANCE = {**EXPERTS, "parallelism": {"tp": 2, "ep": 2}}
INSTANCE = {"tp": 2, "kv_blocks": 2000, "kv": "bf16"}
POOLS = {
    "parallelism": {},
    "serving.disaggregated": {"prefill": INSTANCE, "decode": INSTANCE},
}
CACHED = {
    "serving.replicas": 1,
    "serving.engine": {"prefix_cache": True},
    "serving.workload.shared_prefix": 256,
}
UNEVEN = {"kind": "lognormal", "tokens": 500, "spread": 2}


def far_pools(replicas: int) -> dict[str, Any]:
    """Pools of so many instances, each a node of its own."""
    pool = {"tp": 8, "replicas": replicas}
    pools = {"serving.disaggregated": {"prefill": pool, "decode": pool}, "parallelism": {}}
    return {**pools, "cluster.nodes": 2 * replicas}


MANY_POOLS = {
    **far_pools(4),
    "cluster.fabric": {"radix": 4, "oversubscription": 2},
    "serving.workload.rate": 1000,
    "serving.engine": {"tokenizer_time": "0 s"},  # so that transfers meet
}

PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "training": {
        "model.qkv_bias": {"model.bias": False},
        "model.moe": EXPERTS,
        "model.mla": LATENT,
        "model.window": SLIDING,
        "model.full_every": SLIDING,
        "model.encoder_layers": ENCODER,
        "model.decoder_length": ENCODER,
        "model.mtp_layers": ONE_STAGE,
        "cluster.accelerator.compute_units": {"simulation.interference": True},
        "cluster.accelerator.boost_clock": {"cluster.accelerator.clock": "1200 MHz"},
        "cluster.scale_up": WIDE,
        "cluster.scale_up.links": {"cluster": {"preset": "tpu-v4-pod", "nodes": 4}},
        "cluster.nic": WIDE,
        "cluster.nic.switch_ports": MANY,
        "cluster.fabric": PODS,
        "cluster.fabric.axes": {**TORUS, "cluster.fabric": {"kind": "torus"}},
        "cluster.fabric.shape": {**TORUS, "simulation.network": "flow"},
        "cluster.fabric.widths": {**TORUS, "simulation.network": "flow"},
        "cluster.fabric.routing": {
            **PODS,
            "cluster.fabric.kind": "fat-tree",
            "simulation.network": "flow",
        },
        "cluster.fabric.links": {"cluster.fabric": STAR, **WIDE},
        "simulation.network": {
            **PODS,
            "cluster.fabric.oversubscription": 4,
            "cluster.placement": "strided",
        },
        "cluster.fabric.graph": {"cluster.fabric": STAR, **WIDE},
        "cluster.stages": {"cluster.stages": PARTS},
        "cluster.stages.nic.switch_ports": {**MANY, "cluster.stages": PARTS, "parallelism.pp": 2},
        "cluster.stages.scale_up.in_network_reduction": {
            "cluster.stages": PARTS,
            "parallelism.tp": 8,
        },
        "cluster.stages.accelerator.compute_units": {
            "cluster.stages": PARTS,
            "simulation.interference": True,
        },
        "cluster.replicas": {"cluster.replicas": PARTS, "parallelism": {"tp": 8}},
        "cluster.replicas.nic.switch_ports": {
            **MANY,
            "cluster.replicas": [{**PART, "count": 64}, {"count": 64}],
        },
        "cluster.replicas.accelerator.compute_units": {
            "cluster.replicas": PARTS,
            "parallelism": {"tp": 8},
            "simulation.interference": True,
        },
        "parallelism.ep": EXPERTS,
        "parallelism.etp": {
            **EXPERTS,
            "parallelism": {"tp": 2, "ep": 2, "sequence_parallel": True},
        },
        "parallelism.zero": ONE_STAGE,
        "parallelism.shard": SHARED,
        "parallelism.offload": SHARED,
        "parallelism.offload_to": {**SHARED, "parallelism.offload": "optimizer"},
        "parallelism.offload_fraction": {**SHARED, "parallelism.offload": "optimizer"},
        "parallelism.order": WIDE,
        "parallelism.embedding_counts_as_layer": {
            "parallelism.loss_counts_as_layer": True,
            "model.layers": 23,
        },
        "schedule.virtual_stages": {
            "schedule.name": "interleaved-1f1b",
            "schedule.virtual_stages": 2,
        },
        "training.recompute_method": {"training.recompute": "full", "training.recompute_layers": 2},
        "training.recompute_layers": {"training.recompute": "full"},
        "training.recompute_modules": {"training.recompute": "selective"},
        "training.recompute_keeps": {"training.recompute": "per-op"},
        "training.adapter": {"training.method": "lora"},
        "training.adapter.base": {"training.method": "lora"},
        "training.frozen": {"training.frozen": ["mlp"]},
        "training.offload_layers": {"training.offload_activations": "all"},
        "simulation.seed": FEW_STEPS,
        "variation.experts": EXPERTS,
        "variation": FEW_STEPS,
        "variation.slow": {"variation.slow": [{"node": 0, "speed": 0.8}]},
        "variation.slow.ranks": {"variation.slow": [{"ranks": [0], "speed": 0.8}]},
        "variation.links": {
            "parallelism.tp": 8,
            "cluster.nodes": 4,
            "variation.links": [{"node": 1, "bandwidth": 0.5, "time": 0.5}],
            "variation.samples": 20,
        },
    },
    "serving": {
        "model.moe": EXPERT_INSTANCE,
        "model.mla": {**LATENT, "model.kv_heads": 32},
        "model.window": SLIDING,
        "model.full_every": SLIDING,
        "cluster.accelerator.boost_clock": {"cluster.accelerator.clock": "1200 MHz"},
        "cluster.scale_up.links": {
            "cluster": {"preset": "tpu-v4-pod", "nodes": 4},
            "parallelism.tp": 4,
        },
        "cluster.nics_per_node": ACROSS,
        "cluster.nic": ACROSS,
        "cluster.nic.switch_ports": {
            **ACROSS_PODS,
            "cluster.fabric": {},
            "cluster.nic.switch_ports": 8,
        },
        "cluster.scale_up.in_network_reduction": {"parallelism.tp": 8},
        "cluster.fabric": ACROSS_PODS,
        "cluster.fabric.axes": {**ACROSS_ALL, "cluster.fabric": {"kind": "torus", "axes": 2}},
        "cluster.fabric.shape": {
            **ACROSS_ALL,
            "cluster.fabric": {"kind": "torus", "shape": [4, 2]},
        },
        "cluster.fabric.widths": {
            **far_pools(2),
            "cluster.fabric": {"kind": "torus", "shape": [2, 2]},
        },
        "cluster.fabric.routing": MANY_POOLS,
        "cluster.fabric.links": {**far_pools(1), "cluster.fabric": STAR},
        "cluster.fabric.graph": {**ACROSS, "cluster.fabric": STAR},
        "cluster.domain": ACROSS,
        "cluster.placement": POOLS,
        "cluster.stages": {"cluster.stages": PARTS, "parallelism.pp": 2},
        "cluster.replicas": {"cluster.replicas": PARTS, "parallelism.tp": 8},
        "parallelism.ep": EXPERT_INSTANCE,
        "serving.disaggregated": POOLS,
        "serving.kv_blocks": {"serving.kv_blocks": 500},
        "serving.attention_dp": {"parallelism.tp": 4},
        "serving.routing": {"serving.workload.prompt": UNEVEN},
        "serving.speculation": {"serving.speculation": {"tokens": 2, "acceptance": 0.7}},
        "serving.autoscale": {
            "serving.autoscale": {
                "load": 1,
                "startup": "0.1 s",
                "interval": "0.05 s",
                "patience": "0.2 s",
            },
            "serving.workload": {
                "arrival": "gamma",
                "burstiness": 0.05,
                "rate": 20,
                "requests": 60,
                "output": {"tokens": 40},
            },
        },
        "serving.workload.arrival": {
            "serving.workload.arrival": "gamma",
            "serving.workload.burstiness": 0.5,
        },
        "serving.workload.burstiness": {"serving.workload.arrival": "gamma"},
        "serving.workload.concurrency": {
            "serving.workload": {"arrival": "closed", "concurrency": 8, "requests": 32}
        },
        "serving.workload.duration": {"serving.workload": {"rate": 20, "duration": "1 s"}},
        "serving.workload.prompt": {
            "serving.workload.prompt": {"kind": "uniform", "tokens": 500, "shortest": 0.5}
        },
        "serving.workload.prompt.spread": {"serving.workload.prompt": UNEVEN},
        "serving.workload.output": {
            "serving.workload.output": {"kind": "uniform", "tokens": 50, "shortest": 0.5}
        },
        "serving.workload.output.spread": {"serving.workload.output": UNEVEN},
        "serving.workload.shared_prefix": CACHED,
        "serving.workload.prefix_groups": CACHED,
        "serving.slo": {
            "serving.slo": {"ttft": "43 ms", "tpot": "5 ms"},
            "serving.workload.prompt": UNEVEN,
        },
        "variation.slow": {"variation.slow": [{"node": 0, "speed": 0.8}]},
        "variation.slow.ranks": {"variation.slow": [{"ranks": [0], "speed": 0.8}]},
        "variation.outages": {
            "variation.outages": [{"node": 0, "at": "0.01 s", "duration": "1 s"}]
        },
        "variation.samples": {"variation.speed": 0.2, "variation.samples": 20},
    },
}
"""Changes to the scenario of a job that make a key, or the keys of a section, matter."""

VALUES: dict[str, list[object]] = {
    "preset": [
        "gpt2-large",
        "dgx-a100-80gb",
        "h200-sxm",
        "nvlink3",
        "ib-hdr",
        "sglang",
        "torch-fsdp2",
    ],
    "peak_flops": [{"bf16": "400 TFLOP/s"}],
    "optimizer": ["lion"],
    "layer_pattern": ["A-", "S"],
    "scalar_head": [True],
    "modules": [["qkv"]],
    "frozen": [["mlp"], ["attention"]],
    "shape": [[8], [2, 4], [4]],
    "widths": [[3, 1]],
    "links": [[["node 0", "switch", "20 Gb/s"], ["node 1", "switch", "20 Gb/s"]]],
    "graph": ["absent.graphml"],
    "oversubscription": [4.0],
    "order": ["dp-tp-cp-ep-pp"],
    "layers_per_stage": [[10, 14]],
    "file": ["absent.csv"],
    "batch_per_replica": [[6, 6, 2, 2]],
    "recompute_modules": [["mlp"], ["layernorm"]],
    "recompute_keeps": [["output"], ["query", "up"]],
    "engine": [{"max_tokens": 64}, {"step_time": "1 ms"}, "simpy"],
    "draft": ["n-gram"],
    "accelerator": ["h200-sxm"],
    "by_position": [[0.9]],
    "server": [{"max-num-batched-tokens": 64}],
    "trace": ["absent.csv"],
    "ranks": [[0, 8]],
}
"""Values of keys whose kind of field says too little, by the last part of the key."""
USUAL = {
    Dimension.TIME: 0.01,
    Dimension.POWER: 7e3,
    Dimension.PRICE_RATE: 3.0,
    Dimension.FREQUENCY: 1.2e9,
    Dimension.BYTES: 6e10,
    Dimension.BANDWIDTH: 5e10,
    Dimension.FLOP_RATE: 5e14,
}
"""Quantities that a key may have that has none, SI units."""


def keys() -> Iterator[str]:
    """Every key of the schema that holds a value, not a section."""
    for key in known_keys(Scenario):
        is_value = section_at(Scenario, key.split(".")) is None
        if is_value and not key.endswith(NO_FIGURES) and not key.startswith("design."):
            yield key  # a run takes no notice of a study


def field(key: str) -> Key:
    """The field of a key."""
    *section, name = key.split(".")
    holder = section_at(Scenario, section)
    assert holder is not None
    return holder.model_fields[name]


def kinds(annotation: Any, metadata: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Types of values that a field takes, each with what bounds it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from kinds(arguments[0], [*metadata, *arguments[1:]])
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from kinds(one, metadata)
    elif annotation is not type(None):
        yield annotation, metadata


def numbers(kind: type, now: object, metadata: list[Any]) -> Iterator[object]:
    """Numbers within the bounds of a field, half and double first."""
    told = dict[str, Any]()
    for item in metadata:
        told |= getattr(item, "told", {}) | getattr(item, "bounds", {})
    at = now if isinstance(now, int | float) else 2
    moved = (at * 2, at / 2, at + 1, at - 1, at * 4, (at + 1) / 2, 0.3, 0)
    for number in dict.fromkeys(map(kind, moved)):
        bounds = [
            number >= told.get("ge", number),
            number <= told.get("le", number),
            number > told.get("gt", number - 1),
            number < told.get("lt", number + 1),
        ]
        if all(bounds) and number >= 0:
            yield number


def values(key: str, now: object) -> Iterator[object]:
    """Other values of a key, by the kind of its field."""
    last, about = key.rpartition(".")[2], field(key)
    if last in VALUES and (last != "links" or "fabric" in key):
        yield from VALUES[last]
        return
    for kind, metadata in kinds(about.annotation, []):
        dimension = next((m.dimension for m in metadata if hasattr(m, "dimension")), None)
        names = next((m.names for m in metadata if hasattr(m, "names")), None)
        if dimension is not None:
            at = parse_quantity(now, dimension) if isinstance(now, str) else USUAL[dimension]
            for scale in (2.0, 0.5, 4.0, 0.1):
                yield format_exact(at * scale or USUAL[dimension], dimension)
        elif names is not None:
            yield from names()
        elif typing.get_origin(kind) is typing.Literal:
            yield from typing.get_args(kind)
        elif kind is bool:
            yield from (True, False)
        elif kind in (int, float):
            yield from numbers(kind, now, metadata)


def placed(key: str) -> tuple[str, ...]:
    """Where a key stands in a scenario: of a list of sections, in the first."""
    lists = (
        "cluster.stages",
        "cluster.replicas",
        "variation.slow",
        "variation.links",
        "variation.outages",
    )
    for several in lists:
        key = key.replace(f"{several}.", f"{several}.0.")
    return tuple(key.split("."))


def value_at(data: Any, place: tuple[str, ...]) -> object:
    """What stands somewhere in a scenario; None where nothing does."""
    for part in place:
        data = (
            data[int(part)]
            if isinstance(data, list)
            else data.get(part)
            if isinstance(data, Mapping)
            else None
        )
    return data


class Figures(typing.NamedTuple):
    """Figures of a run without what they echo, and its warnings."""

    figures: dict[str, Any]
    warnings: list[str]


def figures(scenario: Scenario) -> Figures:
    """Simulate a scenario."""
    summary = dict(mpsim.simulate(scenario).summary)
    if "slo" in summary:  # which repeats the limits
        summary["slo"] = {key: summary["slo"][key] for key in ("met", "binding")}
    return Figures(
        {key: value for key, value in summary.items() if key not in ECHO}, summary["warnings"]
    )


class Base(typing.NamedTuple):
    """A scenario in which keys are moved."""

    data: dict[str, Any]
    scenario: Scenario
    figures: dict[str, Any]


@functools.cache
def base(job: str, changes: str) -> Base:
    """The scenario of a job with some changes."""
    data = copy.deepcopy(SCENARIOS[job])
    for key, value in json.loads(changes).items():
        assign(data, tuple(key.split(".")), copy.deepcopy(value))
    scenario = Scenario.from_mapping(data)
    return Base(data, scenario, figures(scenario).figures)


def moved(start: Base, key: str, value: object) -> str:
    """What comes of a value of a key: ``same`` (the scenario says it already), ``refused``, ``acting``, ``told`` or ``dead``."""
    data = copy.deepcopy(start.data)
    try:
        assign(data, placed(key), value)
        scenario = Scenario.from_mapping(data)
        after = figures(scenario)
    except MpsimError as error:
        return (
            "refused"
            if key.rpartition(".")[2] in str(error) or key.split(".")[0] in str(error)
            else "dead"
        )
    told = (text.split(": ")[1] for text in after.warnings if text.startswith("not used: "))
    words = [f"{word}." for words in told for word in words.split(", ")]
    named = f"{'.'.join(placed(key))}.".startswith(tuple(words))
    if after.figures != start.figures:
        return "told, but acting" if named else "acting"
    return "told" if named else "same" if scenario.digest == start.scenario.digest else "dead"


def verdict(job: str, key: str) -> str:
    """What comes of a key where it matters: ``acting`` if any value acts, else the worst of what came."""
    known = PLACES[job]
    heads = [place for place in known if f"{key}.".startswith(f"{place}.")]
    changes = known[max(heads, key=len)] if heads else {}
    try:
        start = base(job, json.dumps(changes))
    except MpsimError:
        return "refused"
    now = value_at(start.data, placed(key))
    if now is None:
        now = value_at(start.scenario.resolved(), placed(key))
    if now is None and field(key).default is not ...:
        now = field(key).default
    found = set()
    for _, value in zip(
        range(MOST), (value for value in values(key, now) if value != now), strict=False
    ):
        found.add(moved(start, key, value))
        if found & {"acting", "told, but acting"}:
            break
    return next(
        (one for one in ("told, but acting", "acting", "dead", "told", "refused") if one in found),
        "dead",
    )


CASES = [(job, key) for job in SCENARIOS for key in keys()]


@pytest.mark.parametrize(("job", "key"), some(CASES, 160), ids=["-".join(case) for case in CASES])
def test_every_key_acts_or_is_refused_or_is_told(job: str, key: str) -> None:
    """A key that is moved where it matters changes a figure, is refused, or is named in the warnings; a key that is named changes none."""
    assert verdict(job, key) in ("acting", "refused", "told")


if __name__ == "__main__":
    from tests.laws import test_every_field as inner

    verdicts = {f"{job} {key}": verdict(job, key) for job, key in CASES}
    for section, name in inner.CASES:
        place = inner.PLACES[section].get(name, {})
        verdicts[f"{section} {name}"] = inner.verdict(section, name, place)
    counts = collections.Counter(verdicts.values())
    print(", ".join(f"{count} {came}" for came, count in counts.most_common()))
    print(*(f"{key}: {came}" for key, came in verdicts.items() if came != "acting"), sep="\n")
