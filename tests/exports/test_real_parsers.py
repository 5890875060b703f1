"""Emitted configurations in the hands of the programs that they are for: torchtitan's and DeepSpeed's configuration classes, Megatron's.

Each needs a package that mpsim does not depend on and is skipped without it; ``ci/optional parsers`` installs them. Megatron's argument parser is in no published package: it is
taken from clones of Megatron-LM, in the folder that MEGATRON_LM names, one for each tag.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpsim.formats import export
from mpsim.scenario import Scenario
from mpsim.simulate import prepare

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages
REQUIRED = os.environ.get("MPSIM_REQUIRE_PARSERS") == "1"
SMALL = {
    "schema": 1,
    "model": "llama3-8b",
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
    "training": {"global_batch": 64, "sequence_length": 4096},
}
ALONE = {"tp": 1, "pp": 1, "sequence_parallel": False}
TITAN = [
    {"framework": "torchtitan-2025-12", "parallelism.zero": 3},
    {
        "framework": "torchtitan-2025-12",
        "parallelism.zero": 3,
        "schedule": {"name": "interleaved-1f1b", "virtual_stages": 4},
        "training.micro_batch": 2,
        "training.recompute": "full",
    },
    {
        "framework": "torchtitan-2025-12",
        "model": "llama3-70b",
        "parallelism": {"tp": 2, "cp": 2, "zero": 3, "shard": 2, "sequence_parallel": True},
    },
]
DEEPSPEED = [
    {"framework": "deepspeed-zero1", "parallelism": {"zero": 1}},
    {
        "framework": {"preset": "deepspeed-zero3", "bucket_bytes": "200 MB"},
        "parallelism": {**ALONE, "zero": 3, "offload": "parameters", "offload_to": "nvme"},
    },
    {
        "framework": {"preset": "deepspeed-zero2", "gradient_overlap": "always"},
        "parallelism": {**ALONE, "zero": 2, "tp": 2},
        "training.precision": "fp16",
        "training.micro_batch": 4,
    },
]
MEGATRON = [
    {"framework": "megatron-core"},
    {
        "framework": "megatron-core",
        "schedule": {"name": "interleaved-1f1b", "virtual_stages": 4},
        "training.recompute": "full",
    },
    {"framework": "megatron-core-2025", "parallelism": {"tp": 8, "zero": 1}, "training.precision": "fp8"},
    {
        "framework": "megatron-core-2025",
        "model": "mixtral-8x7b",
        "parallelism": {"tp": 2, "ep": 4, "pp": 1, "etp": 1, "zero": 1, "sequence_parallel": True},
        "training.recompute": "selective",
    },
]  # fmt: skip
PARSE = """
import types
import torch
# it asks what the GPU can do; there is none here, so the scenario's answers
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
from megatron.training import arguments
args = arguments.parse_args()
arguments.validate_args(args)
print("PARSED", {name: value for name, value in vars(args).items() if isinstance(value, (int, float, bool, str, type(None)))})
"""


def needed(package):
    """The package, imported; a skip where it is not installed, a failure where it has to be."""
    if importlib.util.find_spec(package) is None:
        if REQUIRED:
            pytest.fail(f"{package} is not installed")
        pytest.skip(f"{package} is not installed; ci/optional parsers installs it")


def scenario_of(change):
    """The small scenario with a change."""
    return Scenario.from_mapping(SMALL).with_values(change)


def numbers(scenario):
    """Degrees and batches of a scenario."""
    return prepare(scenario).plan.layout.mesh, scenario.training_step


@pytest.mark.parametrize("change", TITAN)
def test_torchtitan_reads_its_configuration(change, tmp_path):
    """ConfigManager, which refuses a key or a flavor that it does not know, gives the degrees, batches and schedule of the scenario."""
    needed("torchtitan")
    from torchtitan.config import ConfigManager

    scenario = scenario_of(change)
    mesh, step = numbers(scenario)
    path = tmp_path / "run.toml"
    path.write_text(export(scenario, "torchtitan").text)
    read = ConfigManager().parse_args(["--job.config_file", str(path)])
    degrees, training = read.parallelism, read.training
    assert degrees.tensor_parallel_degree == mesh.tp
    assert degrees.pipeline_parallel_degree == mesh.pp
    assert degrees.context_parallel_degree == mesh.cp
    replicas = degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree
    assert replicas == mesh.dp
    assert training.seq_len == step.sequence_length
    assert training.global_batch_size == step.global_batch
    assert training.local_batch_size * mesh.dp == step.global_batch or mesh.pp == 1
    assert read.activation_checkpoint.mode == str(step.recompute)
    names = {"1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B"}
    if mesh.pp > 1:
        assert degrees.pipeline_parallel_schedule == names[scenario.schedule.name]
        assert degrees.pipeline_parallel_microbatch_size == step.micro_batch


@pytest.mark.parametrize("change", DEEPSPEED)
def test_deepspeed_reads_its_configuration(change, monkeypatch):
    """DeepSpeedConfig, which checks that batches multiply, gives the stage, batches and offloading of the scenario."""
    needed("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config

    scenario = scenario_of(change)
    mesh, step = numbers(scenario)

    class Ranks:
        """What a program tells DeepSpeed of its ranks."""

        def get_data_parallel_world_size(self):
            return mesh.dp

    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    read = config.DeepSpeedConfig(json.loads(export(scenario, "deepspeed").text), mpu=Ranks())
    assert read.world_size == mesh.dp
    assert read.train_batch_size == step.global_batch
    assert read.train_micro_batch_size_per_gpu == step.micro_batch
    assert read.zero_optimization_stage == change["parallelism"]["zero"]
    precision = change.get("training.precision", "bf16")
    assert (read.bfloat16_config.enabled, read.float16_config.enabled) == (
        precision == "bf16",
        precision == "fp16",
    )
    offloaded = read.zero_config.offload_param
    assert (offloaded is not None) == ("offload" in change["parallelism"])


def script_of(change, folder):
    """The flags of an emitted launch script, as its shell expands them, and the tag of Megatron-LM that it names."""
    text = export(scenario_of(change), "megatron").text
    tag = re.search(r"Megatron-LM (\S+)", text)[1]
    script = folder / "train.sh"
    script.write_text(
        re.sub(
            r'^"\$\{LAUNCH\[@\]\}" pretrain_gpt.py', "printf '%s\\\\n'", text, flags=re.MULTILINE
        )
    )
    nodes = {**os.environ, "NODE_RANK": "0", "MASTER_ADDR": "localhost"}
    told = subprocess.run(["bash", script], env=nodes, capture_output=True, text=True, check=True)
    return told.stdout.splitlines(), tag


@pytest.mark.parametrize("change", MEGATRON)
def test_megatron_core_takes_the_flags_as_fields(change, tmp_path):
    """Flags that are fields of Megatron-Core's configuration classes, which check degrees, recomputation and experts against each other, build them."""
    needed("megatron.core" if importlib.util.find_spec("megatron") else "megatron")
    import torch
    from megatron.core.transformer import TransformerConfig

    flags, _ = script_of(change, tmp_path)
    fields = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    values = {}
    for place, flag in enumerate(flags):
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in fields:
            continue
        following = flags[place + 1] if place + 1 < len(flags) else "--"
        values[name] = True if following.startswith("--") else _literal(following)
    mesh, _ = numbers(scenario_of(change))
    # as core_transformer_config_from_args of megatron/training/arguments.py names them
    if "--num-experts" in flags:
        values["num_moe_experts"] = int(flags[flags.index("--num-experts") + 1])
    read = TransformerConfig(**values, pipeline_dtype=torch.bfloat16)
    assert read.tensor_model_parallel_size == mesh.tp
    assert read.pipeline_model_parallel_size == mesh.pp
    assert read.num_layers == scenario_of(change).transformer.layers


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@pytest.mark.parametrize("change", MEGATRON)
def test_megatron_parses_the_launch_script(change, tmp_path):
    """parse_args and validate_args of the tag that the script names give degrees, batches and layers of the scenario."""
    clones = Path(os.environ.get("MEGATRON_LM", "nowhere"))
    flags, tag = script_of(change, tmp_path)
    if not (clones / tag / "megatron" / "training").is_dir():
        pytest.skip(f"no clone of Megatron-LM {tag} in $MEGATRON_LM; ci/optional parsers makes one")
    scenario = scenario_of(change)
    mesh, step = numbers(scenario)
    ranks = {"WORLD_SIZE": str(mesh.world), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    parsed = subprocess.run(
        [sys.executable, "-c", PARSE, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, **ranks, "PYTHONPATH": str(clones / tag)},
    )
    assert parsed.returncode == 0, parsed.stderr[-2000:]
    line = next(line for line in parsed.stdout.splitlines() if line.startswith("PARSED"))
    read = ast.literal_eval(line.removeprefix("PARSED "))
    assert read["tensor_model_parallel_size"] == mesh.tp
    assert read["pipeline_model_parallel_size"] == mesh.pp
    assert read["data_parallel_size"] == mesh.dp
    assert read["global_batch_size"] == step.global_batch
    assert read["micro_batch_size"] == step.micro_batch
    assert read["num_layers"] == scenario.transformer.layers
    assert read["ffn_hidden_size"] == scenario.transformer.ffn_hidden
