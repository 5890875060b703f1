"""Configurations of torchtitan and DeepSpeed."""

from __future__ import annotations

import json

import pytest

from mpsim import Scenario, simulate
from mpsim.errors import FormatError
from mpsim.formats import registry as formats


@pytest.fixture
def given(tmp_path):
    """A text read as a file of a format."""

    def read(name, text, **options):
        path = tmp_path / f"config.{'json' if text.lstrip().startswith('{') else 'txt'}"
        path.write_text(text)
        return formats.read(path, format=name, **options)

    return read


TITAN_2024 = """
[model]
name = "llama3"
flavor = "70B"
[training]
batch_size = 8
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 8
compile = false
[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1f1b"
[activation_checkpoint]
mode = "full"
"""
TITAN_2026 = {
    "model": {"name": "llama3", "flavor": "405B"},
    "training": {"num_tokens_per_microbatch_per_dp_rank": 16384, "max_context_length": 8192, "num_tokens_per_train_step": -1},
    "parallelism": {
        "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 8, "tensor_parallel_degree": 8, "context_parallel_degree": 2,
        "fsdp_reshard_after_forward": "never",
    },
    "compile": {"enable": True},
}  # fmt: skip


def test_torchtitan_of_2024(given):
    """Degrees stand under training and experimental, and microbatches are counted."""
    scenario = given("torchtitan", TITAN_2024, ranks=256, cluster="dgx-h100").scenario
    assert scenario["training"]["micro_batch"] == 2
    assert scenario["training"]["global_batch"] == 8 * 8
    assert scenario["parallelism"]["tp"] == 8
    assert scenario["framework"]["compile"] is False


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"enable": True}, {}),
        ({"enable": True, "components": ["model", "loss"]}, {}),
        ({"enable": True, "components": ["model"]}, {"loss": "eager"}),
        ({"enable": False}, {"compile": False}),
    ],
)
def test_torchtitan_compiles_what_its_table_names(given, table, words):
    """A compiled loss is the preset's, one that is not named is eager; without torch.compile the word is that of a scenario."""
    text = json.dumps({**TITAN_2026, "compile": table})
    framework = given("torchtitan", text, cluster="dgx-h100").scenario["framework"]
    assert {key: framework[key] for key in ("compile", "loss") if key in framework} == words


def test_torchtitan_of_2026(given):
    """Batches are in tokens, the degrees say how many accelerators there are."""
    scenario = given("torchtitan", json.dumps(TITAN_2026), cluster="dgx-h100").scenario
    assert scenario["cluster"]["nodes"] == 32
    assert scenario["training"] == {
        "sequence_length": 8192,
        "micro_batch": 2,
        "global_batch": 32,
        "precision": "bf16",
        "recompute": "per-op",
    }
    assert (scenario["parallelism"]["zero"], scenario["parallelism"]["shard"]) == (3, 16)


def test_torchtitan_that_never_reshards_still_owns_a_share(given):
    """What stays gathered is a bf16 copy, 2 bytes a parameter; the fp32 weights are still shared."""
    peaks = {}
    for word in ("never", "always"):
        words = {
            "model": {"name": "llama3", "flavor": "8B"},
            "training": {"local_batch_size": 1, "seq_len": 2048},
            "parallelism": {"data_parallel_shard_degree": 8, "fsdp_reshard_after_forward": word},
        }
        read = given("torchtitan", json.dumps(words), cluster="dgx-h100").scenario
        peaks[word] = simulate(Scenario.from_mapping({"schema": 1, **read})).summary[
            "peak_memory_bytes"
        ]
    assert 1.5 < (peaks["never"] - peaks["always"]) / 8.03e9 < 2.0


TITAN_2025 = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
global_batch_size = 64
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_microbatch_size = 2
pipeline_parallel_schedule = "1f1b"
"""


@pytest.mark.parametrize(("total", "schedules"), [(64, 1), (192, 3)])
def test_torchtitan_accumulates_over_whole_schedules(total, schedules, given):
    """Accumulated gradients are several flushes of a pipeline."""
    text = TITAN_2025.replace("global_batch_size = 64", f"global_batch_size = {total}")
    read = given("torchtitan", text, ranks=256, cluster="dgx-h100")
    assert read.scenario["training"]["global_batch"] == total
    assert read.scenario["schedule"].get("flushes", 1) == schedules


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("1f1b", "MySchedule", "MySchedule"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 7", "do not divide"),
        ('mode = "full"', 'mode = "some"', "needed none, selective or full"),
        ('mode = "full"', 'selective_ac_option = "some"', "needed none, selective or full"),
        ("batch_size = 8", 'batch_size = "x"', "whole number"),
        ("[model]", "[model", "not TOML"),
    ],
)
def test_torchtitan_refuses_by_name(old, new, word, given):
    """Names, sizes and syntax."""
    with pytest.raises(FormatError, match=word):
        given("torchtitan", TITAN_2024.replace(old, new), ranks=256)


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, "training.micro_batch", 2),
        (
            {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            "training.global_batch",
            128,
        ),
        ({"train_batch_size": 16, "zero_optimization": True}, "parallelism.zero", 1),
        (
            {"train_batch_size": 16, "zero_optimization": {"stage": 2, "cpu_offload": True}},
            "parallelism.offload",
            "optimizer",
        ),
        (
            {
                "train_batch_size": 16,
                "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}},
            },
            "parallelism.offload_to",
            "nvme",
        ),
        (
            {"train_batch_size": 16, "zero_optimization": {"stage": 3, "overlap_comm": False}},
            "framework.gradient_overlap",
            "never",
        ),
        (
            {
                "train_batch_size": 16,
                "zero_optimization": {
                    "stage": 3,
                    "offload_optimizer": {"device": "cpu", "ratio": 0.3},
                },
            },
            "parallelism.offload_fraction",
            0.3,
        ),
        ({"train_batch_size": 16, "fp16": {"enabled": "true"}}, "training.precision", "fp16"),
        (
            {"train_micro_batch_size_per_gpu": 2, "sequence_parallel_size": 4},
            "training.global_batch",
            8,
        ),
        ({"train_batch_size": 16, "sequence_parallel_size": 4}, "parallelism.cp", 4),
    ],
)
def test_what_a_ds_config_becomes(config, key, value, given):
    """The identity of batches over 16 ranks, old and new keys of ZeRO."""
    scenario = given("deepspeed", json.dumps(config), ranks=16).scenario
    for part in key.split("."):
        scenario = scenario[part]
    assert scenario == value


@pytest.mark.parametrize(
    ("section", "keys", "told"),
    [
        ("bf16", {"enabled": True, "bf16_optimizer_states": True}, "bf16.bf16_optimizer_states"),
        ("data_types", {"grad_accum_dtype": "bf16"}, "data_types.grad_accum_dtype"),
        ("optimizer", {"type": "Lion", "params": {"lr": 1e-4}}, "optimizer.type"),
        ("optimizer", {"type": "AdamW", "params": {"lr": 1e-4}}, ""),
        ("zero_optimization", {"stage": 3, "stage3_max_live_parameters": 1e9}, ""),
        ("next_year", {"faster": True}, "next_year.faster"),
    ],
)
def test_a_key_that_nobody_judged_idle_is_told(section, keys, told, given):
    """What moves memory or time, and is not simulated, does not pass in silence."""
    read = given("deepspeed", json.dumps({"train_batch_size": 16, section: keys}), ranks=16)
    assert [line.rpartition(": ")[2] for line in read.warnings] == ([told] if told else [])


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("training", "dtype", "bfloat16", "training.dtype"),
        ("optimizer", "name", "Muon", "optimizer.name"),
        ("optimizer", "lr", 0.1, ""),
        ("debug", "deterministic", True, "debug.deterministic"),
    ],
)
def test_a_key_of_torchtitan_that_nobody_judged_idle_is_told(section, key, value, told, given):
    """Parameters in bf16 take half the memory, so that they are ignored is said."""
    text = json.dumps({**TITAN_2026, section: {**TITAN_2026.get(section, {}), key: value}})
    read = given("torchtitan", text, cluster="dgx-h100")
    assert [line.rpartition(": ")[2] for line in read.warnings] == ([told] if told else [])


def test_auto_is_asked_for(given):
    """The trainer would fill it in; the file does not say."""
    read = given(
        "deepspeed",
        '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}',
    )
    assert {"training.global_batch", "training.precision"} <= set(read.missing)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (
            {
                "train_batch_size": 60,
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 2,
            },
            "is not micro-batch 2",
        ),
        (
            {"train_batch_size": 16, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
            "contradict",
        ),
        ({"train_batch_size": 16, "zero_optimization": {"stage": 4}}, "needed 0 to 3"),
        (
            {
                "train_batch_size": 16,
                "zero_optimization": {"stage": 3, "offload_param": {"device": "moon"}},
            },
            "needed none, cpu or nvme",
        ),
    ],
)
def test_a_ds_config_is_refused_by_name(config, word, given):
    """What contradicts itself is not guessed at."""
    with pytest.raises(FormatError, match=word):
        given("deepspeed", json.dumps(config), ranks=16)
