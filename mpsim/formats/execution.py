"""Executions: programs of other tools, run on a cluster of ours, and where their time goes.

A program of a compiled module or of an execution trace is a `mpsim.program.Program` like any other.
It has no scenario, so its answer is no `mpsim.result.Result`, but has the same figures: step time,
an account of every rank that sums to it, communication exposed and hidden, a trace, a picture.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpsim import accessors, structs
from mpsim.arrays import Floats, Ints
from mpsim.cost import CollectiveModel, Constant
from mpsim.engine import Timeline, run
from mpsim.errors import FormatError, nearest
from mpsim.hardware import Cluster, system, system_names
from mpsim.parallel.axes import COMMUNICATION, Stream
from mpsim.parallel.crossing import message_slowdown, placed
from mpsim.program import COLLECTIVE, SEND, TICK, Program, Vocabulary
from mpsim.result.communication import Over, communication_time
from mpsim.result.figures import calibration
from mpsim.result.intervals import Waits, idle_gaps, waits_before
from mpsim.training.vocabulary import PARTS

PHASES = ("forward", "backward", "weight_gradient", "recompute", "optimizer", "compute")
"""Kinds of kernels that files of other tools tell apart; ``compute`` where they do not."""

_POOL = (Stream.TP, Stream.CP, Stream.EP, Stream.DP, Stream.REPLICA, Stream.EDP)


def program_vocabulary(axes: Sequence[str]) -> Vocabulary:
    """Words of a program that communicates over these axes, as its file names them."""
    exposed = [f"exposed_{axis}" for axis in axes]
    return Vocabulary(
        kinds=("send", "collective", *PHASES),
        actions=(),
        parts=tuple(dict.fromkeys([*PHASES, *PARTS, *exposed])),
        computing=PHASES,
    )


def axis_streams(axes: Sequence[str]) -> dict[str, Stream]:
    """Queue of each axis' collectives, the slowest axis first; where too many, last ones share."""
    return {axis: _POOL[min(place, len(_POOL) - 1)] for place, axis in enumerate(reversed(axes))}


@structs.dataclass(frozen=True, kw_only=True)
class ImportedProgram:
    """A program read from somebody else's file, priced and ready to run."""

    name: str
    program: Program
    axes: tuple[str, ...]  # over which it communicates, as the file shows them
    cluster: Cluster | None = None  # it was priced on; None where the file states its times itself
    flops: float = 0.0  # of one rank, matrix products only [FLOP]
    # of one rank by what it is for [B]; empty where the file does not show it
    memory: Mapping[str, float] = structs.field(default_factory=dict)
    constants: tuple[Constant, ...] = ()  # every constant that the prices rest on
    warnings: tuple[str, ...] = ()

    def run(self, engine: str = "auto") -> Execution:
        """Run it by an engine of `mpsim.engine.run`; DeadlockError if waits make a circle."""
        return Execution(self, run(self.program, engine))


@structs.dataclass(frozen=True)
class Execution:
    """One run of an imported program."""

    source: ImportedProgram
    timeline: Timeline

    @functools.cached_property
    def parts(self) -> Floats:
        """Ticks of each rank class by part of the vocabulary; every row sums to the makespan."""
        return attribute(self.timeline)

    @functools.cached_property
    def breakdown(self) -> dict[str, float]:
        """Mean time over ranks by part, those that occur; sums to the step time [s]."""
        program = self.timeline.program
        mean = (program.class_size / program.class_size.sum()) @ self.parts * TICK
        own = {*(f"exposed_{axis}" for axis in self.source.axes), "bubble"}
        return {
            name: float(seconds)
            for name, seconds in zip(program.vocabulary.parts, mean, strict=True)
            if seconds or name in own
        }

    @functools.cached_property
    def communication(self) -> dict[str, dict[str, float]]:
        """Mean time of each axis' transfers, beside kernels and not, and bytes sent [s, B]."""
        return _communication(self.timeline, self.source.axes)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of ``mpsim run`` that a program without a scenario has, SI units."""
        source, step = self.source, self.timeline.step_time_s
        ranks = int(self.timeline.program.class_size.sum())
        flops = source.flops * ranks
        summary: dict[str, object] = {
            "scenario": source.name,
            "engine": self.timeline.engine,
            "accelerators": ranks,
            "step_time_s": step,
            "hardware_flops_per_step": flops,
            "hardware_tflops_per_accelerator": source.flops / step / 1e12 if step else 0.0,
            "bubble_fraction": self.breakdown["bubble"] / step if step else 0.0,
            "breakdown_s": self.breakdown,
            "communication_s": self.communication,
            "operations": len(self.timeline.program),
        }
        if source.cluster is not None:
            summary["cluster"] = source.cluster.name
        if source.memory:
            summary["memory"] = dict(source.memory)
        if source.constants:
            summary["calibration"] = calibration(source.constants)
        return summary | {"warnings": list(source.warnings)}

    def write_trace(self, path: str | Path, *, detail: str = "chunk") -> None:
        """Write a trace that Perfetto opens; gzipped when `path` ends in ``.gz``."""
        accessors.call("timeline.write_trace", self.timeline, path, detail=detail)

    def plot(self) -> Any:
        """Draw ranks by time, communication under kernels: a `mpsim.plot.TimelineDisplay`."""
        return accessors.call("timeline.plot", self.timeline, self.labels)

    @property
    def labels(self) -> dict[str, str]:
        """Words for the communication of each axis, by the name of the queue's colour."""
        return {
            COMMUNICATION[stream]: f"over {axis}"
            for axis, stream in axis_streams(self.source.axes).items()
        }


def attribute(timeline: Timeline) -> Floats:
    """Split the time of every rank class of a program without templates: kernels as what they do,
    idle time as the transfer that was waited for, or as ``bubble``.

    Returns float64[R, parts]: ticks; every row sums to the makespan.
    """
    program = timeline.program
    bubble = program.vocabulary.part("bubble")
    result, gaps = program.busy_parts.copy(), idle_gaps(timeline)
    waits_before(timeline, gaps.where(gaps.row >= 0), bubble).add_to(result)
    # after its last kernel a rank may still communicate; what nothing covers is waiting
    ends = gaps.where(gaps.row < 0)
    row, rank, _ = program.slots
    moves = np.isin(program.kind[row], (SEND, COLLECTIVE)) & (program.duration[row] > 0)
    for number in np.arange(len(ends.rank))[:, None]:
        end = ends.where(number)
        _charge_end(result, timeline, end, row[moves & (rank == end.rank[0])], bubble)
    return result


def _charge_end(parts: Floats, timeline: Timeline, gap: Waits, rows: Ints, bubble: int) -> None:
    """Charge idle time after a rank's last kernel to its transfers, in the order of their ends."""
    program, rank = timeline.program, int(gap.rank[0])
    now, until = float(gap.start[0]), float(gap.end[0])
    for row in rows[np.argsort(timeline.end[rows], kind="stable")].tolist():
        start, end = float(timeline.start[row]), float(timeline.end[row])
        if end <= now:
            continue
        parts[rank, bubble] += max(0.0, start - now)
        parts[rank, program.part[row]] += end - max(start, now)
        now = end
    parts[rank, bubble] += max(0.0, until - now)


def _communication(timeline: Timeline, axes: Sequence[str]) -> dict[str, dict[str, float]]:
    program = timeline.program
    row, rank, stream = program.slots
    own = {program.vocabulary.part(f"exposed_{axis}"): n for n, axis in enumerate(axes)}
    axis_of = np.array([own.get(part, -1) for part in range(len(program.vocabulary.parts))])
    moves = np.isin(program.kind[row], (SEND, COLLECTIVE)) & (stream != Stream.COMPUTE)
    axis = np.where(moves, axis_of[program.part[row]], -1)
    took = communication_time(timeline, Over(axis, len(axes)))
    sends = (axis >= 0) & ((program.kind[row] != SEND) | (program.rank[row] == rank))
    sent = np.zeros((program.ranks, len(axes)))
    np.add.at(sent, (rank[sends], axis[sends]), (program.up_bytes + program.out_bytes)[row[sends]])
    weight = program.class_size / program.class_size.sum()
    columns = (weight @ took.hidden * TICK, weight @ took.exposed * TICK, weight @ sent)
    figures = zip(*(column.tolist() for column in columns), strict=True)
    keys = ("hidden", "exposed", "bytes")
    return {
        name: dict(zip(keys, each, strict=True)) for name, each in zip(axes, figures, strict=True)
    }


class Price(NamedTuple):
    """Cost of communication: time [s], and what a rank sends on both kinds of links [B]."""

    seconds: float
    up: float
    out: float


class CommunicationPrices:
    """Prices of collectives and messages on a cluster, rank i on its accelerator i."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.model = cluster, CollectiveModel(cluster)

    def collective(self, name: str, size: float, groups: Sequence[Sequence[int]]) -> Price:
        """A collective of the whole tensor [B] in groups of one size."""
        shape = placed(self.cluster, np.array(groups))
        up, out = self.model.wire_bytes(name, size, shape)
        return Price(float(self.model.seconds(name, size, shape)), float(up), float(out))

    def messages(self, size: int, pairs: Sequence[Sequence[int]], *, ranks: int = 1) -> Price:
        """Messages of so many bytes, the mean over `ranks`, from first to second of each pair."""
        ends = np.array([pair for pair in pairs if len(pair) == 2 and pair[0] != pair[1]])
        if not len(ends):
            return Price(0.0, 0.0, 0.0)
        source, target = ends[:, 0], ends[:, 1]
        leaves = self.cluster.domain_of(source) != self.cluster.domain_of(target)
        crosses, share = bool(leaves.any()), float(leaves.mean())
        slower = message_slowdown(self.cluster, source, target) if crosses else None
        seconds = self.model.send(float(size), crosses=crosses, slowdown=slower)
        sent = size * len(ends) / ranks
        return Price(float(seconds), sent * (1.0 - share), sent * share)


def sized_cluster(name: str, devices: int) -> Cluster:
    """A system of the catalog with nodes for so many devices; FormatError if there is none."""
    if name not in system_names():
        raise FormatError(f"--cluster {name[:60]!r}: {nearest(name, system_names())}")
    each = system(name).node.accelerators
    return system(name, nodes=max(1, -(-devices // each)))
