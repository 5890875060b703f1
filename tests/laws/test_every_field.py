"""No field of a preset without effect: one that a scenario writes over a framework's or an engine's changes a figure, is refused, or is told as not used."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import mpsim
from mpsim.calibrate.machine import link_entry, sheet_entry
from mpsim.errors import MpsimError
from mpsim.framework import framework
from mpsim.framework.framework import AREAS, Framework
from mpsim.hardware import system
from mpsim.scenario import Scenario
from mpsim.serving.engines import EnginePreset, engine
from mpsim.units import format_exact
from tests.laws.test_every_key import EXPERTS, USUAL, base, figures, kinds, numbers
from tests.nightly import some

PROVENANCE = ("name", "title", "source", "as_of", "status")
ONE_STAGE = {"parallelism.pp": 1}
NARROW = {"training.precision": "fp8", "framework.preset": "megatron-core"}
SHARDS = {"parallelism": {"zero": 3}, "framework.preset": "torch-fsdp2"}
OPTIMIZER = {"parallelism": {"zero": 1}}
MIXTURE = {**EXPERTS, "framework.preset": "megatron-core"}
SEQUENCES = {"parallelism.sequence_parallel": True}
CONTEXTS = {"parallelism": {"cp": 2, "tp": 2}, "framework.preset": "megatron-core"}
ON_HOST = {**ONE_STAGE, "parallelism.zero": 3, "parallelism.offload": "optimizer"}
APART = {"framework.fused_attention": False}
FULL = {"training.recompute": "full", "model.dropout": 0.0, "model.bias": False}
GROUPED = {"model.kv_heads": 4, "model.positions": "rotary"}
ALONE = {
    "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 1},
    "parallelism": {},
}
REPLICA = {"serving.replicas": 1}
SKEWED = {"model.moe.imbalance": 1.5, "parallelism": {"tp": 8, "ep": 4}}
MIXTRAL = {"model.preset": "mixtral-8x7b", "parallelism.tp": 8}
PADDED = {**MIXTRAL, "serving.weights": "fp8_block", "serving.engine": {"expert_padding": 64}}
LONG = {"serving.workload.prompt": 3000, "serving.engine": {"max_tokens": 1024}}
SESSIONS = {
    "serving.replicas": 1,
    "serving.kv_blocks": 400,
    "serving.workload.turns": 6,
    "serving.engine": {"prefix_cache": True},
}
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "framework": {
        **dict.fromkeys(("fused_softmax", "softmax_group"), APART),
        "softmax_launches": {**APART, "framework.softmax_group": 3},
        **dict.fromkeys(("merged_qkv", "repeated_keys"), GROUPED),
        **dict.fromkeys(("host_optimizer_traffic", "host_threads"), ON_HOST),
        "adapter_bytes": {"training.method": "lora"},
        "narrow_inputs": {"training.method": "qlora", **ONE_STAGE},
        "orthogonal_gather": {**OPTIMIZER, "framework.orthogonal_iterations": 5},
        "fused_rotary": {"model.positions": "rotary"},
        "consecutive_experts": {
            "model.moe": {"experts": 64, "top_k": 8, "ffn_hidden": 512},
            "cluster.nodes": 4,
            "training.global_batch": 32,
            "parallelism": {"ep": 32},
            "framework": {"preset": "megatron-core", "expert_dispatch": "fused"},
        },
        "wide_norms": {"model.norm": "rmsnorm"},
        "loss_peak_bytes": {**ONE_STAGE, "model.layers": 2},
        "loss_kept_bytes": ONE_STAGE,
        "expandable_segments": SHARDS,
        "recompute_selective": {"training.recompute": "selective"},
        **dict.fromkeys(("recompute_stops_early", "recompute_prunes"), FULL),
        "recompute_keeps_fp4": {
            "cluster.preset": "dgx-b200",
            "training.precision": "nvfp4",
            "training.recompute": "selective",
            "framework.recompute_selective": "per-op",
        },
        "narrow_chunks": {**NARROW, **SEQUENCES, "framework.tensor_overlap": "micro-pipeline"},
        "narrow_gathers": {**NARROW, **SEQUENCES},
        **dict.fromkeys(("keeps_gathered", "copies_parts"), SEQUENCES),
        **dict.fromkeys(("context_exchange", "eager_context_sums"), CONTEXTS),
        "whole_groups": {
            "framework.preset": "torchtitan",
            "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2},
            "training.global_batch": 12,
        },
        "has_chunks": {"schedule": {"name": "interleaved-1f1b", "virtual_stages": 2}},
        "overlap_warmup_flush": {
            "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2},
        },
        "stage_split": {"parallelism.layers_per_stage": "auto", "model.layers": 23},
        **dict.fromkeys(
            ("parameter_gather_overlap", "gradient_reduction", "parameter_gather"), OPTIMIZER
        ),
        "owned_tensors": {
            **OPTIMIZER,
            "model.layers": 2,
            "framework.gradient_reduction": "all-reduce",
            "framework.parameter_gather": "broadcast",
        },
        **dict.fromkeys(
            (
                *("defer_reduction", "buckets_in_flight", "gathered_bytes", "unit_layers"),
                *("units_in_flight", "prefetch_backward", "reshard_after_forward", "root_unit"),
                *("zero_limit", "gather_rank_time", "gather_copy_traffic", "frees_weights"),
                "stage_synchronizations",
            ),
            SHARDS,
        ),
        "pipeline_unsharded": {**SHARDS, "parallelism": {"zero": 3, "pp": 2}},
        "pipeline_zero_limit": {"parallelism": {"zero": 1, "pp": 2}},
        "microbatch_gradients": {**ONE_STAGE, "training.sequence_length": 64},
        **dict.fromkeys(("scale_reductions", "keeps_narrow", "narrow_activations"), NARROW),
        **dict.fromkeys(("narrow_launches", "narrow_head", "narrow_casts"), NARROW),
        "transposed_weights": {**NARROW, "framework.gathered_bytes": 1},
        "drops_gradients": {**ALONE, "training.global_batch": 1},
        "layer_synchronizations": {"framework.synchronization_cost": "1 ms"},
        **dict.fromkeys(
            (
                *("fused_grouped_mlp", "compiled_experts", "wide_routing", "weighted_activation"),
                "eager_routing",
                *("expert_dispatch", "expert_overlap", "grouped_gemm", "expert_launches"),
                *("product_launch_cost", "synchronization_cost"),
            ),
            MIXTURE,
        ),
        "expert_synchronizations": {**MIXTURE, "framework.synchronization_cost": "1 ms"},
        "expert_padding": {**MIXTURE, "training.precision": "fp8"},
        "expert_regrouping": {**MIXTURE, "framework.expert_dispatch": "fused"},
    },
    "serving.engine": {
        "expert_kernel": MIXTRAL,
        "narrow_prompts": {"serving.kv": "fp8"},
        "expert_padding": {**MIXTRAL, "serving.weights": "fp8_block"},
        **dict.fromkeys(("padded_families", "padded_below"), PADDED),
        "mixes": LONG,
        "stream_interval": {"serving.engine": {"stream_time": "1 ms"}},
        "graph_padding": {
            "serving.engine": {"graph_sizes": [64], "piecewise_graphs": False},
        },
        "chunked": LONG,
        "host_layer_time": {"serving.engine": {"graph_sizes": []}},
        "piecewise_graphs": {"serving.engine": {"graph_sizes": [1], "host_layer_time": "1 ms"}},
        **dict.fromkeys(("host_cache", "disk_cache"), SESSIONS),
        "two_batch_overlap": {
            "model.preset": "mixtral-8x7b",
            "parallelism": {"tp": 8, "ep": 8},
            "serving.attention_dp": 8,
        },
        "eplb": {"model": "mixtral-8x7b", **SKEWED},
        "redundant_experts": {
            "model": "mixtral-8x7b",
            **SKEWED,
            "serving.engine": {"eplb": True},
        },
        "window_cache": {"model": "gpt-oss-20b"},
        "prefix_cache": {"serving.replicas": 1, "serving.workload.shared_prefix": 256},
        **dict.fromkeys(("batch_wait_steps", "poll_steps"), REPLICA),
        "batch_wait_share": {"serving.replicas": 1, "serving.engine": {"batch_wait_steps": 8}},
        "attention_ranks": {
            "parallelism.tp": 4,
            "serving.attention_dp": 4,
            "serving.workload.prompt": {"kind": "lognormal", "tokens": 500, "spread": 2},
        },
    },
}
"""Changes to the scenario of a job that make a field matter."""
GROUNDS: dict[str, dict[str, Any]] = {
    "framework": {
        "stages": {},
        "replicas": {"parallelism": {}},
        "optimizer": {**OPTIMIZER, **SEQUENCES},
        "gradients": {
            "parallelism": {"zero": 2},
            "framework.preset": "torch-fsdp2",
            "training.recompute": "full",
        },
        "parameters": SHARDS,
        "experts": MIXTURE,
        "narrow": {**NARROW, "parallelism": {"zero": 1}, "training.recompute": "selective"},
        "contexts": CONTEXTS,
        "unfused": {**APART, **GROUPED, "model.norm": "rmsnorm"},
    },
    "serving.engine": {"requests": {}, "replica": {"serving.replicas": 1}},
}
"""Scenarios in which no field is told that acts, and none acts that is told."""
VALUES: dict[str, list[object]] = {
    "padded_families": [["blackwell"]],
    "loss_peak_bytes": [60.0],
    "narrow_inputs": [2],
    "step_scratch": [4000.0],
    "paged_bytes": [4000.0],
    "tensor_scratch": [40000.0],
}
"""Values of fields whose kind says too little."""


def fields(section: str) -> dict[str, Any]:
    """Annotation of every field that a scenario may write over a preset's."""
    owners = [EnginePreset]
    if section == "framework":
        hints = typing.get_type_hints(Framework)
        owners = [hints[area] for area in AREAS]
    return {
        name: annotation
        for owner in owners
        for name, annotation in typing.get_type_hints(owner, include_extras=True).items()
        if name not in PROVENANCE
    }


def others(annotation: Any, now: object) -> Iterator[object]:
    """Other values of a field, as a scenario writes them."""
    for kind, metadata in kinds(annotation, []):
        dimension = next((m.dimension for m in metadata if hasattr(m, "dimension")), None)
        if typing.get_origin(kind) is tuple:
            yield from ([1, 2, 4], [64])
        elif typing.get_origin(kind) is typing.Literal:
            yield from typing.get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            yield from (member.value for member in kind)
        elif kind is bool:
            yield not now
        elif dimension is not None:
            usual = USUAL[dimension]
            for at in (now * 2 or usual, now / 2 or usual / 10, usual * 10):
                yield format_exact(at, dimension)
        else:
            yield from numbers(kind, now, metadata)


def verdict(section: str, field: str, changes: dict[str, Any]) -> str:
    """What comes of a field in a scenario: ``acting`` if any value acts, else the worst of what came."""
    job = "training" if section == "framework" else "serving"
    start = base(job, json.dumps(changes))
    preset = start.data.get("framework", {}).get("preset", "megatron-lm")
    now = (
        framework(preset).fields()[field]
        if section == "framework"
        else dataclasses.asdict(engine("vllm-async"))[field]
    )
    found = set()
    for value in VALUES.get(field) or others(fields(section)[field], now):
        data = copy.deepcopy(start.data)
        place = data
        for part in section.split("."):
            place = place.setdefault(part, {})
        place[field] = value
        if value == now or value == getattr(now, "value", now):
            continue
        try:
            after = figures(Scenario.from_mapping(data))
        except MpsimError as error:
            known = field in str(error) or section.partition(".")[0] in str(error)
            found.add("refused" if known else "refused without its name")
            continue
        told = [text.split(": ")[1] for text in after.warnings if text.startswith("not used: ")]
        named = any(f"{section}.{field}" in keys for keys in told)
        acts = after.figures != start.figures
        found.add(
            {
                (True, False): "acting",
                (True, True): "told, but acting",
                (False, True): "told",
                (False, False): "dead",
            }[acts, named]
        )
        if acts:
            break
    order = ("told, but acting", "acting", "refused", "told", "refused without its name", "dead")
    return next((each for each in order if each in found), "untried")


CASES = [(section, name) for section in PLACES for name in fields(section)]


@pytest.mark.parametrize(
    ("section", "field"), some(CASES, 60), ids=["-".join(case) for case in CASES]
)
def test_every_field_acts_or_is_refused_where_it_matters(section: str, field: str) -> None:
    """A field that is moved in its place changes a figure, or is refused by its name or its section."""
    assert verdict(section, field, PLACES[section].get(field, {})) in ("acting", "refused")


@pytest.mark.parametrize(
    ("section", "ground", "field"),
    some([(s, ground, name) for s, name in CASES for ground in GROUNDS[s]], 60),
)
def test_a_field_that_is_told_does_not_act(section: str, ground: str, field: str) -> None:
    """Whatever the scenario is, a warning names no field that changes a figure."""
    assert verdict(section, field, GROUNDS[section][ground]) != "told, but acting"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("expert_padding", True, "the model has no experts"),
        ("context_exchange", "ulysses", "parallelism.cp divides no sequences"),
        ("unit_layers", 4, "parallelism.zero shards no parameters"),
        ("narrow_launches", 9.0, "training.precision is not narrow"),
    ],
)
def test_a_field_of_what_the_scenario_has_not_is_told(key: str, value: object, reason: str) -> None:
    """Experts, contexts, sharded parameters and narrow formats that are not there."""
    start = base("training", "{}").data
    changed = {**start, "framework": {"preset": "megatron-core", key: value}}
    warnings = figures(Scenario.from_mapping(changed)).warnings
    assert f"not used: framework.{key}: {reason}" in warnings


def machine() -> dict[str, Any]:
    """Two nodes of eight H100 as a machine file has them."""
    node, day = system("dgx-h100", nodes=2).node, "2026-11-21"
    return {
        "schema": 1,
        "machine": "mine",
        "source": "a test",
        "as_of": day,
        "accelerator": sheet_entry(node.accelerator),
        "scale_up": link_entry(node.scale_up, None, day),
        "accelerators_per_node": 8,
        "nodes": 2,
        "nics_per_node": 8,
        "nic": link_entry(node.nic, None, day),
        "fabric": "rail-optimized",
    }


def on_machine(job: str, cluster: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Figures of a training step, or of a service across both nodes, on a machine file."""
    file = folder / "machine.yaml"
    file.write_text(yaml.safe_dump(cluster))
    jobs: dict[str, dict[str, Any]] = {
        "training": {
            "model": "gpt2-medium",
            "parallelism": {"tp": 8},
            "training": {"global_batch": 16, "sequence_length": 1024},
        },
        "serving": {
            "model": "llama3-8b",
            "parallelism": {"tp": 16},
            "serving": {"workload": {"rate": 5, "requests": 4}},
        },
    }
    return figures(Scenario.from_mapping({"schema": 1, **jobs[job], "cluster": str(file)})).figures


@pytest.mark.parametrize("job", ["training", "serving"])
@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("scale_up", "latency", "20 us"),
        ("scale_up", "switch_latency", "10 us"),
        ("scale_up", "efficiency", 0.3),
        ("scale_up", "bandwidth", "50 GB/s"),
        ("nic", "latency", "50 us"),
        ("nic", "switch_latency", "30 us"),
        ("nic", "efficiency", 0.3),
        ("nic", "bandwidth", "10 Gb/s"),
    ],
)
def test_links_of_a_machine_file_act(
    job: str, part: str, key: str, value: object, tmp_path: Path
) -> None:
    """Latency, efficiency and rate of links that only a machine file names, and latencies of their switches."""
    plain = machine()
    moved = {**plain, part: {**plain[part], key: value}}
    assert on_machine(job, plain, tmp_path) != on_machine(job, moved, tmp_path)


def test_links_of_a_machine_file_shift_as_those_of_a_scenario(tmp_path: Path) -> None:
    """20 us more latency of NVLink costs the step the same in either file."""
    plain = machine()
    moved = {**plain, "scale_up": {**plain["scale_up"], "latency": "20.6 us"}}
    here, there = (on_machine("training", each, tmp_path)["step_time_s"] for each in (plain, moved))
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(plain))
    written = {"preset": str(file), "scale_up": {"preset": "nvlink4", "latency": "20.6 us"}}
    usual = {"preset": str(file), "scale_up": {"preset": "nvlink4"}}
    data = {"schema": 1, "model": "gpt2-medium", "parallelism": {"tp": 8}}
    data["training"] = {"global_batch": 16, "sequence_length": 1024}
    steps = [
        mpsim.simulate(Scenario.from_mapping({**data, "cluster": each})).summary["step_time_s"]
        for each in (usual, written)
    ]
    assert there - here == pytest.approx(steps[1] - steps[0], rel=1e-6)
