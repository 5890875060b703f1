"""A sweep on a real dask scheduler with real workers, one of which dies on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import mpsim
from mpsim.errors import MpsimError, ScenarioError
from mpsim.study import executors

pytestmark = pytest.mark.dask
AXES = {"parallelism.tp": [1, 2, 4], "parallelism.pp": [1, 2, 4], "training.micro_batch": [1, 2]}


@pytest.fixture(scope="module", autouse=True)
def dask():
    """dask.distributed, or a skip that says what is missing; a failure where the environment asks for it."""
    if os.environ.get("MPSIM_REQUIRE_DASK") == "1":
        import distributed
    else:
        distributed = pytest.importorskip(
            "distributed", reason="needs dask.distributed: pip install 'mpsim[cluster]'"
        )
    return distributed


@pytest.fixture
def cluster(tmp_path):
    """Address of a scheduler on loopback with two workers, and the workers."""
    at = tmp_path / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s"}

    def run(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", *arguments, "--scheduler-file", str(at)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment,
        )

    scheduler = run(
        "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"
    )
    while not at.exists() and scheduler.poll() is None:
        time.sleep(0.05)
    workers = [
        run("distributed.cli.dask_worker", "--no-dashboard", "--no-nanny", "--nthreads", "1")
        for _ in range(2)
    ]
    import json

    yield json.loads(at.read_text())["address"], workers, scheduler
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


@pytest.mark.filterwarnings("default")  # of dask's own making
def test_a_sweep_survives_the_death_of_a_worker(request, cluster):
    """What the dead worker was at is computed by the other; the rows are those of one process."""
    scenario = mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")
    address, workers, _ = cluster
    killed = threading.Event()

    def kill(done, total):
        if 0 < done < total and not killed.is_set():
            killed.set()
            workers[0].kill()

    rows = mpsim.sweep(scenario, AXES, cluster=address, jobs=2, progress=kill).rows
    assert killed.is_set()
    assert workers[0].wait() != 0
    assert rows == mpsim.sweep(scenario, AXES).rows


@pytest.mark.filterwarnings("default")  # of dask's own making
@pytest.mark.parametrize("who", ["workers", "scheduler"])
def test_a_sweep_whose_cluster_goes_away_says_so(request, cluster, monkeypatch, who):
    """In one line, soon, with the mend; it does not wait for ever."""
    monkeypatch.setattr(executors, "_AWAY", 0.5)
    scenario = mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")
    address, workers, scheduler = cluster
    gone = workers if who == "workers" else [scheduler]

    def kill(done, total):
        if 0 < done < total:
            for process in gone:
                process.kill()

    with pytest.raises(MpsimError, match=r"(is left|no longer|went away).* --resume"):
        mpsim.sweep(scenario, AXES, cluster=address, jobs=2, progress=kill)


def test_an_address_that_is_none_is_refused(request):
    """Before anything is tried."""
    scenario = mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")
    with pytest.raises(ScenarioError, match="tcp://host:8786"):
        mpsim.sweep(scenario, AXES, cluster="host:8786")
