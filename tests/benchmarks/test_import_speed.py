"""How fast files of other tools are read: 100,000 lines of HLO to a step time, a trace of torch.profiler beside `json`."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import mpsim

SAMPLES = Path(__file__).resolve().parents[1] / "imports" / "samples"
LINES, EVENTS = 100_000, 50_000


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The step of the GPU sample, as often after itself as makes the lines."""
    text = gzip.decompress((SAMPLES / "hlo" / "gpu_dp2tp4_scan.hlo.txt.gz").read_bytes()).decode()
    begin, entry = text.index("\n%", 10), text.index("\nENTRY")
    body = text[begin:].replace("ENTRY ", "")
    name = re.match(r"\nENTRY %([\w.\-]+)", text[entry:])[1]
    copies = LINES // body.count("\n") + 1
    parts = [
        re.sub(r"(%[\w.\-]+)", lambda word, copy=copy: f"{word[1]}.r{copy}", body)
        for copy in range(copies)
    ]
    calls = "".join(
        f"  %c{copy} = f32[] call(), to_apply=%{name}.r{copy}\n" for copy in range(copies)
    )
    file = tmp_path_factory.mktemp("hlo") / "long.hlo.txt"
    file.write_text(text[:begin] + "".join(parts) + f"\nENTRY %top () -> f32[] {{\n{calls}}}\n")
    return file, copies


@pytest.mark.benchmark(group="import: 100,000 lines of HLO to a step time")
def test_a_long_module(benchmark, module):
    """Read, price and run; as many steps as copies."""
    file, copies = module
    once = mpsim.read(
        SAMPLES / "hlo" / "gpu_dp2tp4_scan.hlo.txt.gz", cluster="dgx-h100"
    ).program.run()
    execution = benchmark.pedantic(
        lambda: mpsim.read(file, cluster="dgx-h100").program.run(), rounds=2
    )
    assert execution.timeline.makespan == copies * once.timeline.makespan


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Kernels of one device, each with what a launch records around it."""
    events = []
    for number in range(EVENTS):
        args = {
            "External id": number,
            "device": 0,
            "stream": 7,
            "correlation": number,
            "grid": [32, 16, 1],
        }
        shape = {"Input Dims": [[8192, 4096], [4096, 4096]], "Input type": ["float", "float"]}
        common = {"ph": "X", "pid": 0, "tid": 7, "ts": number * 50.0}
        events.append({**common, "cat": "cpu_op", "name": "aten::mm", "dur": 9.0, "args": shape})
        events.append(
            {**common, "cat": "kernel", "name": "nvjet_tst_256x128", "dur": 45.0, "args": args}
        )
    file = tmp_path_factory.mktemp("kineto") / "long.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return file


@pytest.mark.benchmark(group="import: a trace of torch.profiler")
@pytest.mark.parametrize("reader", ["json", "mpsim"])
def test_a_long_trace(benchmark, trace, reader):
    """The same file through `json` and as a stream; both saw every kernel."""
    if reader == "json":
        data = benchmark.pedantic(lambda: json.loads(trace.read_text()), rounds=2)
        assert len(data["traceEvents"]) == 2 * EVENTS
    else:
        recorded = benchmark.pedantic(lambda: mpsim.read(trace), rounds=2)
        assert recorded.facts["compute_s"] == pytest.approx(EVENTS * 45e-6)
