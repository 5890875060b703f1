"""Costs told before: what a question would take, which limit that is above, and how to go on all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mpsim
from mpsim.cli.app import execute
from mpsim.scenario import Scenario
from mpsim.scenario.extent import extent_of
from mpsim.simulate import prepare, ready
from mpsim.study.grid import Product, combinations

BASE: dict[str, Any] = {
    "schema": 1,
    "model": "llama2-7b",
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 2, "pp": 4, "zero": 1},
    "training": {"global_batch": 64, "sequence_length": 4096},
}
EXPERTS = {"experts": 1_000_000, "top_k": 2, "ffn_hidden": 512}
LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "interference": (
        {"training": {"global_batch": 20_000, "sequence_length": 4096}, "simulation": {"interference": True}},
        r"10,000 microbatches .*simulation.interference: false or training.global_batch: at most about 2,000",
    ),
    "microbatches": (
        {"training": {"global_batch": 5_000_000, "sequence_length": 4096}},
        "2,500,000 microbatches .* 16 GB .* above the limit of 2 GB and 60 s",
    ),
    "experts": (
        {"model": {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000, "moe": EXPERTS}, "parallelism": {}},
        "million kernels in a stage.*framework.grouped_gemm: true",
    ),
    "samples": (
        {"simulation": {"network": "flow"}, "variation": {"jitter": 0.1, "samples": 1_000_000}},
        r"drawn 1,000,000 times .*variation.samples: at most about",
    ),
    "pairs": (
        {
            "cluster": {"preset": "dgx-h100", "nodes": 2048},
            "parallelism": {"zero": 1},
            "training": {"global_batch": 16384, "sequence_length": 4096},
            "variation": {"jitter": 0.1, "samples": 2},
        },
        r"who waits for whom among 16,384 ranks.*name slow ranks and links",
    ),
    "requests": (
        {"training": None, "parallelism": {}, "serving": {"workload": {"rate": 20, "requests": 10_000_000}}},
        "10,000,000 requests: would take about 120 MB of memory and 50 min",
    ),
}  # fmt: skip


def _data(name: str) -> dict[str, Any]:
    data = {**BASE, **LARGE[name][0]}
    return {key: value for key, value in data.items() if value is not None}


@pytest.mark.parametrize("name", LARGE)
def test_what_costs_more_says_so_before_it_starts(name: str) -> None:
    """A second of processor time at most, nothing built, and how to make it smaller."""
    begun = time.process_time()
    with pytest.raises(mpsim.TooLargeError, match=LARGE[name][1]) as caught:
        mpsim.simulate(Scenario.from_mapping(_data(name)))
    assert time.process_time() - begun < 5  # which building any of these would pass
    assert "--yes" in str(caught.value)
    assert "mpsim.unlimited()" in str(caught.value)
    assert caught.value.memory_bytes > 2e9 or caught.value.seconds > 60


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 2 MB in place of 2 GB: 4,000 microbatches are as much above it as 4,000,000 above the real one."""
    monkeypatch.setattr("mpsim.limits.MEMORY_LIMIT", 2e6)


@pytest.mark.usefixtures("small_limit")
def test_whoever_means_it_goes_on() -> None:
    """Above the limit in the block; the limits count again behind it."""
    scenario = Scenario.from_mapping(
        {**BASE, "training": {"global_batch": 4_000, "sequence_length": 4096}, "parallelism": {"tp": 16}}
    )  # fmt: skip
    with pytest.raises(mpsim.TooLargeError):
        prepare(scenario)
    with mpsim.unlimited():
        assert prepare(scenario).plan.orders.microbatches == 4_000
    with pytest.raises(mpsim.TooLargeError):
        prepare(scenario)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_command_exits_with_2_and_goes_on_with_yes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, nothing on stdout."""
    path = tmp_path / "large.yaml"
    data = {**BASE, "variation": {"jitter": 0.1, "samples": 1_000_000}}
    path.write_text(yaml.safe_dump(data))
    assert execute([command, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "drawn 1,000,000 times" in captured.err
    assert len(captured.err.splitlines()) == 1
    if command == "check":  # which draws nothing
        assert execute([command, str(path), "--yes"]) == 0


def test_a_sweep_of_ten_million_points_is_told_at_once() -> None:
    """The product is never laid out."""
    values = {
        "simulation.seed": range(1000),
        "training.sequence_length": range(1000),
        "training.micro_batch": range(10),
    }
    with pytest.raises(
        mpsim.TooLargeError, match=r"10,000,000 points: .* about 26 GB of memory and 25 h"
    ):
        combinations(values)
    with mpsim.unlimited():
        assert len(combinations(values)) == 10_000_000
        assert combinations(values)[-1]["simulation.seed"] == 999


def test_a_product_is_the_product() -> None:
    """Each point is that of itertools, in its order, from either end."""
    grid = Product({"a": [1, 2], "b": ["x", "y", "z"]})
    listed = [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]
    assert list(grid) == listed
    assert grid[-1] == listed[-1]
    assert list(grid[1:4]) == listed[1:4]
    with pytest.raises(IndexError):
        grid[6]


@pytest.mark.usefixtures("small_limit")
def test_a_sweep_keeps_its_small_points_and_computes_the_large_ones_when_meant(
    tmp_path: Path,
) -> None:
    """A point above the limits is a row with its cost as the reason; resumed with the allowance it is simulated."""
    path = tmp_path / "rows.jsonl"
    scenario = Scenario.from_mapping({**BASE, "parallelism": {"tp": 16}})
    values = {"training.global_batch": [64, 4_000]}
    small, large = mpsim.sweep(scenario, values, resume=path)
    assert small.usable
    assert large.reason is not None
    assert "4,000 microbatches" in large.reason
    first = json.loads(path.read_text().splitlines()[0])
    with mpsim.unlimited():
        again = mpsim.sweep(scenario, {"training.global_batch": [64, 3_600]}, resume=path)
    assert [row.summary is not None for row in again] == [True, True]
    assert json.loads(path.read_text().splitlines()[0]) == first


@pytest.mark.parametrize(
    "path",
    sorted(Path("scenarios").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_estimates_are_of_the_right_size(path: Path) -> None:
    """Operations of every shipped scenario within a factor of four, action by action and kernel by kernel; none is refused."""
    scenario = mpsim.load(path)
    program = prepare(scenario).program
    estimate = extent_of(scenario)
    assert estimate.rows / 4 < len(program) < estimate.rows * 4 + 40
    inside = np.array([len(template.stream) for template in program.templates] + [1])
    kernels = inside[program.template].sum()
    fine = extent_of(
        scenario.with_values(
            {"simulation.interference": True, "simulation.engine": "auto"}, checked=False
        )
    )
    assert fine.rows / 4 < kernels < fine.rows * 4


SERVICE: dict[str, Any] = {
    "schema": 1,
    "model": "llama3-8b",
    "cluster": {"preset": "dgx-h100", "nodes": 128},
    "serving": {"replicas": 1024, "workload": {"arrival": "poisson", "rate": 4000, "requests": 150_000}},
}  # fmt: skip


def routed(**serving: Any) -> Scenario:
    """150,000 requests over 1,024 instances."""
    return Scenario.from_mapping({**SERVICE, "serving": SERVICE["serving"] | serving})


def test_routing_over_many_instances_is_told_beforehand():
    """A router that looks at 1,024 instances for each request takes longer than the requests: 0.3 + 0.26 and 0.3 + 0.51 ms each."""
    seconds = {kind: extent_of(routed(routing=kind)).seconds for kind in ("round-robin", "least-load", "prefix-aware")}  # fmt: skip
    assert seconds == pytest.approx(
        {"round-robin": 45.0, "least-load": 83.4, "prefix-aware": 121.8}
    )
    with pytest.raises(mpsim.TooLargeError, match="150,000 requests routed to 1,024 batches"):
        mpsim.simulate(routed(routing="least-load"))


def test_instances_that_nobody_wrote_and_pools_are_counted():
    """128 nodes of eight GPUs hold 512 instances of tp 2; two pools are routed to one after the other."""
    load = {"routing": "least-load", "workload": SERVICE["serving"]["workload"]}
    unsaid = Scenario.from_mapping({**SERVICE, "parallelism": {"tp": 2}, "serving": load})
    assert "routed to 512 batches" in extent_of(unsaid).what
    pools = {"prefill": {"tp": 1, "replicas": 3}, "decode": {"tp": 1, "pp": 2, "replicas": 4}}
    apart = Scenario.from_mapping({**SERVICE, "serving": {**load, "disaggregated": pools}})
    assert "routed to 11 batches" in extent_of(apart).what


def test_requests_of_a_trace_are_told_before_they_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody knows how many a trace has until it is read: then it is weighed, by run and by check."""
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + "1,10,10\n" * 20_000)  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**SERVICE, "serving": {"workload": {"arrival": "trace", "trace": "trace.csv"}}}))  # fmt: skip
    scenario = mpsim.load(tmp_path / "s.yaml")
    monkeypatch.setattr("mpsim.limits.TIME_LIMIT", 1.0)
    for work in (mpsim.simulate, ready):
        with pytest.raises(mpsim.TooLargeError, match="20,000 requests"):
            work(scenario)


def test_a_service_says_how_far_it_is():
    """The first report is of nothing done, the last of all; they come in order, and not one a request."""
    told: list[tuple[int, int]] = []
    workload = {"arrival": "poisson", "rate": 50, "requests": 500}
    mpsim.simulate(
        routed(replicas=2, workload=workload), progress=lambda *share: told.append(share)
    )
    assert told[0] == (0, 500)
    assert told == sorted(told)
    assert 50 < len(told) < 120
    assert told[-1][0] > 490
