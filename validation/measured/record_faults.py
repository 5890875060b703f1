"""Faults switched on by hand in real training steps of two gloo ranks, recorded with torch.profiler.

Covers: DDP, FSDP2, tensor parallelism and pipelines of the small GPTs of `mpsim measure`, each with every fault that two processes can have. Question: does `mpsim explain` name what was done?

    python validation/measured/record_faults.py DIR [--seed 0] [--only FAULT] [--layout LAYOUT]

A folder a recording, as in validation/measured/explained: truth.json has seconds of the step with and without the fault, in turns; the machine is that of cpu-2-ranks.yaml at the speed of the hour, so
that the scenario takes what the step without its fault took. Nothing that it writes is committed but a few: how `explain` does on them is in validation/explain.md.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import gc
import json
import multiprocessing
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import mpsim
from mpsim.hardware.machine import read_machine
from mpsim.measured.records import Measurement

HERE = Path(__file__).resolve().parent
ROUNDS, RECORDED = 6, 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"dp": 2, "microbatches": 2, "data_parallel": "ddp"},
    "fsdp2": {"dp": 2, "data_parallel": "fsdp2"},
    "tp": {"tp": 2},
    "1f1b": {"pp": 2, "schedule": "1f1b", "microbatches": 4},
    "gpipe": {"pp": 2, "schedule": "gpipe", "microbatches": 4},
    "interleaved-1f1b": {"pp": 2, "schedule": "interleaved-1f1b", "virtual": 2, "microbatches": 4},
}
PIPELINES = ("1f1b", "gpipe", "interleaved-1f1b")
ANY = tuple(LAYOUTS)
FAULTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # how it is made: the cause, what a trace cannot tell from it, layouts that can have it
    "none": ("none", (), ANY),
    "rank-sleeps": ("slow_rank", ("host_bound",), ANY),
    "rank-throttled": ("slow_rank", ("uneven_stages", "clock_drop"), ANY),
    "link-sleeps": ("slow_link", ("lost_overlap",), ("ddp",)),
    "link-after": ("slow_link", ("lost_overlap",), ("ddp",)),
    "payload": ("slow_link", ("lost_overlap",), ("ddp",)),
    "no-sync-lost": ("lost_overlap", ("slow_link",), ("ddp",)),
    "attention-math": ("slow_kernel", (), ANY),
    "attention-double": ("slow_kernel", (), ANY),
    "product-double": ("slow_kernel", ("clock_drop",), ANY),
    "gelu-double": ("slow_kernel", (), ANY),
    "python-loops": ("host_bound", (), ("ddp", "fsdp2", "tp")),
    "loader": ("data_stall", (), ("ddp", "fsdp2", "tp")),
    "loader-one-rank": ("data_stall", ("slow_rank",), ("ddp", "fsdp2")),
    "gc": ("garbage_collection", ("host_bound",), ("ddp", "fsdp2", "tp")),
    "recompute": ("extra_recompute", (), ANY),
    "throttled": ("clock_drop", (), ANY),
    "barriers": ("synchronisation", ("slow_link",), ("ddp", "fsdp2", "tp")),
    "uneven": ("uneven_stages", ("slow_rank",), ("1f1b", "gpipe")),
    "two-by-two": ("schedule_bubble", (), ("1f1b", "gpipe")),
}


def spin(seconds: float) -> None:
    """Python at work."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Fault:
    """A fault of a step object, off until it is switched on."""

    def __init__(self, name: str, rank: int, build: Callable[..., Any], layout: str, step: float, draw: np.random.Generator) -> None:  # fmt: skip
        import torch

        from mpsim.measure.model import Layer

        self.name, self.rank, self.on, self.layout = name, rank, False, layout
        self.size = float(draw.uniform(0.2, 0.5)) * step
        self.late = int(draw.integers(2))
        self.injected: float | None = None
        self.undo: Callable[[], None] = lambda: None
        self.step, self.torch = build(), torch
        self.other = build(uneven=True) if name == "uneven" else build(microbatches=2) if name == "two-by-two" else None  # fmt: skip
        modules = [self.step.model] if hasattr(self.step, "model") else [s.submod for s in self.step.stages]  # fmt: skip
        self.layers = [m for module in modules for m in module.modules() if isinstance(m, Layer)]
        calls = len(self.layers) * LAYOUTS[layout].get("microbatches", 1)
        each = self.size / calls
        if name == "rank-sleeps" and rank == self.late:
            self._before(lambda: time.sleep(each))
        elif name == "python-loops":
            self._before(lambda: spin(each))
        elif name == "barriers":
            self._before(torch.distributed.barrier)
        elif name == "gc":
            self.garbage = [[{"n": n}] for n in range(400_000)]
            places = set(draw.choice(len(self.layers), 2, replace=False).tolist())
            for place in places:
                self._before(gc.collect, self.layers[place : place + 1])
        elif name in ("attention-math", "attention-double", "product-double", "gelu-double"):
            self._kernels()
        elif name in ("link-sleeps", "link-after", "payload", "no-sync-lost") and layout == "ddp":
            self._link()
        self.injected = {"loader": self.size, "python-loops": self.size, "rank-sleeps": self.size if layout not in PIPELINES else None, "link-sleeps": self.size}.get(name)  # fmt: skip

    def _before(self, act: Callable[[], Any], layers: list[Any] | None = None) -> None:
        def hook(*_: object) -> None:
            if self.on:
                act()

        for layer in self.layers if layers is None else layers:
            layer.register_forward_pre_hook(hook)

    def _kernels(self) -> None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        functional = self.torch.nn.functional
        name = {"gelu": "gelu", "product": "linear"}.get(self.name.split("-")[0], "scaled_dot_product_attention")  # fmt: skip
        plain = getattr(functional, name)

        def slow(*tensors: Any, **words: Any) -> Any:
            # of the products those that widen, in 64 bits
            if not self.on or (name == "linear" and tensors[1].shape[0] <= tensors[1].shape[1]):
                return plain(*tensors, **words)
            if self.name == "attention-math":
                with sdpa_kernel(SDPBackend.MATH):
                    return plain(*tensors, **words)
            wide = (each.double() for each in tensors)
            return plain(*wide, **words).float()

        setattr(functional, name, slow)
        self.undo = lambda: setattr(functional, name, plain)

    def _link(self) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        torch = self.torch
        if self.name == "no-sync-lost":
            inner = self.step._later
            self.step._later = lambda *, wanted: inner(wanted=wanted and not self.on)
            return

        def hook(group, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
            if not self.on:
                return allreduce_hook(group, bucket)
            if self.name == "link-sleeps":
                time.sleep(self.size)
                return allreduce_hook(group, bucket)
            if self.name == "payload":
                tensor = bucket.buffer()
                future = torch.distributed.all_reduce(torch.cat([tensor] * 4), async_op=True).get_future()  # fmt: skip
                return future.then(lambda done: done.value()[0][: tensor.numel()] / 2)

            def after(done: Any) -> Any:
                time.sleep(self.size)
                return done.value()[0] if isinstance(done.value(), list) else done.value()

            return allreduce_hook(group, bucket).then(after)

        self.step.model.register_comm_hook(None, hook)

    def __call__(self, ids: Any, targets: Any) -> None:
        """One step, with the fault where it is on."""
        for layer in self.layers:
            layer.recompute = self.on and self.name == "recompute"
        if self.on and self.name == "two-by-two":
            parts = zip(ids.chunk(2), targets.chunk(2), strict=True)
            for x, y in parts:
                self.other.schedule.step(*((x,) if self.other.first else ()), **({"target": y, "losses": []} if self.other.last else {}), **self.other.options)  # fmt: skip
            self.other._update()
        elif self.on and self.name == "uneven":
            self.other(ids, targets)
        else:
            self.step(ids, targets)

    def batches(self, ids: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        """The batch again and again, by a loader that stalls where the fault is on."""
        fault = self

        class Rows(self.torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
            def __len__(self) -> int:
                return 1 << 20

            def __getitem__(self, n: int) -> tuple[Any, Any]:
                one = fault.name == "loader-one-rank" and fault.rank == fault.late
                if fault.on and (fault.name == "loader" or one):
                    time.sleep(fault.size)
                return ids, targets

        return iter(self.torch.utils.data.DataLoader(Rows(), batch_size=None))


def ran(rank: int, port: int, out: Path, pipe: Any) -> None:
    """One rank: of every case that is asked for, time the step with and without its fault in turns, then record it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    import torch

    torch.set_num_threads(1)
    from mpsim.measure.world import World

    with World.join("cpu") as world:
        while (case := pipe.recv()) is not None:
            os.setpriority(os.PRIO_PROCESS, 0, case["nice"])
            told = timed(world, case, str(out / case["name"] / f"rank{rank}.json.gz"), pipe)
            os.setpriority(os.PRIO_PROCESS, 0, 0)
            pipe.send(told)


def timed(world: Any, case: dict[str, Any], file: str, pipe: Any) -> dict[str, Any]:
    """Times of a case, and its recording in `file`."""
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as profiled

    from mpsim.measure import steps as module
    from mpsim.measure.model import Sizes
    from mpsim.measure.plan import Split
    from mpsim.measure.recorder import Recorder
    from mpsim.measure.steps import Batch, Replica, place_of

    layout, draw = case["layout"], np.random.default_rng(case["seed"])
    sizes, split = Sizes(**case["sizes"]), Split(**LAYOUTS[layout])
    place, axes = place_of(world, split, "float32")

    def build(*, uneven: bool = False, microbatches: int = 0) -> Any:
        recorder = Recorder(False, 0.0)
        if split.pp == 1:
            return Replica(sizes, split, place, axes, recorder, microbatches=split.microbatches, recompute=False, compiled=False)  # fmt: skip
        chosen = dataclasses.replace(split, microbatches=microbatches or split.microbatches)
        plain, more = module.Gpt, max(1, sizes.layers // 4) if uneven else 0

        def cut(sizes: Any, place: Any, *, first: int, last: int) -> Any:
            end, start = (last, first + more) if first else (last + more, first)
            return plain(sizes, place, first=start, last=end)

        module.Gpt = cut if uneven else plain  # type: ignore[assignment, misc]
        try:
            return module.Pipeline(sizes, chosen, place, axes, recorder)
        finally:
            module.Gpt = plain  # type: ignore[misc]

    ids, targets = Batch(sizes, split.microbatches, split.dp, world.device).part(axes["dp"].rank)
    step = build()
    times = []
    for _ in range(3):
        world.barrier(world.everyone)
        begun = time.perf_counter()
        step(ids, targets)
        times.append(world.largest(time.perf_counter() - begun, world.everyone))
    fault = Fault(case["fault"], world.rank, build, layout, min(times), draw)
    batches = fault.batches(ids, targets)

    def once(on: bool) -> float:
        fault.on = on
        pipe.send(on)
        world.barrier(world.everyone)
        begun = time.perf_counter()
        fault(*next(batches))
        return world.largest(time.perf_counter() - begun, world.everyone)

    for on in (False, True, True):
        once(on)
    turns = [[once(False), once(True)] for _ in range(ROUNDS)]
    world.barrier(world.everyone)
    fault.on = True
    pipe.send(True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=profiled(wait=0, warmup=2, active=RECORDED, repeat=1), on_trace_ready=lambda done: done.export_chrome_trace(file)) as recording:  # fmt: skip
        for _ in range(2 + RECORDED):
            fault(*next(batches))
            recording.step()
    pipe.send(False)
    fault.undo()
    return {"turns": turns, "injected": fault.injected, "late": fault.late}


def throttle(pid: int, on: Callable[[], bool], share: float) -> Callable[[], None]:
    """Stop a process for a share of every 6 ms, while asked to: a core of a lower clock."""
    period = 6e-3

    def once() -> None:
        if on():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(share * period)
            os.kill(pid, signal.SIGCONT)
        time.sleep((1 - share) * period)

    return once


@contextlib.contextmanager
def pair(out: Path) -> Iterator[list[tuple[Any, Any]]]:
    """Two ranks, each with the pipe to it."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        mine, theirs = context.Pipe()
        ranks.append((context.Process(target=ran, args=(rank, port, out, theirs)), mine))
        ranks[-1][0].start()
        theirs.close()
    try:
        yield ranks
    finally:
        for process, end in ranks:
            with contextlib.suppress(OSError):
                end.send(None)
            process.join(10)
            if process.is_alive():
                process.kill()


def record(case: dict[str, Any], ranks: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Record one case; the truth of it."""
    for _, end in ranks:
        end.send(case)
    state, told, deadline = [False, False], [None, None], time.monotonic() + 120
    slowed = {"throttled": (0, 1), "rank-throttled": (case["seed"] % 2,)}.get(case["fault"], ())
    hold = [throttle(ranks[rank][0].pid, functools.partial(state.__getitem__, rank), 0.3) for rank in slowed]  # fmt: skip
    while not all(told):
        if time.monotonic() > deadline or not all(process.is_alive() for process, _ in ranks):
            raise RuntimeError("a rank ended early, or late")
        for rank, (_, end) in enumerate(ranks):
            while end.poll(0.0 if hold else 0.02):
                word = end.recv()
                if isinstance(word, dict):
                    told[rank] = word
                else:
                    state[rank] = word
        for act in hold:
            act()
    first: Any = told[0]
    off, on = np.array(first["turns"]).T
    cause, also, _ = FAULTS[case["fault"]]
    late = slowed or (first["late"],)
    one = case["fault"] in ("rank-sleeps", "rank-throttled", "loader-one-rank")
    return {
        "cause": cause,
        "also": list(also),
        "ranks": [] if cause == "none" else list(late) if one else [0, 1],
        "seconds_per_step": float(np.median(on - off)) if cause != "none" else 0.0,
        **({} if first["injected"] is None else {"injected_s": first["injected"]}),
        "standard_error_s": float(statistics.stdev(on - off) / len(on) ** 0.5),
        "clean_step_s": float(np.median(off)),
        "faulty_step_s": float(np.median(on)),
    }


def scaled(document: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A machine slower by a factor: rates of its accelerator and constants, times of its curves; the link stays."""
    machine = copy.deepcopy(dict(document))

    def quantity(text: str, by: float) -> str:
        number, unit = text.split(" ", 1)
        return f"{float(number) * by:.6g} {unit}"

    chip = machine["accelerator"]
    chip["peak_flops"] = {name: quantity(rate, 1 / factor) for name, rate in chip["peak_flops"].items()}  # fmt: skip
    chip["memory_bandwidth"] = quantity(chip["memory_bandwidth"], 1 / factor)
    machine["framework"]["launch_cost"] = quantity(machine["framework"]["launch_cost"], factor)
    for constant in machine["constants"].values():
        by = {"s": factor, "FLOP/s": 1 / factor, "B/s": 1 / factor}.get(constant["unit"], 1.0)
        for key in ("value", "low", "high"):
            constant[key] *= by
    for curve in (*machine["kernel_curves"], *machine["collective_curves"]):
        curve["seconds"] = [seconds * factor for seconds in curve["seconds"]]
    return {key: machine[key] for key in machine if key not in ("warnings", "inputs")}


def describe(case: dict[str, Any], truth: dict[str, Any], folder: Path) -> None:
    """Write the scenario without the fault, on a machine at the speed of the hour, and the truth."""
    from mpsim.validate.step_scenarios import step_of

    split = LAYOUTS[case["layout"]]
    document = yaml.safe_load((HERE / "cpu-2-ranks.yaml").read_text())
    measurement = Measurement(
        id="1", family="steps", op="train_step", dtype="float32", phase="burst", group=(0, 1), domains=1, synchronous=True, method="perf_counter", seconds=((1.0,), (1.0,)),
        shape={**case["sizes"], **{axis: split.get(axis, 1) for axis in ("dp", "tp", "pp")}, "microbatches": split.get("microbatches", 1), "virtual_stages": split.get("virtual", 1)},
        variant={"data_parallel": split.get("data_parallel", "none"), "schedule": split.get("schedule", "none"), "recompute": "none"},
    )  # fmt: skip
    from mpsim.formats.recorded_step import read_recordings

    steps = [np.diff(item.spans[0].steps, axis=1).ravel() for file in sorted(folder.glob("rank*.json.gz")) for item in read_recordings(file)]  # fmt: skip
    recorded = float(np.mean(steps))
    wanted = recorded - truth.get("injected_s", truth["seconds_per_step"])
    machine, factor = document, 1.0
    for _ in range(6):
        machine = scaled(document, factor)
        (folder / "machine.yaml").write_text(yaml.safe_dump(machine, sort_keys=False))
        imported = step_of(measurement, read_machine(folder / "machine.yaml"))
        scenario = dict(imported.scenario)
        scenario["cluster"] = {"preset": "./machine.yaml", "nodes": 1, "accelerators_per_node": 2}
        (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
        predicted = float(mpsim.simulate(mpsim.load(folder / "scenario.yaml")).summary["step_time_s"])  # fmt: skip
        factor *= wanted / predicted
    truth |= {"recorded_step_s": recorded, "predicted_s": predicted, "factor": factor}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def cases(seed: int) -> Iterator[dict[str, Any]]:
    """Every fault in a layout that can have it, with a model drawn from the seed."""
    draw = np.random.default_rng([32, seed])
    for fault, (_, _, layouts) in FAULTS.items():
        layout = layouts[int(draw.integers(len(layouts)))]
        hidden = int(draw.choice([128, 256]))
        sizes = {"layers": int(draw.choice([4, 6, 8])), "hidden": hidden, "heads": max(2, hidden // 64), "ffn_hidden": 4 * hidden, "vocab": 2048, "sequence": 128, "micro_batch": 2}  # fmt: skip
        yield {"fault": fault, "layout": layout, "seed": int(draw.integers(1 << 30)), "sizes": sizes}  # fmt: skip


def main() -> None:
    """Record what is asked for."""
    parser = argparse.ArgumentParser(prog="record_faults.py", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=FAULTS)
    parser.add_argument("--layout", choices=LAYOUTS)
    parser.add_argument("--nice", type=int, default=0, help="of the ranks while they are timed")
    options = parser.parse_args()
    wanted = [case for case in cases(options.seed) if not options.only or case["fault"] in options.only]  # fmt: skip
    while wanted:
        with pair(options.out) as ranks:
            while wanted:
                case = {**wanted.pop(0), "nice": options.nice}
                layouts = FAULTS[case["fault"]][2]
                case["layout"] = options.layout if options.layout in layouts else case["layout"]
                case["name"] = f"{case['fault']}-{case['layout']}-{options.seed}"
                (options.out / case["name"]).mkdir(parents=True, exist_ok=True)
                try:
                    truth = record(case, ranks)
                    describe(case, truth, options.out / case["name"])
                except (RuntimeError, OSError, EOFError, mpsim.MpsimError) as error:
                    print(f"{case['name']}: {' '.join(str(error).split())[:200]}", flush=True)
                    break  # the others go on with ranks of their own
                print(f"{case['name']}: {truth['cause']} {1e3 * truth['seconds_per_step']:.0f} of {1e3 * truth['clean_step_s']:.0f} ms (+-{1e3 * truth['standard_error_s']:.0f}), recorded {1e3 * truth['recorded_step_s']:.0f}, machine x{truth['factor']:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
