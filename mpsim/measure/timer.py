"""The timer: how often a case runs, and what counts as its time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch

from mpsim import structs
from mpsim.measure.plan import Case, Work, load_grid
from mpsim.measure.recorder import StepRows, cuda
from mpsim.measure.world import World

WARM_UP = 2


@structs.dataclass(frozen=True, slots=True)
class Timed:
    """Samples that the timer took on this rank."""

    method: str
    calls: int  # executions in each sample
    seconds: tuple[float, ...]  # of one execution, a sample each [s]
    steps: tuple[StepRows, ...] = ()  # of each sample, where the work has a recorder


@structs.dataclass(frozen=True, slots=True)
class _Sample:
    """One sample: its length [s], the share in which nobody had this core, its actions."""

    seconds: float
    share: float
    step: StepRows | None = None


class Timer:
    """Times work, on every rank of its group alike.

    On a CPU a sample is a loop of calls between two readings of the clock. On a GPU it
    is a CUDA graph of the calls between two events, so that the host's launches do not count; where
    the work cannot be captured the calls are launched between the events. A sample lasts
    `sample_seconds` at least, and begins with a barrier where the ranks work together.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = load_grid()["timing"]

    def time(self, case: Case, work: Work, limit: float) -> Timed:
        """Run `work` for `limit` seconds, warm-up included, and at least the fewest samples."""
        begin = perf_counter()
        method, execute = self._method(case, work)
        once = self._warm_up(case, work, execute)
        calls = self._calls(work, once)
        if method == "cuda-graph":
            execute = self._captured(work, calls)
        elif calls > 1:
            execute = _repeated(work.run, calls)
        if case.phase == "sustained":
            self._heat(case, execute, once * calls)
        left = limit - (perf_counter() - begin)
        count = self._agree(
            case, min(max(left / (once * calls), 0.0), self.rules["samples"]["most"])
        )
        count = max(int(count), int(self.rules["samples"]["least"]))
        samples = [self._sample(case, work, execute, method) for _ in range(count)]
        samples = self._undisturbed(case, samples)
        seconds = tuple(sample.seconds / (calls * work.divide) for sample in samples)
        steps = tuple(sample.step for sample in samples if sample.step is not None)
        return Timed(method, calls, seconds, steps)

    def _undisturbed(self, case: Case, samples: list[_Sample]) -> list[_Sample]:
        """Without the samples during which another process had this one's core; as many on each
        rank, the fewest at least.

        Only where each rank computes by itself with one thread: waiting for others is
        no disturbance, and threads add up. Where too few samples are left, some of the others stay
        with the time that this process ran. Steps count in full, for a step is what is predicted.
        """
        if self.world.kind != "cpu" or case.synchronous or self.world.threads > 1:
            return samples
        clean = sum(sample.share >= self.rules["own_share"] for sample in samples)
        keep = -int(self._agree(case, -float(max(clean, self.rules["samples"]["least"]))))
        best = sorted(range(len(samples)), key=lambda i: -samples[i].share)[:keep]
        chosen = [samples[i] for i in sorted(best)]
        if case.family == "steps":
            return chosen
        return [self._as_run(sample) for sample in chosen]

    def _as_run(self, sample: _Sample) -> _Sample:
        """A sample with the time that this process had the core, where a clock saw another."""
        if sample.share >= self.rules["own_share"] or sample.share <= 0:
            return sample
        return structs.replace(sample, seconds=sample.seconds * sample.share)

    def _method(self, case: Case, work: Work) -> tuple[str, Callable[[], object]]:
        if self.world.kind == "cpu" or work.host:
            return "perf_counter", work.run
        if work.capturable and self._can_capture(work):
            return "cuda-graph", work.run
        return "cuda-events", work.run

    def _warm_up(self, case: Case, work: Work, execute: Callable[[], object]) -> float:
        """Time of one call after a few, the same on every rank [s]."""
        for _ in range(1 if work.warm else WARM_UP):
            if work.before:
                work.before()
            start = perf_counter()
            execute()
            self.world.synchronize()
            once = perf_counter() - start
        return max(self._agree(case, once), 1e-9)

    def _calls(self, work: Work, once: float) -> int:
        wanted: int = math.ceil(self.rules["sample_seconds"][self.world.kind] / once)
        allowed = int(self.rules["most_calls"])
        most = min(work.most_calls or allowed, allowed)
        return max(1, min(wanted, most))

    def _heat(self, case: Case, execute: Callable[[], object], each: float) -> None:
        """Run without a pause until the device is as warm as it gets in a short run."""
        count = math.ceil(self.rules["sustained_seconds"][self.world.kind] / each)
        for _ in range(int(self._agree(case, count))):
            execute()
        self.world.synchronize()

    def _sample(
        self, case: Case, work: Work, execute: Callable[[], object], method: str
    ) -> _Sample:
        if work.before:
            work.before()
        self.world.barrier(case.group if case.synchronous else ())
        if work.recorder:
            work.recorder.begin()
        begin, ran = perf_counter(), _ran()
        if method == "perf_counter":
            time = self._by_clock(execute, wait=not work.host)
        else:
            time = _by_events(execute)
        share = (_ran() - ran) / (perf_counter() - begin)
        return _Sample(time, share, work.recorder.step() if work.recorder else None)

    def _by_clock(self, execute: Callable[[], object], *, wait: bool) -> float:
        start = perf_counter()
        execute()
        if wait:
            self.world.synchronize()
        time = perf_counter() - start
        self.world.synchronize()
        return time

    def _can_capture(self, work: Work) -> bool:
        try:
            self._captured(work, 1)()
            self.world.synchronize()
        except RuntimeError:  # what torch raises when an operation cannot be captured
            with contextlib.suppress(RuntimeError):  # what the capture left behind
                self.world.synchronize()
            return False
        return True

    def _captured(self, work: Work, calls: int) -> Callable[[], object]:
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        with cuda.graph(graph, stream=cuda.current_stream()):
            for _ in range(calls):
                work.run()
        replay: Callable[[], object] = graph.replay
        return replay

    def _agree(self, case: Case, value: float) -> float:
        """The largest of the group's: every rank takes as many samples of as many calls."""
        return self.world.largest(value, case.group)


def _ran() -> float:
    """Clock that stands still while this thread waits for a core that others have, and not while it
    sleeps [s]; where the system does not tell, the time that the process computed.
    """
    try:
        queued = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return process_time()
    return perf_counter() - 1e-9 * queued


def _repeated(run: Callable[[], object], calls: int) -> Callable[[], object]:
    def execute() -> None:
        for _ in range(calls):
            run()

    return execute


def _by_events(execute: Callable[[], object]) -> float:
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    execute()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
