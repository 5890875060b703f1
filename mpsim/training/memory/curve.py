"""Memory over time: what a rank holds from moment to moment of a simulated step.

Shapes: N actions of a rank, E moments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.timeline import Timeline
from mpsim.program import TICK, Stream
from mpsim.result.memory import Memory, MemoryCurve
from mpsim.training.memory.activations import held_by_rank, kept_by_stage
from mpsim.training.plan import Plan
from mpsim.training.vocabulary import PIPELINE

__all__ = ["memory_curve"]


def memory_curve(timeline: Timeline, plan: Plan, memory: Memory, rank: int) -> MemoryCurve:
    """Follow what a rank class holds.

    Parameters
    ----------
    timeline : Timeline
        Of the plan's program, expanded or not.
    plan : Plan
    memory : Memory
        Of the plan.
    rank : int
        Rank class: the pipeline rank, where replicas are alike.

    Returns
    -------
    MemoryCurve
        Its highest point is the total of `memory` for this rank.

    Notes
    -----
    While an action runs its fullest moment counts; between actions what it has left.
    """
    start, end = _actions(timeline, rank)
    part = plan.parts[rank // plan.layout.mesh.pp]
    held = held_by_rank(part, kept_by_stage(part))[rank % plan.layout.mesh.pp]
    most = float(held.most[held.fullest])
    standing = float(memory.total[rank]) - most
    time = np.concatenate([[0.0], np.stack([start, end], axis=1).ravel(), [timeline.makespan]])
    levels = np.stack([held.most, held.after], axis=1).ravel()
    last = levels[-1:] if len(levels) else np.zeros(1)
    return MemoryCurve(
        time_s=time * TICK,
        held=standing + np.concatenate([[0.0], levels, last]),
        standing=standing,
    )


def _actions(timeline: Timeline, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of every action of a rank, in order; an action may be several rows."""
    program = timeline.program
    rows = timeline.rows(rank, Stream.COMPUTE)
    rows = rows[np.isin(program.kind[rows], PIPELINE) & (program.microbatch[rows] >= 0)]
    key = np.stack([program.kind[rows], program.stage[rows], program.microbatch[rows]])
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(rows)) - 1
    return timeline.start[rows[first]], timeline.end[rows[last]]
