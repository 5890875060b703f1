"""The reference engine: a simpy simulation with exactly one event an operation.

Each operation counts what it still waits for. When the last of it ends, the operation starts, and one timeout marks its end; the
end of an operation is the only thing that ever happens. Simultaneous ends are handled in the order in which they were
scheduled, so equal inputs give equal outputs.
"""

from __future__ import annotations

import numpy as np
import simpy

from mpsim.engine.graph import deadlock, precedence, successors
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program

__all__ = ["run_simpy"]


def run_simpy(program: Program) -> Timeline:
    """Simulate `program`.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Timeline

    Raises
    ------
    DeadlockError
        If operations wait for each other.
    """
    waits = precedence(program)
    following = successors(waits)
    environment = simpy.Environment()
    waiting = np.diff(waits.ptr).tolist()
    duration = program.duration.tolist()
    pointer, after = following.ptr.tolist(), following.value.tolist()
    count = len(program)
    start, end = [0.0] * count, [-1.0] * count
    timeout = environment.timeout

    def finish(event: simpy.events.Event) -> None:
        row: int = event.value  # type: ignore[assignment] # what the timeout was given
        now = end[row] = environment.now
        for successor in after[pointer[row] : pointer[row + 1]]:
            left = waiting[successor]
            if left > 1:
                waiting[successor] = left - 1
            else:
                start[successor] = now
                timeout(duration[successor], successor).callbacks.append(finish)

    for row in [row for row, left in enumerate(waiting) if not left]:
        timeout(duration[row], row).callbacks.append(finish)
    environment.run()
    ended = np.asarray(end)
    if count and ended.min() < 0:
        raise deadlock(program, waits, ended >= 0)
    return Timeline(program=program, start=np.asarray(start), end=ended, engine="simpy")
