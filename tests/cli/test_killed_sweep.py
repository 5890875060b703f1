"""A sweep that is killed at random moments ends with the bytes of one that was not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

KILLS = 2
AXES = ("parallelism.tp=1,2", "parallelism.pp=1,2", "training.micro_batch=1,2,4")


def arguments(root, journal):
    """Words of a sweep."""
    over = [part for axis in AXES for part in ("--over", axis)]
    scenario = root / "scenarios" / "quickstart.yaml"
    return ["sweep", scenario, "--resume", journal, "--jobs", "1", *over]


def start(root, journal):
    """A sweep in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mpsim", *arguments(root, journal)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def lines(journal):
    """Lines on disk."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def test_killed_twice_it_ends_with_the_same_bytes(request, tmp_path, mpsim_cli):
    """SIGKILL asks nobody; the third run finishes what two began."""
    root = request.config.rootpath
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert mpsim_cli(*arguments(root, whole)).code == 0
    total = lines(whole)
    draw = random.Random(6)
    for kill in range(KILLS):
        process = start(root, killed)
        wanted = min(total - 1, lines(killed) + draw.randint(1, total // KILLS))
        while lines(killed) < wanted and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if kill % 2 and killed.exists():  # as if the disk had got half a line
            with killed.open("ab") as file:
                file.write(b'{"digest": "0123')
    assert lines(killed) < total or process.returncode == -signal.SIGKILL
    assert mpsim_cli(*arguments(root, killed)).code == 0
    assert killed.read_bytes() == whole.read_bytes()
