"""YAML of Megatron-LM, Megatron-Bridge and NeMo."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsim.errors import FormatError
from mpsim.formats import registry as formats

SAMPLES = Path(__file__).parent / "samples" / "yaml"


def test_a_bridge_configuration_is_read():
    """Blocks, a recipe of precisions by name, and class paths that stay text."""
    read = formats.read(SAMPLES / "bridge.yaml", ranks=64, cluster="dgx-b200")
    scenario = read.scenario
    assert scenario["parallelism"] == {
        "tp": 2,
        "pp": 4,
        "cp": 2,
        "sequence_parallel": True,
        "zero": 1,
    }
    assert scenario["schedule"] == {"name": "interleaved-1f1b", "virtual_stages": 4}
    assert (scenario["training"]["precision"], scenario["training"]["sequence_length"]) == (
        "mxfp8",
        8192,
    )
    assert scenario["framework"]["preset"] == "megatron-bridge"
    assert scenario["cluster"]["nodes"] == 8
    assert "model._target_" in read.ignored


def test_a_nemo_configuration_is_read():
    """The trainer has the machine, references are filled in."""
    read = formats.read(SAMPLES / "nemo.yaml", cluster="dgx-h100")
    assert read.scenario["cluster"] == {
        "nodes": 4,
        "accelerators_per_node": 8,
        "preset": "dgx-h100",
    }
    assert read.scenario["model"]["max_positions"] == 2048
    assert read.scenario["training"]["recompute_layers"] == 2
    assert read.missing == ("model.vocab",)


def test_a_file_for_yaml_cfg_is_read():
    """Two blocks and flat keys."""
    read = formats.read(SAMPLES / "megatron.yaml", cluster="dgx-h100", ranks=16)
    assert read.scenario["model"]["kv_heads"] == 4
    assert read.scenario["training"]["global_batch"] == 64
    assert read.missing == ()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("mixed_precision: bf16_with_mxfp8_mixed", "mixed_precision: my_recipe", "my_recipe"),
        ("num_layers: 32", "num_layers: ${oc.env:LAYERS}", "resolver"),
        ("num_layers: 32", "num_layers: !!python/object:os.system 32", "tag"),
        ("pipeline_model_parallel_size: 4", "pipeline_model_parallel_size: 5", "do not divide"),
        ("model:\n", "model:\n  is_hybrid_model: true\n", "state-space"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(old, new, word, tmp_path):
    """Unknown recipes, resolvers, tags and sizes that do not divide."""
    path = tmp_path / "bridge.yaml"
    path.write_text((SAMPLES / "bridge.yaml").read_text().replace(old, new))
    with pytest.raises(FormatError, match=word):
        formats.read(path)


@pytest.mark.parametrize(
    ("lines", "precision"),
    [
        ("fp8: False\n  fp8_hybrid: True", "bf16"),
        ("fp8: True\n  fp8_hybrid: True", "fp8"),
        ("fp8: null\n  fp8_e4m3: False", "bf16"),
        ("fp8: hybrid", "fp8"),
    ],
)
def test_the_switch_of_nemo_decides_over_the_format_beside_it(lines, precision, tmp_path):
    """Launcher files name a format of FP8 and switch it off."""
    path = tmp_path / "nemo.yaml"
    text = (SAMPLES / "nemo.yaml").read_text()
    path.write_text(text.replace("model:\n", f"model:\n  {lines}\n", 1))
    assert formats.read(path, cluster="dgx-h100").scenario["training"]["precision"] == precision


@pytest.mark.parametrize("line", ["fsdp: true", "peft: {peft_scheme: lora}"])
def test_words_of_nemo_that_are_no_flags_and_move_a_step_are_told(line, tmp_path):
    """FSDP and adapters inside the block of the model are no step of the whole model."""
    path = tmp_path / "nemo.yaml"
    path.write_text(
        (SAMPLES / "nemo.yaml").read_text().replace("\nmodel:", f"\nmodel:\n  {line}", 1)
    )
    told = formats.read(path, cluster="dgx-h100").warnings
    assert any(f"model.{line.split(':')[0]}" in warning for warning in told)
