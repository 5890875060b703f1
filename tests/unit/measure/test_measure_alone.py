"""`mpsim measure` in one process on a CPU: for real, and with cases that fail."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest

from mpsim.errors import CalibrationError
from mpsim.measured.files import partial_path, read_measured

if os.environ.get("MPSIM_REQUIRE_TORCH") == "1":
    import torch  # a skipped module would pass
else:
    torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def world():
    """One process alone, on the CPU."""
    from mpsim.measure.world import World

    with World.join("cpu") as alone:
        yield alone


def settings(path: Path, **changes):
    """A short run of kernels."""
    from mpsim.measure import Settings

    given = {"budget": 1.0, "families": ("kernels",), "device": "cpu"} | changes
    return Settings(out=path, **given)


def test_kernels_are_measured_and_gone_on_with(mpsim_cli, tmp_path: Path) -> None:
    """A second run with --resume keeps every measurement of the first and adds others."""
    path = tmp_path / "m.jsonl"
    arguments = ("measure", "--only", "kernels", "--budget", "1s", "--out", path, "--json")
    first = mpsim_cli(*arguments)
    assert first.code == 0
    assert first.json()["complete"] is False
    before = read_measured(path)
    assert before.header.backend == "none"
    assert all(one.flops or one.bytes or one.op == "launch" for one in before.measurements)
    assert all("within" in one.check for one in before.of("kernels", "gemm"))
    second = mpsim_cli(*arguments, "--resume")
    assert second.code == 0
    after = read_measured(path)
    count = len(before.measurements)
    assert after.measurements[:count] == before.measurements
    assert len(after.measurements) > count
    assert not partial_path(path).exists()


def test_an_interrupted_run_leaves_what_it_has(tmp_path: Path, monkeypatch) -> None:
    """The file under its own name appears only when it is whole; --resume goes on from the partial one."""
    from mpsim.measure import measure
    from mpsim.measure.timer import Timer

    path, real, count = tmp_path / "m.jsonl", Timer.time, []

    def interrupted(self, case, work, limit):
        count.append(case.id)
        if len(count) == 5:
            raise KeyboardInterrupt
        return real(self, case, work, limit)

    monkeypatch.setattr(Timer, "time", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(settings(path, budget=60.0), say=lambda _: None)
    assert not path.exists()
    left = read_measured(partial_path(path), partial=True)
    assert len(left.measurements) == 3  # the first of the five was the yardstick
    monkeypatch.setattr(Timer, "time", real)
    done = measure(settings(path, resume=True), say=lambda _: None)
    assert done is not None
    assert done.measurements[:3] == left.measurements


FAILURES = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), "out of memory"),
    (MemoryError(), "out of memory"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
    (RuntimeError("no kernel\nfor this"), "RuntimeError: no kernel"),
    (NotImplementedError("torch 2.4 has no such schedule"), "NotImplementedError: torch 2.4"),
    (CalibrationError("differs"), "wrong result: differs"),
    (AttributeError("module 'torch' has no attribute 'x'"), "AttributeError: module 'torch'"),
]


def test_what_cannot_run_is_skipped_with_its_reason(tmp_path: Path, monkeypatch) -> None:
    """Out of memory in any of torch's words, a missing kernel or a wrong result: the rest goes on."""
    from mpsim.measure import measure, runner

    real = runner.kernel_series

    def failing(error):
        def fail(_):
            raise error

        return fail

    def with_failures(world, grid):
        good = real(world, grid)[0]
        bad = [
            dataclasses.replace(good[0], op=f"broken{i}", prepare=failing(error))
            for i, (error, _) in enumerate(FAILURES)
        ]
        return [[*bad, good[0]]]

    monkeypatch.setattr(runner, "kernel_series", with_failures)
    path = tmp_path / "m.jsonl"
    measured = measure(settings(path, budget=10.0), say=lambda _: None)
    assert measured is not None
    assert [one.id.split("/")[0] for one in measured.skipped] == [
        f"broken{i}" for i in range(len(FAILURES))
    ]
    for skipped, (_, reason) in zip(measured.skipped, FAILURES, strict=True):
        assert skipped.reason.startswith(reason)
    assert measured.measurements


def test_what_is_larger_than_the_memory_is_not_tried(tmp_path: Path, monkeypatch) -> None:
    """The need is compared with what is free before anything is allocated."""
    from mpsim.measure import measure
    from mpsim.measure.world import World

    monkeypatch.setattr(World, "free_bytes", lambda _: 1e3)
    measured = measure(settings(tmp_path / "m.jsonl", budget=5.0), say=lambda _: None)
    assert measured is not None
    assert {one.op for one in measured.measurements} == {"launch"}
    assert all("are to be had" in one.reason for one in measured.skipped)


def test_a_wrong_result_is_noticed() -> None:
    """A product that differs from its reference by more than the format allows is no measurement."""
    from mpsim.measure.tensors import agrees

    right = torch.ones(3)
    assert "within 0.0e+00" in agrees(right, right, "float32", "itself")
    for wrong in (1.01 * right, torch.full((3,), math.nan)):
        with pytest.raises(CalibrationError, match="differs from itself"):
            agrees(wrong, right, "float32", "itself")


def test_a_sample_is_the_mean_of_its_calls(world, monkeypatch) -> None:
    """A call of a known length is timed as that long, whether repeated or divided."""
    import time

    from mpsim.measure.plan import Case, Work
    from mpsim.measure.timer import Timer

    case = Case("kernels", "sleep", {}, {}, "float32", (0,), prepare=lambda _: Work(lambda: None))
    nap = 0.002
    monkeypatch.setattr(Timer, "_warm_up", lambda *_: nap)
    timed = Timer(world).time(case, Work(lambda: time.sleep(nap), divide=2.0), 0.05)
    assert timed.calls == 2
    assert min(timed.seconds) >= nap / 2
    assert timed.method == "perf_counter"


def test_before_is_not_timed(world) -> None:
    """What prepares a sample does not count."""
    import time

    from mpsim.measure.plan import Case, Work
    from mpsim.measure.timer import Timer

    case = Case("kernels", "nothing", {}, {}, "float32", (0,), prepare=lambda _: Work(lambda: None))
    work = Work(lambda: None, before=lambda: time.sleep(0.01), most_calls=1)
    assert min(Timer(world).time(case, work, 0.0).seconds) < 0.005


def test_working_sets_go_round(world) -> None:
    """Together they are larger than the caches, at most so many, and used in turn."""
    from mpsim.measure.tensors import rotated

    small = rotated(world, 1.0, lambda: object())
    first = [small() for _ in range(16)]
    assert len(set(map(id, first))) == 16
    assert small() is first[0]
    large = rotated(world, 1e12, lambda: object())
    assert large() is large()


def test_flops_of_a_layer_by_hand() -> None:
    """2 tokens (12 d^2) in the products and 4 s^2 d in the attention, for a layer four times as wide inside."""
    from mpsim.measure.model import Sizes, layer_flops

    sizes = Sizes(3, 64, 4, 256, 100, 10, 1)
    assert layer_flops(sizes) == 2 * 10 * 12 * 64**2 + 4 * 10**2 * 64


def test_parameters_are_counted_as_torch_counts(world) -> None:
    """The count that memory is judged by is that of the model that is built."""
    from mpsim.measure.model import Gpt, Place, Sizes

    sizes = Sizes(2, 32, 4, 128, 50, 16, 1)
    model = Gpt(sizes, Place(0, 1, None, world.device, torch.float32))
    assert sum(one.numel() for one in model.parameters()) == sizes.parameters


def test_samples_that_were_disturbed_are_dropped(world, monkeypatch) -> None:
    """Of eight samples the three during which the process did not have its core go, and no more than leave the fewest."""
    from mpsim.measure.plan import Case, Work
    from mpsim.measure.timer import Timer, _Sample

    timer = Timer(world)
    monkeypatch.setattr(world, "threads", 1)
    case = Case("kernels", "nothing", {}, {}, "float32", (0,), prepare=lambda _: Work(lambda: None))
    shares = [1.0, 0.5, 0.99, 0.2, 1.0, 0.97, 0.9, 1.0]
    samples = [_Sample(float(i), share) for i, share in enumerate(shares)]
    assert [one.seconds for one in timer._undisturbed(case, samples)] == [0.0, 2.0, 4.0, 5.0, 7.0]
    left = timer._undisturbed(case, [_Sample(1.0, 0.1)] * 8)
    assert [one.seconds for one in left] == [0.1] * 3, "what the process itself ran"
    step = dataclasses.replace(case, family="steps")
    assert {one.seconds for one in timer._undisturbed(step, [_Sample(1.0, 0.1)] * 8)} == {1.0}
    together = dataclasses.replace(case, synchronous=True)
    assert timer._undisturbed(together, samples) == samples


def test_layers_are_timed_within_a_stack(world) -> None:
    """Each pass of a layer is that of a stack over its layers, and a backward on a CPU runs through a graph of its own each time."""
    from mpsim.measure.blocks import block_series
    from mpsim.measure.plan import load_grid

    grid = dict(load_grid()["cpu"]) | {"layers": [[32, 2, 64, 16, 1]], "heads": []}
    series = [one for one in block_series(world, grid) if one and one[0].op == "transformer_layer"]
    for (case,) in series:
        work = case.prepare(world)
        assert work.divide == case.shape["layers"] == grid["block_layers"] > 1
        for _ in range(2):
            if work.before:
                work.before()
            work.run()
        assert bool(work.before) == (case.variant["pass"] == "backward")


def test_a_sleep_counts_and_waiting_for_a_core_does_not(world, monkeypatch) -> None:
    """Work that sleeps takes its time; while others have the core nothing is taken, and a clock that saw nothing run leaves the sample as it is."""
    import time

    from mpsim.measure import timer as module
    from mpsim.measure.plan import Case, Work

    case = Case("kernels", "nothing", {}, {}, "float32", (0,), prepare=lambda _: Work(lambda: None))
    monkeypatch.setattr(world, "threads", 1)
    timer = module.Timer(world)
    sample = timer._sample(case, Work(lambda: None), lambda: time.sleep(0.1), "perf_counter")
    if Path("/proc/thread-self/schedstat").exists():
        assert timer._as_run(sample).seconds > 0.05
    clock = iter([0.0, 0.25])
    monkeypatch.setattr(module, "_ran", lambda: next(clock) * sample.seconds)
    monkeypatch.setattr(module, "perf_counter", iter([0.0, 0.0, 1.0, 1.0]).__next__)
    busy = timer._sample(case, Work(lambda: None), lambda: None, "perf_counter")
    assert busy.share == pytest.approx(0.25 * sample.seconds)
    never = module._Sample(1.0, 0.0)
    assert timer._as_run(never) == never


def test_a_step_whose_gradients_are_not_summed_is_noticed(world) -> None:
    """A replica that trains on its own half alone has another second loss than one process on the whole batch."""
    from mpsim.measure.model import Sizes
    from mpsim.measure.plan import Split
    from mpsim.measure.recorder import Recorder
    from mpsim.measure.steps import Batch, Replica, checked, place_of

    sizes = Sizes(2, 32, 2, 64, 64, 16, 1)
    place, axes = place_of(world, Split(), "float32")

    def losses_of(microbatches: int, replicas: int) -> list[float]:
        """Mean losses over replicas that do not tell each other anything."""
        batch = Batch(sizes, microbatches, replicas, world.device)
        options = {"microbatches": microbatches, "recompute": False, "compiled": False}
        steps = [
            Replica(sizes, Split(), place, axes, Recorder(False, 0.0), **options)
            for _ in range(replicas)
        ]
        found = []
        for _ in range(2):
            each = [step(*batch.part(i)) for i, step in enumerate(steps)]
            found.append(sum(map(sum, each)) / (replicas * microbatches))
        return found

    batch = Batch(sizes, 2, 1, world.device)
    assert "of one process" in checked(sizes, batch, place, losses_of(2, 1), "float32")
    with pytest.raises(CalibrationError, match="differs from 2 steps of one process"):
        checked(sizes, batch, place, losses_of(1, 2), "float32")
