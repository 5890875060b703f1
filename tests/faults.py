"""Recordings of a simulated training step with faults switched on: traces as torch.profiler writes them on GPUs, with the names of its kernels and noise.

A rank runs the kernels of the simulated step one after the other; gradients are reduced bucket by bucket on a stream of their own, and a reduction begins when the last rank is there.
A fault changes what a rank does; its true seconds are those by which the same step, same noise, is longer with it than without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import mpsim
from mpsim.program import COLLECTIVE, TICK

RANKS, STEPS = 4, 3
SCENARIO: Final[dict[str, Any]] = {
    "schema": 1,
    "name": "trial",
    "model": {"preset": "gpt2-large", "layers": 12},
    "cluster": {
        "preset": "dgx-h100",
        "nodes": RANKS,
        "accelerators_per_node": 1,
        "nics_per_node": 1,
    },
    "framework": "torch-ddp",
    "training": {"global_batch": 32, "micro_batch": 8, "sequence_length": 1024},
}
NAMES: Final = {
    "gemm": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "attention": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(flash::Flash_fwd_params)",
    "": "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int, at::native::GeluCUDAKernelImpl)",
    "comm": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
OTHER: Final[dict[str, Any]] = {
    **SCENARIO,
    "name": "held out",
    "model": {"preset": "llama2-7b", "layers": 4},
    "training": {"global_batch": 16, "micro_batch": 4, "sequence_length": 2048},
}
"""Another model, whose recordings nobody looked at while rules were made: other names of kernels, and twice the noise."""
OTHER_NAMES: Final = {
    "gemm": "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NTT",
    "attention": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "": "triton_poi_fused_mul_silu_1",
    "comm": "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)",
}
FAULTS: Final = (
    *("slow_rank", "slow_link", "slow_kernel", "lost_overlap", "host_bound", "data_stall"),
    *("garbage_collection", "extra_recompute", "clock_drop", "synchronisation"),
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel of a rank's step."""

    kind: str
    seconds: float
    part: str
    buckets: tuple[float, ...] = ()  # reductions that may begin after it, seconds of the wire


@dataclasses.dataclass
class Trace:
    """Events of one rank: kernels, operators of the host and ranges [s]."""

    kernels: list[tuple[float, float, str, int]] = dataclasses.field(default_factory=list)
    host: list[tuple[float, float, str, int, bool]] = dataclasses.field(default_factory=list)
    ranges: list[tuple[float, float, str]] = dataclasses.field(default_factory=list)


def simulated(scenario: Mapping[str, Any] = SCENARIO) -> tuple[mpsim.Result, list[Kernel]]:
    """The step of a scenario, and its kernels in order with the reductions that each sets free."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(scenario))
    program, timeline = result.timeline.program, result.timeline
    times, kernels, ends = result.kernels, [], []
    order = np.argsort(times.start, kind="stable")
    for place in order.tolist():
        row = int(times.row[place])
        if program.template[row] < 0 and program.kind[row] == COLLECTIVE and program.size[row] > 0:
            continue
        part = program.vocabulary.parts[program.part[row]]
        name, flops = "", 0.0
        if program.template[row] >= 0:
            template = program.templates[program.template[row]]
            name = template.names[template.name_index[times.kernel[place]]]
            flops = float(template.flops[times.kernel[place]])
            part = program.vocabulary.kinds[program.kind[row]]
        kind = "attention" if name == "attention" else "gemm" if flops else ""
        kind = "idle" if name == "host launch" or part == "host" else kind
        kernels.append(Kernel(kind, float(times.end[place] - times.start[place]) * TICK, part))
        ends.append(float(times.end[place]))
    for row in np.flatnonzero((program.kind == COLLECTIVE) & (program.template < 0) & (program.size > 0)).tolist():  # fmt: skip
        after = max(int(np.searchsorted(ends, timeline.start[row], side="right")) - 1, 0)
        freed = (*kernels[after].buckets, float(program.duration[row]) * TICK)
        kernels[after] = dataclasses.replace(kernels[after], buckets=freed)
    return result, kernels


def recorded(kernels: list[Kernel], faults: Mapping[str, float], seed: int, *, noise: float = 0.01) -> list[Trace]:  # fmt: skip
    """Steps of all ranks with faults of so many seconds a step each."""
    traces = [Trace() for _ in range(RANKS)]
    clock = np.zeros(RANKS)
    for step in range(STEPS):
        begun = clock.copy()
        clock = _step(kernels, faults, seed, step, traces, clock, noise)
        for rank, trace in enumerate(traces):
            trace.ranges.append((float(begun[rank]), float(clock[rank]), f"ProfilerStep#{step + 1}"))  # fmt: skip
    return traces


def _step(kernels: list[Kernel], faults: Mapping[str, float], seed: int, step: int, traces: list[Trace], clock: np.ndarray, wide: float) -> np.ndarray:  # type: ignore[type-arg] # fmt: skip
    """One step of all ranks; returns when each ends it."""
    draw = np.random.default_rng([seed, step])  # the same noise with and without a fault
    noise = draw.normal(1.0, wide, RANKS).clip(1 - 3 * wide, 1 + 3 * wide)
    chosen = np.random.default_rng([seed, 99])
    late, kind = int(chosen.integers(RANKS)), ("gemm", "attention")[int(chosen.integers(2))]
    stops, sleeps = set(chosen.integers(5, len(kernels) - 5, 2).tolist()), bool(chosen.integers(2))
    total = {name: sum(item.seconds for item in kernels if item.kind == name) for name in ("gemm", "attention")}  # fmt: skip
    work = sum(item.seconds for item in kernels if item.kind != "idle")
    forward = [item for item in kernels if item.part == "forward" and item.kind != "idle"]
    again = faults.get("extra_recompute", 0.0) / sum(item.seconds for item in forward)
    backward = [n for n, item in enumerate(kernels) if item.part == "backward"]
    buckets = sum(len(item.buckets) for item in kernels)
    wire, pending = clock.copy(), []
    for trace, at in zip(traces, clock, strict=True):
        stall = faults.get("data_stall", 0.0) + draw.uniform(1e-5, 1e-4)
        trace.ranges.append((at, at + stall, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"))  # fmt: skip
    clock = clock + faults.get("data_stall", 0.0)
    for n, item in enumerate(kernels):
        seconds = item.seconds * noise * draw.normal(1.0, wide, RANKS).clip(0.9, 1.1)
        if item.part == "optimizer" and pending:  # whatever still reduces
            clock = np.maximum(clock, wire)
        if item.kind == "idle":
            clock = clock + seconds
            continue
        seconds *= 1 + faults.get("clock_drop", 0.0) / work
        if item.kind == kind:
            seconds *= 1 + faults.get("slow_kernel", 0.0) / total[kind]
        if not sleeps:
            seconds[late] *= 1 + faults.get("slow_rank", 0.0) / work
        elif n in stops:
            clock[late] += faults.get("slow_rank", 0.0) / len(stops)
        if n in stops:
            clock = clock + faults.get("garbage_collection", 0.0) / len(stops)
            wait = faults.get("synchronisation", 0.0) / len(stops)
            for trace, at in zip(traces, clock if wait else (), strict=False):
                trace.host.append((at, at + wait, "cudaStreamSynchronize", -1, False))
            clock = clock + wait
        gap = faults.get("host_bound", 0.0) / len(kernels)
        for trace, at in zip(traces, clock if gap else (), strict=False):
            trace.host.append((at, at + 0.9 * gap, "aten::empty", -2, False))
        clock = clock + gap + draw.uniform(1e-6, 3e-6, RANKS)
        inside = forward[(n * 7) % len(forward)] if again and n in backward else None
        for rank, trace in enumerate(traces):
            number = len(trace.kernels) + 1
            at = float(clock[rank])
            name = "autograd::engine::evaluate_function: AddmmBackward0" if item.part == "backward" else "aten::op"  # fmt: skip
            trace.host.append((at - 1e-3, at - 1e-3 + 4e-6, name, number, item.part == "forward"))
            trace.kernels.append((at, at + float(seconds[rank]), NAMES[item.kind], number))
            if inside is not None:
                share = again * sum(each.seconds for each in forward) / len(backward)
                at += float(seconds[rank])
                trace.host.append((trace.host[-1][0] + 1e-6, trace.host[-1][0] + 2e-6, "aten::linear", number + 1, True))  # fmt: skip
                trace.kernels.append((at, at + share, NAMES[inside.kind], number + 1))
        clock = clock + seconds
        if inside is not None:
            clock = clock + share
        for length in item.buckets:
            begins = np.maximum(wire, clock)
            if "lost_overlap" in faults:
                pending.append((length, None))
                continue
            wire = _reduce(traces, begins, length + faults.get("slow_link", 0.0) / buckets, draw)
            pending.append((length, wire))
        if "lost_overlap" in faults and item.part != "optimizer" and n + 1 < len(kernels) and kernels[n + 1].part == "optimizer":  # fmt: skip
            wire = np.maximum(wire, clock)
            for length, _ in pending:
                wire = _reduce(traces, wire, length, draw)
    return np.maximum(clock, wire)


def _reduce(traces: list[Trace], begins: np.ndarray, length: float, draw: np.random.Generator) -> np.ndarray:  # type: ignore[type-arg] # fmt: skip
    """One reduction: every rank's kernel lasts from its begin until all are done."""
    end = float(begins.max()) + length * float(draw.normal(1.0, 0.02))
    for trace, begin in zip(traces, begins.tolist(), strict=True):
        trace.kernels.append((begin, end, NAMES["comm"], 0))
    return np.full(len(begins), end)


def seconds_of(kernels: list[Kernel], faults: Mapping[str, float], seed: int, *, noise: float = 0.01) -> dict[str, float]:  # fmt: skip
    """True seconds of a step that each fault costs alone."""

    def step(chosen: Mapping[str, float]) -> float:
        ranges = recorded(kernels, chosen, seed, noise=noise)[0].ranges
        return float(np.mean([end - at for at, end, name in ranges if name.startswith("Prof")]))

    clean = step({})
    return {name: step({name: size}) - clean for name, size in faults.items()}


def write(traces: list[Trace], folder: Path, names: Mapping[str, str] = NAMES) -> list[Path]:
    """One Kineto trace a rank, kernels under other names where they are given."""
    said = {NAMES[kind]: name for kind, name in names.items()}
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rank, trace in enumerate(traces):
        head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS}, "baseTimeNanoseconds": 1790000000000000000}  # fmt: skip
        data = {
            **head,
            "traceEvents": [
                {**event, "name": said.get(event["name"], event["name"])}
                for event in _events(trace, rank)
            ],
        }
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps(data))
    return files


def write_nsys(trace: Trace, file: Path) -> Path:
    """The same rank as Nsight Systems exports it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    names: dict[str, int] = {}
    tables: dict[str, list[tuple[int, int, int]]] = {"kernel": [], "cuda_runtime": [], "user_annotation": []}  # fmt: skip
    for event in _events(trace, 0):
        launch = event["cat"] == "cpu_op"
        table = tables["cuda_runtime" if launch else event["cat"]]
        name = "cudaLaunchKernel_v7000" if launch else event["name"]
        begin = round(1e3 * event["ts"])
        table.append((begin, begin + round(1e3 * event["dur"]), names.setdefault(name, len(names))))
    with contextlib.closing(sqlite3.connect(file)) as base, base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, name) for name, n in names.items()])  # fmt: skip
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)")  # fmt: skip
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER)")  # fmt: skip
        base.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, textId INTEGER, text TEXT)")  # fmt: skip
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", tables["kernel"])  # fmt: skip
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", tables["cuda_runtime"])  # fmt: skip
        base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL)", tables["user_annotation"])  # fmt: skip
    return file


def _events(trace: Trace, rank: int) -> Iterator[dict[str, Any]]:
    def event(cat: str, name: str, at: float, end: float, tid: int, **args: Any) -> dict[str, Any]:
        pid = 0 if tid in (7, 20) else 4711
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(1e6 * at, 3), "dur": round(1e6 * (end - at), 3), "args": args}  # fmt: skip

    for at, end, name in trace.ranges:
        yield event("user_annotation", name, at, end, 1)
    for at, end, name, number, forward in trace.host:
        if name.startswith("cuda"):
            yield event("cuda_runtime", name, at, end, 1)
        else:
            own = {"Sequence number": number, "Fwd thread id": 0} if forward else {}
            yield event("cpu_op", name, at, end, 1, **{"External id": number, **own})
    for at, end, name, number in trace.kernels:
        if "AllToAll" in name:
            args = {"Collective name": "all_to_allv", "In msg nelems": 8388608, "Out msg nelems": 8388608, "Group size": RANKS, "dtype": "BFloat16", "Process Group Name": "7", "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP", "Rank": rank}  # fmt: skip
            yield event("kernel", name, at, end, 20, device=0, **args)
        elif "SendRecv" in name:
            yield event(
                "kernel",
                name,
                at,
                end,
                20,
                device=0,
                **{"Collective name": "sendrecv", "Group size": 2},
            )
        elif name == NAMES["comm"]:
            args = {"Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": RANKS, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg", "Rank": rank}  # fmt: skip
            yield event("kernel", name, at, end, 20, device=0, **args)
        else:
            yield event("kernel", name, at, end, 7, device=0, **{"External id": number})


def drawn(number: int, step: float) -> dict[str, float]:
    """Faults of recording `number` of the trial: every kind in turn, half of them with a second, smaller one [s]."""
    draw = np.random.default_rng([2026, number])
    first = FAULTS[number % len(FAULTS)]
    faults = {first: float(draw.uniform(0.12, 0.35)) * step}
    if number % 2:
        second = FAULTS[int(draw.choice([n for n in range(len(FAULTS)) if FAULTS[n] != first]))]
        faults[second] = float(draw.uniform(0.3, 0.6)) * faults[first]
    if "slow_link" in faults:  # the backward hides some
        faults["slow_link"] += 0.2 * step
    return faults


STAGED: Final[dict[str, Any]] = {
    "schema": 1,
    "name": "stages",
    "model": {"preset": "llama2-7b", "layers": 16},
    "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 4},
    "framework": "megatron-core",
    "parallelism": {"pp": 4, "dp": 1},
    "schedule": "1f1b",
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 2048},
}
RUNS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "even": ("none", {}),
    "second stage has more": ("uneven_stages", {"parallelism.layers_per_stage": [4, 6, 4, 2]}),
    "first stage has more": ("uneven_stages", {"parallelism.layers_per_stage": [7, 3, 3, 3]}),
    "last stage has more": ("uneven_stages", {"parallelism.layers_per_stage": [3, 4, 3, 6]}),
    "half as many microbatches": ("schedule_bubble", {"training.micro_batch": 2}),
    "a quarter of the microbatches": ("schedule_bubble", {"training.micro_batch": 4}),
}
"""What a pipeline ran instead of `STAGED`, and the cause of it."""


def staged(changes: Mapping[str, Any], folder: Path, seed: int) -> tuple[float, list[Path]]:
    """Recordings of every stage of what ran: a receive lasts until the kernel that waits for it; and its step [s]."""
    scenario = mpsim.Scenario.from_mapping(STAGED).with_values(changes)
    result, draw = mpsim.simulate(scenario), np.random.default_rng(seed)
    program, times = result.timeline.program, result.kernels
    length = float(result.timeline.step_time_s)
    traces = []
    for rank in range(RANKS):
        trace, reach, shift = Trace(), 0.0, 0.0
        mine = np.flatnonzero(program.rank[times.row] == rank)
        for step in range(STEPS):
            begun, reach = step * length, step * length
            for place in mine[np.argsort(times.start[mine], kind="stable")].tolist():
                row = int(times.row[place])
                template = program.templates[program.template[row]] if program.template[row] >= 0 else None  # fmt: skip
                name = template.names[template.name_index[times.kernel[place]]] if template else ""
                flops = float(template.flops[times.kernel[place]]) if template else 0.0
                if name == "host launch" or (template is None and program.kind[row] == COLLECTIVE):
                    continue
                shift = float(draw.uniform(0, 1e-6))
                at, until = (
                    begun + times.start[place] * TICK + shift,
                    begun + times.end[place] * TICK,
                )
                if at - reach > 3e-5:
                    trace.kernels.append((reach + 1e-6, at - 1e-6, NAMES["comm"].replace("AllReduce_Sum_bf16_RING_LL", "SendRecv"), 0))  # fmt: skip
                kind = "attention" if name == "attention" else "gemm" if flops else ""
                trace.kernels.append((at, max(at, until), NAMES[kind], len(trace.kernels) + 1))
                reach = until
            trace.ranges.append((begun, begun + length, f"ProfilerStep#{step + 1}"))
        traces.append(trace)
    return length, write(traces, folder)


EXPERTS: Final[dict[str, Any]] = {
    "schema": 1,
    "name": "experts",
    "model": {"preset": "mixtral-8x7b", "layers": 4},
    "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": RANKS},
    "framework": "megatron-core",
    "parallelism": {"ep": RANKS, "dp": RANKS},
    "training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 2048},
}


def experts(uneven: float, folder: Path, seed: int) -> tuple[float, list[Path]]:
    """Recordings of experts of which in every layer another rank has more by a share: the others wait for it in the all-to-all behind; and the step [s]."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(EXPERTS))
    draw, program, times = np.random.default_rng(seed), result.timeline.program, result.kernels
    traces, clock = [Trace() for _ in range(RANKS)], np.zeros(RANKS)
    send = NAMES["comm"].replace("AllReduce_Sum_bf16_RING_LL", "SendRecv")
    lengths = []
    for step in range(STEPS):
        begun, loads = clock.copy(), np.ones(RANKS)
        for place in np.argsort(times.start, kind="stable").tolist():
            row = int(times.row[place])
            template = program.templates[program.template[row]] if program.template[row] >= 0 else None  # fmt: skip
            kernel = times.kernel[place]
            name = template.names[template.name_index[kernel]] if template else ""
            seconds = float(times.end[place] - times.start[place]) * TICK
            if (template is None and program.kind[row] == COLLECTIVE) or name == "host launch":
                clock = np.full(RANKS, clock.max()) + seconds * (name == "host launch")
                continue
            if template is not None and template.collective[kernel] >= 0:
                end = float(clock.max()) + seconds
                for trace, at in zip(traces, clock.tolist(), strict=True):
                    trace.kernels.append((at, end, send.replace("SendRecv", "AllToAll"), 0))
                clock = np.full(RANKS, end)
                loads = np.full(RANKS, 1 - uneven / (RANKS - 1))
                loads[int(draw.integers(RANKS))] = 1 + uneven
                continue
            own = seconds * (loads if name.startswith("experts") else np.ones(RANKS))
            own = own * draw.normal(1.0, 0.01, RANKS)
            kind = "attention" if name == "attention" else "gemm" if template is not None and template.flops[kernel] else ""  # fmt: skip
            for rank, trace in enumerate(traces):
                trace.kernels.append((float(clock[rank]), float(clock[rank] + own[rank]), NAMES[kind], len(trace.kernels) + 1))  # fmt: skip
            clock = clock + own + 1e-6
        clock = np.full(RANKS, clock.max())
        lengths.append(float(clock[0] - begun[0]))
        for trace in traces:
            trace.ranges.append((float(begun[0]), float(clock[0]), f"ProfilerStep#{step + 1}"))
    return float(np.mean(lengths)), write(traces, folder)
