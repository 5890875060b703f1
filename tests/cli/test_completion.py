"""Completion in a shell: what it prints for a command line that ends in the middle of a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import mpsim
from mpsim.cli import main


def asked(line):
    """Environment in which bash asks for the last word of a line."""
    place = str(len(line.split(" ")) - 1)
    return {"_MPSIM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": place}


def test_a_shell_asks_in_a_process_of_its_own():
    """As bash does: words on stdout, exit code 0."""
    done = subprocess.run(
        [sys.executable, "-m", "mpsim"],
        env={**os.environ, **asked("mpsim sear")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["search"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
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
def test_a_word_is_completed(line, offered, monkeypatch, capsys):
    """Options, keys of a scenario, names of catalogs and templates."""
    for name, value in asked(line).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"^0$"):
        main([])
    assert offered in capsys.readouterr().out.split()


def test_every_key_that_is_offered_is_one():
    """A key that is taken from the list is known to a scenario: it may be refused for its value, never for its name."""
    from mpsim.cli.options import keys

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
def test_a_script_can_be_shown_and_installed(tmp_path, monkeypatch, capsys, shell):
    """`--show-completion` prints it for the shell that runs, `--install-completion` puts it where that shell reads it."""
    shellingham = pytest.importorskip("shellingham")
    monkeypatch.setattr(shellingham, "detect_shell", lambda *_, **__: (shell, f"/bin/{shell}"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--show-completion"])
    assert "_MPSIM_COMPLETE" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--install-completion"])
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_MPSIM_COMPLETE" in text for text in texts)
