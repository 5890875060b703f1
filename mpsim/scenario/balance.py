"""Layers of each pipeline stage that a scenario leaves to mpsim: balanced by work, where it can."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mpsim import structs
from mpsim.framework import StageSplit
from mpsim.memo import remembered
from mpsim.schedule import schedule
from mpsim.workload import Transformer, part_flops

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_TURNING: Final = 2  # chunks of a rank where a pipeline goes down and up again
_BISECTIONS: Final = 50  # of a limit of time: to 1e-15 of it
_ROUNDING: Final = 1e-12  # of all work: sums of floats that are equal may differ so much


@structs.dataclass(frozen=True, slots=True)
class Work:
    """Work of the places of a model, in the order a token passes them, in any unit."""

    layers: tuple[float, ...]  # of every layer
    # of the output head with its loss and further tokens; the embedding, a lookup, counts nothing
    head: float


def balanced_stages(scenario: Written) -> tuple[int, ...] | None:
    """The balanced split of a scenario that its framework can run; None where there is none."""
    pp, chunks = scenario.parallelism.pp, scenario.virtual_stages
    name = scenario.schedule.name
    turns = name is not None and chunks == _TURNING and not schedule(name).interleaves
    parts = scenario.stage_clusters
    precision = scenario.training_step.precision
    if parts and len(parts) != pp:  # which another check says
        parts = None
    return balanced_layers(
        work_of(scenario.transformer, scenario.training_step.sequence_length),
        tuple(
            2 * pp - 1 - stage if turns and stage >= pp else stage % pp
            for stage in range(pp * chunks)
        ),
        scenario.software.pipeline.stage_split,
        tuple(cluster.accelerator.peak(precision) for cluster in parts) if parts else (),
    )


@remembered(64)
def work_of(model: Transformer, sequence_length: int) -> Work:
    """Forward FLOPs a sequence of every place of a model; a backward has the same proportions."""
    layers, head = part_flops(model, 1, sequence_length)
    return Work(tuple(layers[kind] for kind in model.layer_kinds), head)


def stage_loads(work: Work, counts: Sequence[int]) -> list[float]:
    """Work of each stage that holds `counts` layers in model order."""
    loads, first = [], 0
    for count in counts:
        loads.append(math.fsum(work.layers[first : first + count]))
        first += count
    loads[-1] += work.head
    return loads


def stage_layers(scenario: Written) -> tuple[int, ...] | None:
    """Layers of each stage in model order, as given or balanced; None for an even division."""
    given = scenario.parallelism.layers_per_stage
    return balanced_stages(scenario) if given == "auto" else given


_RUNS: Final = {
    StageSplit.EVEN: "every stage as many layers",
    StageSplit.ENDS: "the first and the last rank alone numbers of their own",
    StageSplit.ACCOUNTED: "the first and the last rank alone numbers of their own, or a layer less",
}


def unruly_split(scenario: Written) -> list[str]:
    """Say where a list of layers is one that the framework has no option for."""
    given, pp = scenario.parallelism.layers_per_stage, scenario.parallelism.pp
    split = scenario.software.pipeline.stage_split
    if given is None or given == "auto" or split is StageSplit.ANY or len(set(given)) == 1:
        return []
    chunks = {tuple(given[place : place + pp]) for place in range(0, len(given), pp)}
    ends = len(chunks) == 1 and len(set(given[:pp][1:-1])) < 2
    middle = set(given[1:-1])
    accounted = len(middle) == 1 and {given[0], given[-1]} <= {*middle, max(middle) - 1}
    fits = {StageSplit.ENDS: ends, StageSplit.ACCOUNTED: ends or accounted}
    if fits.get(split):
        return []
    name = scenario.software.name
    text = f"{name} gives {_RUNS[split]}, and cannot run this list"
    return [f"parallelism.layers_per_stage: {text}"]


@remembered(4096)
def balanced_layers(
    work: Work, stage_rank: tuple[int, ...], split: StageSplit, speed: tuple[float, ...] = ()
) -> tuple[int, ...] | None:
    """Choose how many layers each stage holds, so that the slowest stage is as fast as it can be.

    `stage_rank`: pipeline rank of each stage, in model order. `split`: splits that the framework
    can run. `speed`: relative speed of each pipeline rank; alike when left out.

    Returns tuple of int or None: none where the framework can run no split. Among splits of the
    same slowest stage the one with least work on its fullest rank; early stages, which keep most
    microbatches in flight, get the fewer layers.

    Notes
    -----
    Layers that are alike are dealt one by one to the least loaded stage, which makes the maximum
    least; where kinds of layers differ, a bisection over the maximum does.
    """
    stages, layers = len(stage_rank), len(work.layers)
    pace = tuple(1.0 / (speed[rank] if speed else 1.0) for rank in stage_rank)
    if split is StageSplit.ANY:
        return _dealt(work, stage_rank, pace)
    choices = [] if layers % stages else [(layers // stages,) * stages]
    if split is StageSplit.ACCOUNTED:
        choices += _accounted(layers, stages)
    if split in (StageSplit.ACCOUNTED, StageSplit.ENDS):
        choices += _ends(layers, stage_rank)
    if not choices:
        return None
    return min(choices, key=lambda counts: _slowness(work, counts, stage_rank, pace))


def _slowness(
    work: Work, counts: Sequence[int], stage_rank: Sequence[int], pace: Sequence[float]
) -> tuple[float, ...]:
    """Time of the slowest stage, of the fullest rank, and layers by how early they are."""
    times = [load * each for load, each in zip(stage_loads(work, counts), pace, strict=True)]
    by_rank = _by_rank(stage_rank, times)
    early = sum(count * (len(counts) - stage) for stage, count in enumerate(counts))
    return (max(times), max(by_rank.values()), early)


def _by_rank(stage_rank: Sequence[int], times: Sequence[float]) -> dict[int, float]:
    """Time of every rank, of all its stages together."""
    by_rank = dict.fromkeys(stage_rank, 0.0)
    for rank, took in zip(stage_rank, times, strict=True):
        by_rank[rank] += took
    return by_rank


def _accounted(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Even divisions in which the embedding, the loss or both take the place of a layer."""
    for first, last in ((1, 0), (0, 1), (1, 1)):
        each, left = divmod(layers + first + last, stages)
        if not left and each >= 1 and stages > 1:
            yield (each - first, *(each,) * (stages - 2), each - last)


def _ends(layers: int, stage_rank: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Splits whose first and last ranks hold numbers of their own, chunks of a rank alike."""
    ranks = max(stage_rank) + 1
    chunks = len(stage_rank) // ranks
    if ranks < 2 or any(rank != stage % ranks for stage, rank in enumerate(stage_rank)):
        return
    for each in range(1, layers // (max(1, ranks - 2) * chunks) + 1):
        left, odd = divmod(layers - (ranks - 2) * chunks * each, chunks)
        if odd:
            continue
        # a rank's first chunk may be the embedding alone, its others may not be empty
        least = 1 if chunks > 1 else 0
        for first in range(max(least, left // 2 - 2), left // 2 + 3):
            if least <= left - first and (first > 0 or ranks > 1):
                by_rank = (first, *(each,) * (ranks - 2), left - first)
                yield by_rank * chunks
        if ranks == 2:
            return


def _dealt(work: Work, stage_rank: Sequence[int], pace: Sequence[float]) -> tuple[int, ...] | None:
    """Any split in which only the first and the last stage may be without layers."""
    stages, layers = len(stage_rank), len(work.layers)
    if stages == 1:
        return (layers,)
    if len(set(work.layers)) > 1:
        return _packed(work, pace)
    counts = [0, *(1,) * (stages - 2), 0]
    left = layers - sum(counts)
    if left < 0:
        return None
    mean = math.fsum(work.layers) / layers
    times = [mean * count * each for count, each in zip(counts, pace, strict=True)]
    times[-1] += work.head * pace[-1]
    by_rank = _by_rank(stage_rank, times)
    for _ in range(left):
        stage = min(
            range(stages),
            key=lambda s: (times[s] + mean * pace[s], by_rank[stage_rank[s]] + mean * pace[s], -s),
        )
        counts[stage] += 1
        times[stage] += mean * pace[stage]
        by_rank[stage_rank[stage]] += mean * pace[stage]
    return tuple(counts)


def _packed(work: Work, pace: Sequence[float]) -> tuple[int, ...] | None:
    """The split of the least slowest stage of unlike layers, late stages as full as can be.

    For a limit of time the numbers of layers that the first stages can hold together are all from a
    least to a most, since every stage takes one layer or as many more as fit; so bisection over the
    limit finds the least one that holds all layers.
    """
    sums = list(itertools.accumulate(work.layers, initial=0.0))
    low, high = 0.0, (sums[-1] + work.head) * max(pace)
    best = None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        counts = _within(work, sums, [middle / each for each in pace])
        if counts is None:
            low = middle
        else:
            best, high = counts, middle
    return best


def _within(work: Work, sums: Sequence[float], limits: Sequence[float]) -> tuple[int, ...] | None:
    """A split with stages within limits, filled from the last on; None if there is none."""
    last, left, counts = len(limits) - 1, len(work.layers), []
    for stage in range(last, -1, -1):
        least = 0 if stage in (0, last) else 1
        room = limits[stage] - (work.head if stage == last else 0.0)
        first = bisect.bisect_left(sums, sums[left] - room - _ROUNDING * sums[-1])
        held = min(left - first, left - max(0, stage - 1))  # stages in between need a layer each
        if room < -_ROUNDING or held < least:
            return None
        counts.append(held)
        left -= held
    return None if left else tuple(reversed(counts))
