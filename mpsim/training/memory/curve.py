"""Memory over time: what a rank holds from moment to moment of a simulated step.

Shapes: N actions of a rank, E moments.
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Floats
from mpsim.engine.timeline import Timeline
from mpsim.program import TICK
from mpsim.result.memory import Memory, MemoryCurve
from mpsim.schedule import Action
from mpsim.training.memory.activations import held_by_rank
from mpsim.training.plan import Plan


def memory_curve(timeline: Timeline, plan: Plan, memory: Memory, rank: int) -> MemoryCurve:
    """Follow what a rank class holds. `timeline`: of the plan's program, expanded or not. `rank`:
    rank class: the pipeline rank, where replicas are alike.

    Returns MemoryCurve: its highest point is the total of `memory` for this rank.

    Notes
    -----
    While an action runs its fullest moment counts; between actions what it has left. Logits are
    those of the action that runs, or of the forward that ran last: those that wait longer for their
    backward are activations like the rest, as in `mpsim.training.memory.account`.
    """
    start, end = action_times(timeline, rank)
    start, end = np.append(start, end[-1:]), np.append(end, timeline.makespan)  # and the optimizer
    part = plan.parts[rank // plan.layout.mesh.pp]
    number = rank % plan.layout.mesh.pp
    held = held_by_rank(part)[number]
    standing = float(memory.total[rank]) - float(held.most[held.fullest])
    time = np.concatenate([[0.0], np.stack([start, end], axis=1).ravel(), [timeline.makespan]])
    kinds = part.orders.kind[part.orders.rank_ptr[number] : part.orders.rank_ptr[number + 1]]
    logits = np.where(np.append(kinds, Action.B) == Action.F, held.logits, 0.0)
    moments = _over_time(held.most, held.after)
    own = {
        "gradients": _over_time(held.collected, np.zeros_like(held.collected)),
        "logits": _over_time(held.logits, logits),
        "buffers": _over_time(held.passing, np.zeros_like(held.passing)),
    }
    own["activations"] = moments - sum(own.values())
    whole, *parts, _, _ = held.at_fullest
    most = dict(zip(("logits", "gradients", "buffers"), parts, strict=True))
    most["activations"] = whole - sum(most.values())
    components = {
        name: float(sizes[rank]) - most.get(name, 0.0) + own.get(name, np.zeros(len(time)))
        for name, sizes in memory.components.items()
    }
    return MemoryCurve(
        time_s=time * TICK, held=standing + moments, standing=standing, components=components
    )


def _over_time(during: Floats, after: Floats) -> Floats:
    """Levels from the step's start: nothing, each action and what follows, the last again."""
    levels = np.stack([during, after], axis=1).ravel()
    last = levels[-1:] if len(levels) else np.zeros(1)
    return np.concatenate([[0.0], levels, last])


def action_times(timeline: Timeline, rank: int) -> tuple[Floats, Floats]:
    """Start and end of every action of a rank, in order; an action may be several rows."""
    first, last = timeline.program.actions
    mine = timeline.program.rank[last] == rank
    return timeline.start[first[mine]], timeline.end[last[mine]]
