"""The half of `mpsim measure` that GPUs take, on a made-up H200: its clock, graphs and memory are made up, its arithmetic is the CPU's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mpsim.cli.app import execute  # noqa: E402
from mpsim.measure import Settings  # noqa: E402
from mpsim.measure.plan import (  # noqa: E402
    Case,
    Work,
    load_grid,
)
from mpsim.measure.runner import _rank_of, run  # noqa: E402
from mpsim.measure.timer import Timer  # noqa: E402
from mpsim.measure.world import World  # noqa: E402
from mpsim.measured.files import read_measured  # noqa: E402
from mpsim.measured.records import RankRecord  # noqa: E402

pytestmark = pytest.mark.torch

PEAK_MEMORY = 3_000_000_000
OTHERS = 40_000_000
"""What workspaces of libraries take, which are no tensors of a case [B]."""
SMALL = {
    "gemm": [[16, 32, 32], [16, 32, 48], [32, 32, 32], [32, 64, 32], [32, 32, 64]],
    "attention": [[1, 2, 16, 32], [1, 2, 32, 32], [1, 2, 64, 32]],
    "rows": [[8, 16], [16, 16], [32, 16], [32, 32]],
    "vocabulary": [[16, 32], [16, 64], [32, 64]],
    "adam": [100, 1000],
    "copy": [64, 4096],
    "layers": [[32, 2, 64, 16, 1]],
    "heads": [[32, 64, 16, 1]],
    "models": [
        {
            "layers": 2,
            "hidden": 32,
            "heads": 2,
            "ffn_hidden": 64,
            "vocab": 64,
            "sequence": 16,
            "micro_batch": 1,
        }
    ],
}


class Event:
    """An event whose clock is the host's."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = perf_counter()

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


class Graph:
    """A graph that runs at once when captured, and when replayed takes its time again."""

    def __init__(self) -> None:
        self.seconds = 1e-6

    def replay(self) -> None:
        end = perf_counter() + self.seconds
        while perf_counter() < end:
            pass


@contextlib.contextmanager
def capture(graph: Graph, *, stream: object) -> Iterator[None]:
    """As torch.cuda.graph: what runs inside is captured."""
    assert stream == "stream"
    begin = perf_counter()
    yield
    graph.seconds = perf_counter() - begin


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sees one H200, whose tensors lie in the host's memory; the sizes of the grid are small."""
    pretend(monkeypatch)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one command measured on it."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.jsonl"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the sizes are too small for more
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            pretend(monkeypatch)
            run(Settings(path, budget=60.0, device="cpu"), lambda _: None)
    finally:
        torch.set_num_threads(threads)
    return path


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the made-up device in the place of torch's, and small sizes into the grid."""
    cuda: Any = torch.cuda
    for name, value in {
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
        "Stream": lambda: "stream",
        "current_stream": lambda: "stream",
        "set_stream": lambda _: None,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "max_memory_allocated": lambda: PEAK_MEMORY + OTHERS,
        "memory_allocated": lambda: OTHERS,
        "mem_get_info": lambda _: (10**9, 10**9),
        "get_device_capability": lambda _: (9, 0),
        "nccl": SimpleNamespace(version=lambda: (2, 29, 3)),
    }.items():
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.setattr(World, "kind", "cuda")
    record = RankRecord(0, "node", "cuda:0", "NVIDIA H200", 1, 141e9, 1.98e9)
    monkeypatch.setattr(World, "_record", lambda _: record)
    grid = copy.deepcopy(load_grid()["cuda"]) | SMALL
    grid["variants"] = [one for one in grid["variants"] if not one.get("compiled")]
    monkeypatch.setitem(load_grid(), "cuda", grid)
    timing = load_grid()["timing"]
    for key, changed in {
        "sustained_seconds": {"cpu": 0.0, "cuda": 0.001},
        "sample_seconds": {"cpu": 1e-4, "cuda": 1e-4},
        "rotate_bytes": {"cpu": 1, "cuda": 1},
        "samples": {"least": 3, "most": 4},
    }.items():
        monkeypatch.setitem(timing, key, changed)


def test_one_command_measures_calibrates_and_predicts_a_gpu(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels of every format, layers, whole steps with their memory; then a machine file on the datasheet's chip, and its predictions."""
    found = read_measured(recorded)
    assert found.end is not None
    assert found.end.complete
    products = found.of("kernels", "gemm")
    assert {one.dtype for one in products} == set(load_grid()["cuda"]["dtypes"])
    assert {one.phase for one in products} == {"burst", "sustained"}
    assert {one.method for one in products} == {"cuda-graph"}
    ways = {one.variant["way"]: one.method for one in found.of("kernels", "launch")}
    assert ways == {"host": "perf_counter", "stream": "cuda-events", "graph": "cuda-graph"}
    assert {one.method for one in found.of("blocks")} == {"cuda-graph"}
    steps = found.of("steps")
    assert len(steps) == 4, "eager, recomputed, wider, accumulated"
    assert {one.peak_memory_bytes for one in steps} == {PEAK_MEMORY}
    assert {one.shape["micro_batch"] for one in steps} == {1, 2}
    assert all(one.actions and one.others == 0.0 for one in steps)
    assert {one.variant["attention"] for one in steps} == {"flash"}

    box = tmp_path / "box.yaml"
    assert execute(["calibrate", str(recorded), "-o", str(box), "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)
    assert machine["datasheet"].startswith("h200")
    execute(["validate", str(box), "--runs", str(recorded), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [one["skipped_because"] for one in report["steps"]] == [None] * 4
    assert all(one["predicted_memory_bytes"] > 0 for one in report["steps"])
    assert all(one["measured_memory_bytes"] == PEAK_MEMORY for one in report["steps"])


def test_what_cannot_be_captured_is_launched_between_events(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that fails leaves an error behind, and the timer goes on without it."""

    @contextlib.contextmanager
    def refuse(graph: Graph, *, stream: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    calls: list[int] = []
    case = Case("kernels", "x", {}, {}, "float32", (0,), prepare=lambda _: Work(lambda: None))
    with World.join("cpu") as world:
        monkeypatch.setattr(torch.cuda, "graph", refuse)
        work = Work(lambda: calls.append(1), capturable=True, most_calls=2)
        timed = Timer(world).time(case, work, 0.01)
    assert timed.method == "cuda-events"
    assert timed.calls == 2
    assert len(timed.seconds) >= 3


def test_what_training_runs_is_measured_before_the_rest() -> None:
    """A budget that ends early leaves out formats that nobody trains in: first bf16, copies and launches, then products of other formats."""

    def rank(op: str, dtype: str) -> int:
        case = Case("kernels", op, {}, {}, dtype, (0,), prepare=lambda _: Work(lambda: None))
        return _rank_of(case, "bfloat16")

    assert rank("gemm", "bfloat16") == rank("copy", "uint8") == rank("launch", "float32") == 0
    assert rank("gemm", "float8_e4m3fn") == 1
    assert rank("softmax", "float32") == 2


def test_layers_are_compiled_and_not_the_model(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph serves every layer, so that compiling takes as long for 32 of them as for one."""
    from mpsim.measure.model import Gpt, Layer, Place, Sizes
    from mpsim.measure.steps import _compile

    compiled: list[object] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compiled.append(self))
    sizes = Sizes(**SMALL["models"][0])  # type: ignore[index, arg-type]
    model = Gpt(sizes, Place(0, 1, None, torch.device("cpu"), torch.float32))
    _compile(model)
    assert compiled == list(model.layers)
    assert all(isinstance(one, Layer) for one in compiled)


def test_compiled_steps_are_predicted_on_a_gpu_with_fused_kernels(
    recorded: Path, tmp_path: Path
) -> None:
    """As layers that were compiled one by one run; on a CPU they are refused with the reason."""
    from mpsim.errors import CalibrationError
    from mpsim.hardware import host_of
    from mpsim.hardware.machine import read_machine
    from mpsim.validate.step_scenarios import step_of

    box = tmp_path / "box.yaml"
    assert execute(["calibrate", str(recorded), "-o", str(box)]) == 0
    one = read_measured(recorded).of("steps")[0]
    changed = dataclasses.replace(
        one, variant={**one.variant, "compiled": True, "attention": "cudnn"}
    )
    machine = read_machine(box)
    eager, fused = (step_of(each, machine).build().software for each in (one, changed))
    assert fused.lowering.fused_bias_dropout_add
    assert not eager.lowering.fused_bias_dropout_add
    assert eager.lowering.fused_bias_activation, "a bias in the product's epilogue is no kernel"
    assert (eager.kernels.attention_kernel, fused.kernels.attention_kernel) == ("flash2", "cudnn")
    launch = step_of(one, machine, launch=4e-6).build().software.host.launch_cost
    assert launch == pytest.approx(8e-6), "of an operator, twice an addition's"
    measured = machine.accelerator.calibration
    assert measured is not None
    beside = {**measured.document, "datasheet": "gb200"}
    chip = dataclasses.replace(
        machine.accelerator, calibration=dataclasses.replace(measured, document=beside)
    )
    node = dataclasses.replace(machine.node, accelerator=chip)
    beside_grace = dataclasses.replace(machine, node=node)
    launch = step_of(one, beside_grace, launch=4e-6).build().software.host.launch_cost
    assert launch == pytest.approx(8e-6 / host_of(beside_grace).call_time, rel=1e-3)
    assert host_of(beside_grace).call_time > 1
    assert fused.host.layer_launches_forward < eager.host.layer_launches_forward
    here = Path(__file__).parents[3] / "validation" / "measured" / "cpu-2-ranks.yaml"
    with pytest.raises(CalibrationError, match="not predicted on a CPU"):
        step_of(changed, read_machine(here)).build()
