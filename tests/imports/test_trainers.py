"""Configurations of torchtitan, DeepSpeed and Accelerate."""

from __future__ import annotations

import json

import pytest

from mpsim.errors import FormatError
from mpsim.importers import formats


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
    assert scenario["framework"]["layer_launches_forward"] == 45


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
    assert (scenario["parallelism"]["zero"], scenario["parallelism"]["shard"]) == (2, 16)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("1f1b", "MySchedule", "MySchedule"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 7", "do not divide"),
        ('mode = "full"', 'mode = "some"', "needed none, selective or full"),
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
        ({"train_batch_size": 16, "fp16": {"enabled": "true"}}, "training.precision", "fp16"),
    ],
)
def test_what_a_ds_config_becomes(config, key, value, given):
    """The identity of batches over 16 ranks, old and new keys of ZeRO."""
    scenario = given("deepspeed", json.dumps(config), ranks=16).scenario
    for part in key.split("."):
        scenario = scenario[part]
    assert scenario == value


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


FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: {strategy}
  fsdp_offload_params: 'true'
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


@pytest.mark.parametrize(
    ("strategy", "zero", "shard"),
    [
        ("FULL_SHARD", 3, None),
        ("1", 3, None),
        ("2", 2, None),
        ("NO_SHARD", 0, None),
        ("HYBRID_SHARD", 3, 8),
        ("4", 3, 8),
    ],
)
def test_strategies_of_fsdp(strategy, zero, shard, given):
    """By name and by the numbers of older files; a hybrid one shards inside a node."""
    mesh = given("accelerate", FSDP.format(strategy=strategy)).scenario["parallelism"]
    assert (mesh["zero"], mesh.get("shard"), mesh["offload"]) == (zero, shard, "parameters")


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("FSDP", "TPU", "TPU"),
        ("num_processes: 16", "num_processes: 15", "do not divide"),
        ("bf16", "fp7", "fp7"),
        ("FULL_SHARD", "HALF_SHARD", "HALF_SHARD"),
    ],
)
def test_accelerate_refuses_by_name(old, new, word, given):
    """Devices and strategies that are not simulated."""
    with pytest.raises(FormatError, match=word):
        given("accelerate", FSDP.format(strategy="FULL_SHARD").replace(old, new))


def test_deepspeeds_own_file_is_asked_for(given):
    """It is not opened: the user imports it too."""
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: /home/me/ds.json\nnum_processes: 8\nnum_machines: 1\n"
    read = given("accelerate", text)
    assert "--onto" in read.warnings[0]
    assert "/home/me" not in str(read)


MAXTEXT = """base_emb_dim: 4096
base_num_decoder_layers: 32
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
decoder_block: mixtral
num_experts: 8
num_experts_per_tok: 2
ici_fsdp_parallelism: 4
ici_expert_parallelism: 2
dcn_data_parallelism: -1
per_device_batch_size: 2
gradient_accumulation_steps: 4
max_target_length: 4096
hardware: gpu
dataset_path: /home/somebody/data
"""


def test_a_configuration_of_maxtext_is_read(tmp_path):
    """Sizes, axes inside slices and across, one of which is what is left, and batches of one device."""
    path = tmp_path / "a.yaml"
    path.write_text(MAXTEXT)
    read = formats.read(path, ranks=32, cluster="dgx-h100")
    scenario = read.scenario
    assert read.format == "maxtext"
    assert scenario["parallelism"] == {"tp": 1, "pp": 1, "ep": 2, "zero": 3, "shard": 8}
    assert scenario["training"]["global_batch"] == 2 * 32 * 4
    assert scenario["training"]["micro_batch"] == 2
    assert scenario["training"]["recompute"] == "full"
    assert scenario["model"]["moe"] == {"experts": 8, "top_k": 2}
    assert scenario["framework"]["preset"] == "maxtext-gpu"
    assert read.missing == ()
    assert "/home/somebody" not in str(read)


def test_a_model_of_maxtext_by_name(tmp_path):
    """A name is a preset, an unknown one is refused, and policies that keep tensors are a warning."""
    path = tmp_path / "a.yaml"
    text = "model_name: llama3.1-405b\nici_tensor_parallelism: 8\nmax_target_length: 8192\nremat_policy: save_qkv_proj\n"
    path.write_text(text)
    read = formats.read(path)
    assert read.scenario["model"] == {"preset": "llama3-405b"}
    assert "save_qkv_proj" in read.warnings[0]
    assert "cluster.nodes" in read.missing
    path.write_text(text.replace("llama3.1-405b", "llama9"))
    with pytest.raises(FormatError, match="llama9"):
        formats.read(path)
