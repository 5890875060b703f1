"""The replay engine: the same Program as max-plus algebra, for programs whose durations cannot change while they run."""

from __future__ import annotations

import numpy as np

from mpsim.engine.graph import deadlock, precedence
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program

__all__ = ["run_replay"]


def run_replay(program: Program) -> Timeline:
    """Evaluate `program` in topological order: an operation starts at the latest end of what it waits for.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Timeline
        Equal, bit for bit, to that of the simpy engine.

    Raises
    ------
    DeadlockError
        If operations wait for each other.
    """
    graph = precedence(program)
    waiting = np.diff(graph.before_ptr).tolist()
    duration = program.duration.tolist()
    pointer, after = graph.after_ptr.tolist(), graph.after.tolist()
    count = len(program)
    start, end = [0.0] * count, [-1.0] * count
    ready = [row for row, left in enumerate(waiting) if not left]
    for row in ready:  # grows while it is walked
        finish = end[row] = start[row] + duration[row]
        for successor in after[pointer[row] : pointer[row + 1]]:
            start[successor] = max(start[successor], finish)
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
    ended = np.asarray(end)
    if len(ready) < count:
        raise deadlock(program, graph, ended >= 0)
    return Timeline(program=program, start=np.asarray(start), end=ended, engine="replay")
