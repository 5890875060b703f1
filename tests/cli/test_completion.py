"""Completion in a shell: what it prints for a command line that ends in the middle of a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import mpsim


def completed(line, *, shell="bash"):
    """Words that a shell is offered for the last one of a line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_MPSIM_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mpsim"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mpsim sear", "search"),
        ("mpsim run --sens", "--sensitivity"),
        ("mpsim run a.yaml --set parallelism.seq", "parallelism.sequence_parallel="),
        ("mpsim sweep a.yaml --over cluster.nic.band", "cluster.nic.bandwidth="),
        ("mpsim compare a.yaml --vs serving.workload.conc", "serving.workload.concurrency="),
        ("mpsim show fra", "framework"),
        ("mpsim show framework torch-fsdp2", "torch-fsdp2"),
        ("mpsim show models llama3-8", "llama3-8b"),
        ("mpsim new my.yaml --template nem", "nemo-70b"),
    ],
)
def test_a_word_is_completed(line, offered):
    """Commands, options, keys of a scenario, names of catalogs and templates."""
    assert offered in completed(line)


def test_every_key_that_is_offered_is_one():
    """A key that is taken from the list is known to a scenario: it may be refused for its value, never for its name."""
    from mpsim.cli.complete import keys

    offered = keys("")
    assert len(offered) > 100
    base = {
        "schema": 1,
        "model": "llama2-7b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 8, "sequence_length": 2048},
    }
    scenario = mpsim.Scenario.from_mapping(base)
    for key in ("parallelism.", "training.", "schedule.", "simulation."):
        for name in keys(key):
            with pytest.raises(mpsim.ScenarioError) as caught:
                scenario.with_values({name.removesuffix("="): {"no": "such value"}})
            assert f"{name.removesuffix('=')}: unknown key" not in str(caught.value)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_can_be_shown_and_installed(tmp_path, shell):
    """`--show-completion` prints it for the shell that runs, `--install-completion` puts it where that shell reads it."""
    pytest.importorskip("shellingham")
    code = (
        f"import shellingham; shellingham.detect_shell = lambda *a, **k: ({shell!r}, '/bin/{shell}')\n"
        "import sys; from mpsim.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}

    def run(option):
        return subprocess.run(
            [sys.executable, "-c", code, option],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    shown = run("--show-completion")
    assert shown.returncode == 0, shown.stderr
    assert "_MPSIM_COMPLETE" in shown.stdout
    installed = run("--install-completion")
    assert installed.returncode == 0, installed.stderr
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_MPSIM_COMPLETE" in text for text in texts)
