"""Gloo ranks of this machine: what `mpsim measure` writes under torchrun, and torch's own order of actions under srun's variables."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpsim.measured.files import read_measured
from mpsim.measured.records import FAMILIES, Measured
from mpsim.schedule import make_orders
from tests.nightly import some

if os.environ.get("MPSIM_REQUIRE_TORCH") != "1":  # else a skipped module would pass
    pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

BUDGET = "10s"
TIMEOUT = 1800  # of wall time, for what hangs
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-v": 2}
RUN_EVERY_SCHEDULE = """
import json, os, sys
import torch
from mpsim.measure.model import Sizes
from mpsim.measure.plan import Split
from mpsim.measure.steps import Pipeline
from mpsim.measure.recorder import Recorder
from mpsim.measure.steps import Batch, place_of
from mpsim.measure.world import World

# one process loads torch and becomes all tasks but the first
for rank in range(1, int(os.environ["SLURM_NTASKS"])):
    if os.fork() == 0:
        os.environ.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        break

with World.join("cpu") as world:
    found = {}
    for name, virtual in json.loads(sys.argv[1]).items():
        for microbatches in (world.size, 2 * world.size + 2 * (virtual == 1 or name == "zb-v")):
            split = Split(pp=world.size, virtual=virtual, microbatches=microbatches, schedule=name)
            sizes = Sizes(8, 16, 2, 32, 32, 8, 1)
            place, axes = place_of(world, split, "float32")
            recorder = Recorder(False, 0.0)
            step = Pipeline(sizes, split, place, axes, recorder)
            batch = Batch(sizes, microbatches, 1, world.device).part(0)
            for _ in range(2):
                recorder.begin()
                step(*batch)
            tokens = [action.token for action in recorder.step().rows]
            found[f"{name} {virtual} {microbatches}"] = world.gather(tokens, world.everyone)
    del step, place, axes
    if world.rank == 0:
        print(json.dumps(found))
"""


def torchrun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a module in `count` processes on this machine as a user would."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={_free_port()}", "-m"]
    return subprocess.run(
        [*launcher, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env=environment,
    )


def srun(count: int, *arguments: str, started: int | None = None) -> str:
    """Start `count` tasks with srun's variables, or as many of them as do not start others; what the first one prints, for the others are silent."""
    slurm = {"SLURM_NTASKS": str(count), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_JOB_ID": "7"}
    slurm |= {"MASTER_PORT": str(_free_port()), "PYTHONWARNINGS": "ignore"}
    tasks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | slurm | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(started or count)
    ]
    said = [task.communicate(timeout=TIMEOUT) for task in tasks]
    assert not any(task.returncode for task in tasks), said[0][1]
    assert not any(out for out, _ in said[1:])
    return said[0][0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A short run of everything on two ranks."""
    path = tmp_path_factory.mktemp("measured") / "two.jsonl"
    done = torchrun(
        2, "mpsim", "measure", "--device", "cpu", "--budget", BUDGET, "--out", str(path)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks") == 1  # one rank speaks
    assert "mpsim measure: 0 of 10 s" in done.stderr
    return read_measured(path)


def test_every_family_is_measured(measured: Measured) -> None:
    """A budget of seconds is enough for something of everything."""
    assert {one.family for one in measured.measurements} == set(FAMILIES)
    assert {one.op for one in measured.of("collectives")} >= {"all_reduce", "send_recv"}
    assert {one.op for one in measured.of("kernels")} >= {"gemm", "attention", "layer_norm"}
    assert {one.op for one in measured.of("blocks")} >= {"transformer_layer"}
    assert measured.of("steps", "train_step")


def test_the_header_says_where_and_with_what(measured: Measured) -> None:
    """Two ranks of gloo, one thread each, on one named CPU."""
    header = measured.header
    assert (header.backend, header.world_size) == ("gloo", 2)
    assert [one.threads for one in header.ranks] == [1, 1]
    assert header.domains((0, 1)) == 1
    assert header.torch
    assert header.device_name


def test_every_rank_has_samples_of_everything(measured: Measured) -> None:
    """As many of one rank as of the other, all above zero."""
    for one in measured.measurements:
        assert len(one.seconds) == 2
        assert min(map(len, one.seconds)) >= 3
        assert one.samples.min() > 0


def test_results_were_checked(measured: Measured) -> None:
    """Products against float64, collectives against the ranks' numbers, steps against one process."""
    for family, op, words in (
        ("kernels", "gemm", "float64"),
        ("collectives", "all_reduce", "the sum of ranks"),
        ("steps", "train_step", "of one process"),
    ):
        assert all(words in one.check for one in measured.of(family, op))
    assert not [one for one in measured.skipped if "would take" not in one.reason]


def test_actions_lie_inside_their_step(measured: Measured) -> None:
    """Each rank's actions follow each other, and end before the step does."""
    for one in measured.of("steps"):
        assert one.actions is not None
        step, rank = np.array(one.actions.step), np.array(one.actions.rank)
        start, end = np.array(one.actions.start), np.array(one.actions.end)
        assert set(step) == set(range(min(len(one.seconds[0]), 12)))
        for index in set(step):
            for who in one.group:
                rows = (step == index) & (rank == who)
                assert (start[rows][1:] >= end[rows][:-1]).all()
                assert end[rows].max() - start[rows].min() <= one.seconds[who][index] + 1e-5


@pytest.mark.nightly
def test_slurm_starts_it_without_torchrun(tmp_path: Path) -> None:
    """Two tasks with srun's variables meet, measure, and the first one writes."""
    path = tmp_path / "slurm.jsonl"
    options = ("--device", "cpu", "--budget", "1s", "--only", "collectives", "--out", str(path))
    assert "2 ranks" in srun(2, "-m", "mpsim", "measure", *options)
    assert read_measured(path).of("collectives")


@pytest.mark.parametrize("pp", some([2, 4], 1))
def test_torch_runs_the_actions_in_the_order_of_mpsim(pp: int, tmp_path: Path) -> None:
    """GPipe, 1F1B, Interleaved 1F1B and ZBV as torch's runtime executes them on gloo, token by token, on every rank."""
    script = tmp_path / "schedules.py"
    script.write_text(RUN_EVERY_SCHEDULE)
    found = json.loads(srun(pp, str(script), json.dumps(SCHEDULES), started=1))
    assert len(found) == 2 * len(SCHEDULES)
    for case, recorded in found.items():
        name, virtual, microbatches = case.split()
        orders = make_orders(
            name, pp=pp, microbatches=int(microbatches), virtual_stages=int(virtual)
        )
        assert [order[:-1] for order in recorded] == orders.tokens(), case
        assert {order[-1] for order in recorded} == {"optimizer"}
