"""The three commands for real: measure on gloo ranks, calibrate on kernels and collectives, predict the steps blind.

At night: a busy machine measures too little in seconds. By day `test_measure_gloo.py` measures, and `tests/unit/calibrate/test_calibrate_runs.py`
calibrates and predicts what was recorded.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.conftest import MACHINE

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.nightly]

BUDGET = {2: "25s", 4: "40s"}
TIMEOUT = 1800  # of wall time, for what hangs
SANE = 0.5
"""Median error of steps that a budget of seconds must reach on a quiet machine; validation/measured has the figures of a longer one."""


def run(folder, *arguments):
    """Run a command in `folder` as a user would; its standard output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def chain(request, tmp_path_factory):
    """Ranks, the machine file and the report of one pass through the three commands."""
    ranks, folder = request.param, tmp_path_factory.mktemp("chain")
    if ranks > (os.cpu_count() or 1):
        pytest.skip(f"{MACHINE}{ranks} ranks need as many cores; it has {os.cpu_count()}")
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1"]
    launch += [f"--master-port={free_port()}", "-m", "mpsim", "measure"]
    run(folder, *launch, "--device", "cpu", "--out", "m.jsonl", "--budget", BUDGET[ranks])
    found = run(folder, "-m", "mpsim", "calibrate", "m.jsonl", "-o", "box.yaml", "--json")
    report = run(
        *(folder, "-m", "mpsim", "validate", "box.yaml", "--runs", "m.jsonl", "--json"),
        *("--plots", "plots", "--trace", "both.json.gz"),
    )
    return ranks, folder, json.loads(found), json.loads(report)


def test_the_machine_holds_what_was_measured(chain):
    """A CPU with gloo: products, the loopback, and fractions between 0 and 1."""
    ranks, _, machine, _ = chain
    assert machine["library"] == "gloo"
    assert machine["accelerators_per_node"] == ranks
    fraction = machine["constants"].get("kernels.gemm.fp32_burst_fraction")
    if fraction is None:  # a busy machine leaves room for few products, and calibrate says so
        assert any("matrix products" in one for one in machine["warnings"])
    else:
        assert 0.2 < fraction["value"] <= 1.0
    assert any("ranks" in one["what"] for one in machine["fits"])


def test_steps_are_predicted_and_actions_compared(chain):
    """Steps that calibrate never saw; where the machine was noisy the report says so instead of passing."""
    _, _, _, report = chain
    predicted = [one for one in report["steps"] if one["predicted"] is not None]
    assert len(predicted) >= 3, report["steps"]
    assert all(sum(one["predicted_parts_s"].values()) > 0 for one in predicted)
    assert sum(report["components"].values()) == pytest.approx(1.0)
    if not report["tells"]:
        pytest.skip(
            f"{MACHINE}too noisy to tell: spread {report['noise']:.0%}, drift {report['drift']:.0%}, others {report['others']:.0%}; "
            f"median error {report['median_abs_error']:.0%}"
        )
    assert report["median_abs_error"] < SANE


def test_torch_runs_the_actions_of_a_pipeline_in_our_order(chain):
    """Every pipeline that the budget had room for."""
    _, _, _, report = chain
    orders = {
        one["title"]: one["first_difference"] or one["same_order"]
        for one in report["steps"]
        if one["family"].startswith("pipeline") and one["predicted"] is not None
    }
    if not orders:
        pytest.skip(f"{MACHINE}too slow for a pipeline within the budget")
    assert set(orders.values()) == {True}, orders


def test_one_trace_and_one_picture_show_both_timelines(chain):
    """Processes of measured and of simulated ranks; pictures that are not empty."""
    import gzip

    _, folder, _, _ = chain
    events = json.loads(gzip.decompress((folder / "both.json.gz").read_bytes()))["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert {"rank 0 measured", "rank 0 simulated"} <= names
    for picture in ("timelines.png", "steps-agreement.png"):
        assert (folder / "plots" / picture).stat().st_size > 5000
