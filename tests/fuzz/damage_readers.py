"""Every reader of mpsim with good samples: those that ship, and those that mpsim itself writes."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import yaml

from mpsim.errors import FormatError

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = ROOT / "tests" / "imports" / "samples"

__all__ = ["READERS", "Reader", "Unsound"]


class Unsound(Exception):  # noqa: N818 - a finding, not an error
    """A damaged file was believed: what was read of it holds a number that is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """One reader.

    Parameters
    ----------
    name : str
    read : callable
        Takes a path; gives what was read.
    samples : mapping of str to bytes
        Good files by name.
    beside : mapping of str to bytes
        Files that lie beside each of them.
    share : float
        Of all inputs of a long run, in proportion.
    """

    name: str
    read: Callable[[Path], object]
    samples: Mapping[str, bytes]
    beside: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    share: float = 1.0


def sound(value: object, depth: int = 0) -> None:
    """Refuse numbers that are not finite anywhere in what was read."""
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        raise Unsound(f"a number is {value}")
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise Unsound("an array is not finite")
        return
    if depth > 12 or isinstance(value, str | bytes):
        return
    if isinstance(value, Mapping):
        for inner in value.values():
            sound(inner, depth + 1)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            sound(inner, depth + 1)


def _import(path: Path, *, ranks: int | None = None) -> object:
    from mpsim.formats import Imported, Points, Recorded, read
    from mpsim.formats.scenarios import checked, written
    from mpsim.formats.tables import table_of

    result = read(path, ranks=ranks)
    if isinstance(result, Imported):
        sound(result.scenario)
        return written(checked(result))
    if isinstance(result, Points):
        sound([point.seconds for point in result.points])
        return table_of(result)
    assert isinstance(result, Recorded)
    sound(result.facts)
    return json.dumps(result.facts, allow_nan=False)


def _benchmark(path: Path) -> object:
    return _import(path, ranks=16)


def _of_trace(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """A reader of an execution trace that reads the rank beside a damaged file of groups."""
    return lambda path: read(path if path.suffix == ".et" else path.parent / "two_rank.0.et")


def _program(path: Path) -> object:
    from mpsim.formats import Recorded, read

    result = read(path, cluster="dgx-h100", ranks=16)
    if isinstance(result, Recorded) and result.program is not None:
        sound(result.program.run().summary)
    return result


def _step(path: Path) -> object:
    from mpsim.formats import Recorded, read
    from mpsim.formats.recorded_step import recorded_step

    result = read(path, spans=True)
    if not isinstance(result, Recorded) or not result.spans:
        return None
    step = recorded_step([result])
    sound(dict(step.parts))
    return step


def _source(path: Path) -> object:
    from mpsim.measured.sources import read_source

    source = read_source(path)
    sound([measurement.seconds for measurement in source.measurements])
    return source


def _scenario(path: Path) -> object:
    from mpsim.scenario import load

    return load(path)


def _check(path: Path) -> object:
    """``mpsim check`` in this process: exit code 0 or 2, and plain lines."""
    from mpsim.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["check", str(path)])
    text = said.getvalue()
    if code not in (0, 2) or "Traceback" in text or "internal error" in text:
        raise AssertionError(f"exit code {code}: {text[-200:]}")
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in text):
        raise Unsound("a control character reached the terminal")
    if code == 2:
        raise FormatError("refused")
    return code


def _machine(path: Path) -> object:
    from mpsim.hardware.machine import read_machine

    return read_machine(path)


def _curves(path: Path) -> object:
    from mpsim.cost.curves import CollectiveCurves, load_curves

    curves = load_curves(path)
    assert isinstance(curves, CollectiveCurves)
    return curves


def _graph(path: Path) -> object:
    from mpsim.hardware import system
    from mpsim.hardware.fabric import FabricKind
    from mpsim.hardware.graph import cluster_graph
    from mpsim.hardware.graph_file import mean_switches, read_links

    links = read_links(path)
    sound([bandwidth for _, _, bandwidth in links])
    mean_switches(links)
    cluster = system("dgx-h100", nodes=4)
    fabric = dataclasses.replace(cluster.fabric, kind=FabricKind.GRAPH, links=links)
    return cluster_graph(dataclasses.replace(cluster, fabric=fabric))


def _orders(path: Path) -> object:
    from mpsim.schedule.csv_file import read_csv

    return read_csv(path)


def _requests(path: Path) -> object:
    from mpsim.serving.traces import read_trace

    requests = read_trace(path)
    sound(requests.arrival)
    return requests


def _rates(path: Path) -> object:
    from mpsim.study.facility import read_rates

    rates = read_rates(path)
    sound(rates)
    return rates


def _journal(path: Path) -> object:
    from mpsim.study.journal import Journal

    return dict(Journal(path).items())


def _result(path: Path) -> object:
    from mpsim.result import Result

    result = Result.load(path)
    return repr(result), result.summary


def _saved_scenario(path: Path) -> object:
    from mpsim.scenario import Scenario

    return Scenario.load(path)


def _stored(path: Path) -> object:
    from mpsim.cli.compare import _stored as stored

    return stored(path)


def _table(path: Path) -> object:
    from bench import validate_files

    validation = validate_files([path])
    return json.dumps(
        validation.to_rows() if hasattr(validation, "to_rows") else len(validation.records)
    )


def _scenario_rows(path: Path) -> object:
    from mpsim.validate import validate_files

    return json.dumps(validate_files([path]).to_json())


def _imports(*folders: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for folder in folders
        for path in sorted((IMPORTS / folder).iterdir())
        if path.is_file()
    }


def _written(write: Callable[[Path], object], name: str) -> dict[str, bytes]:
    """A file that something writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return {name: path.read_bytes()}


MACHINE = {
    "schema": 1, "machine": "test-box", "source": "measured in a test", "as_of": "2026-11-21",
    "accelerator": {
        "title": "two cores", "vendor": "nobody", "family": "cpu", "year": 2026, "compute_units": 1, "peak_flops": {"fp32": "50 GFLOP/s"},
        "memory": "8 GB", "memory_bandwidth": "10 GB/s", "tdp": "10 W", "idle": "5 W", "source": "measured", "as_of": "2026-11-21",
    },
    "scale_up": {"title": "loopback", "shape": "host", "bandwidth": "5 GB/s", "latency": "0 s", "source": "measured", "as_of": "2026-11-21"},
    "accelerators_per_node": 2, "library": "gloo", "framework": {"launch_cost": "3 us", "gradient_overlap": "never"},
    "constants": {
        "kernels.gemm.fp32_sustained_fraction": {"value": 0.9, "unit": "1"}, "kernels.gemm.launch": {"value": 1e-5, "unit": "s", "low": 1e-6, "high": 1e-4},
        "libraries.host.gloo.near_latency": {"value": 3e-5, "unit": "s"},
    },
    "kernel_curves": [{"kind": "norm", "phase": "forward", "bytes": [1000, 1000000], "seconds": [1e-5, 1e-4]}],
    "collective_curves": [{"kind": "all_reduce", "ranks": 2, "domains": 1, "bytes": [1000, 1000000], "seconds": [1e-5, 1e-4]}],
}  # fmt: skip
CURVES = """\
schema: 1
name: ours
source: nccl-tests on our nodes
as_of: 2026-11-21
library: nccl
curves:
  - {collective: all_reduce, ranks: 2, bytes: [1024, 1048576], seconds: [1.0e-5, 2.0e-5]}
  - {collective: all_reduce, ranks: 16, domains: 2, bytes: [1024, 1048576], seconds: [4.0e-5, 8.0e-5]}
"""
REQUESTS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2225670,879,55\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n118,GPT-4,417,0,417,API log\n",
    "plain.csv": "arrival_s,input_tokens,output_tokens\n0.0,100,10\n0.5,200,20\n0.75,50,5\n",
}  # fmt: skip
REPORT = {
    "version": 2, "args": ["./build/all_reduce_perf", "-J", "out.json"], "nccl_version": 22803,
    "config": {"nthreads": 1, "ngpus": 1, "devices": [{"rank": rank, "group": 0, "hostname": f"node{rank // 2}", "device_info": "NVIDIA H200"} for rank in range(4)]},
    "results": [
        {
            "size": 4096 << step, "count": 1024 << step, "type": "float", "redop": "sum", "root": "-1",
            "out_of_place": {"time": 12.5, "alg_bw": 0.3, "bus_bw": 0.3, "nwrong": 0.0}, "in_place": {"time": 12.0, "alg_bw": 0.3, "bus_bw": 0.3, "nwrong": 0.0},
            "out_of_place_per_iter": {"times_us": [12.5, 12.6]},
        }
        for step in range(3)
    ],
    "end_time": "2026-11-21 08:00:00",
}  # fmt: skip


def _kernel_trace() -> bytes:
    """A trace of torch.profiler with shapes, and with collectives."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        dims = {
            "External id": number,
            "Input Dims": [[64, 32], [32, 128]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
        }
        events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "ts": 10.0 * number,
                "dur": 9.0,
                "pid": 1,
                "tid": 2,
                "args": dims,
            }
        )
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "sm90_xmma_gemm_bf16",
                "ts": 10.0 * number + 1,
                "dur": 5.0,
                "pid": 0,
                "tid": 7,
                "args": {"External id": number, "device": 0, "stream": 7},
            }
        )
        message = {
            "Collective name": "_allgather_base",
            "In msg nelems": 100,
            "Out msg nelems": 400,
            "Group size": 4,
            "dtype": "BFloat16",
            "Process Group Name": "0",
        }
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllGather",
                "ts": 10.0 * number + 7,
                "dur": 2.0,
                "pid": 0,
                "tid": 9,
                "args": message | {"device": 0, "stream": 9},
            }
        )
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                "ts": 10.0 * number,
                "dur": 10.0,
                "pid": 1,
                "tid": 2,
                "args": {},
            }
        )
    info = {
        "backend": "nccl",
        "rank": 0,
        "world_size": 4,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3]}],
    }
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": info,
        "baseTimeNanoseconds": 1700000000000000000,
    }
    return json.dumps({**head, "traceEvents": events}).encode()  # fmt: skip


def _nsys(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(1, "ncclDevKernel_AllReduce_Sum"), (2, "sm90_gemm"), (3, "step_1")],
        )
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, demangledName INTEGER)"
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?)",
            [(1000 * i, 1000 * i + 900, 0, 1 + i % 2) for i in range(20)],
        )
        base.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER)"
        )
        base.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)",
            [(0, 9000, "PP:0F0", None), (9000, 20000, "PP:0B0", None), (0, 20000, None, 3)],
        )
    base.close()  # fmt: skip


def _recording() -> bytes:
    """The header, a few measurements of every kind and the end of a recording that ships."""
    path = ROOT / "validation" / "measured" / "cpu-2-ranks.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    chosen = [lines[0], *sorted(lines[1:-1], key=len)[:25]]
    end = json.loads(lines[-1])
    end["measurements"] = sum('"kind":"measurement"' in line for line in chosen)
    return "".join(
        f"{line}\n" for line in [*chosen, json.dumps(end, separators=(",", ":"))]
    ).encode()


def _graphs() -> Iterator[tuple[str, bytes]]:
    graph = nx.Graph()
    for node, leaf in itertools.product(range(4), range(2)):
        graph.add_edge(f"node {node}", f"leaf {leaf}", bandwidth="400 Gb/s")
    writers = {
        "net.graphml": nx.write_graphml,
        "net.gml": nx.write_gml,
        "net.json": lambda g, path: path.write_text(json.dumps(nx.node_link_data(g, edges="links"))),
    }  # fmt: skip
    for name, write in writers.items():
        yield from _written(lambda path, write=write: write(graph, path), name).items()


def _tables() -> Iterator[tuple[str, bytes]]:
    """Two rows of every kind of measured data, small jobs first."""
    for name, size in (("published-runs", "num_accel"), ("collectives", "gpus"), ("kernels", ""), ("inference-runs", "num_accel"), ("memory-runs", ""), ("single-node-runs", "gpus")):  # fmt: skip
        with (ROOT / "validation" / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as file:  # fmt: skip
            reader = csv.DictReader(file)
            rows = sorted(
                itertools.islice(reader, 400),
                key=lambda row: float(row.get(size) or 1e9) if size else 0.0,
            )[:2]
        out = io.StringIO()
        writer = csv.DictWriter(out, reader.fieldnames or (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        yield f"{name}.csv", out.getvalue().encode()


ROWS = b"""id,model,cluster,cluster.nodes,training.global_batch,training.sequence_length,step_time_ms,memory
a,bert-large,dgx-a100-80gb,1,8,2048,100,5 GB
b,bert-large,dgx-a100-80gb,1,16,2048,200,
"""
SMALL = {
    "schema": 1,
    "name": "small",
    "model": {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 1024, "vocab": 1000},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"pp": 2},
    "training": {"global_batch": 16, "sequence_length": 128},
}


def _archives() -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
    """A result, a scenario, and the JSON of a result."""
    from mpsim.scenario import Scenario
    from mpsim.simulate import simulate_step

    scenario = Scenario.from_mapping(SMALL)
    result = simulate_step(scenario)
    return (
        _written(result.save, "result.mpsim"),
        _written(scenario.save, "scenario.mpsim"),
        {"result.json": json.dumps(dict(result.summary)).encode()},
    )


def _journals(path: Path) -> None:
    from mpsim.study.journal import Journal

    journal = Journal(path)
    for number in range(5):
        journal.add(f"{number:064x}", {"values": {"parallelism.tp": number}, "step_time_s": 0.5})
    journal.flush()


def _readers() -> Iterator[Reader]:
    from mpsim.schedule import make_orders
    from mpsim.schedule.csv_file import write_csv

    scenarios = {
        str(path.relative_to(ROOT / "scenarios")).replace("/", "-"): path.read_bytes()
        for path in sorted((ROOT / "scenarios").rglob("*.yaml"))
    }
    beside = {
        path.name: path.read_bytes() for path in (ROOT / "scenarios").rglob("*") if path.is_file()
    }
    yield Reader("scenario", _scenario, scenarios, beside, 4)
    yield Reader("mpsim check", _check, scenarios, beside, 1)
    yield Reader("configurations", _import, _imports("deepspeed", "hf", "hf-v4", "torchtitan", "yaml"), share=4)  # fmt: skip
    yield Reader("launch scripts", _import, _imports("megatron"), share=2)
    yield Reader("benchmarks", _benchmark, {**_imports("nccl-tests", "osu"), "report.json": json.dumps(REPORT).encode()}, share=3)  # fmt: skip
    yield Reader("nccl-tests JSON", _source, {"all_reduce.json": json.dumps(REPORT, indent=1).encode()}, share=2)  # fmt: skip
    hlo = _imports("hlo")
    yield Reader("HLO", _import, hlo, share=1)
    small = {name: text for name, text in hlo.items() if "every" in name or "222" in name}
    yield Reader("HLO programs", _program, small, share=0.5)
    chakra = _imports("chakra")
    yield Reader("Chakra", _of_trace(_import), chakra, chakra)
    yield Reader("Chakra programs", _of_trace(_program), chakra, chakra)
    kineto = {**_imports("torch"), "trace.json": _kernel_trace()}
    yield Reader("Kineto", _import, kineto, share=2)
    yield Reader("Kineto kernels", _source, {"trace.json": _kernel_trace()}, share=2)
    yield Reader("Kineto steps", _step, kineto, share=2)
    nsys = _written(_nsys, "report.sqlite")
    yield Reader("Nsight Systems", _import, nsys)
    yield Reader("Nsight Systems steps", _step, nsys)
    yield Reader("recording", _source, {"cpu.jsonl": _recording()}, share=2)
    yield Reader("machine", _machine, {"machine.yaml": yaml.safe_dump(MACHINE, sort_keys=False).encode()}, share=2)  # fmt: skip
    yield Reader("curves", _curves, {"curves.yaml": CURVES.encode()})
    yield Reader("graph", _graph, dict(_graphs()), share=2)
    orders = make_orders("interleaved-1f1b", pp=2, microbatches=4, virtual_stages=2)
    split = make_orders("zb-h1", pp=2, microbatches=4)
    yield Reader("schedule", _orders, {**_written(lambda path: write_csv(orders, path), "own.csv"), **_written(lambda path: write_csv(split, path), "split.csv")})  # fmt: skip
    trace = (ROOT / "scenarios" / "serving" / "chat-trace.jsonl").read_bytes()
    requests = {name: text.encode() for name, text in REQUESTS.items()}
    yield Reader("requests", _requests, {**requests, "chat.jsonl": b"\n".join(trace.split(b"\n")[:20]) + b"\n"}, share=2)  # fmt: skip
    yield Reader("prices", _rates, {"prices.yaml": b"h100-sxm: 2.5 USD/h\na100-sxm-80gb: 1.5 USD/h\n"}, share=0.5)  # fmt: skip
    yield Reader("journal", _journal, _written(_journals, "rows.jsonl"))
    result, scenario, stored = _archives()
    yield Reader("saved result", _result, result)
    yield Reader("saved scenario", _saved_scenario, scenario)
    yield Reader("stored summary", _stored, stored)
    yield Reader("measured tables", _table, dict(_tables()), share=1)
    yield Reader("rows of scenarios", _scenario_rows, {"rows.csv": ROWS}, share=0.5)


READERS: tuple[Reader, ...] = tuple(_readers())
