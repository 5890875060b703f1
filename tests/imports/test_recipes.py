"""Launch scripts that start a recipe by its name."""

from __future__ import annotations

import pytest

from mpsim.errors import FormatError
from mpsim.formats.words import table
from mpsim.importers import read
from mpsim.scenario import Scenario

NEMO = """#!/bin/bash
export HF_TOKEN=hf_secret
CP=1
nemo llm pretrain --factory "llama3_70b(num_nodes=8, name='mine')" trainer.strategy.context_parallel_size=$CP data.global_batch_size=256 log.log_dir=/home/me -y
"""
BRIDGE = """torchrun --nproc_per_node=8 --nnodes=4 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config \\
  model.tensor_model_parallel_size=2 model.sequence_parallel=true train.global_batch_size=128 mixed_precision=bf16_with_fp8_current_scaling_mixed
"""


@pytest.fixture
def given(tmp_path):
    """A text read as a launch script."""

    def read_(text):
        path = tmp_path / "launch.sh"
        path.write_text(text)
        return read(path, cluster="dgx-h100")

    return read_


def test_a_recipe_of_nemo_with_changes(given):
    """Arguments of the factory and dotted keys win over the recipe; nothing of the environment is kept."""
    imported = given(NEMO)
    scenario = imported.scenario
    assert scenario["model"] == {"preset": "llama3-70b"}
    assert scenario["cluster"]["nodes"] == 8
    assert scenario["parallelism"] == {"tp": 4, "pp": 4, "cp": 1, "sequence_parallel": True, "zero": 1}  # fmt: skip
    assert scenario["schedule"] == {"name": "interleaved-1f1b", "virtual_stages": 5}
    assert (scenario["training"]["global_batch"], scenario["framework"]["preset"]) == (256, "nemo-2")  # fmt: skip
    assert "hf_secret" not in str(imported)
    assert "/home/me" not in str(imported)


def test_a_recipe_of_megatron_bridge_under_torchrun(given):
    """Nodes of the launcher, a precision by the name of its recipe."""
    imported = given(BRIDGE)
    assert imported.scenario["cluster"]["nodes"] == 4
    assert imported.lines["cluster.nodes"] == "launch.sh:1 torchrun --nnodes"
    assert imported.scenario["training"]["precision"] == "fp8"
    assert imported.scenario["parallelism"]["tp"] == 2
    assert imported.missing == ()


@pytest.mark.parametrize(
    "name",
    ["llama3_70b_pretrain_config", "llama3_70b_pretrain_32gpu_h100_bf16_config", "llama3_70b"],
)
def test_spellings_of_a_recipe(name, given):
    """Megatron-Bridge renamed its recipes twice."""
    text = BRIDGE.replace("llama3_8b_pretrain_config", name).replace("=128", "=512")
    assert given(text).scenario["model"]["preset"] == "llama3-70b"


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("llama3_70b(", "llama9_70b(", "recipe .llama9_70b"),
        ("llama3_70b(num_nodes=8, name='mine')", "$RECIPE", r"the recipe needs \$RECIPE"),
        ("CP=1\n", "", r"context_parallel_size needs \$CP"),
        ("context_parallel_size=$CP", "tensor_model_parallel_size=3", "do not divide"),
        ("nemo llm", "nemo llm pretrain --factory llama3_8b\nnemo llm", "2 commands start a recipe"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(old, new, word, given):
    """Unknown recipes, words that the script does not say, degrees that do not divide."""
    with pytest.raises(FormatError, match=word):
        given(NEMO.replace(old, new))


@pytest.mark.parametrize("kind", ["nemo", "megatron-bridge"])
def test_every_recipe_is_a_scenario(kind, given):
    """Models, degrees and batches of the table go together on the nodes that they need."""
    for name, recipe in table("mpsim.formats.data", "recipes")[kind].items():
        nodes = recipe.get("nodes", 64)
        command = f"nemo llm pretrain --factory '{name}(num_nodes={nodes})'\n"
        if kind == "megatron-bridge":
            command = f"srun -N {nodes} --ntasks-per-node 8 python run_recipe.py --recipe {name}_pretrain_config\n"
        imported = given(command)
        assert not imported.missing, name
        Scenario.from_mapping({"schema": 1, **imported.scenario})
