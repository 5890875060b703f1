"""Actions: what each rank did when, of measured and simulated steps, in the same words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.engine import Timeline
from mpsim.formats.recorded_step import timed_actions
from mpsim.measured.records import Actions, Measurement
from mpsim.program import TICK, Stream
from mpsim.result import Result
from mpsim.training.vocabulary import Kind

PARTS = ("forward", "backward", "gradients", "optimizer", "waiting")
"""Parts of a rank's step: actions by kind, gradients' reduction, and all between actions."""

_ACTION_WORDS = ("gradients", "optimizer")
_PART_OF = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


@structs.dataclass(frozen=True, slots=True)
class Slice:
    """One action of one rank."""

    rank: int  # of the pipeline for a simulated step, of the world for a measured one
    token: str  # ``3F0``, ``gradients`` or ``optimizer``
    start: float  # start, end: [s]
    end: float

    @property
    def part(self) -> str:
        """One of `PARTS`."""
        letter = next((token for token in self.token if token in _PART_OF), "")
        return self.token if self.token in PARTS else _PART_OF[letter]


def measured_slices(measurement: Measurement, sample: int) -> list[Slice]:
    """Actions of one sample of a measured step, by rank and start, from the first of them."""
    actions = measurement.actions
    if actions is None:
        return []
    rows = [i for i, step in enumerate(actions.step) if step == sample]
    zero = min((actions.start[i] for i in rows), default=0.0)
    pieces = [_slice(actions, i, zero) for i in rows]
    return sorted(pieces, key=lambda s: (s.rank, s.start))


def _slice(actions: Actions, i: int, zero: float) -> Slice:
    return Slice(actions.rank[i], actions.token[i], actions.start[i] - zero, actions.end[i] - zero)


def simulated_slices(result: Result) -> list[Slice]:
    """Actions of every rank class of a simulated step.

    Without a pipeline an action holds what it waits for where torch runs it: gathers, reductions.
    """
    timeline = result.timeline
    pipeline = result.plan.layout.mesh.pp > 1
    python = result.plan.layout.framework.host.step_overhead
    pieces: list[Slice] = []
    for rank in range(timeline.program.ranks):
        mine = list(_compute(timeline, rank))
        if not pipeline:
            mine = _closed(mine)
        else:
            mine += _reductions(timeline, rank, mine)
        pieces += sorted((_at_the_end(p, python) for p in mine), key=lambda piece: piece.start)
    return pieces


def _at_the_end(piece: Slice, python: float) -> Slice:
    """An action where it runs if serial time, first on the timeline, is the optimizer's."""
    end = piece.end if piece.token == "optimizer" else piece.end - python
    return structs.replace(piece, start=max(piece.start - python, 0.0), end=end)


def _compute(timeline: Timeline, rank: int) -> Iterator[Slice]:
    """Actions of a rank and its optimizer; rows of one together."""
    for token, times in timed_actions(timeline, rank).items():
        yield Slice(rank, token, *times)
    rows = timeline.rows(rank, Stream.COMPUTE)
    rows = rows[timeline.program.kind[rows] == Kind.OPTIMIZER]
    if len(rows):
        start, end = float(timeline.start[rows].min()), float(timeline.end[rows].max())
        yield Slice(rank, "optimizer", start * TICK, end * TICK)


def _closed(slices: Sequence[Slice]) -> list[Slice]:
    """Actions without gaps: a wait belongs to who waits, the last one to the backward."""
    closed: list[Slice] = []
    ordered = sorted(slices, key=lambda piece: piece.start)
    for piece in ordered:
        begin = closed[-1].end if closed else 0.0
        if piece.token == "optimizer" and closed:
            last = closed.pop()
            closed.append(structs.replace(last, end=piece.start))
            begin = piece.start
        closed.append(structs.replace(piece, start=begin))
    return closed


def _reductions(timeline: Timeline, rank: int, mine: Sequence[Slice]) -> Iterator[Slice]:
    """The time between the last backward and the optimizer in which gradients are summed."""
    rows = timeline.rows(rank, Stream.DP)
    last = max((piece.end for piece in mine if piece.part == "backward"), default=0.0)
    ends = [float(timeline.end[row]) * TICK for row in rows.tolist()]
    starts = [float(timeline.start[row]) * TICK for row in rows.tolist()]
    if ends and max(ends) > last:
        yield Slice(rank, "gradients", max(last, min(starts)), max(ends))


def parts_of(
    slices: Iterable[Slice], step_time: float | None, weights: Mapping[int, int] | None = None
) -> dict[str, float]:
    """Mean over ranks of the time in each part; they sum to the step [s].

    `step_time`: [s]; None for ranks that run on their own, each as long as its actions. `weights`:
    ranks that each rank stands for.
    """
    by_rank: dict[int, dict[str, float]] = {}
    span: dict[int, tuple[float, float]] = {}
    for piece in slices:
        mine = by_rank.setdefault(piece.rank, dict.fromkeys(PARTS, 0.0))
        mine[piece.part] += piece.end - piece.start
        first, last = span.get(piece.rank, (piece.start, piece.end))
        span[piece.rank] = min(first, piece.start), max(last, piece.end)
    if not by_rank:
        return {}
    for rank, mine in by_rank.items():
        whole = span[rank][1] - span[rank][0] if step_time is None else step_time
        mine["waiting"] = max(whole - math.fsum(mine.values()), 0.0)
    share = np.array([float((weights or {}).get(rank, 1)) for rank in by_rank])
    table = np.array([[mine[part] for part in PARTS] for mine in by_rank.values()])
    means = share @ table / share.sum()
    return dict(zip(PARTS, means.tolist(), strict=True))


def compare_orders(
    measurement: Measurement, result: Result, sample: int
) -> tuple[bool | None, str]:
    """Whether torch ran every rank's actions in the order of the plan, and where not."""
    pp = measurement.shape.get("pp", 1)
    if measurement.actions is None or pp == 1:
        return None, ""
    planned = result.plan.orders.tokens()
    each = len(measurement.group) // pp
    for rank, tokens in measurement.actions.orders(sample).items():
        ran = [token for token in tokens if token not in _ACTION_WORDS]
        wanted = planned[rank // each]
        for place, (a, b) in enumerate(zip(ran, wanted, strict=False)):
            if a != b:
                told = f"action {place + 1}: torch ran {a}, the schedule says {b}"
                return False, f"rank {rank}, {told}"
        if len(ran) != len(wanted):
            told = f"torch ran {len(ran)} actions, the schedule has {len(wanted)}"
            return False, f"rank {rank}: {told}"
    return True, ""
