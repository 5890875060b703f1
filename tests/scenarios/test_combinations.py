"""The combination matrix: every pair of axes that a framework allows runs, every pair that none allows is refused with the reason."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario, check

MOE = {"experts": 4, "top_k": 2, "ffn_hidden": 512}
MODEL = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "ffn_hidden": 2048,
    "vocab": 4096,
}
FRAMEWORKS = ("megatron-core", "torchtitan-2025", "deepspeed-zero3", "jax-gspmd")
AXES: dict[str, dict[str, Any]] = {
    "tp": {"parallelism": {"tp": 2}},
    "sp": {"parallelism": {"tp": 2, "sequence_parallel": True}},
    "pp": {"parallelism": {"pp": 2}, "schedule": "1f1b"},
    "vpp": {
        "parallelism": {"pp": 2},
        "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2},
    },
    "cp": {"parallelism": {"cp": 2}},
    "ep": {"parallelism": {"ep": 2}, "model": {"moe": MOE}},
    "zero 0": {"parallelism": {"zero": 0}},
    "zero 1": {"parallelism": {"zero": 1}},
    "zero 2": {"parallelism": {"zero": 2}},
    "zero 3": {"parallelism": {"zero": 3}},
    "shard": {"parallelism": {"shard": 2}},
    "offload optimizer": {"parallelism": {"offload": "optimizer"}},
    "offload parameters": {"parallelism": {"offload": "parameters"}},
    "nvme": {"parallelism": {"offload": "optimizer", "offload_to": "nvme"}},
    "full": {"training": {"recompute": "full"}},
    "selective": {"training": {"recompute": "selective"}},
}
ALONE = {"shard": {"zero": 3}, "offload optimizer": {"zero": 3}, "offload parameters": {"zero": 3}}
ALONE["nvme"] = {"zero": 3}
REFUSED = {
    ("tp", "ep"): "a mixture of experts needs it",
    ("zero 0", "shard"): "zero 0 shares nothing",
    ("zero 0", "offload optimizer"): "needs zero 1 or more",
    ("zero 0", "offload parameters"): "needs zero 3",
    ("zero 0", "nvme"): "needs zero 1 or more",
    ("zero 1", "offload parameters"): "needs zero 3",
    ("zero 1", "nvme"): "states on drives need zero 3",
    ("zero 2", "offload parameters"): "needs zero 3",
    ("zero 2", "nvme"): "states on drives need zero 3",
}
EXCLUSIVE = (
    {"tp", "sp"},
    {"pp", "vpp"},
    {"full", "selective"},
    {"zero 0", "zero 1", "zero 2", "zero 3"},
    {"offload optimizer", "offload parameters", "nvme"},
)
PAIRS = [
    pair
    for pair in itertools.combinations(AXES, 2)
    if not any(set(pair) <= axis for axis in EXCLUSIVE)
]


def scenario(pair: tuple[str, ...], framework: str) -> Scenario:
    """Eight or sixteen GPUs, two of everything that is asked for."""
    data: dict[str, Any] = {
        "schema": 1,
        "model": MODEL,
        "cluster": {"preset": "dgx-h100", "nodes": 2},
        "parallelism": {},
        "schedule": "1f1b",
        "training": {"global_batch": 64, "sequence_length": 1024},
        "framework": framework,
    }
    for name in pair:
        if not any(one.startswith("zero") for one in pair):
            data["parallelism"] = data["parallelism"] | ALONE.get(name, {})
        for section, values in AXES[name].items():
            given = data[section]
            data[section] = (
                given | values if isinstance(values, dict) and section != "schedule" else values
            )
    return Scenario.from_mapping(data, checked=False)


@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_a_pair_runs_under_some_framework_or_is_refused_by_all_with_the_reason(
    pair: tuple[str, str],
) -> None:
    """What is refused says why, and what runs accounts for its whole step."""
    found = {framework: check(scenario(pair, framework)) for framework in FRAMEWORKS}
    if pair in REFUSED:
        for problems in found.values():
            assert any(REFUSED[pair] in one.message for one in problems)
        return
    able = [framework for framework, problems in found.items() if not problems]
    assert able, {name: [str(one) for one in problems] for name, problems in found.items()}
    summary = mpsim.simulate(scenario(pair, able[0])).summary
    parts = math.fsum(summary["breakdown_s"].values())
    assert parts == pytest.approx(summary["step_time_s"], rel=1e-9)
    assert summary["peak_memory_bytes"] > 0


@pytest.mark.parametrize(
    ("framework", "parallelism", "reason"),
    [
        ("deepspeed-zero2", {"zero": 3}, "does not shard parameters"),
        ("megatron-2022", {"zero": 3}, "does not shard parameters"),
        ("megatron-2022", {"zero": 2}, "does not shard gradients"),
        ("megatron-core", {"zero": 3, "pp": 2}, "does not shard parameters in a pipeline"),
        ("torch-ddp", {"zero": 3}, "does not shard parameters"),
        ("horovod", {"zero": 1}, "does not shard the optimizer's state"),
    ],
)
def test_a_framework_refuses_what_it_does_not_shard(
    framework: str, parallelism: dict[str, int], reason: str
) -> None:
    """The message names the stack, what it lacks and the nearest legal value."""
    one = scenario((), framework).resolved() | {"parallelism": parallelism, "framework": framework}
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_mapping(one)
    (problem,) = caught.value.problems
    assert problem.key == "parallelism.zero"
    assert reason in problem.message
    assert "set zero to at most" in problem.message


@pytest.mark.parametrize(
    ("framework", "schedule", "reason"),
    [
        ("deepspeed", {"name": "1f1b"}, "has no pipeline"),
        ("torchtune", {"name": "1f1b"}, "has no pipeline"),
        ("deepspeed-pipeline", {"name": "interleaved-1f1b", "virtual_stages": 2}, "runs one"),
    ],
)
def test_a_pipeline_that_a_stack_does_not_run_is_refused_and_never_found(
    framework: str, schedule: dict[str, object], reason: str
) -> None:
    """ZeRO's engine runs whole models, the pipeline's one chunk a rank; the search leaves out what a run refuses."""
    base = {"parallelism": {"pp": 1, "zero": 0}, "framework": framework}
    one = scenario((), framework).resolved() | base
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_mapping(one | {"parallelism": {"pp": 2, "zero": 0}, "schedule": schedule})
    (problem,) = caught.value.problems
    assert reason in problem.message
    over = {"parallelism.tp": [1], "parallelism.zero": [0], "training.micro_batch": [1]}
    rows = mpsim.search(Scenario.from_mapping(one), over, top=100).rows
    assert {row.values["schedule.name"] for row in rows} <= {"1f1b"}
    assert ({row.values["parallelism.pp"] for row in rows} == {1}) is (
        framework != "deepspeed-pipeline"
    )


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        ("megatron-core", False),
        ("colossalai", False),
        ("torchtitan", True),
        ({"preset": "megatron-core", "whole_groups": False}, True),
    ],
)
def test_groups_that_a_stack_does_not_interleave_are_refused_and_never_found(
    stack: object, found: bool
) -> None:
    """Ten microbatches on four stages are two groups of five for PyTorch, and for Megatron-LM where it is told so."""
    training = {"global_batch": 10, "micro_batch": 1, "sequence_length": 512}
    one = {
        "schema": 1,
        "model": {"preset": "llama3-8b", "layers": 8},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "parallelism": {"tp": 2, "pp": 4},
        "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2},
        "training": training,
        "framework": stack,
    }
    if found:
        Scenario.from_mapping(one)
    else:
        with pytest.raises(ScenarioError) as caught:
            Scenario.from_mapping(one)
        (problem,) = caught.value.problems
        assert problem.key == "training.global_batch"
        assert "framework.whole_groups); set it to 8 or 12" in problem.message
        for batch in (8, 12):
            Scenario.from_mapping(one | {"training": training | {"global_batch": batch}})
    degrees = {f"parallelism.{axis}": [degree] for axis, degree in {"tp": 2, "pp": 4}.items()}
    axes = degrees | {"schedule.name": ["1f1b", "interleaved-1f1b"], "parallelism.zero": [0]}
    rows = mpsim.search(Scenario.from_mapping(one | {"schedule": "1f1b"}), axes, top=100).rows
    names = {row.values["schedule.name"] for row in rows}
    assert names - {"1f1b"} == ({"interleaved-1f1b"} if found else set())


@pytest.mark.parametrize(
    ("parallelism", "key", "mend"),
    [
        ({"zero": 3, "shard": 3}, "parallelism.shard", "set it to 2 or 4"),
        ({"zero": 0, "shard": 2}, "parallelism.shard", "set zero to 1, 2 or 3"),
        ({"zero": 2, "offload": "parameters"}, "parallelism.offload", "set zero to 3"),
        ({"zero": 0, "offload": "optimizer"}, "parallelism.offload", "set zero to 1"),
        ({"zero": 3, "offload_to": "nvme"}, "parallelism.offload_to", "set offload to"),
    ],
)
def test_what_is_shared_or_offloaded_without_sense_is_refused_with_the_mend(
    parallelism: dict[str, Any], key: str, mend: str
) -> None:
    """One problem, under its key, with legal values."""
    one = scenario((), "torchtitan-2025").resolved() | {"parallelism": parallelism}
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_mapping(one)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert mend in problem.message
