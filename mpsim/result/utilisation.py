"""Utilisation: how busy compute and each class of link is, over the step and over time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import KERNELS, Load
from mpsim.engine.timeline import Timeline
from mpsim.hardware import Cluster
from mpsim.program import SEND, TICK, Program
from mpsim.result.communication import kernel_share
from mpsim.result.intervals import busy_ticks
from mpsim.table import Section, Sheet, Shown
from mpsim.units import percent


@structs.dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Shares over time, averaged over ranks."""

    edges_s: Floats  # float64[bins + 1], bin edges [s]
    # mapping of str to float64[bins], of ``compute``, ``scale_up`` and ``scale_out`` in [0, 1]
    shares: Mapping[str, Floats]


@structs.dataclass(frozen=True, eq=False, repr=False)
class Utilisation(Shown):
    """Share of the step in which each resource of a rank works, by rank class [R]."""

    compute: Floats  # float64[R], time with a kernel on the compute stream
    # scale_up, scale_out: float64[R], bytes sent over what the link could have sent one way
    scale_up: Floats
    scale_out: Floats
    timeline: Timeline
    # mapping of str to float64[R], of each class of link, in one direction [B/tick]
    speeds: Mapping[str, Floats]
    bins: int = 200  # of the series

    def sheet(self) -> Sheet:
        """Shares of the step, a line a rank class."""
        names = self.timeline.program.rank_name
        columns = (self.compute, self.scale_up, self.scale_out)
        rows = tuple(
            (name, *map(percent, map(float, line)))
            for name, line in zip(names, zip(*columns, strict=True), strict=True)
        )
        return Sheet("", (Section(rows, ("rank", "compute", "scale-up", "scale-out"), (1, 2, 3)),))

    @functools.cached_property
    def series(self) -> Series:
        """Shares over time."""
        timeline, amounts = self.timeline, _amounts(self.timeline)
        edges = np.linspace(0.0, timeline.makespan, self.bins + 1)
        shares = {"compute": _series(timeline, _busy_of_rows(timeline), edges, 1.0)}
        shares |= {
            name: _series(timeline, amounts[name], edges, _mean(speed))
            for name, speed in self.speeds.items()
        }
        return Series(edges_s=edges * TICK, shares=shares)

    @functools.cached_property
    def kernels(self) -> Floats:
        """Share of each bin of the series in which kernels run, by rank class [R, bins]."""
        edges = np.linspace(0.0, self.timeline.makespan, self.bins + 1)
        return kernel_share(self.timeline, edges)


def measure_utilisation(
    timeline: Timeline, clusters: Sequence[Cluster], used: Floats
) -> Utilisation:
    """Measure a finished step. `clusters`: of each rank class. `used`: as `used_of` says it."""
    step, nodes = timeline.makespan, [cluster.node for cluster in clusters]
    speeds = {
        "scale_up": np.array([node.scale_up.bandwidth for node in nodes]) * TICK,
        "scale_out": np.array([node.nic_bandwidth_per_accelerator for node in nodes]) * TICK,
    }
    sent = zip(used.T[1:], speeds.values(), strict=True)
    up, out = (_share(amount, speed * step) for amount, speed in sent)
    return Utilisation(used.T[0] / step, up, out, timeline, speeds)


def kernel_seconds(program: Program) -> Floats:
    """Time alone of kernels by load [R, K]; rows without template, as the optimizer, stream [s]."""
    nothing = (0.0,) * len(KERNELS)
    # the last line is of rows without a template, whose number is -1
    inside = np.array([*(t.load_seconds or nothing for t in program.templates), nothing])
    vocabulary = program.vocabulary
    computing = np.isin(np.arange(len(vocabulary.parts)), vocabulary.computing_parts)[program.part]
    computing &= program.kind != SEND
    plain = np.where(computing & (program.template < 0), program.duration * TICK, 0.0)
    columns = [
        column[program.template] + (plain if load is Load.STREAMS else 0.0)
        for load, column in zip(KERNELS, inside.T, strict=True)
    ]
    times = program.times_of()
    # sums by bincount: ten times as fast as numpy.add.at, in the same order
    sums = [np.bincount(program.rank, times * each, program.ranks) for each in columns]
    return np.stack(sums, axis=1)


def _amounts(timeline: Timeline) -> Mapping[str, Floats]:
    """Bytes of each row by class of link."""
    return {"scale_up": timeline.program.up_bytes, "scale_out": timeline.program.out_bytes}


def _mean(speed: Floats) -> float:
    """Mean over rank classes; of equal ones exactly what each has."""
    return float(speed[0] if (speed == speed[0]).all() else speed.mean())


def _share(amount: Floats, could: Floats) -> Floats:
    return np.divide(amount, could, out=np.zeros_like(amount), where=could > 0)


def used_of(timeline: Timeline) -> Floats:
    """Ticks of kernels on each rank, and bytes that it sends by class of link [R, 3]."""
    program, amounts = timeline.program, _amounts(timeline)
    row, rank, _ = program.slots
    counts = (program.kind[row] != SEND) | (rank == program.rank[row])
    row, rank = row[counts], rank[counts]
    times = program.times_of(row)
    sent = [np.bincount(rank, amount[row] * times, program.ranks) for amount in amounts.values()]
    return np.stack([busy_ticks(timeline), *sent], axis=1)


def _busy_of_rows(timeline: Timeline) -> Floats:
    """Ticks of computing inside each row."""
    program = timeline.program
    computing = program.vocabulary.computing_parts
    computes = np.isin(program.part, computing) & (program.kind != SEND)
    busy = np.where(computes, program.duration, 0.0)
    if program.templates:
        inside = np.array([template.parts[computing].sum() for template in program.templates])
        busy = np.where(program.template >= 0, inside[np.maximum(program.template, 0)], busy)
    return busy


def _series(timeline: Timeline, amount: Floats, edges: Floats, speed: float) -> Floats:
    """Spread rows' amounts evenly over their durations, in bins, as a share of the possible."""
    chosen = (amount > 0) & (timeline.end > timeline.start)
    start, end = timeline.start[chosen], timeline.end[chosen]
    rate = amount[chosen] / (end - start)
    done = _ramps(start, rate, edges) - _ramps(end, rate, edges)
    could = np.diff(edges) * speed * timeline.program.ranks
    return np.divide(np.diff(done), could, out=np.zeros(len(edges) - 1), where=could > 0)


def _ramps(since: Floats, rate: Floats, time: Floats) -> Floats:
    """Sum of ``rate * (t - since)`` over all that began before t."""
    order = np.argsort(since, kind="stable")  # rows come in runs of ascending times
    begun, speed = since[order], rate[order]
    index = np.searchsorted(begun, time)
    rates = np.concatenate([[0.0], np.cumsum(speed)])
    moments = np.concatenate([[0.0], np.cumsum(speed * begun)])
    result: Floats = time * rates[index] - moments[index]
    return result
