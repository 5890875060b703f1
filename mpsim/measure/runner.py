"""The runner: goes through cases within the budget and writes each, after those of a run before."""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.measure import Settings
from mpsim.measure.blocks import block_series
from mpsim.measure.collectives import collective_series
from mpsim.measure.kernels import gemm_case, kernel_series
from mpsim.measure.plan import Case, Work, load_grid, round_robin
from mpsim.measure.recorder import join_actions
from mpsim.measure.steps import step_series
from mpsim.measure.timer import Timed, Timer
from mpsim.measure.world import World
from mpsim.measured.files import RecordWriter, partial_path, read_measured
from mpsim.measured.records import FAMILIES, End, Header, Line, Measured, Measurement, Skipped

_FAILURES = (
    *(RuntimeError, MemoryError, NotImplementedError),
    *(AttributeError, ImportError, TypeError, ValueError),  # another torch has other names
)
"""Errors that cost one case and not the run."""
SAY_EVERY = 5.0  # between lines of progress [s]
TOO_LONG = 3.0  # a case is left out where its series says that it takes this many times its limit


def run(settings: Settings, say: Callable[[str], None]) -> Measured | None:
    """Measure what `settings` ask for; see `mpsim.measure.measure`."""
    with World.join(settings.device) as world, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own names
        torch.manual_seed(settings.seed + world.rank)
        gc.collect()
        # what is there stays: collecting after each case then looks at its leavings alone
        gc.freeze()
        try:
            return _Run(settings, world, say).run()
        finally:
            gc.unfreeze()


class _Outcome(NamedTuple):
    """A case on one rank: samples, how it was checked, peak of its tensors [B], or why none."""

    timed: Timed | None = None
    check: str = ""
    peak: float = 0.0
    reason: str = ""


class _Run:
    """One run of `mpsim measure` on this rank."""

    def __init__(self, settings: Settings, world: World, say: Callable[[str], None]) -> None:
        self.settings, self.world = settings, world
        self.say = say if world.rank == 0 else (lambda _: None)
        self.timer = Timer(world)
        self.rules = load_grid()["timing"]
        self.writer: RecordWriter | None = None
        self.past = Past()
        self.known: dict[str, list[tuple[float, float]]] = {}
        self.complete = True
        self.count = 0
        self.reported = -math.inf
        self.began = perf_counter()

    def run(self) -> Measured | None:
        with ExitStack() as stack:
            self._open(stack)
            if self.past.whole is not None:
                return self.past.whole if self.world.rank == 0 else None
            before = self._yardstick()
            self.began = perf_counter()
            self._families()
            self._close(before, self._yardstick())
        return read_measured(self.settings.out) if self.world.rank == 0 else None

    def _open(self, stack: ExitStack) -> None:
        """Begin the file, or take up an earlier one, on the first rank, and tell the others."""
        header = self.world.header(self.settings.seed)
        problem = ""
        if self.world.rank == 0:
            try:
                if self.settings.resume:
                    self.past = take_up(self.settings.out, header, self.settings.families)
                if self.past.whole is None:
                    self.writer = stack.enter_context(RecordWriter(self.settings.out))
                    for line in self.past.lines or (header,):
                        self.writer.write(line)
            except (CalibrationError, OSError) as error:
                problem = str(error)
        problem, self.past = self.world.from_first((problem, self.past))
        if problem:
            raise CalibrationError(problem)
        self.count = len(self.past.done)

    def _close(self, before: float, after: float) -> None:
        clocks = self.world.gather(self.world.clock_hz(), self.world.everyone)
        if self.writer is not None:
            elapsed = perf_counter() - self.began
            self.writer.finish(
                End(self.count, self.complete, elapsed, (before, after), tuple(clocks))
            )
        self.world.barrier(self.world.everyone)

    def _families(self) -> None:
        """Each family has its share of what is left when its turn comes."""
        share = load_grid()["share"]
        wanted = [family for family in FAMILIES if family in self.settings.families]
        for place, family in enumerate(wanted):
            cases = self._cases(family)
            left = self.settings.budget - (perf_counter() - self.began)
            part = share[family] / sum(share[name] for name in wanted[place:])
            self._family(family, cases, left * part)

    def _cases(self, family: str) -> list[Case]:
        grid = load_grid()
        own = grid[self.world.kind]
        makers: dict[str, Callable[[], list[list[Case]]]] = {
            "kernels": lambda: kernel_series(self.world, own),
            "collectives": lambda: collective_series(self.world, own),
            "blocks": lambda: block_series(self.world, own),
            "steps": lambda: step_series(self.world, own, grid["parallel"]),
        }
        main = own["plain_dtypes"][0]  # the format that training steps are measured in comes first
        ranked: list[list[list[Case]]] = [[], [], []]
        for cases in filter(None, makers[family]()):
            ranked[_rank_of(cases[0], main)].append(cases)
        return [case for queue in ranked for case in round_robin(queue)]

    def _family(self, family: str, cases: list[Case], seconds: float) -> None:
        end = perf_counter() + seconds
        open_cases = [case for case in cases if case.id not in self.past.done]
        for number, case in enumerate(open_cases):
            left = end - perf_counter()
            limit = self._limit(left / (len(open_cases) - number))
            go, limit, reason = self.world.from_first(
                (left > 0, limit, self._too_long(case, limit))
            )
            if not go:
                self.complete = False
                self.say(f"{family}: budget spent, {len(open_cases) - number} cases left out")
                return
            self._progress(f"{family} {number + 1}/{len(open_cases)}: {case.id}")
            self._case(case, limit, reason)

    def _limit(self, share: float) -> float:
        rules = self.rules["case_seconds"]
        return min(max(share, float(rules["least"])), float(rules["most"]))

    def _too_long(self, case: Case, limit: float) -> str:
        """Why not to try, by smaller cases of the series; empty if nothing is against it."""
        smaller = [(size, time) for size, time in self.known.get(case.series, []) if size > 0]
        if not smaller:
            return ""
        size, time = min(smaller, key=lambda known: abs(math.log(known[0] / case.size)))
        each = time * case.size / size
        runs = int(self.rules["samples"]["least"]) + 2
        if case.size > size and each * runs > TOO_LONG * limit:
            self.complete = False
            return "would take longer than its share of the budget"
        return ""

    def _case(self, case: Case, limit: float, reason: str) -> None:
        """Measure one case on the ranks of its group, or say why not."""
        before, mine = read_usage(), None
        if self.world.rank in case.group:
            mine = _Outcome(reason=reason) if reason else self._measured(case, limit)
        after = read_usage()
        used = (after.cores, after.own - before.own)
        everyone = self.world.gather((mine, used), self.world.everyone)
        outcomes = [outcome for outcome, _ in everyone if outcome is not None]
        reasons = [outcome.reason for outcome in outcomes if outcome.reason]
        if self.writer is None:
            return
        if reasons:
            self.writer.write(Skipped(case.id, reasons[0]))
            return
        line = self._measurement(case, outcomes)
        if self.world.kind == "cpu":  # what others do on a host hardly touches its GPUs
            own = self._own([used for _, used in everyone], after.cores)
            line = structs.replace(line, others=others_share(before, after, own))
        self.known.setdefault(case.series, []).append((case.size, line.median))
        self.writer.write(line)
        self.count += 1

    def _own(
        self, used: Sequence[tuple[tuple[int, ...], float]], cores: tuple[int, ...]
    ) -> list[float]:
        """CPU time of our ranks on the first rank's host and cores [s]."""
        host = self.world.ranks[0].host
        return [
            seconds
            for (where, seconds), rank in zip(used, self.world.ranks, strict=True)
            if rank.host == host and where == cores
        ]

    def _measured(self, case: Case, limit: float) -> _Outcome:
        """Set a case up and time it, by the same decisions on every rank of the group."""
        before = self._allocated()
        work, reason = self._set_up(case)
        reasons = [text for text in self.world.gather(reason, case.group) if text]
        timed, peak = None, 0.0
        if work is not None and not reasons:
            if self.world.kind == "cuda":
                torch.cuda.reset_peak_memory_stats()
            try:
                timed = self.timer.time(case, work, limit)
            except _FAILURES as error:
                if len(case.group) > 1 and not _is_memory(error):
                    raise
                reasons = [_why(error)]
            if self.world.kind == "cuda":
                peak = float(torch.cuda.max_memory_allocated()) - before
        check = work.check if work is not None else ""
        if work is not None and work.close:
            work.close()
        del work
        gc.collect()
        if self.world.kind == "cuda":
            torch.cuda.empty_cache()
        return _Outcome(timed, check, peak, reasons[0] if reasons else "")

    def _allocated(self) -> float:
        """Memory of the GPU that tensors of other cases and workspaces of libraries take [B]."""
        return float(torch.cuda.memory_allocated()) if self.world.kind == "cuda" else 0.0

    def _set_up(self, case: Case) -> tuple[Work | None, str]:
        room = self.world.free_bytes() * self.rules["memory_share"]
        short = case.memory > room > 0
        if self.world.largest(float(short), case.group):
            need = f"needs about {case.memory / 1e9:.2g} GB"
            return None, f"{need}, {room / 1e9:.2g} GB are to be had"
        try:
            return case.prepare(self.world), ""
        except CalibrationError as error:
            return None, f"wrong result: {error}"
        except _FAILURES as error:
            return None, _why(error)

    def _measurement(self, case: Case, outcomes: Sequence[_Outcome]) -> Measurement:
        every = [outcome.timed for outcome in outcomes if outcome.timed is not None]
        actions = None
        if every[0].steps:
            most = int(self.rules["action_samples"])
            samples = zip(*(share.steps[:most] for share in every), strict=True)
            actions = join_actions([list(zip(case.group, ranks, strict=True)) for ranks in samples])
        names = {field.name for field in structs.fields(Case)} - {"prepare", "memory"}
        return Measurement(
            id=case.id,
            **{name: getattr(case, name) for name in names},
            domains=len({self.world.ranks[rank].host for rank in case.group}),
            method=every[0].method,
            seconds=tuple(tuple(map(_written, share.seconds)) for share in every),
            calls=every[0].calls,
            check=next((outcome.check for outcome in outcomes if outcome.check), ""),
            peak_memory_bytes=max(outcome.peak for outcome in outcomes),
            actions=actions,
        )

    def _yardstick(self) -> float:
        """Time of one kernel that never changes, the slowest rank's [s]."""
        rule = self.rules["yardstick"]
        case = gemm_case(self.world, "forward", (rule["m"], rule["k"], rule["n"]), "float32")
        timed = self.timer.time(case, case.prepare(self.world), float(rule["seconds"]))
        ordered = sorted(timed.seconds)
        return self.world.largest(ordered[len(ordered) // 2], self.world.everyone)

    def _progress(self, text: str) -> None:
        now = perf_counter()
        if now - self.reported >= SAY_EVERY:
            self.reported = now
            self.say(f"{now - self.began:.0f} of {self.settings.budget:.0f} s, {text}")


def _rank_of(case: Case, main: str) -> int:
    """Order of cases: first the format of training steps, then products in others, then rest."""
    if case.dtype in (main, "uint8") or case.op == "launch":
        return 0
    return 1 if case.op == "gemm" else 2


def _written(seconds: float) -> float:
    """Six digits of a time: more than a clock has."""
    return float(f"{seconds:.6g}")


def _is_memory(error: BaseException) -> bool:
    """Whether memory ran out, in any of the words torch has for it."""
    words = str(error).lower()
    known = (
        "out of memory",
        "can't allocate memory",
        "cannot allocate memory",
        "enforce fail at alloc",
    )
    return isinstance(error, MemoryError) or any(word in words for word in known)


def _why(error: BaseException) -> str:
    if _is_memory(error):
        return "out of memory"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"


SAME = ("torch", "cuda", "nccl", "driver", "backend", "world_size")


@structs.dataclass(frozen=True, slots=True)
class Past:
    """Measurements of an earlier run."""

    lines: tuple[Line, ...] = ()  # header and measurements to keep; empty where there are none
    done: frozenset[str] = frozenset()  # ids of the measurements
    whole: Measured | None = None  # the file, where nothing is left to do


def take_up(path: Path, header: Header, families: Sequence[str]) -> Past:
    """Read what was begun at `path`, if anything; what was skipped is tried again. CalibrationError
    if it was measured on another machine, with other software or on other ranks.
    """
    partial = partial_path(path)
    source = partial if partial.exists() else path
    if not source.exists() or not source.stat().st_size:
        return Past()
    past_run = read_measured(source, partial=True)
    _check_same(source, past_run.header, header)
    if past_run.end is not None and past_run.end.complete:
        measured = {measurement.family for measurement in past_run.measurements}
        if measured.issuperset(families):
            return Past(whole=past_run)
    return Past(
        (past_run.header, *past_run.measurements), frozenset(m.id for m in past_run.measurements)
    )


def _check_same(source: Path, old: Header, new: Header) -> None:
    for name in SAME:
        if getattr(old, name) != getattr(new, name):
            raise CalibrationError(
                f"{source}: {name} was {getattr(old, name)!r} and is {getattr(new, name)!r} now; "
                "measure into another file, or remove this one"
            )
    for before, now in zip(old.ranks, new.ranks, strict=True):
        if (before.device_name, before.threads) != (now.device_name, now.threads):
            raise CalibrationError(
                f"{source}: rank {now.rank} ran on {before.device_name} with {before.threads}"
                f" threads and is on {now.device_name} with {now.threads} now; measure into another"
                " file, or remove this one"
            )


IDLE = (3, 4)
"""Columns of /proc/stat that are no work: idle, and waiting for input or output (proc(5))."""
GUEST = 8  # from this column on guests are counted a second time


@structs.dataclass(frozen=True, slots=True)
class Usage:
    """Time used until one moment [s]."""

    wall: float  # wall, own: time, and CPU time of this process
    own: float
    # CPU time of every process on the cores that this one may use; 0 where nothing tells
    busy: float
    cores: tuple[int, ...]


def read_usage() -> Usage:
    """Time used until now."""
    cores = _cores()
    return Usage(perf_counter(), process_time(), _busy(cores), cores)


def others_share(before: Usage, after: Usage, own: Sequence[float]) -> float:
    """Share of some cores that processes other than ours used between two moments.

    `before` and `after`: of one rank. `own`: CPU time that each of our ranks that may use these
    cores used between [s].

    Examples
    --------
    >>> others_share(Usage(0.0, 0.0, 5.0, (0, 1)), Usage(10.0, 9.0, 23.0, (0, 1)), [9.0, 8.0])
    0.05
    """
    wall = after.wall - before.wall
    if not before.busy or wall <= 0:
        return 0.0
    others = (after.busy - before.busy - sum(own)) / (wall * len(before.cores))
    return round(min(max(others, 0.0), 1.0), 3)


def _cores() -> tuple[int, ...]:
    """Cores that this process may use; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _busy(cores: tuple[int, ...]) -> float:
    """CPU time that some cores have worked [s]."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    wanted = {f"cpu{core}" for core in cores}
    ticks = 0.0
    for line in lines:
        name, *columns = line.split()
        if name in wanted:
            work = [float(column) for column in columns[:GUEST]]
            ticks += sum(value for place, value in enumerate(work) if place not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")
