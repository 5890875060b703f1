"""The digest of a scenario hangs on what the files hold that it names, not on where they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import mpsim

STEP: dict[str, Any] = {
    "schema": 1,
    "name": "same",
    "model": "gpt2-medium",
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 8},
    "training": {"global_batch": 8, "sequence_length": 1024},
}
SERVICE: dict[str, Any] = {
    "schema": 1,
    "name": "same",
    "model": "llama3-8b",
    "cluster": "dgx-h100",
    "parallelism": {"tp": 2},
}


def _graph(rate: int) -> str:
    """Two nodes with a link of so many Gb/s."""
    link = {"source": "node 0", "target": "node 1", "bandwidth": f"{rate} Gb/s"}
    ends = [{"id": "node 0"}, {"id": "node 1"}]
    return json.dumps({"directed": False, "multigraph": False, "graph": {}, "nodes": ends, "links": [link]})  # fmt: skip


def _machine(latency: int) -> str:
    """A machine of eight processors whose links take so many microseconds."""
    read = {"source": "measured", "as_of": "2026-11-21"}
    chip = {
        "title": "core",
        "vendor": "nobody",
        "family": "cpu",
        "year": 2026,
        "compute_units": 1,
        "tdp": "10 W",
        "idle": "5 W",
    }
    rates = {"peak_flops": {"fp32": "50 GFLOP/s"}, "memory": "8 GB", "memory_bandwidth": "10 GB/s"}
    link = {"title": "loopback", "shape": "host", "bandwidth": "5 GB/s", "latency": f"{latency} us"}
    node = {
        "accelerator": {**chip, **rates, **read},
        "scale_up": {**link, **read},
        "library": "gloo",
    }
    return yaml.safe_dump(
        {"schema": 1, "machine": "box", "accelerators_per_node": 8, **node, **read}
    )


KINDS: dict[str, Any] = {
    "orders.csv": (
        {**STEP, "schedule": {"file": "orders.csv"}},
        lambda n: "rank,position,action,microbatch\n" * n,
    ),
    "fabric.json": (
        {**STEP, "cluster": {**STEP["cluster"], "fabric": {"kind": "graph", "graph": "fabric.json"}}},
        lambda n: _graph(100 * n),
    ),
    "machine.yaml": ({**STEP, "cluster": "./machine.yaml"}, _machine),
    "more.yaml": (
        {**STEP, "include": "more.yaml"},
        lambda n: f"training: {{micro_batch: {n}}}\n",
    ),
    "requests.csv": (
        {**SERVICE, "serving": {"workload": {"arrival": "trace", "trace": "requests.csv"}}},
        lambda n: "arrival_s,input_tokens,output_tokens\n" + f"0,{100 * n},8\n" * 4,
    ),
}  # fmt: skip


def _digest(folder: Path, name: str, number: int) -> str:
    """The digest of a scenario in `folder` that names a file of that content."""
    folder.mkdir(exist_ok=True)
    data, content = KINDS[name]
    (folder / name).write_text(content(number))
    (folder / "same.yaml").write_text(yaml.safe_dump(data))
    return mpsim.load(folder / "same.yaml", checked=False).digest


@pytest.mark.parametrize("name", KINDS)
def test_a_digest_moves_with_the_content_of_a_file(name: str, tmp_path: Path) -> None:
    """The same file with something else in it is another scenario; back to what it was, the first."""
    digests = [_digest(tmp_path, name, number) for number in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("name", KINDS)
def test_two_folders_with_files_of_one_name_do_not_share(name: str, tmp_path: Path) -> None:
    """Equal text of two scenarios, other files beside them; with equal files they are one."""
    one, other, same = (
        _digest(tmp_path / folder, name, number)
        for folder, number in (("a", 1), ("b", 2), ("c", 1))
    )
    assert one == same != other


def test_a_resumed_sweep_computes_rows_of_another_trace_again(tmp_path: Path) -> None:
    """The journal of four requests of 8 tokens says nothing of four with prompts ten times as long."""
    rates = []
    for number in (1, 10):
        _digest(tmp_path, "requests.csv", number)
        scenario = mpsim.load(tmp_path / "same.yaml")
        swept = mpsim.sweep(scenario, {"parallelism.tp": [2]}, resume=tmp_path / "rows.jsonl")
        rates.append(swept.best.summary["total_tokens_per_s"])
        alone = mpsim.simulate(scenario).summary["total_tokens_per_s"]
        assert rates[-1] == alone
    assert rates[0] != rates[1]


def test_a_resumed_sweep_over_files_reads_them_again(tmp_path: Path) -> None:
    """A swept trace whose content changed is another row, though its name is the same."""
    rates = []
    for number in (1, 10):
        _digest(tmp_path, "requests.csv", 2)
        (tmp_path / "swept.csv").write_text(KINDS["requests.csv"][1](number))
        swept = mpsim.sweep(
            mpsim.load(tmp_path / "same.yaml"),
            {"serving.workload.trace": ["swept.csv", "requests.csv", "absent.csv"]},
            resume=tmp_path / "rows.jsonl",
        )
        rates.append([row.summary and row.summary["total_tokens_per_s"] for row in swept])
    assert rates[0][0] != rates[1][0]
    assert rates[0][1:] == rates[1][1:]
    assert rates[0][2] is None


def test_points_share_a_cluster_that_the_same_words_in_the_same_file_name(tmp_path, monkeypatch):
    """Values of other sections leave it alone; the same words given by hand name a file of the working folder."""
    _digest(tmp_path / "a", "fabric.json", 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "fabric.json").write_text(_graph(200))
    monkeypatch.chdir(tmp_path / "b")
    base = mpsim.load(tmp_path / "a" / "same.yaml", checked=False)
    own = base.hardware
    assert base.with_values({"training.micro_batch": 2}, checked=False).hardware is own
    other = base.with_values({"cluster.fabric.graph": "fabric.json"}, checked=False)
    assert other.cluster == base.cluster
    assert other.hardware.fabric != own.fabric
