"""The command ``mpsim import``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mpsim.scenario import load

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512,
    "vocab_size": 1024, "_name_or_path": "/home/somebody/secret-model",
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    """A small configuration."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA, indent=1))
    return path


def test_a_model_laid_over_a_scenario_runs(config, tmp_path, scenarios, mpsim_cli):
    """A config.json and a scenario are one runnable file."""
    out = tmp_path / "out.yaml"
    done = mpsim_cli("import", "auto", config, "--onto", scenarios / "quickstart.yaml", "-o", out)
    assert (done.code, "missing     nothing" in done.out) == (0, True)
    run = mpsim_cli("run", out, "--json")
    assert run.code == 0
    assert run.json()["step_time_s"] > 0


def test_a_script_leaves_what_it_does_not_say_as_the_scenario_states_it(scenarios, mpsim_cli):
    """Megatron 2.5 without --use-distributed-optimizer would be zero 0; the scenario says 1, and has a sweep."""
    script = Path(__file__).parent / "samples" / "megatron" / "cmd_v2.5_era.sh"
    alone = mpsim_cli("import", "auto", script, "--json").json()
    done = mpsim_cli(
        "import", "auto", script, "--onto", scenarios / "quickstart.yaml", "--json"
    ).json()
    before = load(scenarios / "quickstart.yaml").source.data
    assert alone["scenario"]["parallelism"]["zero"] == 0
    assert {"parallelism.zero", "parallelism.sequence_parallel"} <= {
        item["to"] for item in alone["assumed"]
    }
    now = done["scenario"]
    assert (now["parallelism"]["zero"], now["parallelism"]["sequence_parallel"]) == (1, True)
    assert "parallelism.zero" not in {item["to"] for item in done["assumed"]}
    assert (now["parallelism"]["tp"], now["training"]["precision"]) == (8, "fp16")  # which it says
    assert now["framework"]["preset"] == "megatron-2021"  # whose tool it is of
    assert now["sweep"] == before["sweep"]


def test_what_is_missing_is_asked_for(config, mpsim_cli):
    """A model alone is no scenario."""
    done = mpsim_cli("import", "hf", config, "--json")
    assert done.json()["missing"] == [
        "cluster",
        "training.global_batch",
        "training.sequence_length",
    ]
    shown = mpsim_cli("import", "hf", config)
    assert "# Missing: cluster: which accelerators" in shown.out
    assert "hidden: 256                             # config.json:3 hidden_size" in shown.out


def test_no_path_of_the_file_is_written(config, mpsim_cli):
    """Values of keys that are not mapped are nobody's business."""
    for extra in ([], ["--json"]):
        done = mpsim_cli("import", "hf", config, *extra)
        assert "secret-model" not in done.out + done.err


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "empty"),
        ("{", "truncated"),
        ('{"model_type": "mamba"}', "state-space"),
        ("\0\0\0\0", "binary"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "repeated"),
        ('{"model_type": "llama", "a": ' + "[" * 100 + "]" * 100 + "}", "nested deeper"),
        ('{"model_type": "llama", "vocab_size": 1' + "0" * 5000 + "}", "too long"),
        ('{"model_type": "llama", "a": "' + "x" * 5_000_000 + '"}', "over"),
        ("something else", "nothing known"),
    ],
)
def test_a_refused_file_exits_2_and_writes_nothing(content, word, tmp_path, mpsim_cli):
    """What and why stands on stderr."""
    path, out = tmp_path / "config.json", tmp_path / "out.yaml"
    path.write_text(content)
    done = mpsim_cli("import", "auto", path, "-o", out)
    assert (done.code, out.exists()) == (2, False)
    assert word in done.err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, mpsim_cli):
    """Only regular files are read."""
    os.mkfifo(tmp_path / "pipe")
    done = mpsim_cli("import", "auto", tmp_path / "pipe")
    assert (done.code, "is a pipe" in done.err) == (2, True)


def test_another_format_than_named_is_refused(config, mpsim_cli):
    """The message names the one that it is."""
    done = mpsim_cli("import", "kineto", config)
    assert (done.code, "is config.json of Hugging Face transformers" in done.err) == (2, True)


def test_an_unknown_format_is_refused_with_the_nearest(config, mpsim_cli):
    """A slip is mended by the message."""
    done = mpsim_cli("import", "hugging-face", config)
    assert (done.code, "huggingface" in done.err) == (2, True)


def test_two_scenarios_at_once_are_refused(config, mpsim_cli):
    """They are laid over each other one by one."""
    done = mpsim_cli("import", "auto", config, config)
    assert (done.code, "--onto" in done.err) == (2, True)
